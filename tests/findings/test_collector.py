"""Collection of findings: counted and merged by kind and witness, the surest engine first."""

from __future__ import annotations

from typing import Any

import pytest

from pallas_debug.findings.collector import Collector, key, merged
from pallas_debug.findings.faults import Fault, Severity, named
from pallas_debug.model import Finding, SourceLine, Witness

WITNESS = ("grid_point", "operand", "source", "other", "index", "shape", "values")


def finding(kind: str, engine: str, line: int | None = 3, **fields: Any) -> Finding:
    witness = {name: fields.pop(name) for name in WITNESS if name in fields}
    source = None if line is None else SourceLine(file="rows.py", line=line)
    given = {
        "kind": Fault(kind),
        "kernel": "rows",
        "message": f"{kind} by {engine}",
        "engines": (engine,),
        "witness": Witness(**{"source": source, **witness}),
    }
    return Finding(**{**given, **fields})


@pytest.mark.parametrize("other", [{"line": 4}, {"operand": "y_ref"}, {"kernel": "columns"}])
def test_one_kind_line_and_operand_is_one_fault(other: dict[str, Any]) -> None:
    first = finding("OutOfBoundsRead", "checks", operand="x_ref")
    again = finding("OutOfBoundsRead", "checks", operand="x_ref", index="x_ref[9]", message="m")
    assert key(first) == key(again)
    assert key(first) != key(finding("OutOfBoundsRead", "checks", **{"operand": "x_ref", **other}))
    assert key(first) != key(finding("OutOfBoundsWrite", "checks", operand="x_ref"))


def test_counts_grow_from_run_to_run_and_not_within_one() -> None:
    collector = Collector()
    one, more = finding("FalseHint", "checks"), finding("FalseHint", "checks", count=3)
    assert collector.add(one, more, one) == [finding("FalseHint", "checks", count=3)]
    assert collector.add(one) == []
    (found,) = collector.findings
    assert (found.count, found.message) == (4, one.message)
    collector.clear()
    assert collector.findings == ()
    assert collector.add(one) == [one]


def test_one_fault_is_reported_once_by_who_saw_it_happen() -> None:
    (found,) = merged(
        [
            finding("BlockOutOfBounds", "static", operand="x_ref"),
            finding("BlockOutOfBounds", "checks", grid_point=(3,)),
        ]
    )
    assert found.message == "BlockOutOfBounds by checks"
    assert found.engines == ("checks", "static")
    assert (found.grid_point, found.operand) == ((3,), "x_ref")


READ = finding("OutOfBoundsRead", "checks", operand="x_ref")


@pytest.mark.parametrize(
    "other, count",
    [
        (finding("OutOfBoundsRead", "machine", operand="x_ref"), 1),
        (finding("OutOfBoundsRead", "machine", 4, operand="x_ref"), 2),
        (finding("OutOfBoundsRead", "machine", 4, operand="y_ref"), 2),
        (finding("OutOfBoundsRead", "checks", 4, operand="x_ref"), 2),
        (finding("OutOfBoundsRead", "checks", operand="x_ref", kernel="columns"), 2),
        # A wrong index map may share its line with a dtype that the compiler refuses.
        (finding("UnsupportedDtype", "compile", operand="x_ref"), 2),
        (finding("StoreDtype", "trace"), 2),
    ],
)
def test_accesses_of_other_lines_kinds_and_kernels_are_other_faults(
    other: Finding, count: int
) -> None:
    assert len(merged([READ, other])) == count


def test_a_copy_that_races_and_one_that_is_sent_too_early_are_two_faults_of_a_line() -> None:
    other = SourceLine(file="rows.py", line=9)
    races = finding("DataRace", "machine", operand="o_ref", count=4, other=other)
    early = finding("DataRace", "machine", operand="o_ref", count=12)
    collected = Collector([races, early]).findings
    assert [(f.other, f.count) for f in merged(collected)] == [(other, 4), (None, 12)]


def test_a_finding_without_a_line_joins_one_that_has_it() -> None:
    (found,) = merged([finding("VmemOverflow", "compile", None), finding("VmemOverflow", "static")])
    assert found.source.line == 3


def test_what_the_compiler_refuses_is_what_the_static_analysis_saw() -> None:
    static = finding("X64IndexMap", "static", 9)
    (found,) = merged([finding("X64IndexMap", "compile", 2), static])
    assert (found.source, found.engines) == (static.source, ("static", "compile"))


def test_of_several_of_one_class_the_compiler_means_that_of_its_line() -> None:
    here, there = (
        finding("UnsupportedDtype", "static", line, operand=f"x{line}") for line in (5, 9)
    )
    found = merged([here, there, finding("UnsupportedDtype", "compile", 9)])
    assert [f.engines for f in found] == [("static", "compile"), ("static",)]
    assert found[0].source == there.source


def test_an_unclassified_failure_follows_from_what_the_static_analysis_saw_at_its_line() -> None:
    static = finding("UnsupportedCast", "static", 9)
    error = finding("LoweringError", "compile", 9, targets=("v5e",))
    (found,) = merged([error, static])
    assert (found.kind, found.message, found.targets) == (static.kind, static.message, ("v5e",))
    assert found.consequences == (error,)
    assert len(merged([finding("LoweringError", "compile", 8), static])) == 2
    assert len(merged([error, finding("NanProduced", "static", 9)])) == 2


def test_targets_of_one_refusal_are_joined() -> None:
    (found,) = merged(
        [
            finding("UnprovenAlignment", "compile", targets=("v5e",)),
            finding("UnprovenAlignment", "compile", targets=("v6e",)),
        ]
    )
    assert found.targets == ("v5e", "v6e")


def test_the_worst_comes_first() -> None:
    found = merged(
        [
            finding("FalseHint", "checks"),
            finding("UninitializedRead", "checks"),
            finding("DataRace", "checks"),
            finding("OutOfBoundsRead", "checks"),
            finding("Deadlock", "checks"),
            finding("CompileError", "compile"),
        ]
    )
    assert [f.kind for f in found] == [
        "CompileError",
        "Deadlock",
        "OutOfBoundsRead",
        "DataRace",
        "UninitializedRead",
        "FalseHint",
    ]


def test_the_first_line_of_a_kernel_is_no_line_where_another_engine_knows_one() -> None:
    check = finding("OutputNotWritten", "machine", 1, operand="o_ref")
    static = finding("OutputNotWritten", "static", 9, operand="o_ref")
    starts = [None, SourceLine(file="rows.py", line=1)]
    (found,) = merged([check, static], starts)
    assert (found.source, found.message) == (static.source, "OutputNotWritten by static")
    assert merged([check], starts) == (check,)


def test_a_compiler_that_dies_died_of_what_it_was_to_refuse() -> None:
    deaths = [
        finding(
            "CompilerAbort",
            "compile",
            None,
            message=f"the compiler's process died of SIGABRT while it compiled rows {target}\nmore",
            targets=(target,),
        )
        for target in ("v5e", "v6e")
    ]
    cast = finding("UnsupportedShapeCast", "static", 9, message="becomes a column")
    (found,) = merged([*deaths, cast])
    assert (found.kind, found.source) == (cast.kind, cast.source)
    assert found.engines == ("static", "compile")
    assert found.message == "becomes a column"
    (death,) = found.consequences
    assert (death.message, death.targets) == (deaths[0].message, ("v5e", "v6e"))
    assert found.targets == ("v5e", "v6e")
    assert len(merged([deaths[0], finding("OutOfBoundsRead", "static", 9)])) == 2


def test_no_fault_has_two_names() -> None:
    assert len({str(fault) for fault in Fault}) == len(Fault.__members__)
    assert all(named(str(fault)) is fault for fault in Fault)
    assert named("Curious") is None
    with pytest.raises(ValueError, match="Curious"):
        Fault("Curious")


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_has_a_severity_an_engine_and_a_summary(fault: Fault) -> None:
    assert fault.isalnum()
    assert fault[0].isupper()
    assert isinstance(fault.severity, Severity)
    assert fault.engines
    assert fault.summary
    assert not fault.summary.endswith(".")


def test_results_that_differ_come_after_what_may_have_changed_them() -> None:
    wrong = finding("ValueMismatch", "reference", 9, advice="compare the scales")
    late, lossy = finding("OverwrittenRead", "machine"), finding("CheckFailed", "machine", None)
    *causes, last = merged([wrong, lossy, late])
    assert [cause.kind for cause in causes] == ["OverwrittenRead", "CheckFailed"]
    assert last == wrong
    elsewhere = finding("OverwrittenRead", "machine", kernel="columns")
    assert merged([wrong, elsewhere]) == (elsewhere, wrong)

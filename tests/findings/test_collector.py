"""Collection of findings: counted and merged by kind and witness, the surest engine first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pallas_debug.findings.collector import Collector, key, merged
from pallas_debug.findings.faults import FORMER, NO_KERNEL, Fault, Severity, named
from pallas_debug.findings.wording import bounds
from pallas_debug.findings.wording.order import PIPELINE, WRITES_BACK
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


@pytest.mark.parametrize("source", ["o_ref", "x_ref"])
def test_unwritten_memory_that_was_copied_follows_from_the_copy(source: str) -> None:
    kind = "UninitializedRead"
    copied = finding(kind, "machine", operand="o_ref", line=3, grid_point=(0,))
    read = finding(
        kind, "checks", operand="tile_ref", line=5, grid_point=(0,),
        values={"copied from": source}, comes_of=(Fault.UNINITIALIZED_READ,),
    )  # fmt: skip
    found = merged([read, copied])
    assert [f.operand for f in found] == ["o_ref", *(["tile_ref"] if source == "x_ref" else [])]
    assert [f.operand for f in found[0].consequences] == (["tile_ref"] if source == "o_ref" else [])


@pytest.mark.parametrize("sources", [("comm_ref",), ("b_ref", "a_ref")])
def test_unwritten_memory_that_is_copied_in_a_circle_is_told_from_one_place(
    sources: tuple[str, ...],
) -> None:
    # From one slot of a buffer to another on the next device; and between two buffers.
    operands = sources[::-1]
    reads = [
        finding(
            "UninitializedRead", "checks", operand=operand, line=line, grid_point=(0,),
            values={"copied from": source}, comes_of=(Fault.UNINITIALIZED_READ,),
        )
        for line, (operand, source) in enumerate(zip(operands, sources, strict=True))
    ]  # fmt: skip
    (found,) = merged(reads)
    assert len(found.consequences) == len(sources) - 1


def test_one_fault_is_reported_once_by_who_saw_it_happen() -> None:
    (found,) = merged(
        [
            finding("BlockOutOfBounds", "static", operand="x_ref", advice="return less"),
            finding("BlockOutOfBounds", "checks", grid_point=(3,)),
        ]
    )
    assert found.message == "BlockOutOfBounds by checks"
    assert found.engines == ("checks", "static")
    assert (found.grid_point, found.operand, found.advice) == ((3,), "x_ref", "return less")


def test_other_lines_are_other_faults_unless_the_operand_is_the_same() -> None:
    a = finding("OutOfBoundsRead", "checks", 3, operand="x_ref")
    b = finding("OutOfBoundsRead", "machine", 4, operand="y_ref")
    assert len(merged([a, b])) == 2
    c = finding("OutOfBoundsRead", "machine", 4, operand="x_ref")
    assert len(merged([a, c])) == 1


def test_a_run_ends_at_the_first_of_two_accesses_that_other_engines_report() -> None:
    """The second one is not the first, although no run of the machine reached it."""
    machine = finding("OutOfBoundsRead", "machine", operand="k_ref")
    checks, static = (
        [finding("OutOfBoundsRead", engine, line=n, operand="k_ref") for n in (2, 3)]
        for engine in ("checks", "static")
    )
    found = merged([machine, *checks, *static])
    assert [(f.witness.source and f.witness.source.line, f.engines) for f in found] == [
        (3, ("machine", "checks", "static")),
        (2, ("checks", "static")),
    ]


def test_another_place_is_mentioned_once() -> None:
    first = finding("OutOfBoundsRead", "checks", 3, operand="k_ref", index="k_ref[4]")
    other = finding("OutOfBoundsRead", "static", 4, operand="v_ref", index="v_ref[4]")
    once = bounds.with_other_reads(first, [other])
    assert once.message == "OutOfBoundsRead by checks; likewise v_ref[4] in line 4"
    assert bounds.with_other_reads(once, [other]) == once


def test_one_engine_means_what_it_says_twice() -> None:
    a = finding("OutOfBoundsRead", "checks", 3, operand="x_ref")
    b = finding("OutOfBoundsRead", "checks", 4, operand="x_ref")
    assert merged([a, b]) == (a, b)


def test_a_copy_that_races_and_one_that_is_sent_too_early_are_two_faults_of_a_line() -> None:
    other = SourceLine(file="rows.py", line=9)
    races = finding("DataRace", "machine", operand="o_ref", count=4, other=other)
    early = finding("DataRace", "machine", operand="o_ref", count=12)
    collected = Collector([races, early]).findings
    assert [(f.other, f.count) for f in merged(collected)] == [(other, 4), (None, 12)]


def test_other_kernels_have_faults_of_their_own() -> None:
    a = finding("OutOfBoundsRead", "checks")
    b = finding("OutOfBoundsRead", "checks", kernel="columns")
    assert len(merged([a, b])) == 2


def test_a_finding_without_a_line_joins_one_that_has_it() -> None:
    (found,) = merged([finding("VmemOverflow", "compile", None), finding("VmemOverflow", "static")])
    assert found.source is not None
    assert found.source.line == 3


def test_what_the_compiler_refuses_is_what_the_static_analysis_saw() -> None:
    static = finding("X64IndexMap", "static", 9)
    (found,) = merged([finding("X64IndexMap", "compile", 2), static])
    assert (found.source, found.engines) == (static.source, ("static", "compile"))


def test_different_classes_on_one_line_are_different_faults() -> None:
    """A wrong index map may share its line with a dtype that the compiler refuses."""
    index_map = finding("X64IndexMap", "static", 9)
    dtype = finding("UnsupportedDtype", "compile", 9)
    assert {f.kind for f in merged([dtype, index_map])} == {dtype.kind, index_map.kind}
    traced = finding("StoreDtype", "trace", 9)
    assert {f.kind for f in merged([traced, index_map])} == {traced.kind, index_map.kind}
    assert all(f.engines in (dtype.engines, index_map.engines) for f in merged([dtype, index_map]))


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


def test_what_one_engine_has_as_a_consequence_another_does_not_report_again() -> None:
    unawaited = finding("DmaNotAwaited", "machine", 8, operand="sem")
    race = finding("DataRace", "machine", 9, consequences=(unawaited,))
    static = finding("DmaNotAwaited", "static", 8, operand="buffer")
    (found,) = merged([race, static])
    assert (found.kind, found.engines) == (race.kind, ("machine",))
    assert [c.engines for c in found.consequences] == [("machine", "static")]
    assert len(merged([race, replace(static, kernel="columns")])) == 2
    assert merged([race]) == (race,)


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
            finding("InterpretError", "tpu interpret"),
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
        "InterpretError",
    ]


def test_a_run_has_one_deadlock_whichever_wait_an_engine_names() -> None:
    interpreted = finding("Deadlock", "checks", 9, operand="ready")
    machine = finding("Deadlock", "machine", 7, operand="recv")
    (found,) = merged([interpreted, machine])
    assert (found.operand, found.engines) == ("recv", ("machine", "checks"))


def test_the_first_line_of_a_kernel_is_no_line_where_another_engine_knows_one() -> None:
    check = finding("OutputNotWritten", "checks", 1, operand="o_ref")
    static = finding("OutputNotWritten", "static", 9, operand="o_ref")
    starts = [None, SourceLine(file="rows.py", line=1)]
    (found,) = merged([check, static], starts)
    assert (found.source, found.message) == (static.source, "OutputNotWritten by checks")
    (found,) = merged([check, static])
    assert found.source == check.source
    assert merged([check], starts) == (check,)


def test_an_output_that_is_read_before_it_was_set_is_one_fault() -> None:
    read = finding("UninitializedRead", "checks", operand="o_ref")
    unset = finding("UninitializedRead", "static", operand="o_ref")
    (found,) = merged([unset, read])
    assert (found.kind, found.engines) == ("UninitializedRead", ("checks", "static"))
    never = finding("OutputNotWritten", "static", 8, operand="o_ref")
    assert len(merged([never, finding("UninitializedRead", "checks", 8, operand="o_ref")])) == 2
    assert len(merged([unset, finding("UninitializedRead", "checks", operand="acc_ref")])) == 2


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


def test_what_jax_stumbles_over_is_what_the_static_analysis_saw_at_that_line() -> None:
    removed = finding("RemovedName", "static", 9, kernel=NO_KERNEL)
    (found,) = merged([finding("TraceError", "trace", 9), removed])
    assert (found.kind, found.engines) == ("RemovedName", ("static", "trace"))
    assert len(merged([finding("TraceError", "trace", 8), removed])) == 2


def test_no_fault_has_two_names() -> None:
    assert len({str(fault) for fault in Fault}) == len(Fault.__members__)
    assert not set(FORMER) & {str(fault) for fault in Fault}
    assert all(named(name) is Fault(name) is fault for name, fault in FORMER.items())
    assert named("Curious") is None
    with pytest.raises(ValueError, match="Curious"):
        Fault("Curious")


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_has_a_severity_an_engine_and_a_summary(fault: Fault) -> None:
    assert fault.isalnum()
    assert fault[0].isupper()
    assert isinstance(fault.severity, Severity)
    assert fault.judges
    assert fault.summary
    assert not fault.summary.endswith(".")


def test_a_race_is_one_fault_whichever_side_an_engine_names_first() -> None:
    here, there = (SourceLine(file="rows.py", line=line) for line in (5, 7))
    static = finding("DataRace", "static", 5, operand="tile_ref")
    static = replace(static, witness=replace(static.witness, other=there))
    seen = finding("DataRace", "checks", 7, operand="args[2]")
    seen = replace(seen, witness=replace(seen.witness, other=here))
    (found,) = merged([seen, static])
    assert found.engines == ("static", "checks")
    elsewhere = replace(seen, witness=replace(seen.witness, other=None))
    assert len(merged([elsewhere, static])) == 2


def test_a_copy_is_one_fault_by_its_semaphore_and_by_its_destination() -> None:
    static = finding("DmaNotAwaited", "static", operand="sem")
    assert len(merged([finding("DmaNotAwaited", "checks", operand="out_ref"), static])) == 1


@pytest.mark.parametrize("semaphore, count", [("sem[0]", 1), ("sem[1]", 2)])
def test_a_semaphore_that_stays_raised_is_one_fault_whichever_start_an_engine_names(
    semaphore: str, count: int
) -> None:
    seen = finding("DmaNotAwaited", "machine", operand="buf", values={"semaphore": "sem[0]"})
    known = finding("DmaNotAwaited", "static", 5, operand="sem", values={"semaphore": semaphore})
    assert len(merged([known, seen])) == count


@pytest.mark.parametrize("operand, count", [("o_ref", 1), ("other_ref", 2)])
def test_what_a_copy_in_flight_is_to_write_follows_from_its_race(operand: str, count: int) -> None:
    race = finding("DataRace", "machine", operand="o_ref", values={PIPELINE: WRITES_BACK})
    left = finding("OutputNotWritten", "machine", operand=operand)
    assert len(merged([left, race])) == count
    assert len(merged([left, replace(race, witness=replace(race.witness, values={}))])) == 2


def test_a_nan_follows_from_a_fault_of_memory_from_its_grid_point_on() -> None:
    read = finding("OutOfBoundsRead", "checks", grid_point=(1,))
    nan = finding("NanProduced", "checks", 8, grid_point=(1,))
    assert [f.consequences for f in merged([nan, read])] == [(nan,)]
    before = finding("NanProduced", "checks", 8, grid_point=(0,))
    assert len(merged([before, read])) == 2
    unwritten = finding("OutputNotWritten", "checks", grid_point=(0,))
    assert len(merged([nan, unwritten])) == 2


def test_results_that_differ_come_after_what_may_have_changed_them() -> None:
    wrong = finding("ValueMismatch", "reference", 9, advice="compare the scales")
    late, lossy = finding("OverwrittenRead", "machine"), finding("NarrowingLoss", "machine", None)
    *causes, last = merged([wrong, lossy, late])
    assert [cause.kind for cause in causes] == ["OverwrittenRead", "NarrowingLoss"]
    assert last.advice == (
        "first fix the OverwrittenRead at line 3, which can change these values, and compare again"
    )
    (_, last) = merged([wrong, lossy])
    assert last.advice is not None
    assert last.advice.startswith("first fix the NarrowingLoss, which")
    elsewhere = finding("OverwrittenRead", "machine", kernel="columns")
    assert merged([wrong, elsewhere]) == (elsewhere, wrong)

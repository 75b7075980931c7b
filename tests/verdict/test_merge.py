"""What several engines saw is said once, by who saw it happen, the worst first."""

from __future__ import annotations

from pallas_debug.model import Finding, SourceLine
from pallas_debug.verdict.merge import SAME, family, merged


def finding(kind: str, engine: str, line: int | None = 3, **fields: object) -> Finding:
    given = {
        "kind": kind,
        "kernel": "rows",
        "message": f"{kind} by {engine}",
        "engine": engine,
        "source": None if line is None else SourceLine(file="rows.py", line=line),
    }
    return Finding(**{**given, **fields})  # type: ignore[arg-type]


def test_one_fault_by_other_names_is_said_once_by_who_saw_it_happen() -> None:
    (found,) = merged(
        [
            finding("BlockIndexOutOfBounds", "static", operand="x_ref", advice="return less"),
            finding("BlockOutOfBounds", "checks", grid_point=(3,)),
        ]
    )
    assert found.message == "BlockOutOfBounds by checks"
    assert found.engine == "checks, static"
    assert (found.grid_point, found.operand, found.advice) == ((3,), "x_ref", "return less")


def test_other_lines_are_other_faults_unless_the_operand_is_the_same() -> None:
    a = finding("OutOfBoundsRead", "checks", 3, operand="x_ref")
    b = finding("OutOfBoundsRead", "tpu interpret", 4, operand="y_ref")
    assert len(merged([a, b])) == 2
    c = finding("OutOfBoundsRead", "tpu interpret", 4, operand="x_ref")
    assert len(merged([a, c])) == 1


def test_one_engine_means_what_it_says_twice() -> None:
    a = finding("OutOfBoundsRead", "checks", 3, operand="x_ref")
    b = finding("OutOfBoundsRead", "checks", 4, operand="x_ref")
    assert merged([a, b]) == (a, b)


def test_other_kernels_have_faults_of_their_own() -> None:
    a = finding("OutOfBoundsRead", "checks")
    b = finding("OutOfBoundsRead", "tpu interpret", kernel="columns")
    assert len(merged([a, b])) == 2


def test_a_finding_without_a_line_joins_one_that_has_it() -> None:
    (found,) = merged([finding("VmemOverflow", "compile", None), finding("VmemCapacity", "static")])
    assert found.source is not None
    assert found.source.line == 3


def test_what_the_compiler_refuses_is_what_the_static_analysis_saw() -> None:
    static = finding("X64IndexMap", "static", 9)
    (found,) = merged([finding("X64IndexMap", "compile", 2), static])
    assert (found.source, found.engine) == (static.source, "static, compile")
    (found,) = merged([finding("Float16", "compile", 9), finding("UnsupportedDtype", "static", 9)])
    assert found.kind == "UnsupportedDtype"
    assert len(merged([finding("Float16", "compile", 8), static])) == 2


def test_targets_of_one_refusal_are_joined() -> None:
    (found,) = merged(
        [
            finding("UnprovenAlignment", "compile", values={"targets": "v5e"}),
            finding("UnprovenAlignment", "compile", values={"targets": "v6e"}),
        ]
    )
    assert found.values["targets"] == "v5e, v6e"


def test_the_worst_comes_first() -> None:
    found = merged(
        [
            finding("Curious", "checks"),
            finding("NanProduced", "checks"),
            finding("UninitializedRead", "checks"),
            finding("DataRace", "tpu interpret"),
            finding("OutOfBoundsRead", "checks"),
            finding("Deadlock", "tpu interpret"),
            finding("CompileError", "compile"),
        ]
    )
    assert [f.kind for f in found] == [
        "CompileError",
        "Deadlock",
        "OutOfBoundsRead",
        "DataRace",
        "UninitializedRead",
        "NanProduced",
        "Curious",
    ]


def test_padding_is_said_by_what_it_gets_into_and_not_by_the_first_read_of_any() -> None:
    static = finding("RaggedPadding", "static", 9, operand="y_ref", grid_point=(1,))
    check = finding("PaddingRead", "checks", 7, operand="x_ref", grid_point=(1,))
    (found,) = merged([check, static])
    assert (found.source, found.operand) == (static.source, "y_ref")
    assert found.engine == "static, checks"
    elsewhere = finding("PaddingRead", "checks", 7, operand="x_ref", grid_point=(2,))
    assert len(merged([elsewhere, static])) == 2


def test_the_first_line_of_a_kernel_is_no_line_where_another_engine_knows_one() -> None:
    check = finding("OutputNotWritten", "checks", 1, operand="o_ref")
    static = finding("UninitializedOutput", "static", 9, operand="o_ref")
    starts = [None, SourceLine(file="rows.py", line=1)]
    (found,) = merged([check, static], starts)
    assert (found.source, found.message) == (static.source, "OutputNotWritten by checks")
    (found,) = merged([check, static])
    assert found.source == check.source
    assert merged([check], starts) == (check,)


def test_an_output_that_is_read_before_it_was_set_is_one_fault() -> None:
    read = finding("UninitializedRead", "checks", operand="o_ref")
    unset = finding("UninitializedOutput", "static", operand="o_ref")
    (found,) = merged([unset, read])
    assert (found.kind, found.engine) == ("UninitializedRead", "checks, static")
    assert len(merged([unset, finding("UninitializedRead", "checks", 8, operand="o_ref")])) == 2
    assert len(merged([unset, finding("UninitializedRead", "checks", operand="acc_ref")])) == 2


def test_a_compiler_that_dies_died_of_what_it_was_to_refuse() -> None:
    deaths = [
        finding(
            "CompilerAbort",
            "compile",
            None,
            message=f"the compiler's process died of SIGABRT while it compiled rows {target}\nmore",
            values={"targets": target},
        )
        for target in ("v5e", "v6e")
    ]
    cast = finding("UnsupportedShapeCast", "static", 9, message="becomes a column")
    (found,) = merged([*deaths, cast])
    assert (found.kind, found.source, found.engine) == (cast.kind, cast.source, "static, compile")
    assert found.message == (
        "becomes a column\nthe compiler's process died of SIGABRT while it compiled rows v5e"
    )
    assert found.values["targets"] == "v5e, v6e"
    assert len(merged([deaths[0], finding("OutOfBoundsRead", "static", 9)])) == 2


def test_what_jax_stumbles_over_is_what_the_static_analysis_saw_at_that_line() -> None:
    removed = finding("RemovedName", "static", 9)
    (found,) = merged([finding("TraceError", "trace", 9), removed])
    assert (found.kind, found.engine) == ("RemovedName", "static, trace")
    assert len(merged([finding("TraceError", "trace", 8), removed])) == 2


def test_no_name_is_in_two_families() -> None:
    names = [name for names in SAME for name in names]
    assert len(names) == len(set(names))
    assert family("Curious") == {"Curious"}

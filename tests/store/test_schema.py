"""JSON documents: round trips, and full-sentence errors for invalid ones."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pallas_debug import explain
from pallas_debug.errors import DumpFormatError
from pallas_debug.findings.faults import Fault
from pallas_debug.model import (
    Compilation,
    CostEstimate,
    Explanation,
    Failure,
    Finding,
    Gap,
    Kernel,
    Memory,
    Operand,
    Pass,
    PrintRecord,
    RunRecord,
    SourceLine,
    Witness,
)
from pallas_debug.store import schema

PATH = Path("dumps/add-01234567/kernel.json")

SOURCE = SourceLine(file="rows.py", line=12, function="kernel", text="o_ref[...] = x_ref[...]")

FULL_KERNEL = Kernel(
    name="größe 🦀",
    digest="d" * 64,
    primitive="pallas_call",
    source=SOURCE,
    grid=(4, None),
    grid_names=("i", "j"),
    dimension_semantics=("parallel", "arbitrary"),
    operands=(
        Operand(
            name="x_ref",
            kind="input",
            shape=(16, 128),
            dtype="float32",
            memory_space="vmem",
            block_shape=(None, 128),
            index_map="{ lambda ; i. let  in (i, 0) }",
            pipeline="Buffered(1)",
        ),
        Operand(name="s", kind="scratch", shape=(), dtype="int32", memory_space="smem"),
    ),
    aliases=((0, 1),),
    compiler_params={"vmem_limit_bytes": "1024"},
    cost_estimate=CostEstimate(flops=2**70, transcendentals=0, bytes_accessed=1),
    metadata={"who": 'a "quoted" \\ \n word'},
    mesh={"x": 4},
    chip="TPU v5 lite",
    versions={"jax": "0.10.2"},
)

FULL_COMPILATION = Compilation(
    kernel="add",
    target="v5e",
    status="failed",
    key="k" * 64,
    passes=(
        Pass(number=0, name="original", size=3, sha256="a" * 64, seconds=None, changed=True),
        Pass(
            number=1,
            name="infer-vector-layout",
            size=0,
            sha256="b" * 64,
            seconds=0.25,
            changed=True,
            failed=True,
            file="passes/01-infer-vector-layout.mlir",
        ),
    ),
    failure=Failure(stage="compile", type="X", message="a\nb", last_pass="p", source=SOURCE),
    memory=Memory(generated_code=1, arguments=2, outputs=3, temporaries=4),
    flags=("--a=b",),
    seconds=1.5,
    lowering_seconds=0.5,
    device_kind="TPU v5 lite",
    num_devices=4,
    versions={"libtpu": "0.0.42"},
)

FULL_RUN = RunRecord(
    run="20260101-000000-1",
    name="tests/test_a.py::test[x]",
    kernels=("add-01234567",),
    prints=(PrintRecord(kernel="add", text="hi", source=SOURCE, grid_point=(0, 1)),),
    findings=(
        Finding(
            kind=Fault.OUT_OF_BOUNDS_READ,
            kernel="add",
            message="m",
            witness=Witness(grid_point=(1,)),
            engines=("checks", "static"),
            targets=("v5e",),
            consequences=(Finding(kind=Fault.COMPILER_ABORT, kernel="add", message="died"),),
        ),
    ),
)

EXPLAINED = replace(
    FULL_COMPILATION,
    failure=Failure(
        stage="compile",
        type="X",
        message="a",
        explanation=Explanation(
            id="lab", cause="a", advice="b", code="E1", details=("a", "b"), links=("https://c",)
        ),
    ),
)

DOCUMENTS = [
    EXPLAINED,
    FULL_KERNEL,
    Kernel(name="", digest="", primitive=""),
    FULL_COMPILATION,
    Compilation(kernel="k", target="t", status="ok", key=""),
    FULL_RUN,
    RunRecord(run="r", name="n"),
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_round_trip(document: Kernel | Compilation | RunRecord) -> None:
    assert schema.decode(schema.encode(document), type(document), PATH) == document


def test_an_explanation_is_written_without_its_empty_fields() -> None:
    written = json.loads(schema.encode(EXPLAINED))["failure"]["explanation"]
    assert list(written) == ["id", "cause", "advice", "code", "details", "links"]


def test_a_failure_of_an_older_dump_gets_its_explanation_when_it_is_read() -> None:
    overflow = "Scoped allocation with size 32.00M and limit 16.00M exceeded"
    document = json.loads(schema.encode(FULL_COMPILATION))
    document["failure"]["message"] = f"E1001: CompileTimeScopedVmemOom: {overflow}"
    unknown = schema.decode(json.dumps(document).encode(), Compilation, PATH)
    assert unknown.failure is not None
    assert unknown.failure.explanation is None  # it is recorded that none was known

    del document["failure"]["explanation"]
    block = Operand(
        name="x_ref",
        kind="input",
        shape=(8192, 1024),
        dtype="float32",
        memory_space="vmem",
        block_shape=(8192, 1024),
    )
    kernel = replace(FULL_KERNEL, operands=(block,))
    found = schema.decode(json.dumps(document).encode(), Compilation, PATH, kernel)
    assert found.failure is not None
    assert found.failure.explanation is not None
    assert found.failure.explanation.id == "scoped-vmem-overflow"
    assert found.failure.explanation.cause


def test_a_person_can_read_it() -> None:
    lines = schema.encode(FULL_KERNEL).decode().splitlines()
    assert lines[1:4] == [' "tool": "pallas-debug",', ' "kind": "kernel",', ' "schema": 1,']
    assert ' "name": "größe 🦀",' in lines


def test_surrogates_of_a_path_that_is_no_utf8_do_not_break_a_document() -> None:
    kernel = Kernel(
        name="k", digest="d", primitive="p", source=SourceLine(file="/x/\udcff.py", line=1)
    )
    read = schema.decode(schema.encode(kernel), Kernel, PATH)
    assert read.source == SourceLine(file="/x/?.py", line=1)


@pytest.mark.parametrize("data", [b"", b" \n\t"])
def test_empty(data: bytes) -> None:
    assert refusal(data) == (
        f"{PATH} is empty: its writer was stopped. Delete its folder and dump again."
    )


def test_cut_short_anywhere() -> None:
    whole = schema.encode(FULL_KERNEL)
    for length in range(1, len(whole.rstrip())):
        message = refusal(whole[:length])
        assert message.startswith(f"{PATH} is truncated or not valid JSON: ")
        assert message.endswith(" Delete its folder and dump again.")


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\x7fELF",
        b"\xff\xfe{\x00}\x00",
        b'{"tool": "\xff\xfe"}',
        b"not json",
        b"{} {}",
        b"[" * 100_000,
        b'{"tool": NaN}',
    ],
)
def test_no_json(data: bytes) -> None:
    message = refusal(data)
    assert message.startswith(f"{PATH} is truncated or not valid JSON: ")
    assert message.endswith(". Delete its folder and dump again.")


@pytest.mark.parametrize(
    "data, tool",
    [
        (b'{"tool": "tritonparse", "kind": "kernel", "schema": 1}', "'tritonparse'"),
        (b'{"name": "left-pad", "version": "1.0"}', "None"),
        (b"[1, 2]", "None"),
        (b"17", "None"),
        (b"null", "None"),
    ],
)
def test_another_tool(data: bytes, tool: str) -> None:
    assert refusal(data) == (
        f"{PATH} was not written by pallas-debug (its `tool` is {tool}). "
        "Name a directory that pallas-debug or --xla_mosaic_dump_to wrote."
    )


@pytest.mark.parametrize("document", [FULL_COMPILATION, FULL_RUN])
def test_wrong_kind(document: Compilation | RunRecord) -> None:
    kind = schema.KINDS[type(document)]
    assert refusal(schema.encode(document)) == (
        f"{PATH} holds a document of kind {kind!r} where 'kernel' belongs: it was copied or "
        "renamed. Delete its folder and dump again."
    )


@pytest.mark.parametrize("version", [2, 10**20])
def test_newer_schema(version: int) -> None:
    assert refusal(changed(schema=version)) == (
        f"{PATH} has schema {version}, newer than the 1 that this pallas-debug reads. "
        "Upgrade pallas-debug."
    )


@pytest.mark.parametrize("version", [None, "1", 1.5, True, []])
def test_no_schema_number(version: object) -> None:
    assert refusal(changed(schema=version)) == (
        f"{PATH} has no schema number (its `schema` is {version!r}): it was edited. "
        "Delete its folder and dump again."
    )


def test_a_newer_schema_is_told_before_its_unknown_fields() -> None:
    assert "newer than the 1" in refusal(changed(schema=2, grid={"shape": 3}))


def test_missing_field() -> None:
    document = json.loads(schema.encode(FULL_KERNEL))
    del document["digest"]
    assert refusal(json.dumps(document).encode()) == (
        f"{PATH} is not a valid kernel document: Object missing required field `digest`. "
        "Delete its folder and dump again."
    )


@pytest.mark.parametrize(
    "field, value, cause",
    [
        ("name", 3, "Expected `str`, got `int` - at `$.name`"),
        ("grid", "4", "Expected `array`, got `str` - at `$.grid`"),
        ("grid", [4, "x"], "Expected `int | null`, got `str` - at `$.grid["),
        ("source", {"file": "a"}, "Object missing required field `line` - at `$.source`"),
        ("operands", [None], "Expected `object`, got `null` - at `$.operands["),
    ],
)
def test_wrong_type(field: str, value: object, cause: str) -> None:
    message = refusal(changed(**{field: value}))
    assert message.startswith(f"{PATH} is not a valid kernel document: {cause}")
    assert message.endswith(". Delete its folder and dump again.")


def test_fields_that_a_later_version_adds_are_passed_over() -> None:
    assert schema.decode(changed(colour="blue"), Kernel, PATH) == FULL_KERNEL


def changed(**fields: Any) -> bytes:
    """The full kernel's document with other fields."""
    return json.dumps(json.loads(schema.encode(FULL_KERNEL)) | fields).encode()


def refusal(data: bytes) -> str:
    with pytest.raises(DumpFormatError) as error:
        schema.decode(data, Kernel, PATH)
    return str(error.value)


def with_field(document: dict[str, Any], field: str, value: object) -> bytes:
    """The document with a field, named as in a message, set to a value."""
    *outer, last = field.replace("[]", ".0").split(".")
    inner: Any = document
    for name in outer:
        inner = inner[int(name) if name.isdecimal() else name]
    inner[int(last) if last.isdecimal() else last] = value
    return json.dumps(document).encode()


A_LINE = {"file": "rows.py", "line": 1}
FINDING = {
    "kind": "DataRace",
    "kernel": "k",
    "message": "",
    "witness": {"source": {**A_LINE}, "other": {**A_LINE}},
}
WHOLE: dict[type, dict[str, Any]] = {
    Kernel: {
        "name": "k",
        "digest": "",
        "primitive": "pallas_call",
        "source": {**A_LINE},
        "grid": [1],
        "mesh": {"x": 2},
        "cost_estimate": {"flops": -1, "transcendentals": 0, "bytes_accessed": 0},
    },
    Compilation: {
        "kernel": "k",
        "target": "v5e",
        "status": "failed",
        "key": "",
        "passes": [
            {"number": 0, "name": "p", "size": 1, "sha256": "", "seconds": None, "changed": True}
        ],
        "failure": {"stage": "compile", "type": "E", "message": "", "source": {**A_LINE}},
        "num_devices": 1,
    },
    RunRecord: {
        "run": "r",
        "name": "t",
        "findings": [FINDING],
        "prints": [{"kernel": "k", "text": "", "source": {**A_LINE}}],
    },
}


@pytest.mark.parametrize("value", [-1, -(10**6), 1 << 63])
@pytest.mark.parametrize(
    "kind,field",
    [
        (Kernel, "source.line"),
        (Kernel, "grid"),
        (Kernel, "mesh"),
        (Compilation, "failure.source.line"),
        (Compilation, "passes[].number"),
        (Compilation, "passes[].size"),
        (Compilation, "num_devices"),
        (RunRecord, "findings[].witness.source.line"),
        (RunRecord, "findings[].witness.other.line"),
        (RunRecord, "findings[].count"),
        (RunRecord, "prints[].source.line"),
    ],
)
def test_numbers_that_no_writer_writes(kind: type, field: str, value: int) -> None:
    document = copy.deepcopy(WHOLE[kind])
    document |= {
        "tool": "pallas-debug",
        "kind": schema.KINDS[kind],
        "schema": schema.VERSIONS[kind],
    }
    schema.decode(json.dumps(document).encode(), kind, Path("d.json"))
    inside = {"grid": [value], "mesh": {"x": value}}.get(field, value)
    data = with_field(document, field, inside)
    with pytest.raises(DumpFormatError) as error:
        schema.decode(data, kind, Path("d.json"))
    assert str(error.value) == (
        f"d.json is not a valid {schema.KINDS[kind]} document: `{field}` is {value}, which is not "
        "between 0 and 9223372036854775807. It was edited or damaged: delete its folder and dump "
        "again."
    )


def test_a_grid_of_too_many_dimensions() -> None:
    document = WHOLE[Kernel] | {"tool": "pallas-debug", "kind": "kernel", "schema": 1}
    data = json.dumps(document | {"grid": [1] * 257}).encode()
    with pytest.raises(DumpFormatError, match="`grid` has 257 dimensions, more than 256"):
        schema.decode(data, Kernel, Path("d.json"))


def test_what_a_document_says_is_quoted_without_its_controls() -> None:
    for data in (
        b'{"tool": "\\u001b[2J\\u202e"}',
        b'{"tool": "pallas-debug", "kind": "\\u009b31m"}',
        b'{"tool": "pallas-debug", "kind": "kernel", "schema": "\\u001b"}',
        json.dumps({"tool": "x" * 10_000}).encode(),
    ):
        with pytest.raises(DumpFormatError) as error:
            schema.decode(data, Kernel, Path("a\n\x1b.json"))
        assert str(error.value).isprintable()
        assert str(error.value).startswith("a\\n\\x1b.json ")
        assert len(str(error.value)) < 250


def test_deep_nesting_is_no_json() -> None:
    with pytest.raises(DumpFormatError, match=r"is truncated or not valid JSON: maximum recursion"):
        schema.decode(b"[" * 1_000_000, Kernel, Path("d.json"))


V1_FINDING = {
    "kind": "DmaWaitedTwice",
    "kernel": "k",
    "message": "m",
    "source": {**A_LINE, "text": "wait()"},
    "grid_point": [1, 2],
    "operand": "sem",
    "cause": "c",
    "count": 3,
    "loop": [4],
    "values": {"signals": "1", "targets": "v5e, v6e"},
    "other": None,
    "engine": "static, compile",
}


def test_findings_of_schema_1_are_read() -> None:
    document = {"tool": "pallas-debug", "kind": "run", "schema": 1, "run": "r", "name": "t"}
    document["findings"] = [V1_FINDING, {"kind": "DataRace", "kernel": "k", "message": ""}]
    run = schema.decode(json.dumps(document).encode(), RunRecord, PATH)
    as_written = (
        Finding(
            kind=Fault.DEADLOCK,
            kernel="k",
            message="m",
            cause="c",
            witness=Witness(
                source=SourceLine(file="rows.py", line=1, text="wait()"),
                grid_point=(1, 2),
                loop=(4,),
                operand="sem",
                values={"signals": "1"},
            ),
            engines=("static", "compile"),
            targets=("v5e", "v6e"),
            count=3,
        ),
        Finding(kind=Fault.DATA_RACE, kernel="k", message=""),
    )
    assert run.findings == tuple(map(explain.completed, as_written))
    assert json.loads(schema.encode(run))["schema"] == 2


def test_findings_of_schema_1_are_explained_as_they_are_read() -> None:
    document = {"tool": "pallas-debug", "kind": "run", "schema": 1, "run": "r", "name": "t"}
    document["findings"] = [{"kind": "Deadlock", "kernel": "k", "message": "m", "cause": "c"}]
    (finding,) = schema.decode(json.dumps(document).encode(), RunRecord, PATH).findings
    known = explain.of_finding(finding)
    assert known is not None
    assert known.advice is not None
    assert (finding.cause, finding.advice) == ("c", known.advice)


def test_the_gaps_of_a_run_are_kept() -> None:
    gap = Gap(kernel="k", engine="v5e", reason="the disk is full")
    run = RunRecord(run="r", name="t", gaps=(gap,))
    assert schema.decode(schema.encode(run), RunRecord, PATH) == run


@pytest.mark.parametrize(
    "findings",
    [3, ["x"], [V1_FINDING | {"values": 3}], [V1_FINDING | {"engine": 3}], [{"kind": "Curious"}]],
)
def test_malformed_findings_of_schema_1_are_refused(findings: object) -> None:
    document = {"tool": "pallas-debug", "kind": "run", "schema": 1, "run": "r", "name": "t"}
    data = json.dumps(document | {"findings": findings}).encode()
    with pytest.raises(DumpFormatError, match="is not a valid run document"):
        schema.decode(data, RunRecord, PATH)

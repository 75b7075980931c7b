"""JSON documents: round trips, and full-sentence errors for invalid ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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
        Pass(number=0, name="original", size=3, seconds=None, changed=True),
        Pass(
            number=1,
            name="infer-vector-layout",
            size=0,
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
            witness=Witness(grid_point=(1,), source=SOURCE, other=SOURCE),
            engines=("checks", "static"),
            targets=("v5e",),
            consequences=(Finding(kind=Fault.COMPILER_ABORT, kernel="add", message="died"),),
        ),
    ),
    gaps=(Gap(kernel="add", engine="v5e", reason="the disk is full"),),
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


def test_a_person_can_read_it() -> None:
    lines = schema.encode(FULL_KERNEL).decode().splitlines()
    assert lines[1:4] == [' "tool": "pallas-debug",', ' "kind": "kernel",', ' "schema": 1,']
    assert ' "name": "größe 🦀",' in lines


def of_kernel(**fields: Any) -> bytes:
    """The full kernel's document with other fields."""
    return json.dumps(json.loads(schema.encode(FULL_KERNEL)) | fields).encode()


def without(field: str) -> bytes:
    document = json.loads(schema.encode(FULL_KERNEL))
    del document[field]
    return json.dumps(document).encode()


NO_JSON = "is truncated or not valid JSON: "
TOOL = "was not written by pallas-debug (its `tool` is {}). Name a directory that pallas-debug or"
KIND = "holds a document of kind {} where 'kernel' belongs: it was copied or renamed. "
NEWER = "has schema {}, newer than the 1 that this pallas-debug reads. Upgrade pallas-debug."
NUMBER = "has no schema number (its `schema` is {}): it was edited. "
INVALID = "is not a valid kernel document: "


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "is empty: its writer was stopped. Delete its folder and dump again."),
        (b" \n\t", "is empty: its writer was stopped. Delete its folder and dump again."),
        (b"\x00\x01\x02\x7fELF", NO_JSON),
        (b"\xff\xfe{\x00}\x00", NO_JSON),
        (b'{"tool": "\xff\xfe"}', NO_JSON),
        (b"{} {}", NO_JSON),
        (b'{"tool": NaN}', NO_JSON),
        (b"[" * 1_000_000, f"{NO_JSON}maximum recursion"),
        (b'{"tool": "tritonparse", "kind": "kernel", "schema": 1}', TOOL.format("'tritonparse'")),
        (b'{"name": "left-pad", "version": "1.0"}', TOOL.format("None")),
        (b"[1, 2]", TOOL.format("None")),
        (b"null", TOOL.format("None")),
        (schema.encode(FULL_COMPILATION), KIND.format("'compilation'")),
        (schema.encode(FULL_RUN), KIND.format("'run'")),
        (of_kernel(schema=2, grid={"shape": 3}), NEWER.format(2)),
        (of_kernel(schema=10**20), NEWER.format(10**20)),
        (of_kernel(schema=None), NUMBER.format(None)),
        (of_kernel(schema="1"), NUMBER.format("'1'")),
        (of_kernel(schema=True), NUMBER.format(True)),
        (without("digest"), f"{INVALID}Object missing required field `digest`. "),
        (of_kernel(name=3), f"{INVALID}Expected `str`, got `int` - at `$.name`"),
        (of_kernel(grid=[4, "x"]), f"{INVALID}Expected `int | null`, got `str` - at `$.grid["),
        (of_kernel(source={"file": "a"}), f"{INVALID}Object missing required field `line` - at"),
        (of_kernel(operands=[None]), f"{INVALID}Expected `object`, got `null` - at `$.operands["),
        (of_kernel(grid=[1] * 257), f"{INVALID}`grid` has 257 dimensions, more than 256"),
        # Not one control character of a document reaches the terminal.
        (b'{"tool": "\\u001b[2J\\u202e"}', TOOL.format(r"'\x1b[2J\u202e'")),
        (b'{"tool": "pallas-debug", "kind": "\\u009b31m"}', KIND.format(r"'\x9b31m'")),
        (json.dumps({"tool": "x" * 10_000}).encode(), TOOL.format("'" + "x" * 59 + "…")),
    ],
)
def test_what_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DumpFormatError) as error:
        schema.decode(data, Kernel, Path("a\n\x1b.json"))
    assert str(error.value).startswith(f"a\\n\\x1b.json {message}")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 300


def test_cut_short_anywhere() -> None:
    whole = schema.encode(FULL_KERNEL)
    for length in range(1, len(whole.rstrip())):
        with pytest.raises(DumpFormatError, match=NO_JSON):
            schema.decode(whole[:length], Kernel, PATH)


@pytest.mark.parametrize("value", [-1, 1 << 63])
@pytest.mark.parametrize(
    "document, field",
    [
        *((FULL_KERNEL, field) for field in ("source.line", "grid.0", "mesh.x")),
        *((FULL_COMPILATION, field) for field in ("passes.0.size", "num_devices")),
        *((FULL_RUN, field) for field in ("findings.0.witness.other.line", "findings.0.count")),
    ],
)
def test_numbers_that_no_writer_writes(
    document: Kernel | Compilation | RunRecord, field: str, value: int
) -> None:
    plain: Any = json.loads(schema.encode(document))
    *outer, last = field.split(".")
    inner = plain
    for name in outer:
        inner = inner[int(name) if name.isdecimal() else name]
    inner[int(last) if last.isdecimal() else last] = value
    with pytest.raises(DumpFormatError) as error:
        schema.decode(json.dumps(plain).encode(), type(document), PATH)
    shown = field.replace(".0", "[0]")
    assert str(error.value) == (
        f"{PATH} is not a valid {schema.KINDS[type(document)]} document: `{shown}` is {value}, which "
        "is not between 0 and 9223372036854775807. It was edited or damaged: delete its folder and "
        "dump again."
    )

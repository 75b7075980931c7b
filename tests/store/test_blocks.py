"""Block maps in a dump directory: written, read, and refused where they contradict themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pallas_debug.errors import DumpFormatError
from pallas_debug.model import Kernel
from pallas_debug.profile.blocks import (
    BlockIndex,
    BlockMap,
    OperandBlocks,
    ScalarValues,
)
from pallas_debug.store import open_dumps, schema
from pallas_debug.store.writer import Store

PATH = Path("dumps/add-01234567/blocks.json")

OPERAND = OperandBlocks(
    name="x_ref",
    kind="input",
    shape=(32, 128),
    dtype="float32",
    bits=32,
    space="vmem",
    is_pipelined=True,
    buffers=2,
    dimensions=(
        BlockIndex(kind="blocked", size=8, bound=32, axes=(0,), values=(2, 2, 0, 2)),
        BlockIndex(kind="blocked", size=128, bound=128, strides=(0, 0)),
    ),
    tables=("table_ref",),
    untouched=2048,
)
UNKNOWN = replace(OPERAND, dimensions=(), untouched=None, unknown="it reads table_ref", tables=())
FULL = BlockMap(grid=(4, 2), parallel=(True, False), operands=(OPERAND, replace(OPERAND, name="o")))

SCALARS = ScalarValues(number=0, name="table_ref", shape=(2,), values=(1, 2))


def test_round_trip() -> None:
    for document in (
        replace(FULL, scalars=(SCALARS,)),
        BlockMap(unknown="its grid is dynamic"),
        replace(FULL, operands=(UNKNOWN,)),
    ):
        assert schema.decode(schema.encode(document), BlockMap, PATH) == document


ROWS = "operands.0.dimensions.0"


@pytest.mark.parametrize(
    "path, value, why",
    [
        ("grid", [4, -2], "`grid[1]` is -2, which is not between 0 and"),
        ("grid", [1 << 62, 4], "`grid` has more than"),
        ("grid", [1] * 65, "`grid` has 65 dimensions, more than 64"),
        ("parallel", [True], "`parallel` has 1 entries for 2 dimensions"),
        ("operands.0.shape", [32], "`operands[0]` has 2 dimensions, and its shape 1"),
        ("operands.0.bits", -1, "`operands[0].bits` is -1"),
        (f"{ROWS}.size", -8, "`operands[0].dimensions[0].size` is -8"),
        (f"{ROWS}.bound", 1 << 64, "dimensions[0].bound` is 18446744073709551616"),
        (f"{ROWS}.padding", [0, -1], "`operands[0].dimensions[0].padding[1]` is -1"),
        (f"{ROWS}.strides", [1], "`operands[0].dimensions[].strides` has 1 entries"),
        (f"{ROWS}.strides", [1 << 62, 0], "has an index beyond"),
        (f"{ROWS}.axes", [2], "`operands[0].dimensions[].axes` are not dimensions"),
        (f"{ROWS}.axes", [1, 0], "`operands[0].dimensions[].axes` are not dimensions"),
        (f"{ROWS}.values", [1], "values` has 1 entries for 4 grid points"),
        (f"{ROWS}.values", [1 << 61] * 4, "has an index beyond"),
        (f"{ROWS}.kind", "round", "Invalid enum value 'round'"),
    ],
)
def test_a_map_that_contradicts_itself_is_refused(path: str, value: Any, why: str) -> None:
    document = inner = json.loads(schema.encode(FULL))
    *outer, last = path.split(".")
    for key in outer:
        inner = inner[int(key) if key.isdecimal() else key]
    inner[last] = value
    with pytest.raises(DumpFormatError) as error:
        schema.decode(json.dumps(document).encode(), BlockMap, PATH)
    assert why in str(error.value)
    assert str(error.value).startswith(f"{PATH} is not a valid blocks document: ")
    assert str(error.value).endswith("elete its folder and dump again.")


def test_a_map_is_written_and_read(tmp_path: Path, kernel: Kernel) -> None:
    store = Store(tmp_path / "dumps")
    store.put_kernel(kernel, jaxpr="", source=None)
    (stored,) = open_dumps(store.root)
    assert stored.blocks() is None
    path = store.put_blocks(kernel, FULL)
    assert path == store.folder(kernel) / "blocks.json"
    assert stored.blocks() == FULL
    before = path.stat().st_mtime_ns, path.stat().st_ino
    store.put_blocks(kernel, FULL)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


def test_values_of_scalar_prefetch_are_kept_when_a_later_run_does_not_know_them(
    tmp_path: Path, kernel: Kernel
) -> None:
    store = Store(tmp_path / "dumps")
    less = replace(FULL, operands=(OPERAND, UNKNOWN))
    store.put_kernel(kernel, jaxpr="", source=None, blocks=less)
    (stored,) = open_dumps(store.root)
    assert stored.blocks() == less
    store.put_blocks(kernel, FULL)
    assert stored.blocks() == FULL
    store.put_kernel(kernel, jaxpr="", source=None, blocks=less)
    assert stored.blocks() == FULL
    more = replace(FULL, scalars=(SCALARS,))
    store.put_blocks(kernel, more)
    store.put_blocks(kernel, FULL)
    assert stored.blocks() == more
    (store.folder(kernel) / "blocks.json").write_text("{")
    store.put_blocks(kernel, less)
    assert stored.blocks() == less


def test_a_damaged_map_leaves_the_kernel_readable(tmp_path: Path, kernel: Kernel) -> None:
    store = Store(tmp_path / "dumps")
    store.put_kernel(kernel, jaxpr="", source=None)
    path = store.put_blocks(kernel, FULL)
    path.write_bytes(path.read_bytes()[:-10])
    (stored,) = open_dumps(store.root)
    assert stored.problem is None
    with pytest.raises(DumpFormatError, match="truncated or not valid JSON"):
        stored.blocks()
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(DumpFormatError, match="was not read"):
        stored.blocks()

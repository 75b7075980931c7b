"""JSON documents of a dump directory: versioned dataclasses of `model.py`.

A document carries the tool's name, its kind and the schema's version, and is validated against the
dataclass when it is read. A mismatch raises a `DumpFormatError` that names the file and the reason.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pallas_debug.errors import DumpFormatError
from pallas_debug.model import Compilation, Kernel, RunRecord
from pallas_debug.profile.blocks import MAX_GRID_DIMENSIONS, BlockMap, OperandBlocks
from pallas_debug.render import one_line

TOOL = "pallas-debug"
SCHEMA = 1
"""Schema version, incremented when the previous version's reader would misread a document."""

KINDS: dict[type, str] = {
    Kernel: "kernel",
    Compilation: "compilation",
    RunRecord: "run",
    BlockMap: "blocks",
}

MAX_DIMENSIONS = 256
"""Maximum number of dimensions of a grid, an array or a block; numpy's limit is 64."""

MAX_NUMBER = (1 << 63) - 1
"""Maximum value of a size, a count or a line number: 64 bits, signed."""

T = TypeVar("T", bound=Kernel | Compilation | RunRecord | BlockMap)


def encode(document: Kernel | Compilation | RunRecord | BlockMap) -> bytes:
    """Return the document as JSON, indented unless it may hold long lists of numbers."""
    import json  # not needed by readers

    head = {"tool": TOOL, "kind": KINDS[type(document)], "schema": SCHEMA}
    plain = msgspec.to_builtins(document)
    explanation = (plain.get("failure") or {}).get("explanation")
    if explanation:  # most of its fields are empty
        plain["failure"]["explanation"] = {k: v for k, v in explanation.items() if v}
    # Not msgspec.json: it rejects the lone surrogates in a path that is not UTF-8.
    indent = None if isinstance(document, BlockMap) else 1
    text = json.dumps(head | plain, ensure_ascii=False, indent=indent)
    return text.encode(errors="replace")


def decode(data: bytes, kind: type[T], path: Path) -> T:
    """Parse the document in `data`, which was read from `path`.

    Raises:
      DumpFormatError: not JSON, truncated, written by another tool, of a newer schema, or with a
        field missing or of the wrong type.
    """
    where, expected = one_line(path), KINDS[kind]

    def refused(why: str, advice: str = "Delete its folder and dump again.") -> DumpFormatError:
        return DumpFormatError(f"{where} {why} {advice}")

    if not data.strip():
        raise refused("is empty: its writer was stopped.")
    try:
        document: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refused(f"is truncated or not valid JSON: {error}.") from error
    if not isinstance(document, dict) or document.get("tool") != TOOL:
        found = document.get("tool") if isinstance(document, dict) else None
        raise refused(
            f"was not written by {TOOL} (its `tool` is {_quoted(found)}).",
            "Name a directory that pallas-debug or --xla_mosaic_dump_to wrote.",
        )
    if document.get("kind") != expected:
        raise refused(
            f"holds a document of kind {_quoted(document.get('kind'))} where {expected!r} belongs: "
            "it was copied or renamed."
        )
    version = document.get("schema")
    if type(version) is not int:
        raise refused(f"has no schema number (its `schema` is {_quoted(version)}): it was edited.")
    if version > SCHEMA:
        why = f"has schema {version!r}, newer than the {SCHEMA} that this pallas-debug reads."
        raise refused(why, "Upgrade pallas-debug.")
    try:
        made = msgspec.convert(document, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise refused(f"is not a valid {expected} document: {one_line(str(error))}.") from error
    wrong = next(itertools.chain(_wrong_numbers(document), _wrong(made)), None)
    if wrong is not None:
        raise refused(
            f"is not a valid {expected} document: {wrong}. It was edited or damaged:",
            "delete its folder and dump again.",
        )
    return made


_MAX_QUOTED = 60
"""Maximum number of characters of an untrusted value in a message."""


def _quoted(value: object) -> str:
    text = repr(value)[: _MAX_QUOTED + 1]
    return one_line(text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…")


_COUNTS = frozenset(
    {"line", "number", "size", "count", "num_devices", "grid", "shape", "block_shape", "mesh"}
    | {"bits", "buffers", "bound", "padding"}
)
_SIZES = frozenset({"generated_code", "arguments", "outputs", "temporaries"})
"""Fields with integers of at most 64 bits; the counts are not negative."""


def _wrong_numbers(value: Any, field: str = "", path: str = "") -> Iterator[str]:
    """Yield a phrase for each integer in a document that no writer produces."""
    if isinstance(value, dict):
        for name, inner in value.items():
            known = field if field == "mesh" else name  # its keys are names of axes
            yield from _wrong_numbers(inner, known, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _wrong_numbers(inner, field, f"{path}[{number}]")
    elif isinstance(value, int) and field in _COUNTS | _SIZES:
        least = 0 if field in _COUNTS else -MAX_NUMBER
        if not least <= value <= MAX_NUMBER:
            where = one_line(path)
            yield f"`{where}` is {value}, which is not between {least} and {MAX_NUMBER}"


@functools.singledispatch
def _wrong(document: object) -> Iterator[str]:
    """Yield a phrase for each size that has the right type but that no writer produces."""
    return iter(())


@_wrong.register
def _(kernel: Kernel) -> Iterator[str]:
    yield from _wrong_sizes("grid", kernel.grid)
    for number, operand in enumerate(kernel.operands):
        yield from _wrong_sizes(f"operands[{number}].shape", operand.shape)
        yield from _wrong_sizes(f"operands[{number}].block_shape", operand.block_shape or ())


@_wrong.register
def _(blocks: BlockMap) -> Iterator[str]:
    yield from _wrong_sizes("grid", blocks.grid)
    if len(blocks.grid) > MAX_GRID_DIMENSIONS:
        yield f"`grid` has {len(blocks.grid):,} dimensions, more than {MAX_GRID_DIMENSIONS}"
    if len(blocks.parallel) != len(blocks.grid):
        yield f"`parallel` has {len(blocks.parallel):,} entries for {len(blocks.grid)} dimensions"
    for number, operand in enumerate(blocks.operands):
        yield from _wrong_blocks(f"operands[{number}]", operand, blocks.grid)


def _wrong_blocks(what: str, operand: OperandBlocks, grid: tuple[int, ...]) -> Iterator[str]:
    yield from _wrong_sizes(f"{what}.shape", operand.shape)
    dimensions = operand.dimensions
    if dimensions and len(dimensions) != len(operand.shape):
        yield f"`{what}` has {len(dimensions)} dimensions, and its shape {len(operand.shape)}"
    yield from _wrong_sizes(f"{what}.dimensions[].size", tuple(d.size for d in dimensions))
    yield from _wrong_sizes(f"{what}.dimensions[].bound", tuple(d.bound for d in dimensions))
    for dimension in dimensions:
        strides, axes = dimension.strides, dimension.axes
        if strides is not None and len(strides) != len(grid):
            yield f"`{what}.dimensions[].strides` has {len(strides)} entries for {len(grid)}"
            return
        if not all(0 <= axis < len(grid) for axis in axes) or list(axes) != sorted(set(axes)):
            yield f"`{what}.dimensions[].axes` are not dimensions of the grid, in order"
            return
        steps = zip(strides or (), grid, strict=False)
        reach = abs(dimension.offset) + sum(abs(stride) * size for stride, size in steps)
        largest = max([reach, *(abs(value) for value in dimension.values or ())])
        if largest * max(dimension.size, 1) > MAX_NUMBER:
            yield f"`{what}.dimensions[]` has an index beyond {MAX_NUMBER}"
        expected = math.prod(grid[axis] for axis in axes)
        if dimension.values is not None and len(dimension.values) != expected:
            found = f"{len(dimension.values):,} entries"
            yield f"`{what}.dimensions[].values` has {found} for {expected:,} grid points"


def _wrong_sizes(what: str, sizes: tuple[int | None, ...]) -> Iterator[str]:
    if len(sizes) > MAX_DIMENSIONS:
        yield f"`{what}` has {len(sizes):,} dimensions, more than {MAX_DIMENSIONS}"
    if math.prod(size or 1 for size in sizes) > MAX_NUMBER:
        yield f"`{what}` has more than {MAX_NUMBER} elements"

"""Wording of faults in a buffer's contents: uninitialised, padding, or wrong values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pallas_debug.findings.facts import (
    GUARD,
    WHY,
    OtherCore,
    Point,
    Reset,
    WrittenElement,
    lines_text,
    points_text,
)
from pallas_debug.findings.facts import number as number
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.order import of_axes
from pallas_debug.findings.sighting import Sighting
from pallas_debug.model import Finding

Gone = Literal[
    "condition", "some conditions", "stores", "copies", "no store", "rounded down", "too few steps",
    "no points", "left out",
]  # fmt: skip
"""Why an output is not written: every store is conditional, the stores or copies leave a part out,
there is no store, the grid has too few steps for the last, partial block or for more, it has no
points, or an index map leaves blocks out."""


def is_for_other_axes(blocks: int, steps: int, unused: Sequence[int]) -> bool:
    """Return whether grid axes that an index map does not use have as many steps as it lacks.

    Args:
      blocks, steps: blocks along a dimension, and how many of them the map returns.
      unused: sizes of these axes.
    """
    sizes = [size for size in unused if size > 1]
    groups = itertools.chain.from_iterable(
        itertools.combinations(sizes, n) for n in range(1, len(sizes) + 1)
    )
    return any(math.prod(group) * count == blocks for group in groups for count in (1, steps))


Before = Literal["none", "branches", "some"]
"""Stores to a buffer before a read, in program order: none, only conditional ones, or others."""


def uninitialized_read(
    seen: Sighting,
    *,
    reaches_output: bool = False,
    other_core: OtherCore | None = None,
    left: tuple[str, str] | None = None,
    before: Before = "none",
    stays: bool = True,
    is_array: bool = False,
    element: WrittenElement | None = None,
    writes: Sequence[Reset] = (),
) -> Finding:
    """Report a buffer that is read before it is written, and whose value matters.

    Args:
      reaches_output: whether the value reaches an output; otherwise it is stored somewhere.
      other_core: where the buffer was written, if that may have been on another core.
      left: cause and advice, if an output that shares its memory has left it unwritten.
      before: stores before the read.
      stays: whether the buffer keeps its contents between grid points.
      is_array: whether the buffer is an output in HBM.
      element: first element that was not written, if known.
      writes: lines that write the buffer, as observed in the run.
    """
    kept = "the value reaches an output" if reaches_output else "the value is stored"
    causes = {
        "none": "scratch buffers and outputs hold whatever was in memory before",
        "branches": "each store to it before this line is conditional, and none had written it yet",
        "some": "the stores to it before this line do not reach all of it",
    }
    cause, advice = causes[before], "write all of it before this line"
    advice += ", or alias an input to it with input_output_aliases" if is_array else ""
    at = seen.witness.source
    if left is not None:
        cause, advice = left
    elif other_core is not None:
        cause, advice = other_core.wording(seen.witness.operand)
        seen = seen.with_values(of_axes(other_core.axes))
    elif elsewhere := [write for write in writes if at is None or write.line != at.line]:
        cause = _written_elsewhere(elsewhere, seen.witness.grid_point)
    elif before != "some" and stays and not is_array:
        advice = (
            "write it before this line at each grid point or, if its value carries over along a "
            "grid axis, at the first step of that axis: @pl.when(pl.program_id(axis) == 0)"
        )
    return seen.found(
        Fault.UNINITIALIZED_READ,
        f"{seen.witness.operand}, {seen.witness.shape}, is read before it is written, and "
        f"{kept}{_first(element, seen.witness.operand)}",
        cause,
        advice,
    )


def unwritten_copied(seen: Sighting, *, source: str, reaches_output: bool) -> Finding:
    """Report a read of data copied from `source`, if that was not written before the copy."""
    name = seen.witness.operand
    found = seen.with_values({"copied from": source}).found(
        Fault.UNINITIALIZED_READ,
        f"{name}, {seen.witness.shape}, is read where nothing has been written, and "
        + ("the value reaches an output" if reaches_output else "the value is stored"),
        f"either it is filled by a copy of {source} that starts before {source} is written, or it "
        "is read where the copy does not reach",
        f"write {source} before it is copied, or copy from an operand that was written",
    )
    return replace(found, comes_of=(Fault.UNINITIALIZED_READ,))


def _written_elsewhere(writes: Sequence[Reset], reader: Point | None) -> str:
    """Name the places where a buffer is written."""
    points = list(dict.fromkeys(point for write in writes for point in write.points))
    lines = lines_text(sorted({write.line for write in writes}))
    if reader in points:
        return (
            f"it is written{' at this grid point' if reader else ''} in {lines}, but not all of "
            "it before this line"
        )
    return f"it is written only at {points_text(points)}, in {lines}"


def _first(element: WrittenElement | None, operand: str | None) -> str:
    if element is None:
        return ""
    count = f"{element.count()}, starting with " if element.count() else ""
    return f": {count}{element.name(operand)}"


def output_not_written(
    seen: Sighting,
    *,
    what: str,
    why: Gone,
    blocks: tuple[int, int] | None = None,
    elements: tuple[int, int] | None = None,
    is_several: bool = False,
    visits: Sequence[Point] = (),
    is_one_block: bool = True,
    is_aliased: bool = False,
) -> Finding:
    """Report an output, or a part of it, that is never written.

    Args:
      what: unwritten part; `is_several` if it consists of several regions.
      blocks, elements: number of unwritten ones and total number, if known.
      visits: grid points that had the part in their block and did not write it; if it is not within
        one block, those that had its first element.
      is_aliased: whether it is also an input, which blocks without a store overwrite.
    """
    name = seen.witness.operand
    held = "whatever was in memory before"
    if is_aliased:
        held = f"whatever VMEM held before, not the input that shares memory with {name}"
    count = f": {blocks[0]:,} of {blocks[1]:,} blocks" if blocks else ""
    if elements is not None and (is_aliased or elements[0] < elements[1]):
        count = f": {elements[0]:,} of {elements[1]:,} elements"
    causes = {
        "condition": f"every store to {name} is conditional, and its condition was false where it "
        "would have written this part",
        "some conditions": f"the stores to {name} that ran did not reach it; the one in this line "
        "is conditional",
        "stores": f"the stores to {name} do not reach it",
        "copies": f"the copies to {name} do not reach it",
        "no store": f"there is no store to {name}",
        "rounded down": "the grid has too few steps for the array: a size was rounded down",
        "too few steps": "the grid has too few steps for the array: whole blocks are left out",
        "no points": "the grid has no points, so the kernel's body did not run",
        "left out": "the index map leaves blocks out",
    }
    alias = f"alias an input to {name} with input_output_aliases"
    remedies = {
        "rounded down": "use pl.cdiv(size, block) steps; the last block may reach past the end",
        "too few steps": f"add the missing steps, or shrink {name} in out_shape to what the grid "
        "writes",
        "no points": "use pl.cdiv(size, block) steps if a size was rounded down to 0; otherwise "
        f"skip the call, or {alias}",
        "left out": f"visit every block, or {alias}",
    }
    advice = remedies.get(
        why, f"write all of {name}, or alias an input to it with input_output_aliases"
    )
    if why in ("stores", "copies") and elements is not None and elements[0] < elements[1]:
        advice += f"; if only the rest is used, slice {name} in the jitted function that calls"
        advice += " the kernel"
    if is_aliased:
        advice = f"copy the input's block to {name} wherever nothing else is stored"
    block = "its block" if is_one_block else "its first block"
    facts = {WHY: why} if why in ("no store", "stores", "left out") else {}
    return seen.with_values(facts).found(
        Fault.OUTPUT_NOT_WRITTEN,
        f"{what} {'are' if is_several else 'is'} never written, and "
        f"{'hold' if is_several else 'holds'} {held}{count}",
        causes[why] + (f"; {block} belongs to {points_text(visits)}" if any(visits) else ""),
        advice,
    )


def undefined_elements(seen: Sighting, *, count: int, total: int) -> Finding:
    """Report a masked load on a GPU whose undefined elements, `count` of `total`, matter."""
    return seen.found(
        Fault.UNINITIALIZED_READ,
        f"{count} of the {total} elements that are loaded from {seen.witness.operand} are "
        "undefined, as the mask is false for them, and a result depends on them",
        "a load under a mask without `other` leaves the rest of its result undefined",
        "pass `other`, such as `other=0.0` for a sum or `other=-jnp.inf` for a maximum",
    )


def padding_read(
    seen: Sighting, *, operation: str | None = None, dim: int = 0, valid: int = 0, size: int = 0,
    element: WrittenElement | None = None,
    copied: str | None = None, side: Literal["start", "end", "either"] = "end",
) -> Finding:  # fmt: skip
    """Report padding in a result, of a ragged last block or of one that begins before the array.

    Args:
      operation: operation that reduces it, if known, along `dim`; `valid` of the `size` elements
        are within the array.
      element: first padding element read, if known; used without `operation`.
      copied: array in HBM from which a copy included padding, with its shape.
      side: side of the array at which the padding is; covers both if it is unknown.
    """
    reaches, past = {
        "end": ("the last block reaches past the end of the array", "past the end"),
        "start": ("a block begins before the array", "before the start"),
        "either": ("blocks begin before the array or reach past its end", "outside the array"),
    }[side]
    name, shape = seen.witness.operand, seen.witness.shape
    if operation is None:
        message = (
            f"padding of {name}, {shape}, is read and reaches an output{_first(element, name)}"
        )
        masked = ""
    else:
        message = (
            f"`{operation}` reduces dimension {dim} of {name}, whose last block has {valid} valid "
            f"elements of {size}: the rest is undefined"
        )
        masked = ", and no jnp.where masks the padding"
    if copied is not None:
        return seen.found(
            Fault.PADDING_READ,
            message,
            f"a copy reaches past the end of {copied}, and includes the rest of the array's last "
            "tiles, whose contents are undefined",
            "mask the elements past the end with jnp.where, in each factor of a product (0 times "
            "NaN is NaN), or pad the array to whole tiles",
        )
    return seen.found(
        Fault.PADDING_READ,
        message,
        f"{reaches}{masked}",
        f"mask the elements {past} with jnp.where, or pad the array to whole blocks",
    )


_NAN_CAUSES = {
    "sub": (
        "infinity minus infinity: often the maximum of a row that is fully masked with -inf",
        "mask with a large finite number, or replace the maximum where it is -inf",
    ),
    "add": (
        "infinity plus minus infinity",
        "find where the infinities come from, or mask with a large finite number",
    ),
    "div": (
        "0 / 0 or inf / inf: often a sum of weights that is zero for a fully masked row",
        GUARD,
    ),
    "mul": ("0 times infinity", "mask the infinite factor before the product, not after it"),
    "log": ("the logarithm of a negative number", "clamp the operand: jnp.maximum(x, 0)"),
    "sqrt": ("the square root of a negative number", "clamp the operand: jnp.maximum(x, 0)"),
    "rsqrt": ("the square root of a negative number", "add an epsilon under the root"),
    "dot_general": (
        "an infinity times zero, or infinities of both signs in one sum",
        "look for infinities in its operands; a weight of 0 does not cancel one",
    ),
}
_NO_VALUE = ("the operation has no finite value for these operands", "look at its operands")


def nan_produced(
    seen: Sighting,
    *,
    operation: str,
    values: Sequence[float],
    operands: Sequence[str],
    ranges: Sequence[tuple[float, float]] = (),
    element: tuple[int, ...] | None = None,
) -> Finding:
    """Report an operation that produces a NaN from operands without one.

    Args:
      values: operands at `element`, if they were recorded.
      operands: types of the operands.
      ranges: smallest and largest number of each operand, for an operation over many elements.
    """
    result = seen.witness.shape
    of, types = _values(values), f"operands {_types(operands, ranges)}, which contain none"
    if element is None:
        made = f"from {of or types}; result {result}"
    elif of:
        made = f"from {of} at {list(element)} of {result}"
    else:
        made = f"at {list(element)} of {result}, from {types}"
    cause, advice = _NAN_CAUSES.get(operation, _NO_VALUE)
    if operation == "div" and len(values) == 2:
        cause, advice = _NAN_DIVISIONS[values[1] == 0]
    message = f"`{operation}` produced a NaN {made}"
    found = seen.found(Fault.NAN_PRODUCED, message, cause, advice)
    return replace(found, comes_of=_origins(operation, values, ranges))


def _origins(
    operation: str, values: Sequence[float], ranges: Sequence[tuple[float, float]]
) -> tuple[Fault, ...]:
    """Return the faults that a NaN or infinity may follow from, based on the operands.

    Minus infinity is a mask, not a sign of an earlier fault.
    """
    kinds = []
    if operation in ("div", "rem") and len(values) == 2 and values[1] == 0:
        kinds.append(Fault.DIVISION_BY_ZERO)
    if math.inf in values or any(greatest == math.inf for _, greatest in ranges):
        kinds.append(Fault.INFINITY_PRODUCED)
    return tuple(kinds)


def _types(operands: Sequence[str], ranges: Sequence[tuple[float, float]]) -> str:
    if len(ranges) != len(operands):
        return ", ".join(operands)
    return " and ".join(
        f"{operand} of {number(least)} to {number(greatest)}"
        for operand, (least, greatest) in zip(operands, ranges, strict=True)
    )


def _values(values: Sequence[float]) -> str:
    return " and ".join(map(number, values))


_NAN_DIVISIONS = {
    True: (
        "0 / 0: often a sum of weights that is zero for a fully masked row",
        GUARD,
    ),
    False: (
        "infinity divided by infinity: an earlier operation overflowed, such as exp of a large "
        "number, or divided by zero",
        "find where the infinities come from; subtract the maximum before exp",
    ),
}

_EXPONENTIALS = ("exp", "exp2", "expm1")


def infinity_produced(
    seen: Sighting,
    *,
    operation: str,
    values: Sequence[float],
    operands: Sequence[str],
    ranges: Sequence[tuple[float, float]] = (),
    element: tuple[int, ...] | None = None,
) -> Finding:
    """Report an operation that produces an infinity from finite operands; see `nan_produced`."""
    of = _values(values) or f"operands {_types(operands, ranges)}"
    result = seen.witness.shape
    at = f" at {list(element)} of {result}" if element is not None else f"; result {result}"
    cause = "the result is larger than its dtype can hold"
    advice = "scale the operands"
    if operation in _EXPONENTIALS:
        advice = f"subtract the maximum before {operation}, or {advice}"
    if result is not None and not result.startswith(("float32", "float64")):
        advice += ", or use a wider dtype"
    is_by_zero = operation == "div" and len(values) == 2 and values[1] == 0
    if is_by_zero or (operation in ("rsqrt", "reciprocal", "log") and list(values) == [0]):
        cause, advice = "the operand is zero here", GUARD
    message = f"`{operation}` produced an infinity from {of}{at}"
    found = seen.found(Fault.INFINITY_PRODUCED, message, cause, advice)
    return replace(found, comes_of=_origins(operation, values, ranges))


def check_failed(
    seen: Sighting,
    *,
    message: str,
    condition: str | None = None,
    element: tuple[int, ...] | None = None,
) -> Finding:
    """Report a failed check of the kernel's author, with its own message.

    Args:
      condition: comparison that is false, with its values: `3 < 2`.
      element: element at which it is false, for arrays.
    """
    if condition is None:
        cause = "its condition is false, but is not a single comparison, so its values are unknown"
        advice = "check each comparison separately to see its values"
    else:
        at = f" at {list(element)}" if element is not None else ""
        cause = f"{condition} is false{at}"
        advice = "find out where these values come from, or correct the check"
        facts = {"condition": condition}
        if element is not None:
            facts["element"] = str(list(element))
        seen = seen.with_values(facts)
    return seen.found(Fault.CHECK_FAILED, message, cause, advice)

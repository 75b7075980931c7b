"""Wording of out-of-bounds accesses and blocks, and of blocks that end before their array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pallas_debug.findings.facts import listed
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.model import Finding, SourceLine

POSITION, BOUND = "position", "bound"
"""Names in a witness: an index that is a number, and the size of its dimension."""

SIZES = "sizes"
"""Name in a witness: sizes of a copy's source and destination, if they differ."""

GRID_AXIS = "grid dimension"
"""Name in a witness: the grid dimension that a block index equals."""

_NEGATIVE = "a negative index does not count from the end, unlike in NumPy"


def out_of_bounds(
    seen: Sighting, *, writes: bool, dim: int, start: int, size: int | None, bound: int,
    stride: int = 1, follows: Literal["loop", "grid"] | None = None, is_block: bool = False,
    is_scratch: bool = False, copy: tuple[str, str] | None = None, entry: str | None = None,
    is_rounded: bool = False, tables: Sequence[str] = (), is_fetched: bool = False,
    entries: Sequence[str] = (), computed: SourceLine | None = None, is_masked: bool = False,
    is_ragged: bool = False,
) -> Finding:  # fmt: skip
    """Report a load, store or copy out of bounds.

    Args:
      seen: sighting with the slice as `index`, and the operand's shape.
      dim: the dimension that is out of bounds.
      size: size of the slice; None if the index is a number.
      bound: size of the dimension.
      follows: values that the index depends on.
      is_block: whether the operand is a block, smaller than its array.
      copy: source and destination, if a copy reads or writes.
      entry: scalar-prefetch entry from which the index comes, with its value.
      is_rounded: whether jax's `emit_pipeline` copies a slice that begins within the operand.
      tables: operands from whose entries the index comes, if it is not a single entry.
      is_fetched: whether a line of the kernel starts the copy that reads past the end.
      entries: entries from which the index comes, like `entry`, if there are several.
      computed: the line that computes the index, if it is another one than that of the access.
      is_masked: whether the access has a mask, which is true for elements out of bounds.
      is_ragged: whether a block reaches past its array, and the installed jax does not mask that.
    """
    at = seen.witness
    last = bound - 1 - ((size or 1) - 1) * stride
    how = (
        f"begins {-start} before the start" if start < 0 else f"reaches {start - last} past the end"
    )
    of_copy = f", in the copy of {copy[0]} to {copy[1]}" if copy else ""
    largest = f"{bound - 1}" if size in (None, 1) else f"{bound} - {bound - last}"
    cause = "the index is not bounded by the shape of the ref"
    if is_rounded:
        origin = f" (from {entry})" if entry else ""
        cause = (
            "`emit_pipeline` rounds the size of a slice up to whole tiles and assumes that the "
            f"slice begins at a tile; this one begins at {start}{origin}, and its size is rounded "
            f"to {size}"
        )
    elif is_masked:
        cause = f"the mask is true for elements outside dimension {dim}, which has size {bound}"
    elif is_ragged:
        cause = (
            "the block reaches past the end of its array, and jax before 0.12 does not mask that"
        )
    elif entry is not None:
        cause = f"the index comes from {entry}, and nothing keeps it within bounds"
    elif entries:
        origins = ", and from ".join(entries)
        cause = f"the index comes from {origins}, and nothing keeps it within bounds"
    elif computed is not None:
        within = "one block" if is_block else "bounds"
        why = f"and {_NEGATIVE}" if start < 0 else f"which does not keep it within {within}"
        cause = f"the index comes from {_line(computed, at.source)}, {why}"
    elif start < 0:
        cause = _NEGATIVE
    elif follows == "loop":
        cause = "the index follows a loop that runs past the end of the operand"
    elif is_block:
        cause += ", which is a single block"
    elif follows == "grid":
        cause = "the index follows the grid point past the end of the operand"
    larger = f"make {at.operand} larger" if is_scratch else "pad the array"
    if entry is not None:
        tables = (entry.partition(",")[0],)
    if tables:
        seen = seen.with_values({"index from": ", ".join(tables)})
    if size is None and copy is None:
        seen = seen.with_values({"dimension": str(dim), POSITION: str(start), BOUND: str(bound)})
    keep = f"keep the index between 0 and {largest}"
    if bound == 1:
        keep = "use index 0, the only one"
    if is_rounded:
        keep = "begin each slice at a tile boundary"
    elif is_masked:
        keep = f"let the mask be false for these elements, as in `index < {bound}`"
    elif is_ragged:
        keep = f"mask the access, as in `plt.load({at.operand}, mask=index < {bound}, other=0)`"
    elif last < 0:
        keep = f"access at most {bound} elements"
    return seen.found(
        Fault.OUT_OF_BOUNDS_WRITE if writes else Fault.OUT_OF_BOUNDS_READ,
        f"{at.index} {how} of dimension {dim} of {at.shape}{of_copy}",
        cause,
        f"{keep}, or {larger}"
        + ("; do not start a copy when nothing is left to fetch" * is_fetched),
    )


def _line(line: SourceLine, beside: SourceLine | None) -> str:
    """Describe a line: `line 8, `start = i * 8``, with its file if that is another one."""
    place = f"line {line.line}" if beside and beside.file == line.file else str(line)
    return place + (f", `{line.text}`" if line.text else "")


def copy_sizes_differ(
    seen: Sighting, *, slices: Sequence[str], sizes: Sequence[int], dim: int,
    entries: Sequence[str | None],
) -> Finding:  # fmt: skip
    """Report a copy between slices of different sizes, which exceeds the smaller one.

    Args:
      slices: source and destination.
      sizes: their sizes along dimension `dim`.
      entries: table entries from which the slices come, each with its value.
    """
    taken, room = sizes
    given = [entry for entry in entries if entry is not None]
    origin = f": they come from {', and from '.join(given)}" if given else ""
    return seen.with_values({SIZES: f"{taken}, {room}"}).found(
        Fault.OUT_OF_BOUNDS_WRITE if taken > room else Fault.OUT_OF_BOUNDS_READ,
        f"the copy of {slices[0]} to {slices[1]} copies {taken} along dimension {dim}, but its "
        f"destination has {room}",
        f"the two slices have different sizes{origin}",
        "give both slices the same size",
    )


def no_such_device(
    seen: Sighting, *, value: int, count: int, axis: str | None = None, is_core: bool = False,
    copy: tuple[str, str] | None = None,
) -> Finding:  # fmt: skip
    """Report a remote copy or signal to a device or core that the mesh does not have.

    Args:
      seen: sighting with the copy's destination, or the semaphore, as operand.
      value: the device's position along the axis, or its logical id.
      count: number of devices or cores along the axis, or in total.
      axis: name of the mesh axis; None for a logical id.
      copy: source and destination of a copy; None for a signal.
    """
    unit = "core" if is_core else "device"
    what = f"copy of {copy[0]} to {copy[1]}" if copy else f"signal of {seen.witness.operand}"
    along = f" along mesh axis '{axis}', which has" if axis is not None else ", and the mesh has"
    wrapped = f"wrap the position around, as in `lax.rem(i + 1, {count})`"
    if value < 0:
        wrapped = (
            "wrap the position around before it becomes negative, as in `lax.rem(i + "
            f"{count - 1}, {count})` for the one before `i`: `lax.rem` of a negative number is "
            "negative"
        )
    return seen.found(
        Fault.OUT_OF_BOUNDS_WRITE,
        f"the {what} goes to {unit} {value}{along} {unit}s 0 to {count - 1}",
        "nothing keeps `device_id` within the mesh",
        f"{wrapped}; if the mesh is not a ring, skip the {unit} at its end with `pl.when`",
    )


def discarded(found: Finding) -> Finding:
    """Reword a read outside a table in SMEM if no result depends on its value."""
    is_before = int(found.values[POSITION]) < 0
    nearest = (
        "jnp.maximum(i, 0)" if is_before else f"jnp.minimum(i, {int(found.values[BOUND]) - 1})"
    )
    return replace(
        found,
        message=f"{found.message}; no result depends on the value",
        advice=f"clamp the index before the read, as in `table[{nearest}]`: a read outside the "
        "table returns whatever lies next to it",
    )


def with_other_reads(found: Finding, others: Sequence[Finding]) -> Finding:
    """Mention the other places that are accessed with an out-of-bounds index."""
    places: list[str] = []
    mentioned = found.message.partition("; likewise ")[2]
    for other in others:
        place = str(other.index)
        if other.source is not None and other.source != found.source:
            place += f" in line {other.source.line}"
        if place not in (*places, found.index) and place not in mentioned:
            places.append(place)
    if not places:
        return found
    return replace(found, message=f"{found.message}; likewise {listed(places)}")


def table_out_of_bounds(
    seen: Sighting, *, map_of: str, dim: int, value: int, bound: int, is_small: bool
) -> Finding:
    """Report an index map that reads a scalar-prefetch operand out of bounds.

    Args:
      is_small: whether the table has fewer entries than the grid has steps.
    """
    cause = "the index map does not keep the index within the table"
    if is_small:
        cause = "the grid is larger than the table"
    return seen.found(
        Fault.OUT_OF_BOUNDS_READ,
        f"the index map of {map_of} reads {seen.witness.operand} at index {value} of dimension "
        f"{dim}, which has size {bound}",
        _NEGATIVE if value < 0 else cause,
        f"keep the index between 0 and {bound - 1}",
    )


def block_out_of_bounds(
    seen: Sighting, *, dim: int, value: int, first: int, last: int, array: str, block_size: int,
    by_element: bool = False, is_offset: bool = False, from_table: bool = False,
    points: int | None = None, entry: str | None = None,
) -> Finding:  # fmt: skip
    """Report an index map that returns a block or element that the array does not have.

    Args:
      value: index returned along `dim`; `first` to `last` are allowed.
      by_element: whether the index counts elements.
      is_offset: whether a block index looks like an element offset.
      from_table: whether the index along `dim` depends on scalar prefetch.
      entry: scalar-prefetch entry from which the index comes, with its value.
      points: total number of grid points, if `seen.count` is the number of affected ones.
    """
    unit = "element" if by_element else "block"
    message = (
        f"the index map of {seen.witness.operand} returns {unit} {value} along dimension {dim} of "
        f"{array}, which has {last + 1} {unit}{'s' if last else ''}"
    )
    if points is not None:
        message += f"; it is out of bounds at {seen.count} of {points} grid points"
    if entry is not None:
        cause = f"the index comes from {entry}, and nothing keeps it within bounds"
        advice = "check the table before the call, or clamp the index in the index map"
    elif is_offset and _is_multiplied(seen.witness.grid_point or (), value, block_size):
        cause = (
            f"an index map returns block indices, and this looks like an element offset: {value} "
            f"is {value // block_size} x {block_size}"
        )
        advice = f"return a value between {first} and {last}: `i` rather than `i * {block_size}`"
    elif from_table:
        cause = "the index map takes the block from a scalar-prefetch operand without checking it"
        advice = "check the table before the call, or clamp the index in the index map"
    else:
        point = seen.witness.grid_point or ()
        cause, axis = _beyond(point, value, unit)
        count = f"{last + 1} step{'s' if last else ''}"
        advice = f"return a value between {first} and {last}"
        if axis is not None:
            advice = f"give dimension {axis} of the grid {count}, or return a different index there"
            seen = seen.with_values({GRID_AXIS: str(axis)})
        elif first == last:
            advice = f"return {first}"
    facts = {"dimension": str(dim), unit: str(value)}
    return seen.with_values(facts).found(Fault.BLOCK_OUT_OF_BOUNDS, message, cause, advice)


def _is_multiplied(point: Sequence[int], value: int, block_size: int) -> bool:
    """Return whether an index may be a program id times the block size, not just a program id."""
    return not _axes(point, value) and (not point or value // block_size in point)


def _beyond(point: Sequence[int], value: int, unit: str) -> tuple[str, int | None]:
    """Explain why an index map may leave its array, based on one index and its grid point.

    Also returns the grid dimension that the index follows, if any.
    """
    if value < 0:
        return _NEGATIVE, None
    axes = _axes(point, value)
    if len(axes) == 1 and unit == "block":
        return (
            f"the index equals the grid point along grid dimension {axes[0]}, which has more "
            "steps than the array has blocks along this dimension",
            axes[0],
        )
    return f"the index map goes past the last {unit}", None


def _axes(point: Sequence[int], value: int) -> list[int]:
    """Grid dimensions along which the grid point equals an index."""
    return [axis for axis, at in enumerate(point) if at == value]

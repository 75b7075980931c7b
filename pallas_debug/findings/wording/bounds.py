"""Wording of out-of-bounds accesses and blocks, and of blocks that end before their array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording.facts import listed
from pallas_debug.model import Finding, SourceLine

POSITION, BOUND = "position", "bound"
"""Names in a witness: an index that is a number, and the size of its dimension."""

SIZES = "sizes"
"""Name in a witness: sizes of a copy's source and destination, if they differ."""

GRID_AXIS = "grid dimension"
"""Name in a witness: the grid dimension that a block index equals."""

ONLY_AT = "only at"
"""Name in a witness: the condition under which alone an input is read."""

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


@dataclass(frozen=True, kw_only=True)
class UnreadPart:
    """The end of an input that is in no block along one dimension.

    Attributes:
      array: dtype and shape of the input.
      start, stop: range of elements.
      size: size of the dimension.
      block: size of the blocks.
    """

    operand: str
    array: str
    dimension: int
    start: int
    stop: int
    size: int
    block: int

    @property
    def slip(self) -> str:
        """Reason why the end is in no block."""
        if self.stop - self.start < self.block:
            return "a size was rounded down"
        return f"the {'first' if self.start == 0 else 'last'} block is left out"


def input_not_read(
    seen: Sighting, *, parts: Sequence[UnreadPart], steps: int, axis: int
) -> Finding:
    """Report inputs whose last block the grid does not visit.

    Args:
      parts: parts, one per input; the first is the witness's.
      steps: number of grid points along dimension `axis` of the grid.
    """
    first = parts[0]
    is_partial = first.stop - first.start < first.block
    return _unread(seen, first, steps).found(
        Fault.INPUT_NOT_READ,
        f"no grid point gets {_ends(parts)}: these elements are never read",
        f"dimension {axis} of the grid has {steps:,} step{'s' if steps != 1 else ''}, but "
        f"{first.size:,} elements in blocks of {first.block:,} need {steps + 1:,}: {first.slip}",
        "use pl.cdiv(size, block) steps and mask the part of the last block past the end, or use "
        "a block size that divides the array"
        if is_partial
        else f"give dimension {axis} of the grid {steps + 1:,} steps",
    )


REST_READ_AS = "rest read as"
"""Name in a witness: operand that may be the same array, and reads the rest of it."""


def input_stays(
    seen: Sighting, *, part: UnreadPart, moving: Mapping[int, str], is_packed: bool = False,
    reader: str | None = None,
) -> Finding:  # fmt: skip
    """Report an input whose block stays the same along a dimension, unlike those of other operands.

    Args:
      part: part with the elements that are read instead of the unread ones.
      moving: grid dimensions, each with an operand whose block moves along it; "" if none does.
      is_packed: whether one of these may hold several values in an element, or the input may.
      reader: another operand that reads the rest, if it is the same array.
    """
    left = part.size - part.block
    rest = f"the other {left:,} elements are" if left != 1 else "the other element is"
    facts = {"not read": f"{left} of {part.size}"}
    if reader is not None:
        facts[REST_READ_AS] = reader
    axes = [f"{axis}, along which {name} moves" for axis, name in moving.items()]
    how = f" through as many {'blocks' if is_packed else 'elements'}"
    if not all(moving.values()):
        axes = [f"{axis}, which has as many steps" for axis in moving]
        how = ", and neither does any other index map"
    one = next(iter(moving)) if len(moving) == 1 else None
    found = seen.at(values=facts).found(
        Fault.INPUT_NOT_READ,
        f"every grid point gets {part.start}:{part.stop} along dimension {part.dimension} of "
        f"{part.operand} ({part.array}): {rest} never read",
        f"its index map does not use dimension {', or '.join(axes)}{how}",
        f"return the index of {'that dimension' if one is None else f'dimension {one}'} of the "
        "grid there, or pass only that part of the array",
    )
    if reader is None:
        return found
    return replace(found, only_if=f"{part.operand} and {reader} are not the same array")


def copied_input_stays(
    seen: Sighting, *, part: UnreadPart, moving: str, by_pipeline: bool, on_cores: bool = False
) -> Finding:
    """Report an input of which the kernel copies the same block throughout.

    Args:
      part: part with the elements that are read instead of the unread ones.
      moving: operand that moves through as many elements.
      by_pipeline: whether a pipeline within the kernel copies it.
      on_cores: whether the part is that of one core, which all cores copy.
    """
    left = part.size - part.block
    rest = f"the other {left:,} elements are" if left != 1 else "the other element is"
    cause = (
        "its index map does not use the dimension of the pipeline's grid along which "
        f"{moving} moves through as many elements"
    )
    advice = "return the index of that dimension there"
    if not by_pipeline:
        cause = f"its slice stays the same, while {moving} moves through as many elements"
        advice = f"let it move with that of {moving}"
    if on_cores:
        cause = f"all cores copy the same part, while each has its own part of {moving}"
        advice = f"let the slice depend on the core, as that of {moving} does"
    return seen.at(values={"not read": f"{left} of {part.size}", "moving": moving}).found(
        Fault.INPUT_NOT_READ,
        f"{'the pipeline in ' if by_pipeline else ''}the kernel copies only "
        f"{part.start}:{part.stop} along dimension {part.dimension} of {part.operand} "
        f"({part.array}): {rest} never read",
        cause,
        f"{advice}, or pass only that part of the array",
    )


def input_read_once(seen: Sighting, *, axis: int, output: str) -> Finding:
    """Report an input that is read only at the first step of a dimension along which it moves.

    Args:
      seen: sighting with the read as `source`.
      output: output that moves along the dimension as well, and is stored at all of its steps.
    """
    name = seen.witness.operand
    return seen.with_values({ONLY_AT: f"pl.program_id({axis}) == 0"}).found(
        Fault.INPUT_NOT_READ,
        f"{name} is read only at step 0 of dimension {axis} of the grid, although its block "
        f"changes along it, as that of {output} does: its other blocks are never read",
        f"the condition around this line holds only where pl.program_id({axis}) is 0",
        f"read {name} at each step of dimension {axis}, or return a constant index there",
    )


def input_not_sliced(
    seen: Sighting, *, parts: Sequence[UnreadPart], steps: int, by_pipeline: bool = False
) -> Finding:
    """Report inputs whose first or last block the kernel's own slices and copies leave out.

    Args:
      parts: parts, one per input; the first is the witness's.
      steps: number of blocks that are read.
      by_pipeline: whether a pipeline within the kernel copies them.
    """
    first = parts[0]
    if first.stop - first.start < first.block:
        advice = (
            "handle the elements after the last whole block separately, or use a block size "
            "that divides the "
        )
        advice += "array"
    elif first.start == 0:
        advice = "let the first iteration read block 0"
    elif by_pipeline:
        advice = f"give that dimension of the pipeline's grid {steps + 1} steps"
    else:
        advice = f"let the last iteration read block {steps}"
    return _unread(seen, first, steps).found(
        Fault.INPUT_NOT_READ,
        f"no slice or copy covers {_ends(parts)}: these elements are never read",
        f"{first.operand} is read in {steps:,} block{'s' if steps != 1 else ''} of "
        f"{first.block:,}, but {first.size:,} elements need {steps + 1:,}: {first.slip}",
        advice,
    )


def _ends(parts: Sequence[UnreadPart]) -> str:
    return listed(
        [
            f"{part.start}:{part.stop} along dimension {part.dimension} of {part.operand} "
            f"({part.array})"
            for part in parts
        ]
    )


def _unread(seen: Sighting, first: UnreadPart, steps: int) -> Sighting:
    return seen.at(
        values={
            "not read": f"{first.stop - first.start} of {first.size}",
            "steps": str(steps),
            "needed": str(steps + 1),
        }
    )

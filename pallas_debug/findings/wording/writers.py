"""Wording of faults in write order: stale and overwritten reads, lost and conflicting writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording.facts import (
    WHY,
    Point,
    Reset,
    WrittenElement,
    listed,
    number,
    places_text,
    points_text,
    when_zero,
)
from pallas_debug.findings.wording.order import Access
from pallas_debug.model import Finding, SourceLine

LATE = "reset late"
"""Value in a witness: a sum is lost because its reset comes after an addition."""

_COMBINE = "combine it with the previous value (`+=`, jnp.maximum) after a reset"
"""Advice for a part that replaces another, if the kind of reduction is unknown."""


@dataclass(frozen=True, kw_only=True)
class OutputBlock:
    """The output block that a grid point computes.

    Attributes:
      output: name of the output.
      index: block index.
      steps: grid axes along which the block stays the same; None if axes do not determine that, as
        with an index map that reads a table.
      part: slices that the kernel itself copies to an output in HBM, instead of `index`.
    """

    output: str
    index: Point
    steps: tuple[int, ...] | None = None
    part: str | None = None

    def __str__(self) -> str:
        return self.part or f"block {self.index} of {self.output}"

    @property
    def place(self) -> str:
        """Name of the place: `block (0, 1)`, or the part."""
        return self.part or f"block {self.index}"

    @property
    def begins(self) -> str | None:
        """Unparse the `pl.when` that is true where a block begins; None if there is none."""
        return when_zero(self.steps) if self.steps else None

    def is_same(self, a: Point, b: Point) -> bool:
        """Return whether two grid points compute the same block, according to their axes."""
        steps = self.steps or ()
        return all(
            i == j for axis, (i, j) in enumerate(zip(a, b, strict=True)) if axis not in steps
        )


def _at(access: Access) -> str:
    """Describe the place: `grid point (0, 1), loop iteration (2,)`."""
    if access.loop and not access.grid_point:
        return f"loop iteration {access.loop}"
    loop = f", loop iteration {access.loop}" if access.loop else ""
    return f"grid point {access.grid_point}{loop}"


def _other(seen: Sighting, other: Access, *more: dict[str, str]) -> Sighting:
    """Add facts about the other side to the sighting, and any further ones."""
    facts = {f"other {name}": value for name, value in other.facts.items()}
    for part in more:
        facts |= part
    return seen.with_values(facts)


def stale_read(
    seen: Sighting,
    *,
    reader: Access,
    writer: Access,
    element: WrittenElement,
    block: OutputBlock | None = None,
    left_by: str | None = None,
    resets: tuple[Reset, ...] = (),
    accumulates: bool = False,
    sum_axes: tuple[int, ...] | None = None,
    choice: SourceLine | None = None,
) -> Finding:
    """Report scratch that is read with data left by another output block.

    Args:
      seen: sighting with the line of the read as `source`, and that of the write as `other`.
      block: block that the reader computes; None without blocked outputs.
      left_by: block for which the scratch was written, in the form of `OutputBlock.place`.
      resets: lines that replace contents of the buffer, as observed in the run.
      accumulates: whether the reading line adds to the buffer.
      sum_axes: grid axes whose program ids are 0 where the sum begins, if known.
      choice: line of a `jnp.where` that keeps the buffer's content here, and may drop it elsewhere.
    """
    name = seen.witness.operand
    of_block = f", for {block}," if block else ""
    other = f" for {left_by}" if left_by is not None else ""
    value = f": {element.name(name)} = {number(element.value)}" if element.value is not None else ""
    count = f" in {element.count()}" if element.count() else ""
    cause, advice = not_reset(name, reader, block, resets, accumulates, sum_axes, choice)
    facts = element.facts(name)
    if resets:
        facts["reset at"] = places_text([place for reset in resets for place in reset.places])
    return _other(seen, writer, facts).found(
        Fault.STALE_READ,
        f"{_at(reader)}{of_block} reads what {_at(writer)} left in {name}{other}{count}{value}",
        cause,
        advice,
    )


def input_changed_again(
    seen: Sighting, *, reader: Access, writer: Access, element: WrittenElement
) -> Finding:
    """Report a line that changes an input's block at each of several steps that keep it."""
    name = seen.witness.operand
    values = f"from {number(element.before)} to {number(element.value)}"
    return _other(seen, writer, element.facts(name)).found(
        Fault.STALE_READ,
        f"{_at(reader)} changes {element.name(name)} {values}, after {_at(writer)} has changed it",
        f"{name} is an input: its block is not fetched again while its index stays the same",
        f"keep the result in a variable rather than in {name}, or change it once for all steps",
    )


def not_reset(
    name: str | None,
    reader: Access,
    block: OutputBlock | None,
    resets: tuple[Reset, ...],
    accumulates: bool,
    sum_axes: tuple[int, ...] | None = None,
    choice: SourceLine | None = None,
) -> tuple[str, str]:
    """Return cause and advice: the reset is missing, partial, too late, or at other grid points."""
    verb = "reset" if accumulates else "written"
    again = "reset it" if accumulates else f"write all of {name}"
    if sum_axes is not None and (block is None or block.steps != sum_axes):
        where = f"{again} where its sum begins: {when_zero(sum_axes)}"
    elif block is None:
        where = f"{again} before this line at each grid point that must not see data left by others"
    elif block.part is not None:
        where = f"{again} before this line whenever another part of {block.output} begins"
    elif block.begins is None:
        where = f"{again} before this line whenever another block of {block.output} begins"
    else:
        where = f"{again} at the first step of each block of {block.output}: {block.begins}"
    kind = why_not_reset(reader.grid_point, block, resets, reader.loop)
    if kind == "none" and choice is not None:
        by = f"the jnp.where in line {choice.line} keeps what the previous block left"
        return f"nothing resets {name} at {_at(reader)}: {by}", where
    if kind == "none":
        left = f"nothing resets {name}"
        if accumulates:
            return f"{left}: this line adds to what the previous block left", where
        return f"{left}, and nothing writes it before this line at this grid point", where
    reaching = [reset for reset in resets if reset.reaches]
    points = [point for reset in reaching for point in reset.points]
    places = [place for reset in reaching for place in reset.places]
    if kind == "part":
        parts = " and ".join(str(reset.index) for reset in resets)
        lines = " and ".join(str(reset.line) for reset in resets)
        which = f"line {lines} writes" if len(resets) == 1 else f"lines {lines} write"
        advice = f"reset all of {name}" if accumulates else f"write all of {name} before this line"
        return f"{which} only {parts}", advice
    by = reaching[0].where
    if kind == "later":
        return f"it is {verb} at this grid point in {by}, but only after this line", (
            f"move line {reaching[0].line} before this line"
        )
    if kind == "late":
        at = [point for point in points if block and block.is_same(point, reader.grid_point or ())]
        return (
            f"it is {verb} at {points_text(at)}, in {by}, but {block} begins before that",
            where,
        )
    return f"it is {verb} only at {places_text(places)}, in {by}", where


def why_not_reset(
    reader: Point | None,
    block: OutputBlock | None,
    resets: Sequence[Reset],
    loop: Point = (),
) -> Literal["none", "part", "later", "late", "elsewhere"]:
    """Return why no reset came before a read.

    There is none; none writes the data read; it runs later at the same grid point, or at a later
    one of the same block; or it runs only at grid points of other blocks.
    """
    if not resets:
        return "none"
    places = [place for reset in resets if reset.reaches for place in reset.places]
    points = [point for point, _ in places]
    if not points:
        return "part"
    if (reader, loop) in places or (reader in points and not any(at for _, at in places)):
        return "later"
    in_block = [
        point
        for point in points
        if block is not None and block.steps and reader and block.is_same(point, reader)
    ]
    return "late" if in_block else "elsewhere"


def overwritten_read(
    seen: Sighting,
    *,
    output: str,
    reader: Access,
    writer: Access,
    element: WrittenElement,
    is_under_way: bool = False,
) -> Finding:
    """Report an aliased operand that is read after its memory was overwritten through an output.

    Args:
      seen: sighting with the operand, and the part that is read as `index`.
      output: name of the output that shares the operand's memory.
      reader: copy that fetched the operand, if any.
      is_under_way: whether the two are unordered: the write-back may come first or second.
    """
    at = seen.witness
    what = at.index or at.operand
    both = f"{at.operand} and {output} share one array through input_output_aliases"
    facts = element.facts(at.operand)
    if is_under_way:
        message = (
            f"{what} is fetched for {_at(reader)} while what {_at(writer)} wrote to {output} is "
            "copied back to the same memory"
        )
        cause = f"{both}, and a block is fetched one grid point ahead of its use"
    else:
        message = (
            f"{what} is read at {_at(reader)} after {_at(writer)} overwrote it through {output}"
        )
        cause = both
        if element.value is not None and element.before is not None:
            message += (
                f": {element.name(at.operand)} was {number(element.before)} and is now "
                f"{number(element.value)}"
            )
    if writer.copy or (reader.copy and not is_under_way):
        advice = (
            f"keep the data that is still needed in scratch, or do not alias {at.operand} "
            f"and {output}"
        )
    else:
        advice = (
            f"give {at.operand} and {output} the same index map, so that the grid point that "
            "overwrites a block also reads it, or do not alias them"
        )
    return _other(seen, writer, facts).found(Fault.OVERWRITTEN_READ, message, cause, advice)


def lost_write(
    seen: Sighting,
    *,
    block: OutputBlock,
    lost: Access,
    replaced_by: Access,
    element: WrittenElement,
) -> Finding:
    """Report a write in one visit of an output block that another visit replaces without using it.

    Args:
      seen: sighting with the replacing store as `source`, and the lost one as `other`.
    """
    name = seen.witness.operand
    what = seen.witness.index or name
    steps = f" along grid dimension {' and '.join(map(str, block.steps))}" if block.steps else ""
    advice = f"{_COMBINE} at the first step: {block.begins}"
    if block.begins is None:
        advice = f"{_COMBINE} at the first visit of a block"
    cause = f"{block} stays the same{steps}, but this line replaces it at each step"
    if block.steps is None and lost.grid_point != replaced_by.grid_point:
        cause = f"the index map of {block.output} returns {block.index} at both grid points"
        advice = f"give each grid point its own block, or {advice}"
    return _other(seen, lost, element.facts(name)).found(
        Fault.LOST_WRITE,
        f"what {_at(lost)} wrote to {what} is replaced at {_at(replaced_by)} without being "
        f"used{element.change(name)}",
        cause,
        advice,
    )


def lost_copy(
    seen: Sighting,
    *,
    copy: tuple[str, str],
    lost: Access,
    replaced_by: Access,
    element: WrittenElement,
    of_line: tuple[int, int],
    is_read: bool,
) -> Finding:
    """Report a copy whose data another copy or a store replaces before anything reads it.

    Args:
      seen: sighting with the replacing line as `source`, and that of the copy as `other`.
      copy: source and destination.
      of_line: number of copies by its line that are lost, and of all of them.
      is_read: whether anything ever reads the destination of a lost copy.
    """
    name, (count, total) = seen.witness.operand, of_line
    first, second = (
        f" at {_at(one)}" if one.grid_point or one.loop else "" for one in (lost, replaced_by)
    )
    most = f"{count} of the {total} copies by that line are" if total > 1 else "that copy is"
    facts = {"lost copies": f"{count} of {total}", "source": copy[0]}
    cause = f"{most} replaced unread, and no copy that is read brings the same data"
    advice = f"read {name} before the next copy to it, or give each copy its own part of it"
    advice = advice if is_read else f"read all of {name} that the copies fill, or copy less"
    return _other(seen, lost, element.facts(name), facts).found(
        Fault.LOST_WRITE,
        f"what the copy of {copy[0]} to {copy[1]} brought{first} is replaced{second} before "
        f"anything reads it{element.change(name)}",
        cause,
        advice,
    )


def dropped_sum(
    seen: Sighting,
    *,
    block: OutputBlock | None,
    lost: Access,
    reset: Access,
    element: WrittenElement,
    slip: Literal["late", "early", "unstored", "always", "state", "replaced"] = "late",
    is_again: bool = False,
    stored: Access | None = None,
    reset_in: int | str = "?",
) -> Finding:
    """Report a sum that loses a part: it is reset after an addition and before any read.

    Args:
      seen: sighting with the reset as `source`, or the last store to the output if it came too
        early; and the addition as `other`.
      block: block of both, if any.
      slip: kind of mistake: the sum is reset after the addition; stored before it, and not after;
        reset by each grid point, as a running state; replaced by the next part.
      is_again: whether the line had already reset it at this grid point.
      stored: last store to the output, if it came too early.
      reset_in: line of the reset.
    """
    name = seen.witness.operand
    now, change = number(element.value), ""
    if element.before == element.before:  # a NaN marks unwritten memory here
        change = f": {element.name(name)} was {number(element.before)} and is now {now}"
    if stored is not None:
        then = f"line {reset_in} discards it at {_at(reset)} before anything reads it{change}"
        if slip == "unstored":
            element_name = element.name(name)
            then = f"nothing reads {name} after that addition; {element_name} is {now} at the end"
        output = block or "the output"
        return _other(seen, lost, element.facts(name)).found(
            Fault.LOST_WRITE,
            f"what {_at(lost)} added to {name} is lost: {output} was stored at {_at(stored)}, and "
            f"{then}",
            f"{output} was stored before that addition but not after it",
            "store it at the last step of each block, after the last addition",
        )
    count = f" in {element.count()}" if element.count() else ""
    is_here = (lost.grid_point, lost.loop) == (reset.grid_point, reset.loop)
    where = "at the same grid point" if is_here else f"at {_at(reset)}"
    in_loop = lost.grid_point == reset.grid_point
    if slip == "replaced":
        step = f"grid point of {block}" if block is not None else "grid point"
        step = "iteration" if in_loop else step
        cause = f"each {step} stores its part here, replacing the one before"
        advice = f"{_COMBINE} before the "
        advice += "loop" if in_loop else "first part"
    elif slip in ("always", "state"):
        cause = "this line is unconditional, so each grid point resets "
        cause += "the sum" if slip == "always" else "what earlier ones left"
        advice = "put it under a condition that holds where a sum begins, such as "
        advice += "@pl.when(pl.program_id(axis) == 0)"
    elif is_here:
        line = seen.witness.other
        adding = "the line that adds" if line is None else f"line {line.line}, which adds"
        cause = f"this line runs {'again ' if is_again else ''}after {adding} to {name}"
        advice = f"reset it before {'the loop that has both lines' if is_again else 'that line'}"
    elif is_again and in_loop:
        cause = "this line runs in each iteration of the loop, and resets what the one before added"
        advice = "reset it before the loop"
    else:
        cause = f"{block or 'the sum'} begins before that"
        advice = "reset it before the first addition of each block"
    in_block = slip == "late" or (slip == "replaced" and not in_loop)
    if block is not None and block.begins is not None and in_block:
        advice += f": {block.begins}"
    did = "stored to" if slip in ("replaced", "state") else "added to"
    then = "replaced" if slip == "replaced" else "reset"
    return _other(seen, lost, element.facts(name), {WHY: LATE} if slip == "late" else {}).found(
        Fault.LOST_WRITE,
        f"what {_at(lost)} {did} {name} is lost: it is {then} {where} before anything reads "
        f"it{count}{change}",
        cause,
        advice,
    )


def window_not_written(seen: Sighting, *, elements: tuple[int, int]) -> Finding:
    """Report a block that a pipeline in the kernel's body copies to an output unwritten.

    Args:
      seen: sighting with the output as operand.
      elements: number of unwritten elements, and of all in the block.
    """
    name, (missing, total) = seen.witness.operand, elements
    count = f": {missing:,} of its {total:,} elements hold whatever VMEM held before"
    return seen.found(
        Fault.OUTPUT_NOT_WRITTEN,
        f"a block that the pipeline copies to {name}, {seen.witness.shape}, is not written{count}",
        "the body of the pipeline does not store to all of the block, or stores under a condition "
        "that is never true for this block",
        f"store to all of a block of {name} before the pipeline moves on to the next one",
    )


LIKEWISE = "likewise"
"""Name in a witness: other operands to which the finding applies."""


def likewise(found: Finding, others: Sequence[Finding]) -> Finding:
    """Merge findings of one slip in several buffers: the first finding names the others."""
    before = found.values.get(LIKEWISE)
    known = {found.operand, *(before.split(", ") if before else ())}
    names = {
        other.operand: other.operand
        + ("" if other.source in (None, found.source) else f" in line {other.source.line}")
        for other in others
        if other.operand is not None and other.operand not in known
    }
    if not names:
        return found
    message = f"{found.message}; likewise {listed(list(names.values()))}"
    operands = ", ".join([*([before] if before else ()), *names])
    values = {**found.witness.values, LIKEWISE: operands}
    return replace(found, message=message, witness=replace(found.witness, values=values))


def conflicting_writes(
    seen: Sighting,
    *,
    here: Access,
    there: Access,
    element: WrittenElement,
    blocks: tuple[OutputBlock, OutputBlock] | None = None,
) -> Finding:
    """Report different values that grid points with different blocks or copies write to an element.

    Args:
      seen: sighting with the later write as `source`, and the earlier one as `other`.
      element: element with the value that `here` writes, and the one that was there `before`.
      blocks: blocks of `here` and `there`, if their write-back writes the values.
    """
    name = seen.witness.operand
    what = seen.witness.index or name
    in_loop = here.grid_point == there.grid_point
    which = "iteration" if in_loop else "grid point"
    if blocks is not None:
        cause = f"blocks {blocks[1].index} and {blocks[0].index} of {name} overlap"
        advice = "make the blocks disjoint, or write the shared part at only one grid point"
    elif here.copy and there.copy and here.copy != there.copy:
        cause = f"the copies to {there.copy[1]} and {here.copy[1]} overlap, and the last one wins"
        advice = f"let each {which} copy its own rows, or accumulate in scratch before the copy"
    else:
        cause = f"both {which}s write to the same place, and the last one wins"
        advice = f"let each {which} write its own elements, or accumulate in scratch first"
    at = f"at {_at(here)}, and with"
    then = f" at {_at(there)}"
    if in_loop and here.loop == there.loop:  # a loop that Python unrolls
        at, then = f"twice by this line{f' at {_at(here)}' if here.grid_point else ''}, with", ""
    return _other(seen, there, element.facts(name)).found(
        Fault.CONFLICTING_WRITES,
        f"{what} is written {at} "
        f"{'different values' if element.total != 1 else 'a different value'}"
        f"{then}{element.change(name)}",
        cause,
        advice,
    )

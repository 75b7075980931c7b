"""Timeline of a kernel: activity of a core and its copies over the first and last grid steps.

The timeline follows the walk through the schedule that also gives the estimate of cycles
(`walked.py`), including copies that the kernel starts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pallas_debug.chips import similar_chip
from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.model import SourceLine
from pallas_debug.profile.blocks import Block, BlockMap, OperandBlocks, grid_point
from pallas_debug.profile.core.copies import CopyModel, copy_model
from pallas_debug.profile.core.given import given_scalars
from pallas_debug.profile.core.walk import UNKNOWN_ROUNDS
from pallas_debug.profile.cycles import CORES_SHARE, ROUNDS
from pallas_debug.profile.figures import Figure, missing
from pallas_debug.profile.stats import Profile
from pallas_debug.profile.timeline.origins import REGISTER, own_lines, placements
from pallas_debug.profile.timeline.parts import TimelinePart, part_of
from pallas_debug.profile.timeline.walked import CoreSteps, WalkedRun, walked


@dataclass(frozen=True, kw_only=True)
class TimelineLane:
    """Lane of an operand in a timeline.

    Attributes:
      kind: kind of the operand; `other` for copies that do not move an operand with blocks.
      size: bytes that are copied for a whole block.
      buffers: number of buffers.
      copies: number of copies over all steps of the core.
      note: remark on the operand: why nothing is copied, or what was assumed.
    """

    name: str
    kind: Literal["input", "output", "other"]
    size: Figure
    buffers: int
    copies: Figure
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Timeline of one core, for steps from the beginning and the end of a kernel.

    Attributes:
      grid: grid of the whole kernel.
      bounds: part of the grid that one core runs.
      cores: number of cores that share the grid.
      steps: number of steps of one core.
      compute: average cycles of a step.
      clock: cycles per second of the chip, or of a similar one.
      lanes: lanes of the operands with blocks, in order.
      parts: the first steps, and the last steps if they are separate.
      cycles: cycles of the core over all its steps, including waits.
      stalled: share of `cycles` in which the core waits.
      sources: lines of the kernel that start copies, by bundle.
      notes: sentences about what was assumed, and what is left out.
    """

    kernel: str
    target: str
    grid: tuple[int, ...]
    bounds: tuple[int, ...]
    cores: int
    steps: int
    compute: Figure
    clock: float
    lanes: tuple[TimelineLane, ...]
    parts: tuple[TimelinePart, ...]
    cycles: Figure
    stalled: Figure
    sources: Mapping[int, SourceLine]
    notes: tuple[str, ...]

    def point(self, step: int) -> tuple[int, ...]:
        """Return the grid point of a step of the first core."""
        return grid_point(self.bounds, step)

    def microseconds(self, cycles: float) -> float:
        """Convert cycles to microseconds."""
        return cycles / self.clock * 1e6


def timeline_of(
    profile: Profile,
    *,
    first: int,
    last: int,
    name: str = "the kernel",
    model: CopyModel | None = None,
) -> Timeline:
    """Run a kernel's schedule over its grid.

    Args:
      first, last: number of steps to keep from the beginning and the end.
      name: name of the kernel, for messages.
      model: cost of copies, instead of that of the target's chip.

    Raises:
      CannotRunError: the schedule has no bundles, or its steps are not recognised.
      UsageError: a fact that the timeline needs is not known; the message names it.
    """
    schedule = profile.schedule
    if schedule.is_sparse:
        raise CannotRunError(f"{name} has no timeline, because it runs on the SparseCore")
    blocks = _known(profile.blocks, name)
    if not schedule.bundles:
        raise CannotRunError(f"{name} has no timeline: there is no schedule of bundles")
    bounds = schedule.core_bounds(blocks.grid)
    steps = math.prod(bounds)
    placed = placements(schedule, profile.kernel)
    run = walked(
        schedule,
        model or copy_model(schedule.chip)[0],
        profile.origins,
        _core_steps(blocks, bounds, placed),
        given_scalars(schedule, blocks.scalars),
        seen=profile.walk if model is None else None,
    )
    if run is None or not run.seen:
        raise CannotRunError(
            f"{name} has no timeline: the loop over its {steps:,} grid steps was not recognised in "
            "the schedule"
        )
    first = min(first, run.seen)
    last = min(last, steps - first)
    cores = math.ceil(blocks.points / steps)
    lanes = [_lane(profile, n, o, placed.get(n), run) for n, o in enumerate(blocks.operands)]
    parts = _parts(run, steps, first, last)
    if any(copy.lane == len(lanes) for part in parts for copy in part.copies):
        others = missing("they move no blocks", unit="bytes")
        lanes.append(
            TimelineLane(
                name="other copies",
                kind="other",
                size=others,
                buffers=0,
                copies=_count(run, len(lanes)),
            )
        )
    note = "walked through the schedule"
    return Timeline(
        kernel=name,
        target=profile.target,
        grid=blocks.grid,
        bounds=bounds,
        cores=cores,
        steps=steps,
        compute=profile.traffic.compute_per_step,
        clock=similar_chip(schedule.chip).clock,
        lanes=tuple(lanes),
        parts=parts,
        cycles=Figure(value=run.end, origin="assumed", unit="cycles", note=note),
        stalled=Figure(
            value=run.waiting / run.end if run.end else None, origin="assumed", note="of all cycles"
        ),
        sources=own_lines(schedule, profile.tracing, profile.origins),
        notes=tuple(_notes(profile, blocks, bounds, run, last)),
    )


def _known(blocks: BlockMap | None, name: str) -> BlockMap:
    if blocks is None:
        raise UsageError(
            f"{name} has no timeline: the dump does not record which blocks it touches, because an "
            "earlier version of pallas-debug wrote it. Dump the kernel again."
        )
    if blocks.unknown is not None:
        raise UsageError(
            f"{name} has no timeline: {blocks.unknown}. "
            "A timeline needs a grid of known size, with blocks."
        )
    if not blocks.points:
        raise UsageError(f"{name} has no timeline: its grid has no points.")
    return blocks


def _core_steps(blocks: BlockMap, bounds: tuple[int, ...], placed: Mapping[int, str]) -> CoreSteps:
    """Return the steps of a core, and the blocks that its pipeline copies."""

    def block(lane: int, step: int) -> Block:
        return blocks.block(blocks.operands[lane], grid_point(bounds, step))

    return CoreSteps(
        count=math.prod(bounds),
        fetches=any(
            operand.is_pipelined and operand.kind == "input" and placed.get(number) != "vmem"
            for number, operand in enumerate(blocks.operands)
        ),
        is_ahead=[o.kind == "input" and o.buffers > 1 for o in blocks.operands],
        block=block,
        others=len(blocks.operands),
    )


def _parts(run: WalkedRun, steps: int, first: int, last: int) -> tuple[TimelinePart, ...]:
    """Return the first steps, and the last ones if the walk went through all."""
    spans = [(0, first)]
    if last and run.seen == steps:
        spans = [(0, steps)] if first + last == steps else [*spans, (steps - last, steps)]
    return tuple(
        part_of(start, stop, steps=run.steps, copies=run.copies, waits=run.waits)
        for start, stop in spans
    )


def _notes(
    profile: Profile, blocks: BlockMap, bounds: tuple[int, ...], run: WalkedRun, last: int
) -> Iterator[str]:
    """Yield what was assumed, and what is left out."""
    steps = math.prod(bounds)
    if steps < blocks.points:
        shared = zip(blocks.grid, bounds, strict=True)
        split = next(axis for axis, (whole, own) in enumerate(shared) if whole != own)
        yield (
            f"{math.ceil(blocks.points / steps)} cores share the grid along dimension {split}: the "
            "first core is shown, as if the others copied nothing"
        )
    cycles = profile.cycles
    # Notes of its own say how the cores share the grid, and how often loops run.
    yield from (a for a in cycles.assumptions if CORES_SHARE not in a and a != ROUNDS)
    if cycles.total.formula:
        yield (
            f"loops of unknown length run {UNKNOWN_ROUNDS} times here; all cycles are "
            f"{cycles.total.formula}; {cycles.total.note}"
        )
    if last and run.seen < steps:
        yield (
            f"of {steps:,} steps, the first {run.seen:,} were walked through one by one; the last "
            "ones are not shown"
        )


def _lane(
    profile: Profile, number: int, operand: OperandBlocks, space: str | None, run: WalkedRun
) -> TimelineLane:
    """Return the lane of an operand.

    Args:
      space: memory in which XLA placed the operand; None for HBM.
    """
    copied = {copy.size for copy in run.copies if copy.lane == number and copy.is_own}
    if not operand.is_pipelined:
        note = "the kernel copies the parts that it needs"
        size = missing("the kernel chooses what it copies", unit="bytes")
    else:
        note = _placed_note(space, is_copied=bool(copied)) or _block_note(operand)
        size = _block_size(profile, operand)
    if copied:
        value, *others = copied
        size = Figure(value=value, unit="bytes", note="of what the kernel copies")
        if value is None or others:
            size = missing("of several or unknown sizes", unit="bytes")
    return TimelineLane(
        name=operand.name,
        kind=operand.kind,
        size=size,
        buffers=operand.buffers,
        copies=_count(run, number),
        note=note,
    )


def _placed_note(space: str | None, *, is_copied: bool) -> str:
    """Describe where XLA placed an operand; empty for HBM."""
    if space is None:
        return ""
    if space == REGISTER:
        return "XLA passes the one element in a register: nothing is copied"
    whole = f"XLA placed the whole array in {space.upper()}"
    if is_copied:
        return f"{whole}; the kernel copies the parts that it needs"
    return (
        f"{whole}: nothing is copied" if space == "vmem" else f"{whole}, and blocks come from there"
    )


def _block_note(operand: OperandBlocks) -> str:
    """Describe what is known of the blocks of an operand."""
    if operand.unknown is not None:
        return f"which blocks are copied is unknown: {operand.unknown}"
    if operand.tables:
        were = "was" if len(operand.tables) == 1 else "were"
        return f"as {' and '.join(operand.tables)} {were} in the first call"
    return ""


def _block_size(profile: Profile, operand: OperandBlocks) -> Figure:
    use = profile.memory.of_operand(operand.name)
    if use is not None and use.space == "vmem" and use.size.value and use.buffers:
        return Figure(
            value=int(use.size.value) // use.buffers,
            origin="compiler",
            unit="bytes",
            note="one buffer in VMEM, padded to tiles",
        )
    return Figure(
        value=operand.block_bytes, origin="derived", unit="bytes", note="shape of a block"
    )


def _count(run: WalkedRun, lane: int) -> Figure:
    """Return the number of copies of a lane."""
    if run.counts is None:
        return missing("not all steps were seen")
    return Figure(value=run.counts.get(lane, 0), note="over all steps of the core")

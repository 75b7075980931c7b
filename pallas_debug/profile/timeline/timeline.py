"""Timeline of a kernel: activity of a core and its copies over the first and last grid steps.

The timeline follows a walk through the schedule (`walked.py`), including copies that the kernel
starts. If the loop is not recognised, or the grid is too long, it simulates libtpu's pipeline
(`pipeline.py`) with the average cycles of a step instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.model import SourceLine
from pallas_debug.profile.blocks import BlockMap, OperandBlocks, grid_point
from pallas_debug.profile.core.copies import CopyModel
from pallas_debug.profile.core.given import given_scalars
from pallas_debug.profile.core.walk import UNKNOWN_ROUNDS
from pallas_debug.profile.cycles import AS_LOCAL, CORES_SHARE, ROUNDS
from pallas_debug.profile.figures import Figure, missing
from pallas_debug.profile.stats import Profile
from pallas_debug.profile.timeline.origins import REGISTER, copy_origins, own_lines, placements
from pallas_debug.profile.timeline.parts import Block, TimelinePart, part_of
from pallas_debug.profile.timeline.pipeline import Pipeline, PipelineOperand, PipelineRun
from pallas_debug.profile.timeline.rates import CopyRates
from pallas_debug.profile.timeline.walked import CoreSteps, WalkedRun, walked

MAX_SIMULATED = 1 << 15
"""Maximum product of steps and operands to simulate; of a longer grid, only the ends are."""

WARM_UP = 16
"""Warm-up steps to simulate before the last ones of a long grid, to reach a steady state."""


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
      lanes: lanes of the operands with blocks, in order.
      parts: the first steps, and the last steps if they are separate.
      cycles: cycles of the core over all its steps, including waits.
      stalled: share of `cycles` in which the core waits.
      units: average share of each unit's capacity that is used in the bundles of a step.
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
    rates: CopyRates
    lanes: tuple[TimelineLane, ...]
    parts: tuple[TimelinePart, ...]
    cycles: Figure
    stalled: Figure
    units: Mapping[str, float]
    sources: Mapping[int, SourceLine]
    notes: tuple[str, ...]

    def point(self, step: int) -> tuple[int, ...]:
        """Return the grid point of a step of the first core."""
        return grid_point(self.bounds, step)

    def microseconds(self, cycles: float) -> float:
        """Convert cycles to microseconds."""
        return cycles * self.rates.seconds * 1e6


def timeline_of(
    profile: Profile,
    blocks: BlockMap | None,
    rates: CopyRates,
    model: CopyModel,
    *,
    first: int,
    last: int,
    name: str = "the kernel",
) -> Timeline:
    """Run a kernel's schedule over its grid.

    Args:
      blocks: block map of the kernel; None if it was not recorded.
      first, last: number of steps to keep from the beginning and the end.
      name: name of the kernel, for messages.

    Raises:
      CannotRunError: the schedule has no bundles.
      UsageError: a fact that the timeline needs is not known; the message names it.
    """
    if profile.schedule.is_sparse:
        raise CannotRunError(f"{name} has no timeline, because it runs on the SparseCore")
    blocks = _known(blocks, name)
    if not profile.schedule.bundles:
        raise CannotRunError(
            f"{name} has no timeline: there is no schedule of bundles. "
            "To get one, dump it with `--stages bundles`."
        )
    compute = step_cycles(profile, math.prod(profile.schedule.core_bounds(blocks.grid)))
    for figure, remedy in ((rates.clock, "pass --clock in MHz"), (compute, "")):
        if not figure.is_known:
            advice = f" To get one, {remedy}." if remedy else ""
            raise UsageError(f"{name} has no timeline: {figure.note}.{advice}")
    return _Maker(profile, blocks, rates, model, compute, name).make(first, last)


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


def step_cycles(profile: Profile, steps: int) -> Figure:
    """Return the average cycles of a grid step, without waits for copies.

    Args:
      steps: number of steps of the core.
    """
    cycles, schedule = profile.cycles, profile.schedule
    if not cycles.executions:
        return missing("there is no schedule of bundles", unit="cycles")
    inside = range(len(schedule.bundles))
    outer = [loop for loop in schedule.loops if loop.depth == 0]
    if outer and steps > 1:
        loop = max(outer, key=lambda loop: loop.size)
        inside = range(loop.start, loop.stop)
    return Figure(
        value=sum(cycles.executions[at] * (1 + schedule.delays[at]) for at in inside) / steps,
        origin=cycles.compute.origin,
        unit="cycles",
        note="bundles and delays, averaged over the grid",
    )


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


def _block(operand: OperandBlocks, blocks: BlockMap, bounds: tuple[int, ...], step: int) -> Block:
    return blocks.block(operand, grid_point(bounds, step))


def _size(operand: OperandBlocks, whole: float, block: Block) -> float:
    """Return the bytes to copy for a block, which is clipped at the end of the array."""
    if block is None or not operand.block_bytes:
        return whole
    return whole * operand.bytes_of(block) / operand.block_bytes


class _Maker:
    """Builder of the timeline of one kernel."""

    def __init__(
        self,
        profile: Profile,
        blocks: BlockMap,
        rates: CopyRates,
        model: CopyModel,
        compute: Figure,
        name: str,
    ) -> None:
        self._profile = profile
        self._blocks = blocks
        self._rates = rates
        self._model = model
        self._compute = compute
        self._name = name
        self._bounds = profile.schedule.core_bounds(blocks.grid)
        self._steps = math.prod(self._bounds)
        self._placed = placements(profile.schedule, profile.kernel)
        self._origins = copy_origins(profile.schedule, profile.kernel)
        self._notes: list[str] = []

    def make(self, first: int, last: int) -> Timeline:
        first = min(first, self._steps)
        last = min(last, self._steps - first)
        cores = math.ceil(self._blocks.points / self._steps)
        if cores > 1:
            shared = zip(self._blocks.grid, self._bounds, strict=True)
            split = next(d for d, (whole, own) in enumerate(shared) if whole != own)
            self._notes.append(
                f"{cores} cores share the grid along dimension {split}: the first core is shown, "
                "as if the others copied nothing"
            )
        if AS_LOCAL in self._profile.cycles.assumptions:
            self._notes.append(AS_LOCAL)
        operands = self._blocks.operands
        run = self._walked(len(operands))
        lanes = [self._lane(n, o, is_walked=run is not None) for n, o in enumerate(operands)]
        others = TimelineLane(
            name="other copies",
            kind="other",
            size=missing("they move no blocks", unit="bytes"),
            buffers=0,
            copies=missing("not all steps were seen"),
        )
        parts, cycles, stalled = self._parts(run, first, last)
        shown = (
            [*lanes, others]
            if any(c.lane == len(lanes) for p in parts for c in p.copies)
            else lanes
        )
        sources = own_lines(self._profile.schedule, self._profile.tracing, self._origins)
        compilation = self._profile.compilation
        return Timeline(
            kernel=self._name,
            target=compilation.target if compilation else "",
            grid=self._blocks.grid,
            bounds=self._bounds,
            cores=cores,
            steps=self._steps,
            compute=self._compute,
            rates=self._rates,
            lanes=self._counted(shown, run),
            parts=parts,
            cycles=cycles,
            stalled=stalled,
            units={
                use.name: float(use.share.value)
                for use in self._profile.stats.units
                if use.share.value is not None
            },
            sources=sources,
            notes=tuple(dict.fromkeys(self._notes)),
        )

    def _lane(self, number: int, operand: OperandBlocks, *, is_walked: bool) -> TimelineLane:
        note = ""
        if not operand.is_pipelined:
            note = "the kernel copies the parts that it needs"
        elif number in self._placed:
            space = self._placed[number].upper()
            note = f"XLA placed the whole array in {space}"
            note += ": nothing is copied" if space == "VMEM" else ", and blocks come from there"
            if self._placed[number] == REGISTER:
                note = "XLA passes the one element in a register: nothing is copied"
        elif operand.unknown is not None and is_walked:
            note = f"which blocks are copied is unknown: {operand.unknown}"
        elif operand.unknown is not None:
            note = f"its block is assumed to change at every step: {operand.unknown}"
        elif operand.tables:
            were = "was" if len(operand.tables) == 1 else "were"
            note = f"as {' and '.join(operand.tables)} {were} in the first call"
        return TimelineLane(
            name=operand.name,
            kind=operand.kind,
            size=(
                _block_size(self._profile, operand)
                if operand.is_pipelined
                else missing("the kernel chooses what it copies", unit="bytes")
            ),
            buffers=operand.buffers,
            copies=missing("not all steps were seen"),
            note=note,
        )

    def _counted(
        self, lanes: list[TimelineLane], run: WalkedRun | None
    ) -> tuple[TimelineLane, ...]:
        """Return the lanes with their numbers of copies, if all steps were seen."""
        counts = run.counts if run is not None else self._simulated_counts
        lanes = [self._with_own_copies(n, lane, run) for n, lane in enumerate(lanes)]
        if counts is None:
            return tuple(lanes)
        note = "over all steps of the core"
        return tuple(
            replace(lane, copies=Figure(value=counts.get(n, 0), note=note))
            for n, lane in enumerate(lanes)
        )

    def _with_own_copies(
        self, number: int, lane: TimelineLane, run: WalkedRun | None
    ) -> TimelineLane:
        """Adapt a lane if the kernel copies the operand itself, as that does not copy blocks."""
        copies = run.copies if run is not None else ()
        sizes = {copy.size for copy in copies if copy.lane == number and copy.is_own}
        if not sizes:
            return lane
        size, *others = sizes
        if number in self._placed:
            space = self._placed[number].upper()
            note = (
                f"XLA placed the whole array in {space}; the kernel copies the parts that it needs"
            )
            lane = replace(lane, note=note)
        if size is None or others:
            return replace(lane, size=missing("of several or unknown sizes", unit="bytes"))
        return replace(
            lane, size=Figure(value=size, unit="bytes", note="of what the kernel copies")
        )

    @property
    def _has_own(self) -> bool:
        """True if the kernel starts copies itself."""
        return any(origin.is_own for origin in self._origins.values())

    # Walk through the schedule

    def _walked(self, others: int) -> WalkedRun | None:
        """Walk through the schedule; None if a simulation is more accurate."""
        given = given_scalars(self._profile.schedule, self._blocks.scalars)
        tables = {name for o in self._blocks.operands if o.is_pipelined for name in o.tables}
        if tables - given.names and not self._has_own:
            self._notes.append(
                "blocks depend on scalar prefetch, whose values are in the dump but not in the "
                "schedule: libtpu's pipeline is simulated, with the average cycles of a step"
            )
            return None

        def block(lane: int, step: int) -> Block:
            return _block(self._blocks.operands[lane], self._blocks, self._bounds, step)

        pipelined = [
            operand.is_pipelined and self._placed.get(number) != "vmem"
            for number, operand in enumerate(self._blocks.operands)
        ]
        is_input = [operand.kind == "input" for operand in self._blocks.operands]
        steps = CoreSteps(
            count=self._steps,
            fetches=any(a and b for a, b in zip(pipelined, is_input, strict=True)),
            is_ahead=[o.kind == "input" and o.buffers > 1 for o in self._blocks.operands],
            block=block,
            others=others,
        )
        found = walked(self._profile.schedule, self._model, self._origins, steps, given)
        if found is None:
            self._notes.append(
                "the loop over grid steps was not recognised in the schedule: libtpu's pipeline is "
                "simulated, with the average cycles of a step"
            )
        return found

    def _parts(
        self, run: WalkedRun | None, first: int, last: int
    ) -> tuple[tuple[TimelinePart, ...], Figure, Figure]:
        """Return the first and last steps, the total cycles, and the share of waits in them."""
        if run is None or run.seen < first:
            return self._simulated(first, last)
        # Notes of its own say how the cores share the grid, and how often loops run.
        assumed = (
            a for a in self._profile.cycles.assumptions if CORES_SHARE not in a and a != ROUNDS
        )
        self._notes += assumed
        cycles = self._profile.cycles.total
        if cycles.formula:
            self._notes.append(
                f"loops of unknown length run {UNKNOWN_ROUNDS} times here; all cycles are "
                f"{cycles.formula}; {cycles.note}"
            )
        steps = self._steps
        events = {"steps": run.steps, "copies": run.copies, "waits": run.waits}
        note = "walked through the schedule"
        total = replace(_assumed(run.end, note), unit="cycles")
        stalled = _assumed(run.waiting / run.end if run.end else None, "of all cycles")
        if first + last == steps and run.seen == steps:
            return (part_of(0, steps, **events),), total, stalled  # type: ignore[arg-type]
        parts = [part_of(0, first, **events)]  # type: ignore[arg-type]
        if last and run.seen == steps:
            parts.append(part_of(steps - last, steps, **events))  # type: ignore[arg-type]
        elif last:
            self._notes.append(
                f"of {steps:,} steps, the first {run.seen:,} were walked through; the last ones "
                "are simulated, with the average cycles of a step"
            )
            tail = self._pipeline(steps - last - WARM_UP, steps, first, last)
            parts.append(_part(tail, steps - last, steps, run.end - tail.end))
        return tuple(parts), total, stalled

    # Simulation of the pipeline

    _simulated_counts: Mapping[int, int] | None = None

    def _simulated(self, first: int, last: int) -> tuple[tuple[TimelinePart, ...], Figure, Figure]:
        steps = self._steps
        if self._has_own:
            self._notes.append("copies that the kernel starts, and waits for them, are not shown")
        if steps * max(len(self._blocks.operands), 1) <= MAX_SIMULATED:
            whole = self._pipeline(0, steps, first, last)
            self._simulated_counts = dict(enumerate([0] * len(self._blocks.operands))) | dict(
                zip((o.lane for o in self._moved()), whole.counts, strict=True)
            )
            total = replace(_assumed(whole.end, "simulated"), unit="cycles")
            stalled = _assumed(whole.waiting / whole.end if whole.end else None, "of all cycles")
            if first + last == steps:
                return (_part(whole, 0, steps),), total, stalled
            parts = [_part(whole, 0, first)]
            return (*parts, *([_part(whole, steps - last, steps)] if last else [])), total, stalled
        head = self._pipeline(0, max(first, WARM_UP), first, 0)
        start = steps - last - WARM_UP
        tail = self._pipeline(start, steps, 0, last)
        simulated = max(first, WARM_UP) + steps - start
        end = (head.end + tail.end) / simulated * steps
        parts = [_part(head, 0, first)]
        if last:
            parts.append(_part(tail, steps - last, steps, end - tail.end))
        self._notes.append(
            f"of {steps:,} steps, the first and the last ones were simulated; the time between "
            "them is extrapolated from those"
        )
        waiting = (head.waiting + tail.waiting) / (head.end + tail.end)
        note = "extrapolated from the first and last steps"
        return tuple(parts), replace(_assumed(end, note), unit="cycles"), _assumed(waiting, note)

    def _pipeline(self, start: int, stop: int, first: int, last: int) -> PipelineRun:
        cycles = float(self._compute.value or 0)
        # Keep the neighbouring steps, whose copies overlap with these.
        return Pipeline(
            self._moved(),
            steps=self._steps,
            compute=lambda _: cycles,
            keeps=lambda step: step < first + 2 or step >= self._steps - last - 2,
        ).run(max(start, 0), stop)

    def _moved(self) -> list[PipelineOperand]:
        return [
            self._pipelined(number, operand)
            for number, operand in enumerate(self._blocks.operands)
            if operand.is_pipelined and self._placed.get(number) != "vmem"
        ]

    def _pipelined(self, lane: int, operand: OperandBlocks) -> PipelineOperand:
        whole = float(_block_size(self._profile, operand).value or 0)
        space = "smem" if operand.space == "smem" else "vmem"
        return PipelineOperand(
            lane=lane,
            direction="in" if operand.kind == "input" else "out",
            buffers=operand.buffers if self._steps > 1 else 1,
            reads_back=operand.reads_back,
            block=partial(_block, operand, self._blocks, self._bounds),
            size=partial(_size, operand, whole),
            fetch=partial(_time, self._model, f"hbm_to_{space}"),
            write=partial(_time, self._model, f"{space}_to_hbm"),
        )


def _time(model: CopyModel, direction: str, size: float) -> tuple[float, float]:
    """Return the latency of a copy, and the cycles for which it keeps others from HBM."""
    whole = math.ceil(size)
    busy = model.hbm_time(direction, whole)
    return sum(model.time(direction, whole)) - busy, busy


def _assumed(value: float | None, note: str) -> Figure:
    return Figure(value=value, origin="assumed", note=note)


def _part(run: PipelineRun, start: int, stop: int, offset: float = 0.0) -> TimelinePart:
    return part_of(start, stop, steps=run.steps, copies=run.copies, waits=run.waits, offset=offset)

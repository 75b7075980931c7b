"""Timeline of a kernel: what core and copies do over the first and last grid steps.

The order is that of libtpu's pipeline (`pipeline.py`), with the blocks that the index maps name.
Durations are the average cycles of a step, and bytes divided by the bandwidth of HBM.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from pallas_debug.errors import UsageError
from pallas_debug.model import Kernel
from pallas_debug.profile.blocks import BlockMap, OperandBlocks
from pallas_debug.profile.figures import Figure, missing
from pallas_debug.profile.stats import Profile
from pallas_debug.profile.timeline.pipeline import (
    Block,
    Pipeline,
    PipelineCopy,
    PipelineOperand,
    PipelineRun,
    PipelineStep,
    PipelineWait,
)
from pallas_debug.profile.timeline.rates import CopyRates

MAX_SIMULATED = 1 << 15
"""Maximum steps, times operands, that are simulated one by one; of a longer grid, the ends are."""

WARM_UP = 16
"""Steps simulated before the last ones of a long grid, until the pipeline is in its rhythm."""

_BOUNDS = re.compile(r"^iteration_bounds: \((?P<sizes>\d{1,9}(?:, ?\d{1,9}){0,31}),?\)$", re.M)
_WINDOW = re.compile(r"(?P<kind>in|out)put window allocation for operator \w+ (?P<n>\d{1,6})\b")
_CALL_OPERAND = "inlined_call_operand."


@dataclass(frozen=True, kw_only=True)
class TimelineLane:
    """An operand in a timeline.

    Attributes:
      size: bytes of a whole block, as copied.
      buffers: number of buffers.
      copies: over all steps of the core; missing if not all were simulated.
      note: what is special about it: why nothing is copied, or what was assumed.
    """

    name: str
    kind: Literal["input", "output"]
    size: Figure
    buffers: int
    copies: Figure
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class TimelinePart:
    """Consecutive steps of a timeline, in cycles from its beginning.

    The `operand` of a copy or a wait is the position of its lane.

    Attributes:
      steps, waits: of these steps.
      copies: those that take place in this time, also for the steps before and after.
    """

    start: int
    stop: int
    begin: float
    end: float
    steps: tuple[PipelineStep, ...]
    copies: tuple[PipelineCopy, ...]
    waits: tuple[PipelineWait, ...]


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The pipeline of one core over the first and last steps of a kernel.

    Attributes:
      grid: of the whole kernel.
      bounds: of it, what one core runs.
      cores: that share the grid.
      steps: of one core.
      compute: cycles of a step.
      lanes: operands with blocks, in order.
      parts: the first steps, and the last ones if they are apart.
      cycles: of the core over all its steps, copies and waits included.
      stalled: share of them in which the core waits.
      units: average share of each unit's capacity in the bundles of a step.
      notes: what was assumed, and what is left out, a sentence each.
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
    notes: tuple[str, ...]

    def point(self, step: int) -> tuple[int, ...]:
        """The grid point of a step of the first core."""
        return _unravelled(step, self.bounds)

    def microseconds(self, cycles: float) -> float:
        """Convert cycles to microseconds."""
        return cycles / float(self.rates.clock.value or 1) * 1e6


def timeline_of(
    profile: Profile,
    blocks: BlockMap | None,
    rates: CopyRates,
    *,
    first: int,
    last: int,
) -> Timeline:
    """Run a kernel's pipeline over its grid.

    Args:
      blocks: its block map; None if it was not recorded.
      first, last: steps to keep from the beginning and the end.

    Raises:
      UsageError: what determines the timeline is not known; the message says what.
    """
    kernel = profile.kernel
    name = kernel.name if kernel else "the kernel"
    blocks = _known(blocks, name)
    compute = step_cycles(profile)
    for figure, remedy in (
        (compute, "dump it with `--stages bundles`"),
        (rates.clock, "pass --clock in MHz"),
        (rates.bandwidth, "pass --bandwidth in GB/s"),
    ):
        if not figure.is_known:
            raise UsageError(f"{name} has no timeline: {figure.note}. To get one, {remedy}.")
    bounds = core_bounds(profile, blocks.grid)
    cores = math.ceil(blocks.points / math.prod(bounds))
    notes: list[str] = []
    lanes, moved = _lanes(profile, blocks, bounds, notes)
    steps = math.prod(bounds)
    if cores > 1:
        split = next(d for d, (n, m) in enumerate(zip(blocks.grid, bounds, strict=True)) if n != m)
        notes.append(
            f"{cores} cores share the grid along dimension {split}, and the bandwidth of HBM: "
            "the first core is shown"
        )
    bandwidth = float(rates.bandwidth.value or 0) / float(rates.clock.value or 1) / cores
    if not rates.latency.is_known:
        notes.append(f"copies start at once: {rates.latency.note}")
    parts, whole = _simulated(
        [operand for _, operand in moved],
        steps=steps,
        ends=(first, last),
        compute=float(compute.value or 0),
        bandwidth=bandwidth,
        latency=float(rates.latency.value or 0),
    )
    renumbered = tuple(_renumbered(part, [lane for lane, _ in moved]) for part in parts)
    if whole is None:
        notes.append(
            f"of {steps:,} steps, the first and the last ones were simulated; the time between "
            "them is extrapolated from those"
        )
    return Timeline(
        kernel=name,
        target=profile.compilation.target if profile.compilation else "",
        grid=blocks.grid,
        bounds=bounds,
        cores=cores,
        steps=steps,
        compute=compute,
        rates=rates,
        lanes=_counted(lanes, [lane for lane, _ in moved], whole),
        parts=renumbered,
        cycles=_total(parts, whole),
        stalled=_stalled(parts, whole),
        units={
            use.name: float(use.share.value)
            for use in profile.stats.units
            if use.share.value is not None
        },
        notes=tuple(notes),
    )


def _known(blocks: BlockMap | None, name: str) -> BlockMap:
    if blocks is None:
        raise UsageError(
            f"{name} has no timeline: the dump does not say which blocks it touches, as an earlier "
            "version of pallas-debug made it. Dump the kernel again."
        )
    if not blocks.points:
        raise UsageError(f"{name} has no timeline: its grid has no points.")
    if blocks.unknown is not None:
        raise UsageError(
            f"{name} has no timeline: {blocks.unknown}. A timeline needs a grid with blocks."
        )
    return blocks


def step_cycles(profile: Profile) -> Figure:
    """Average cycles of a grid step, without waiting for copies."""
    cycles, schedule = profile.cycles, profile.schedule
    if not cycles.executions:
        return missing("there is no schedule of bundles", unit="cycles")
    outer = [loop for loop in schedule.loops if loop.depth == 0]
    steps = cycles.steps.value
    if outer and steps != 1:
        loop = max(outer, key=lambda loop: loop.size)
        runs = cycles.executions[loop.start]
        inside = sum(
            cycles.executions[at] * (1 + schedule.delays[at]) for at in range(loop.start, loop.stop)
        )
        if runs:
            return Figure(
                value=inside / runs,
                origin=cycles.compute.origin,
                unit="cycles",
                note="average over the grid, of bundles and delays in the loop over its steps",
            )
    if not steps:
        return missing("the number of grid steps is known only at run time", unit="cycles")
    if not cycles.compute.is_known:
        return missing(cycles.compute.note, unit="cycles")
    return Figure(
        value=float(cycles.compute.value or 0) / steps,
        origin=cycles.compute.origin,
        unit="cycles",
        note="average over the grid, of bundles that run",
    )


def core_bounds(profile: Profile, grid: tuple[int, ...]) -> tuple[int, ...]:
    """What one core runs of a grid, as the compiler divided it."""
    match = _BOUNDS.search(profile.texts.bundles or "")
    if match is None:
        return grid
    bounds = tuple(int(size) for size in match["sizes"].split(","))
    fits = len(bounds) == len(grid) and all(0 < b <= n for b, n in zip(bounds, grid, strict=True))
    return bounds if fits else grid


def _in_vmem(profile: Profile) -> dict[tuple[str, int], str]:
    """Where XLA placed the operands of the call, by kind and number, if not in HBM."""
    found = {}
    for bundle in profile.schedule.bundles[:1024]:
        for instruction in bundle.instructions:
            if instruction.opcode.startswith(_CALL_OPERAND):
                space = instruction.opcode.removeprefix(_CALL_OPERAND)
                window = next(filter(None, map(_WINDOW.match, instruction.remarks)), None)
                if window is not None and space != "hbm":
                    found[f"{window['kind']}put", int(window["n"])] = space
    return found


def _lanes(
    profile: Profile, blocks: BlockMap, bounds: tuple[int, ...], notes: list[str]
) -> tuple[list[TimelineLane], list[tuple[int, PipelineOperand]]]:
    """Lanes of all operands, and what the pipeline copies, with the number of its lane."""
    placed = _in_vmem(profile)
    numbers = {"input": _first_input(profile.kernel), "output": 0}
    lanes: list[TimelineLane] = []
    moved: list[tuple[int, PipelineOperand]] = []
    for operand in blocks.operands:
        space = placed.get((operand.kind, numbers[operand.kind]))
        numbers[operand.kind] += 1
        size = _block_size(profile, operand)
        note = ""
        if not operand.is_pipelined:
            note = "stays where it is: the kernel copies what it needs, which is not shown"
            notes.append(
                f"{operand.name} {note}; the compute of a step includes starting these copies and "
                "not waiting for them"
            )
        elif space is not None:
            note = f"XLA placed the whole array in {space.upper()}: nothing is copied from HBM"
        else:
            if operand.unknown is not None:
                note = f"another block at every step is assumed: {operand.unknown}"
                notes.append(f"{operand.name}: {note}")
            elif operand.tables:
                note = f"as {', '.join(operand.tables)} was in the first call"
            moved.append((len(lanes), _pipelined(operand, blocks, bounds, size)))
        lanes.append(
            TimelineLane(
                name=operand.name,
                kind=operand.kind,
                size=size,
                buffers=operand.buffers,
                copies=missing("not all steps were simulated"),
                note=note,
            )
        )
    return lanes, moved


def _first_input(kernel: Kernel | None) -> int:
    """Number of the first input among the operands of the call, as the compiler counts them."""
    scalars = ("dynamic_grid", "scalar_prefetch")
    return sum(o.kind in scalars for o in kernel.operands) if kernel else 0


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


def _pipelined(
    operand: OperandBlocks, blocks: BlockMap, bounds: tuple[int, ...], size: Figure
) -> PipelineOperand:
    return PipelineOperand(
        direction="in" if operand.kind == "input" else "out",
        buffers=operand.buffers if math.prod(bounds) > 1 else 1,
        reads_back=operand.reads_back,
        block=partial(_block, operand, blocks, bounds),
        size=partial(_size, operand, float(size.value or 0)),
    )


def _block(operand: OperandBlocks, blocks: BlockMap, bounds: tuple[int, ...], step: int) -> Block:
    return blocks.block(operand, _unravelled(step, bounds))


def _size(operand: OperandBlocks, whole: float, block: Block) -> float:
    """Bytes to copy; blocks at the end of the array are cut off there."""
    if block is None or not operand.block_bytes:
        return whole
    return whole * operand.bytes_of(block) / operand.block_bytes


def _unravelled(step: int, bounds: tuple[int, ...]) -> tuple[int, ...]:
    found = []
    for size in reversed(bounds):
        step, index = divmod(step, size)
        found.append(index)
    return tuple(found[::-1])


def _simulated(
    operands: list[PipelineOperand],
    *,
    steps: int,
    ends: tuple[int, int],
    compute: float,
    bandwidth: float,
    latency: float,
) -> tuple[list[TimelinePart], PipelineRun | None]:
    """Run the pipeline; the run over all steps is None if there are too many."""
    first = min(ends[0], steps)
    last = min(ends[1], steps - first)

    def pipeline(start: int, stop: int) -> PipelineRun:
        return Pipeline(
            operands,
            steps=steps,
            compute=compute,
            bandwidth=bandwidth,
            latency=latency,
            # Copies of the neighbouring steps take place at the same time.
            keeps=lambda step: step < first + 2 or step >= steps - last - 2,
        ).run(start, stop)

    if steps * max(len(operands), 1) <= MAX_SIMULATED:
        whole = pipeline(0, steps)
        if first + last == steps:
            return [_part(whole, 0, steps, 0.0)], whole
        found = [_part(whole, 0, first, 0.0)]
        return [*found, _part(whole, steps - last, steps, 0.0)] if last else found, whole
    head = pipeline(0, max(first, WARM_UP))
    found = [_part(head, 0, first, 0.0)]
    if last:
        start = steps - last - WARM_UP
        tail = pipeline(start, steps)
        skipped = start - max(first, WARM_UP)
        rhythm = (head.end + tail.end) / (max(first, WARM_UP) + steps - start)
        found.append(_part(tail, steps - last, steps, head.end + skipped * rhythm))
    return found, None


def _part(run: PipelineRun, start: int, stop: int, offset: float) -> TimelinePart:
    """The events of consecutive steps, later by `offset`."""
    steps = tuple(
        replace(s, begin=s.begin + offset, compute=s.compute + offset, end=s.end + offset)
        for s in run.steps
        if start <= s.step < stop
    )
    waits = tuple(
        replace(w, begin=w.begin + offset, end=w.end + offset)
        for w in run.waits
        if start <= w.step < stop
    )
    begin = steps[0].begin
    end = max([*(w.end for w in waits), *(s.end for s in steps)])
    copies = (
        replace(c, started=c.started + offset, begin=c.begin + offset, end=c.end + offset)
        for c in run.copies
    )
    return TimelinePart(
        start=start,
        stop=stop,
        begin=begin,
        end=end,
        steps=steps,
        copies=tuple(c for c in copies if c.begin < end and c.end > begin),
        waits=waits,
    )


def _renumbered(part: TimelinePart, lanes: list[int]) -> TimelinePart:
    """The same with numbers of lanes in place of those of the operands that are copied."""
    return replace(
        part,
        copies=tuple(replace(c, operand=lanes[c.operand]) for c in part.copies),
        waits=tuple(replace(w, operand=lanes[w.operand]) for w in part.waits),
    )


def _counted(
    lanes: list[TimelineLane], moved: list[int], whole: PipelineRun | None
) -> tuple[TimelineLane, ...]:
    """Lanes with the number of their copies."""
    counts = dict.fromkeys(range(len(lanes)), 0)
    if whole is not None:
        counts |= dict(zip(moved, whole.counts, strict=True))
    note = "over all steps of the core"
    return tuple(
        replace(lane, copies=Figure(value=counts[n], note=note))
        if whole is not None or n not in moved
        else lane
        for n, lane in enumerate(lanes)
    )


def _total(parts: list[TimelinePart], whole: PipelineRun | None) -> Figure:
    note = "copies with the bandwidth and latency given, and the average cycles of a step"
    if whole is not None:
        return Figure(value=whole.end, origin="assumed", unit="cycles", note=note)
    return Figure(
        value=parts[-1].end,
        origin="assumed",
        unit="cycles",
        note=f"{note}; extrapolated from the first and last steps",
    )


def _stalled(parts: list[TimelinePart], whole: PipelineRun | None) -> Figure:
    if whole is not None:
        waiting, total, note = whole.waiting, whole.end, "of all cycles"
    else:
        waiting = sum(w.end - w.begin for part in parts for w in part.waits)
        total = sum(part.end - part.begin for part in parts)
        note = "of the cycles of the first and last steps"
    if not total:
        return missing("there are no cycles")
    return Figure(value=waiting / total, origin="assumed", note=note)

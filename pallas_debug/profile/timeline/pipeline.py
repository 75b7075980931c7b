"""Simulation of the pipeline that libtpu builds around a kernel, step by step, with durations.

As observed in the bundles of all supported versions, it is one loop in which fetches run a step
ahead of the kernel, and the wait for write-backs a step behind it. An iteration

1. starts to fetch this step's blocks of operands with a single buffer;
2. starts to fetch the next step's blocks of other operands, if they differ from this step's blocks;
3. waits for the fetches of this step, and runs the kernel;
4. starts to write back the blocks that this step is the last to use, and waits for those with a
   single buffer;
5. waits for the write-backs of the previous step.

Copies share the bandwidth of HBM and are served in the order in which they start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pallas_debug.profile.timeline.parts import (
    Block,
    Direction,
    TimelineCopy,
    TimelineStep,
    TimelineWait,
)


@dataclass(frozen=True, kw_only=True)
class PipelineOperand:
    """Operand whose blocks are copied.

    Attributes:
      lane: number of the operand's lane in the timeline.
      block: returns the operand's block at a step.
      size: returns the bytes to copy for a block.
      fetch, write: return, for a number of bytes, the cycles before the first byte moves, and the
        cycles of the transfer.
    """

    lane: int
    direction: Direction
    buffers: int
    reads_back: bool
    block: Callable[[int], Block]
    size: Callable[[Block], float]
    fetch: Callable[[float], tuple[float, float]]
    write: Callable[[float], tuple[float, float]]


@dataclass(kw_only=True)
class PipelineRun:
    """Activity of a core and its copies over some steps, in cycles.

    Attributes:
      end: time at which the last write-back completes, or the last step ends.
      waiting: cycles spent waiting.
      counts: number of copies, by operand.
    """

    steps: list[TimelineStep] = field(default_factory=list)
    copies: list[TimelineCopy] = field(default_factory=list)
    waits: list[TimelineWait] = field(default_factory=list)
    end: float = 0.0
    waiting: float = 0.0
    counts: list[int] = field(default_factory=list)


class Pipeline:
    """Simulated pipeline of one core.

    Args:
      operands: operands whose blocks are copied, in order.
      steps: total number of steps of the core.
      compute: returns the compute cycles of a step.
      keeps: returns whether to keep the events of a step.
    """

    def __init__(
        self,
        operands: Sequence[PipelineOperand],
        *,
        steps: int,
        compute: Callable[[int], float],
        keeps: Callable[[int], bool],
    ) -> None:
        self._operands = operands
        self._steps = steps
        self._compute = compute
        self._keeps = keeps
        self._now = 0.0
        self._free = 0.0  # time at which all copies started so far have moved
        self._run = PipelineRun(counts=[0] * len(operands))

    def run(self, start: int, stop: int) -> PipelineRun:
        """Run consecutive steps, starting with an empty pipeline."""
        operands = self._operands
        run = self._run
        before: list[Block] | None = None
        blocks = [operand.block(start) for operand in operands]
        fetches = [
            self._copy(n, "in", start, blocks[n]) for n, o in enumerate(operands) if _is_ahead(o)
        ]
        writes: list[TimelineCopy] = []
        for step in range(start, stop):
            begin = self._now
            following = None
            if step + 1 < self._steps:
                following = [operand.block(step + 1) for operand in operands]
            for n, operand in enumerate(operands):
                is_fetched = operand.direction == "in" or operand.reads_back
                if is_fetched and not _is_ahead(operand) and _differs(blocks, before, n):
                    fetches.append(self._copy(n, "in", step, blocks[n]))
            ahead = [
                self._copy(n, "in", step + 1, following[n])
                for n, operand in enumerate(operands)
                if following is not None and _is_ahead(operand) and _differs(blocks, following, n)
            ]
            self._await(fetches, step)
            self._now += self._compute(step)
            complete = [
                (n, self._copy(n, "out", step, blocks[n]))
                for n, operand in enumerate(operands)
                if operand.direction == "out" and _differs(blocks, following, n)
            ]
            self._await([c for n, c in complete if operands[n].buffers < 2], step)
            self._await(writes, step)
            writes = [c for n, c in complete if operands[n].buffers > 1]
            if step + 1 == self._steps:
                self._await(writes, step)
            if self._keeps(step):
                run.steps.append(TimelineStep(step=step, begin=begin, end=self._now))
            fetches, before = ahead, blocks
            blocks = blocks if following is None else following
        run.end = self._now
        return run

    def _copy(self, number: int, direction: Direction, step: int, block: Block) -> TimelineCopy:
        """Start a copy."""
        operand = self._operands[number]
        size = operand.size(block)
        latency, transfer = (operand.fetch if direction == "in" else operand.write)(size)
        begin = max(self._now, self._free)
        self._free = begin + transfer
        copy = TimelineCopy(
            lane=operand.lane,
            direction=direction,
            step=step,
            block=block,
            size=size,
            started=self._now,
            begin=begin + latency,
            end=begin + latency + transfer,
        )
        self._run.counts[number] += 1
        if self._keeps(step):
            self._run.copies.append(copy)
        return copy

    def _await(self, copies: Sequence[TimelineCopy], step: int) -> None:
        """Wait for copies in order."""
        for copy in copies:
            if copy.end <= self._now:
                continue
            if self._keeps(step):
                self._run.waits.append(
                    TimelineWait(
                        lane=copy.lane,
                        direction=copy.direction,
                        step=step,
                        begin=self._now,
                        end=copy.end,
                    )
                )
            self._run.waiting += copy.end - self._now
            self._now = copy.end


def _is_ahead(operand: PipelineOperand) -> bool:
    """Return whether an operand's blocks are fetched a step ahead."""
    return operand.direction == "in" and operand.buffers > 1


def _differs(blocks: list[Block], others: list[Block] | None, number: int) -> bool:
    """Return whether an operand's block differs or may differ."""
    if others is None:
        return True
    block, other = blocks[number], others[number]
    return block is None or other is None or block != other

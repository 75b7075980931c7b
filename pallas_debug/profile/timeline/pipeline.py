"""The pipeline that libtpu builds around a kernel, step by step, with durations.

Seen in the bundles of all supported versions: one loop in which fetches run a step ahead of the
kernel, and write-backs are awaited a step behind it. An iteration

1. starts to fetch this step's blocks of operands with a single buffer;
2. starts to fetch the next step's blocks of the others, where they differ from those of this step;
3. waits for the fetches of this step, and runs the kernel;
4. starts to write back the blocks that this step is the last to use, and waits for those with a
   single buffer;
5. waits for the write-backs of the step before.

Copies share the bandwidth of HBM: they are served in the order in which they start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Block = tuple[int, ...] | None
"""Indices of a block; None if unknown, which is taken to differ from every other."""


@dataclass(frozen=True, kw_only=True)
class PipelineOperand:
    """An operand whose blocks are copied.

    Attributes:
      block: its block at a step.
      size: bytes to copy for a block.
    """

    direction: Literal["in", "out"]
    buffers: int
    reads_back: bool
    block: Callable[[int], Block]
    size: Callable[[Block], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineCopy:
    """A copy of a block between HBM and a buffer, in cycles.

    Attributes:
      operand: number of the operand.
      step: first step that uses a fetched block, or last step that used one written back.
      started: when the core starts it.
      begin, end: when its first and last bytes move.
    """

    operand: int
    direction: Literal["in", "out"]
    step: int
    block: Block
    size: float
    started: float
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineWait:
    """Time in which the core waits for a copy."""

    operand: int
    direction: Literal["in", "out"]
    step: int
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineStep:
    """A grid step on a core: from `begin` on it waits, and it computes from `compute` to `end`."""

    step: int
    begin: float
    compute: float
    end: float


@dataclass(kw_only=True)
class PipelineRun:
    """What a core and its copies do over some steps, in cycles.

    Attributes:
      end: when the last write-back is complete, or the last step ends.
      waiting: cycles of waiting.
      computing: cycles of computing.
      moved: bytes copied, by operand.
      counts: copies, by operand.
    """

    steps: list[PipelineStep] = field(default_factory=list)
    copies: list[PipelineCopy] = field(default_factory=list)
    waits: list[PipelineWait] = field(default_factory=list)
    end: float = 0.0
    waiting: float = 0.0
    computing: float = 0.0
    moved: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)


class Pipeline:
    """Runs the steps of one core.

    Args:
      operands: those whose blocks are copied, in order.
      steps: of the core in all.
      compute: cycles of a step.
      bandwidth: bytes per cycle.
      latency: cycles before the first byte of a copy moves.
      keeps: whether a step's events are kept.
    """

    def __init__(
        self,
        operands: Sequence[PipelineOperand],
        *,
        steps: int,
        compute: float,
        bandwidth: float,
        latency: float,
        keeps: Callable[[int], bool],
    ) -> None:
        self._operands = operands
        self._steps = steps
        self._compute = compute
        self._bandwidth = bandwidth
        self._latency = latency
        self._keeps = keeps
        self._now = 0.0
        self._free = 0.0  # when the copies started so far have all moved
        self._fetching: list[PipelineCopy | None] = [None] * len(operands)
        self._writing: list[PipelineCopy | None] = [None] * len(operands)
        self._run = PipelineRun(moved=[0.0] * len(operands), counts=[0] * len(operands))

    def run(self, start: int, stop: int) -> PipelineRun:
        """Run consecutive steps, the pipeline being empty before the first."""
        operands = self._operands
        run = self._run
        before: list[Block] | None = None
        blocks = [operand.block(start) for operand in operands]
        fetches = [
            self._copy(n, "in", start, blocks[n]) for n, o in enumerate(operands) if _is_ahead(o)
        ]
        writes: list[PipelineCopy] = []
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
            computes = self._now
            self._now += self._compute
            run.computing += self._compute
            if self._keeps(step):
                run.steps.append(
                    PipelineStep(step=step, begin=begin, compute=computes, end=self._now)
                )
            complete = [
                self._copy(n, "out", step, blocks[n])
                for n, operand in enumerate(operands)
                if operand.direction == "out" and _differs(blocks, following, n)
            ]
            self._await([c for c in complete if operands[c.operand].buffers < 2], step)
            self._await(writes, step)
            writes = [c for c in complete if operands[c.operand].buffers > 1]
            fetches, before = ahead, blocks
            blocks = blocks if following is None else following
        if stop == self._steps:
            self._await(writes, stop - 1)
        run.end = self._now
        return run

    def _copy(
        self, number: int, direction: Literal["in", "out"], step: int, block: Block
    ) -> PipelineCopy:
        """Start a copy."""
        size = self._operands[number].size(block)
        begin = max(self._now + self._latency, self._free)
        self._free = begin + size / self._bandwidth
        copy = PipelineCopy(
            operand=number,
            direction=direction,
            step=step,
            block=block,
            size=size,
            started=self._now,
            begin=begin,
            end=self._free,
        )
        self._run.moved[number] += size
        self._run.counts[number] += 1
        if self._keeps(step):
            self._run.copies.append(copy)
        return copy

    def _await(self, copies: Sequence[PipelineCopy], step: int) -> None:
        """Wait for copies, one after the other."""
        for copy in copies:
            if copy.end <= self._now:
                continue
            if self._keeps(step):
                self._run.waits.append(
                    PipelineWait(
                        operand=copy.operand,
                        direction=copy.direction,
                        step=step,
                        begin=self._now,
                        end=copy.end,
                    )
                )
            self._run.waiting += copy.end - self._now
            self._now = copy.end


def _is_ahead(operand: PipelineOperand) -> bool:
    """Whether an operand's blocks are fetched a step ahead."""
    return operand.direction == "in" and operand.buffers > 1


def _differs(blocks: list[Block], others: list[Block] | None, number: int) -> bool:
    """Whether the block of an operand is another one, or may be."""
    if others is None:
        return True
    block, other = blocks[number], others[number]
    return block is None or other is None or block != other

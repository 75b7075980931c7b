"""Parts of a timeline: steps, waits and copies, in cycles from its beginning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

Block = tuple[int, ...] | None
"""Indices of a block; None if unknown, which is taken to differ from every other."""

Direction = Literal["in", "out"]
"""Into a core's memories, or out of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineStep:
    """A grid step on a core, with its waits."""

    step: int
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineWait:
    """Time in which the core waits for a copy.

    Attributes:
      lane: number of the operand; None if unknown.
    """

    lane: int | None
    direction: Direction
    step: int
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineCopy:
    """A copy.

    Attributes:
      lane: number of the operand.
      step: step that uses the block, or that was the last to use it; for a copy that the kernel
        starts itself, the step that starts it.
      block: of a copy by the pipeline.
      size: bytes; None if known only at run time.
      started: when the core starts it.
      begin, end: when its first and last bytes move.
      is_own: whether the kernel starts it, and not the pipeline.
      bundle: index of the bundle that starts it; None if it was simulated.
    """

    lane: int
    direction: Direction
    step: int
    block: Block
    size: float | None
    started: float
    begin: float
    end: float
    is_own: bool = False
    bundle: int | None = None


@dataclass(frozen=True, kw_only=True)
class TimelinePart:
    """Consecutive steps of a timeline.

    Attributes:
      start, stop: first step, and the one behind the last.
      steps, waits: of these steps.
      copies: those that take place in this time, also for the steps before and after.
    """

    start: int
    stop: int
    begin: float
    end: float
    steps: tuple[TimelineStep, ...]
    copies: tuple[TimelineCopy, ...]
    waits: tuple[TimelineWait, ...]

    def computing(self) -> Iterator[tuple[int, float, float]]:
        """Yield the times in which the core does not wait, each with its step."""
        waits = sorted(self.waits, key=lambda wait: wait.begin)
        position = 0
        for step in self.steps:
            at = step.begin
            while position < len(waits) and waits[position].begin < step.end:
                wait = waits[position]
                position += 1
                if wait.begin > at:
                    yield step.step, at, wait.begin
                at = max(at, wait.end)
            if step.end > at:
                yield step.step, at, step.end


def part_of(
    start: int,
    stop: int,
    *,
    steps: list[TimelineStep],
    copies: list[TimelineCopy],
    waits: list[TimelineWait],
    offset: float = 0.0,
) -> TimelinePart:
    """The events of consecutive steps, later by `offset`."""
    own = tuple(
        replace(s, begin=s.begin + offset, end=s.end + offset)
        for s in steps
        if start <= s.step < stop
    )
    begin = own[0].begin if own else offset
    end = own[-1].end if own else offset
    moved = (
        replace(c, started=c.started + offset, begin=c.begin + offset, end=c.end + offset)
        for c in copies
    )
    return TimelinePart(
        start=start,
        stop=stop,
        begin=begin,
        end=end,
        steps=own,
        copies=tuple(c for c in moved if c.begin < end and c.end > begin),
        waits=tuple(
            replace(w, begin=w.begin + offset, end=w.end + offset)
            for w in waits
            if start <= w.step < stop
        ),
    )

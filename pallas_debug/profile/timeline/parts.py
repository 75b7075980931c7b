"""Parts of a timeline: steps, waits and copies, in cycles from its beginning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pallas_debug.profile.blocks import Block

Direction = Literal["in", "out"]
"""Direction of a copy: into a core's memories, or out of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineStep:
    """Grid step on a core, including its waits."""

    step: int
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineWait:
    """Interval in which the core waits for a copy.

    Attributes:
      lane: number of the operand's lane; None if unknown.
    """

    lane: int | None
    direction: Direction
    step: int
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineCopy:
    """Copy in a timeline.

    Attributes:
      lane: number of the operand's lane.
      step: step that uses the block, or was the last to use it; for a copy that the kernel starts
        itself, the step that starts it.
      block: block that the pipeline copies.
      size: size in bytes; None if known only at run time.
      started: time at which the core starts the copy.
      begin, end: times at which its first and last bytes move.
      is_own: whether the kernel starts the copy, rather than the pipeline.
      bundle: index of the bundle that starts the copy.
    """

    lane: int
    direction: Direction
    step: int
    block: Block
    size: float | None
    started: float
    begin: float
    end: float
    is_own: bool
    bundle: int


@dataclass(frozen=True, kw_only=True)
class TimelinePart:
    """Consecutive steps of a timeline.

    Attributes:
      start, stop: first step, and the step after the last.
      steps, waits: these steps and their waits.
      copies: copies during this time, including those for the steps before and after.
    """

    start: int
    stop: int
    begin: float
    end: float
    steps: tuple[TimelineStep, ...]
    copies: tuple[TimelineCopy, ...]
    waits: tuple[TimelineWait, ...]

    def computing(self) -> Iterator[tuple[int, float, float]]:
        """Yield the intervals in which the core does not wait, each with its step."""
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
) -> TimelinePart:
    """Collect the events of consecutive steps."""
    own = tuple(step for step in steps if start <= step.step < stop)
    begin, end = own[0].begin, own[-1].end
    return TimelinePart(
        start=start,
        stop=stop,
        begin=begin,
        end=end,
        steps=own,
        copies=tuple(c for c in copies if c.begin < end and c.end > begin),
        waits=tuple(w for w in waits if start <= w.step < stop),
    )

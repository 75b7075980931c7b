"""Timeline from a walk through a schedule, as determined by its scalar instructions."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pallas_debug.profile.blocks import Block
from pallas_debug.profile.core.copies import CopyModel
from pallas_debug.profile.core.events import CopyEvent, Event, IterationEvent, WaitEvent
from pallas_debug.profile.core.given import GivenScalars
from pallas_debug.profile.core.walk import BUDGET, Walk, walk
from pallas_debug.profile.schedule import Schedule, ScheduledLoop
from pallas_debug.profile.timeline.origins import CopyOrigin
from pallas_debug.profile.timeline.parts import (
    Direction,
    TimelineCopy,
    TimelineStep,
    TimelineWait,
)

_MAX_EXTRA = 2
"""Maximum iterations of the pipeline's loop that do not run the kernel: the first may only fetch,
the last only wait for write-backs."""

_MAX_AWAITED = 256
"""Maximum copies to search, latest first, for the copy that the core waits for."""

_BUDGET = 4 * BUDGET
"""Scalar instructions to evaluate: of a timeline, the steps count, not only their total."""

_SAME = 1e-6


@dataclass(frozen=True, kw_only=True)
class WalkedRun:
    """Steps of a core as its schedule runs them, in cycles.

    Attributes:
      seen: number of steps from the beginning whose events are known.
      end, waiting: total cycles and cycles spent waiting, over all steps.
      counts: number of copies by lane; None if not all steps were seen.
    """

    seen: int
    end: float
    waiting: float
    steps: list[TimelineStep] = field(default_factory=list)
    copies: list[TimelineCopy] = field(default_factory=list)
    waits: list[TimelineWait] = field(default_factory=list)
    counts: dict[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class CoreSteps:
    """Steps of a core, and the blocks that its pipeline copies.

    Attributes:
      count: number of steps.
      fetches: whether the pipeline fetches any block.
      is_ahead: for each lane, whether blocks are fetched a step ahead.
      block: returns the block of a lane at a step.
      others: number of the lane for copies that do not move an operand with blocks.
    """

    count: int
    fetches: bool
    is_ahead: Sequence[bool]
    block: Callable[[int, int], Block]
    others: int


def walked(
    schedule: Schedule,
    model: CopyModel,
    origins: Mapping[int, CopyOrigin],
    steps: CoreSteps,
    given: GivenScalars | None = None,
    seen: tuple[Walk, list[Event]] | None = None,
) -> WalkedRun | None:
    """Walk through a schedule; None if its iterations are not recognised as grid steps.

    Args:
      given: values of scalar operands.
      seen: a walk that may do, and its events.
    """
    if seen is not None and seen[0].is_complete and not seen[0].extrapolated:
        found, events = seen
    else:
        events = []
        found = walk(schedule, model, listen=events.append, given=given, budget=_BUDGET)
    loop = _step_loop(schedule, found, steps.count)
    if not found.is_complete or (loop is None and steps.count > 1):
        return None
    return _Reading(found, loop, model, origins, steps).read(events)


def _step_loop(schedule: Schedule, found: Walk, steps: int) -> ScheduledLoop | None:
    """Find the loop over grid steps; None if there is none."""
    outer = [loop for loop in schedule.loops if loop.depth == 0]
    fitting = [
        loop
        for loop in outer
        if steps <= round(found.trips.get(loop.number, 0)) <= steps + _MAX_EXTRA
        and loop.number not in found.unknown_loops
    ]
    return max(fitting, key=lambda loop: loop.size, default=None) if steps > 1 else None


class _Reading:
    """Reader of the events of a walk."""

    def __init__(
        self,
        found: Walk,
        loop: ScheduledLoop | None,
        model: CopyModel,
        origins: Mapping[int, CopyOrigin],
        steps: CoreSteps,
    ) -> None:
        self._found = found
        self._loop = loop
        self._model = model
        self._origins = origins
        self._grid = steps
        self._steps = steps.count
        extra = round(found.trips[loop.number]) - steps.count if loop is not None else 0
        has_prologue = extra == _MAX_EXTRA or (extra == 1 and steps.fetches)
        self._lag = 1 if has_prologue else 0
        self._iteration = 0
        self._starts: list[float] = []
        self._copies: list[TimelineCopy] = []
        self._waits: list[TimelineWait] = []

    def read(self, events: Sequence[Event]) -> WalkedRun:
        found, loop = self._found, self._loop
        for event in events:
            if isinstance(event, IterationEvent):
                if loop is not None and event.loop == loop.number:
                    self._iteration = event.iteration
                    self._starts.append(event.start)
            elif isinstance(event, CopyEvent):
                self._copy(event)
            elif event.stop > event.start + _SAME:
                self._wait(event)
        is_whole = loop is None or loop.number not in found.extrapolated
        steps = self._seen_steps(is_whole)
        counts = Counter(copy.lane for copy in self._copies)
        return WalkedRun(
            seen=len(steps),
            end=found.cycles,
            waiting=found.waiting,
            steps=steps,
            copies=self._copies,
            waits=self._waits,
            counts=counts if is_whole else None,
        )

    def _seen_steps(self, is_whole: bool) -> list[TimelineStep]:
        """Return the steps up to the last iteration that was not extrapolated.

        Time before the first step, and after the last one of all, is included in these.
        """
        times = [0.0, *self._starts[1 + self._lag :]][: self._steps + (not is_whole)]
        if is_whole:
            times.append(self._found.cycles)
        return [
            TimelineStep(step=n, begin=begin, end=end)
            for n, (begin, end) in enumerate(itertools.pairwise(times))
        ]

    @property
    def _step(self) -> int:
        """Step whose kernel runs in the current iteration."""
        return min(max(self._iteration - self._lag, 0), self._steps - 1)

    def _copy(self, event: CopyEvent) -> None:
        origin = self._origins.get(event.bundle)
        lane = self._grid.others
        if origin is not None and origin.operand is not None:
            lane = min(origin.operand, lane)
        # The direction is relative to the core.
        direction: Direction = "out" if event.direction.startswith(("vmem", "smem")) else "in"
        is_own = origin is not None and origin.is_own
        step, block = self._step, None
        if not is_own and lane != self._grid.others:
            if direction == "in" and self._grid.is_ahead[lane]:
                step = min(self._iteration, self._steps - 1)
            block = self._grid.block(lane, step)
        transfer = self._model.time(event.direction, event.size or 0)[1]
        self._copies.append(
            TimelineCopy(
                lane=lane,
                direction=direction,
                step=step,
                block=block,
                size=event.size,
                started=event.start,
                begin=event.stop - transfer,
                end=event.stop,
                bundle=event.bundle,
                is_own=is_own,
            )
        )

    def _wait(self, event: WaitEvent) -> None:
        latest = self._copies[:-_MAX_AWAITED:-1]
        awaited = next((c for c in latest if abs(c.end - event.stop) < _SAME), None)
        self._waits.append(
            TimelineWait(
                lane=awaited.lane if awaited else None,
                direction=awaited.direction if awaited else "in",
                step=self._step,
                begin=event.start,
                end=event.stop,
            )
        )

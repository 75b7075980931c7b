"""Happens-before between the threads and DMAs of a run, by vector clocks.

A *task* is anything that runs in an order of its own: the program of a core, one of several grid
points that run in parallel, a DMA. A task counts *times*; its clock holds the latest time of every
task that happened before it. An *epoch* packs a task and one of its times into an int64, so that
shadow memory holds one number per element, and a check is a single lookup:

    epoch = writer.epoch                 # kept with the element
    reader.follows(epoch)                # False: nothing orders the write before the read

Semaphores carry the order from one task to another. After a wait, everything is ordered before the
task that must have happened for the wait to return, whatever the timing: with two equal DMAs on one
semaphore, a wait for one of them orders neither DMA, but does order what happened before both.

Everything here is plain data and can be copied with `copy.deepcopy`. Imports no jax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SHIFT = 40
"""Number of bits of an epoch that hold the time; the bits above them hold the task."""

NEVER = 0
"""Epoch that every task follows: the initial epoch of an element, before any access."""

_TIMES = (1 << SHIFT) - 1
_MAX_SEARCHED = 16
"""Maximum number of finished DMAs, latest first, that are searched for a task number to reuse."""


@dataclass(eq=False)
class Task:
    """An order of execution, with everything known to have happened before.

    Attributes:
      number: number of the task, from 1; a DMA may reuse that of an earlier DMA that happened
        before it.
      clock: the latest time of each task that happened before, by task number; includes its own.
    """

    number: int
    clock: dict[int, int]

    @property
    def epoch(self) -> int:
        """Current epoch of the task."""
        return self.number << SHIFT | self.clock[self.number]

    def follows(self, epoch: int) -> bool:
        """Return whether the event at `epoch` is ordered before the task's next action."""
        return self.clock.get(epoch >> SHIFT, 0) >= epoch & _TIMES

    def release(self) -> dict[int, int]:
        """Return the clock for others to join; later actions of the task are not in it."""
        stamp = dict(self.clock)
        self.clock[self.number] += 1
        return stamp

    def join(self, stamp: Mapping[int, int]) -> None:
        """Order everything in `stamp` before later actions of the task."""
        _join(self.clock, stamp)


@dataclass
class Tasks:
    """All tasks of a run, and the task numbers that can be reused."""

    _count: int = 0
    _finished: list[tuple[int, int]] = field(default_factory=list)

    def new(self) -> Task:
        """Create a task that follows nothing: the program of a core."""
        self._count += 1
        return Task(self._count, {self._count: 1})

    def fork(self, parent: Task) -> Task:
        """Create a task that follows the past actions of `parent`: a DMA or parallel grid point."""
        stamp = parent.release()
        finished = self._finished
        for i in range(len(finished) - 1, max(len(finished) - _MAX_SEARCHED, 0) - 1, -1):
            number, last = finished[i]
            # All tasks with this number happened before, and their times are lower.
            if stamp.get(number, 0) >= last:
                del finished[i]
                return Task(number, {**stamp, number: last + 1})
        self._count += 1
        return Task(self._count, {**stamp, self._count: 1})

    def finish(self, task: Task) -> None:
        """Let later tasks that follow all of `task` reuse its number; it ended with a release."""
        self._finished.append((task.number, task.clock[task.number] - 1))


@dataclass(frozen=True, eq=False)
class Release:
    """An increment of a semaphore.

    Attributes:
      amount: size of the increment: bytes for a DMA, a count for a signal.
      stamp: clock of the task that signals.
      epoch: last epoch of that task before the increment.
    """

    amount: int
    stamp: Mapping[int, int]
    epoch: int

    def is_in(self, clock: Mapping[int, int]) -> bool:
        """Return whether `clock` includes everything up to this release."""
        return clock.get(self.epoch >> SHIFT, 0) >= self.epoch & _TIMES


@dataclass
class SemaphoreClock:
    """The order that one semaphore establishes.

    A DMA releases its semaphores when it starts, because it may finish at any time from then on. So
    `count` can be ahead of the value that the running kernel sees.

    Attributes:
      count: sum of all releases minus sum of all takes.
      pending: releases that are not needed in at least one legal timing of the waits so far.
    """

    count: int = 0
    pending: list[Release] = field(default_factory=list)
    _certain: dict[int, int] = field(default_factory=dict)

    def release(self, task: Task, amount: int) -> None:
        """Raise the semaphore by `amount`, after all past actions of `task`."""
        epoch = task.epoch
        self.pending.append(Release(amount, task.release(), epoch))
        self.count += amount

    def take(self, task: Task, amount: int) -> tuple[Release, ...]:
        """Lower the semaphore by `amount`, and order what the wait required before `task`.

        Returns:
          The releases that the wait could have done without, each taken alone: none of them is
          known to have happened.

        Raises:
          ValueError: the count is less than `amount`, so the task has to wait.
        """
        if amount > self.count:
            raise ValueError(f"the semaphore is {self.count}, less than {amount}")
        self.count -= amount
        if self.count == 0:  # the usual case
            for release in self.pending:
                _join(self._certain, release.stamp)
            self.pending = []
        else:
            _join(self._certain, self._indispensable())
            self.pending = [r for r in self.pending if not r.is_in(self._certain)]
        task.join(self._certain)
        return tuple(self.pending)

    def _indispensable(self) -> dict[int, int]:
        """Return the events that happened in every timing in which the takes so far succeed.

        A time of a task has happened if the releases that do not follow it are too few. Times that
        were already known are left out: a DMA in flight adds little but its own task.
        """
        following: dict[int, list[tuple[int, int]]] = {}
        for release in self.pending:
            for number, time in release.stamp.items():
                if time > self._certain.get(number, 0):
                    following.setdefault(number, []).append((time, release.amount))
        found = {}
        for number, times in following.items():
            missing = 0
            for time, amount in sorted(times, reverse=True):
                missing += amount
                if missing > self.count:
                    found[number] = time
                    break
        return found


def _join(clock: dict[int, int], stamp: Mapping[int, int]) -> None:
    for number, time in stamp.items():
        if clock.get(number, 0) < time:
            clock[number] = time

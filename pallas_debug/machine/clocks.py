"""Happens-before between the threads and DMAs of a run, by vector clocks.

A *task* is whatever runs in an order of its own: the program of a core, one of several grid points
that run in parallel, a DMA. A task counts *times*; its clock holds the latest time of every task
that happened before it. An *epoch* packs a task and one of its times into an int64, so that shadow
memory holds one number per element, and a check is one lookup:

    epoch = writer.epoch                 # kept with the element
    reader.follows(epoch)                # False: nothing orders the write before the read

Semaphores carry the order from one task to another. A wait follows what must have happened for it
to return, whatever the timing: of two equal DMAs on one semaphore, a wait for one of them follows
neither, but it does follow what was before both.

Everything here is plain data and can be copied with `copy.deepcopy`. Imports no jax.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

SHIFT = 40
"""Bits of an epoch that hold the time; the task is above them."""

NEVER = 0
"""Epoch that every task follows: of elements that no task has accessed."""

_TIMES = (1 << SHIFT) - 1
_MAX_SEARCHED = 16
"""Finished DMAs, the latest first, examined for a task number to use again."""


@dataclass(eq=False)
class Task:
    """One order of execution, and what is known to have happened before.

    Attributes:
      number: from 1; a DMA may have the number of an earlier DMA that happened before it.
      clock: the latest time of each task that happened before, by number; its own included.
    """

    number: int
    clock: dict[int, int]

    @property
    def epoch(self) -> int:
        """Epoch of what the task does now."""
        return self.number << SHIFT | self.clock[self.number]

    def follows(self, epoch: int) -> bool:
        """Whether what happened at `epoch` is ordered before what the task does now."""
        return self.clock.get(epoch >> SHIFT, 0) >= epoch & _TIMES

    def unordered(self, epochs: np.ndarray) -> np.ndarray:
        """Return which of `epochs`, int64 of any shape, are not ordered before now: bool."""
        if epochs.size == 0:
            return np.zeros(epochs.shape, bool)
        first = int(epochs.flat[0])
        if (epochs == first).all():
            return np.full(epochs.shape, not self.follows(first))
        distinct, where = np.unique(epochs, return_inverse=True)
        return np.array([not self.follows(int(epoch)) for epoch in distinct])[where].reshape(
            epochs.shape
        )

    def release(self) -> dict[int, int]:
        """Return the clock for others to join; what the task does from now on is not in it."""
        stamp = dict(self.clock)
        self.clock[self.number] += 1
        return stamp

    def join(self, stamp: Mapping[int, int]) -> None:
        """Order everything in `stamp` before what the task does from now on."""
        _join(self.clock, stamp)


@dataclass
class Tasks:
    """All tasks of a run, and the numbers that can be used again."""

    _count: int = 0
    _finished: list[tuple[int, int]] = field(default_factory=list)

    def new(self) -> Task:
        """Create a task that follows nothing: the program of a core."""
        self._count += 1
        return Task(self._count, {self._count: 1})

    def fork(self, parent: Task) -> Task:
        """Create a task that follows what `parent` did so far: a DMA, or a parallel grid point."""
        stamp = parent.release()
        finished = self._finished
        for i in range(len(finished) - 1, max(len(finished) - _MAX_SEARCHED, 0) - 1, -1):
            number, last = finished[i]
            # All that had this number happened before: later times of it are told apart.
            if stamp.get(number, 0) >= last:
                del finished[i]
                return Task(number, {**stamp, number: last + 1})
        self._count += 1
        return Task(self._count, {**stamp, self._count: 1})

    def finish(self, task: Task) -> None:
        """Let later tasks that follow all of `task` have its number; a release was its last act."""
        self._finished.append((task.number, task.clock[task.number] - 1))


@dataclass(frozen=True, eq=False)
class Release:
    """An increment of a semaphore.

    Attributes:
      amount: of the increment: bytes for a DMA, a count for a signal.
      stamp: clock of the task that made it.
      epoch: last epoch of that task before the increment.
      label: whatever the caller wants back: the DMA, the line of the signal.
    """

    amount: int
    stamp: Mapping[int, int]
    epoch: int
    label: object = None

    def is_in(self, clock: Mapping[int, int]) -> bool:
        """Whether everything up to this release is known to have happened."""
        return clock.get(self.epoch >> SHIFT, 0) >= self.epoch & _TIMES


@dataclass
class SemaphoreClock:
    """The order that one semaphore establishes.

    A DMA releases its semaphores when it is started, as it may finish at any time from then on. So
    `count` can be ahead of the value that the running kernel sees.

    Attributes:
      count: all releases less all takes.
      pending: releases that some legal timing of the waits so far does without.
    """

    count: int = 0
    pending: list[Release] = field(default_factory=list)
    _certain: dict[int, int] = field(default_factory=dict)

    def release(self, task: Task, amount: int, label: object = None) -> None:
        """Raise the semaphore by `amount`, after all that `task` did so far."""
        epoch = task.epoch
        self.pending.append(Release(amount, task.release(), epoch, label))
        self.count += amount

    def take(self, task: Task, amount: int) -> tuple[Release, ...]:
        """Lower the semaphore by `amount`, and order before `task` what the wait had to wait for.

        Returns:
          The releases that the wait could have done without, each of them alone: none of these is
          known to have happened.

        Raises:
          ValueError: the count is less than `amount`; the task has to wait instead.
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
        """Events that have happened in every timing in which the takes so far succeed.

        A time of a task has, if the releases that do not follow it are too few. Those known before
        are left out: of hundreds of DMAs in flight, each adds a task, and little else that is new.
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

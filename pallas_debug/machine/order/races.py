"""Races: unordered accesses of the same elements, at least one of them a write."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine.clocks import Task
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.order import reports
from pallas_debug.machine.order.history import AccessHistory, MemoryAccess
from pallas_debug.machine.order.ledger import EventPlace
from pallas_debug.machine.order.regions import Box, boxes, masked
from pallas_debug.machine.order.tasks import OrderedThread, OrderTasks, is_far
from pallas_debug.machine.shadow.shadow import differing
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding

Report = Callable[[object, Callable[[], Finding]], None]
"""Report a fault by its identity, with what creates the finding for the first occurrence."""


@dataclass(eq=False, slots=True)
class UndecidedOrder:
    """Two events in an undetermined order, without a race.

    Attributes:
      first, second: descriptions of the events, as noun phrases.
      semaphore: semaphore that is read; None if both events are DMAs.
    """

    place: EventPlace | DmaCopy
    first: str
    second: str
    semaphore: str | None = None


class RaceDetector:
    """Accesses that later ones may race with, and the races found.

    A single thread is ordered with itself and with the DMAs that it starts later. So none of its
    own accesses are kept, only those of DMAs that it has not waited for.

    Attributes:
      histories: histories by buffer number; accesses of a buffer without one are not recorded.
      raced: names of the buffers with a race.
      raced_copies: identities of the DMAs that take part in one.
      equal: unordered stores of equal values, which are no races.
      undecided: sums by two DMAs and reads of semaphores, by line.
      events: number of events so far.
    """

    def __init__(self, launch: Launch, tasks: OrderTasks, report: Report) -> None:
        self.launch = launch
        self.tasks = tasks
        self.histories: dict[int, AccessHistory] = {}
        self.raced: set[str] = set()
        self.raced_copies: set[object] = set()
        self.equal: dict[Any, tuple[MemoryAccess, MemoryAccess]] = {}
        self.undecided: dict[tuple[str, object], UndecidedOrder] = {}
        self.events = 0
        self._report = report

    def next(self) -> int:
        self.events += 1
        return self.events

    def allocated(self, buffer: MemoryBuffer) -> None:
        """Track a buffer from the start if one thread may race with another's past accesses."""
        if buffer.type.semaphore is not None or buffer.number in self.histories:
            return
        if self._is_shared(buffer) and buffer.kind != "prefetch":
            self.histories[buffer.number] = AccessHistory(drops=False)

    def _is_shared(self, buffer: MemoryBuffer) -> bool:
        return not self.tasks.is_solo or (bool(self.tasks.axes) and is_far(buffer))

    def by_core(
        self, own: OrderedThread, step: ir.MachineStep, region: MemoryRegion, *, writes: bool,
        value: Any = None,
    ) -> None:  # fmt: skip
        """Check an access of a buffer with a history; `value` is what a store writes."""
        buffer, thread = region.buffer, own.thread
        history = self.histories[buffer.number]
        mask = step.mask if isinstance(step, (ir.LoadStep, ir.StoreStep)) else None
        if mask is None or region.is_masked:
            found = boxes(region)
        else:
            found = masked(region, np.asarray(thread.frames[-1].registers[mask.number]))
        if history.drops and not history.accesses:
            (history.wrote if writes else history.read)(found)
            return
        access = MemoryAccess(
            buffer, found, writes, 0, thread.number, self.next(), thread.point,
            thread.iterations, step,
        )  # fmt: skip
        if buffer.type.space == "gmem" and (place := getattr(step, "place", None)) is not None:
            access.operand = thread.ref(place).name
        self.access(
            self.tasks.of(own, buffer), access,
            changes=not writes or (lambda: changes(own.thread, step, region, value)),
        )  # fmt: skip

    def by_pipeline(
        self, own: OrderedThread, task: Task, region: MemoryRegion, block: tuple[int, ...],
        point: tuple[int, ...], *, writes: bool, goes_on: bool = False,
    ) -> None:  # fmt: skip
        """Check a move of a block by the pipeline."""
        access = MemoryAccess(
            region.buffer, boxes(region), writes, 0, own.thread.number, self.next(), point,
            block=block, parallel_point=self.tasks.parallel_point(point),
        )  # fmt: skip
        self.access(task, access, goes_on=goes_on)

    def access(
        self, task: Task, access: MemoryAccess, *, goes_on: bool = False,
        changes: bool | Callable[[], bool] = True,
    ) -> None:  # fmt: skip
        """Check an access of `task`, and keep it if later accesses may be unordered with it.

        Args:
          changes: whether a store changes what the memory holds.
          goes_on: whether the task runs beside its thread.
        """
        if not access.boxes:
            return
        history = self.histories.get(access.buffer.number)
        if history is None:
            drops = not self._is_shared(access.buffer)
            history = self.histories[access.buffer.number] = AccessHistory(drops)
        access.epoch = task.epoch
        access.clobbers = access.copy is not None and history.is_unread(access)
        for other, both in history.unordered(task, access):
            are_stores = access.writes and other.writes and other.copy is None
            if are_stores and callable(changes):
                changes = changes()
            if are_stores and not changes and not other.is_of_pipeline:
                self.equal.setdefault(_key(other, access), (other, access))
            else:
                self._conflict(other, access, both)
        if goes_on or not history.drops:
            history.keep(access)
        if is_far(access.buffer):
            return
        (history.wrote if access.writes else history.read)(access.boxes)

    def _conflict(self, other: MemoryAccess, access: MemoryAccess, both: Box) -> None:
        if access.is_atomic and other.is_atomic:
            return
        if access.adds and other.adds:
            self._sums(other, access)
            return
        is_moved = access.is_of_pipeline and other.is_of_pipeline
        if is_moved and (access.thread, access.parallel_point) == (
            other.thread, other.parallel_point,
        ):  # fmt: skip
            return  # ordered, but possibly a read of replaced data
        axes: tuple[int, ...] = ()
        if is_far(access.buffer) and access.thread == other.thread:
            axes = tuple(a for a in self.tasks.axes if access.point[a] != other.point[a])
        self.raced.add(access.buffer.name)
        self.raced_copies |= {copy_key(side) for side in (other, access) if side.copy is not None}
        make = functools.partial(reports.race, self.launch, self.tasks, other, access, both, axes)
        self._report(_key(other, access, axes), make)

    def _sums(self, other: MemoryAccess, access: MemoryAccess) -> None:
        assert access.copy is not None
        names = [side.names for side in (other, access) if side.names is not None]
        first, second = (f"the copy of {source} to {target}" for source, target in names)
        fact = UndecidedOrder(access.copy, first, second)
        self.undecided.setdefault(("add", access.copy.step.site.line), fact)


def changes(thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> bool:
    """Return whether a store changes any bit of what its region holds, before it."""
    old = region.read()
    differs = differing(old, np.broadcast_to(np.asarray(value), old.shape).astype(old.dtype))
    mask = step.mask if isinstance(step, ir.StoreStep) else None
    if mask is not None and not region.is_masked:
        differs = differs & np.asarray(thread.frames[-1].registers[mask.number])
    return bool(differs.any())


def _key(other: MemoryAccess, access: MemoryAccess, axes: Sequence[int] = ()) -> Any:
    """Identity of a race: the DMA that lacks a wait, or both lines."""
    sides = [side for side in (other, access) if side.copy is not None]
    if axes or not sides:
        lines = frozenset(side.step and side.step.site.line for side in (other, access))
        return access.buffer.name, lines
    return copy_key(next((side for side in sides if side.is_remote and side.writes), sides[0]))


def copy_key(access: MemoryAccess) -> Any:
    """Identity of the access of a DMA: the line that starts it, and its semaphores.

    A wait that is missing on one device, or for one slot, is missing on all.
    """
    assert access.step is not None
    return access.step.site.line, access.counter.buffer.name

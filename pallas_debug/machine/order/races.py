"""Races: unordered accesses of the same elements, at least one of them a write; their findings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.order import Access, Race
from pallas_debug.findings.sighting import Sighting
from pallas_debug.machine.clocks import Task
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.gpu.accesses import is_atomic
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.order.history import (
    AccessHistory,
    Box,
    MemoryAccess,
    box_text,
    boxes,
    first_meeting,
    masked,
    whole,
)
from pallas_debug.machine.order.ledger import EventPlace, StartedCopy
from pallas_debug.machine.order.tasks import OrderedThread, OrderTasks, is_far
from pallas_debug.machine.shadow.shadow import differing
from pallas_debug.machine.sightings import counter_text, shape_text, sighting_of
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding, SourceLine

MAX_PLACES = 64
"""Maximum number of places in a buffer with an order of their own."""

_Clock = dict[int, int]


class AtomicOrder:
    """Clocks of the elements that are updated atomically.

    An update releases what its grid point did before. Another update of the same element acquires
    that only if the kernel uses the previous value: without it, the kernel cannot know which of the
    two came first. So locks, and counters that tell which grid point is the last, order accesses;
    sums do not.
    """

    def __init__(self) -> None:
        self._clocks: dict[int, dict[tuple[Box, ...], _Clock]] = {}

    def loads(self, task: Task, step: ir.MachineStep, region: MemoryRegion) -> None:
        """Acquire what earlier updates have released."""
        if not is_atomic(step) or getattr(step, "output", None) is None:
            return
        found = _places(region)
        for place, clock in self._clocks.get(region.buffer.number, {}).items():
            if first_meeting(found, place) is not None:
                task.join(clock)

    def stores(self, task: Task, step: ir.MachineStep, region: MemoryRegion) -> None:
        """Release what the grid point has done so far."""
        if not is_atomic(step):
            return
        found = _places(region)
        known = self._clocks.setdefault(region.buffer.number, {})
        stamp = task.release()
        if found not in known and len(known) >= MAX_PLACES:
            for clock in known.values():
                _merge(stamp, clock)
            known.clear()
            found = (whole(region.buffer.content.shape),)
        _merge(known.setdefault(found, {}), stamp)


def _places(region: MemoryRegion) -> tuple[Box, ...]:
    return boxes(region) or (whole(region.buffer.content.shape),)


def _merge(clock: _Clock, stamp: _Clock) -> None:
    for number, time in stamp.items():
        clock[number] = max(clock.get(number, 0), time)


def race_finding(
    launch: Launch, tasks: OrderTasks, earlier: MemoryAccess, later: MemoryAccess, overlap: Box,
    axes: tuple[int, ...],
) -> Finding:  # fmt: skip
    """Report two unordered accesses, of which this run made one before the other.

    Args:
      overlap: elements that both access.
      axes: parallel axes along which their grid points differ.
    """
    user, dma = (earlier, later) if earlier.copy is None else (later, earlier)
    clobbers = False
    if dma.copy is not None and user.copy is None and not user.writes:
        # A reader that has waited for such a copy before has read what an earlier one brought.
        waited = counter_text(dma.counter) in tasks.threads[user.thread].awaited
        clobbers = dma.clobbers or (dma is later and waited)
    here, there = _sides(tasks, earlier, later, clobbers)
    name = name_in(here)
    region = box_text(name, here.boxes[0] if here.boxes else whole(here.buffer.content.shape))
    facts = Race(
        here=_access(tasks, here),
        there=_access(tasks, there, is_next=later.is_of_pipeline),
        clobbers=clobbers,
        axes=launch.numbers(axes),
        overlap=None if here.boxes == (overlap,) else box_text(name, overlap),
        is_gpu=launch.is_gpu,
    )
    return sighting_of(
        launch,
        None,
        source=_line(here),
        other=_line(there),
        grid_point=here.point,
        loop=here.iterations,
        operand=name,
        index=region,
        shape=shape_text(here.buffer),
    ).of(Fault.DATA_RACE, what=region, race=facts)


def _sides(
    tasks: OrderTasks, earlier: MemoryAccess, later: MemoryAccess, clobbers: bool
) -> tuple[MemoryAccess, MemoryAccess]:
    """Order the two sides: the line to change first, and the pipeline, which has none, last."""
    if later.is_of_pipeline:
        return earlier, later
    if earlier.is_of_pipeline:
        return later, earlier
    if (earlier.copy is None) == (later.copy is None):  # of two threads, the reader has to wait
        reads = earlier.thread != later.thread and not earlier.writes
        return (earlier, later) if reads else (later, earlier)
    copy, core = (earlier, later) if earlier.copy is not None else (later, earlier)
    is_sent = copy.writes and tasks.threads[copy.thread].thread.device != copy.buffer.device
    return (copy, core) if (is_sent if core.writes else clobbers) else (core, copy)


def _access(tasks: OrderTasks, access: MemoryAccess, *, is_next: bool = False) -> Access:
    thread, device = tasks.threads[access.thread].thread, access.buffer.device
    names = access.names
    if access.block is not None:
        names = "its window", f"block {access.block}"
        if access.writes == (access.buffer.kind == "window"):
            names = names[1], names[0]
    return Access(
        writes=access.writes,
        grid_point=access.point,
        loop=access.iterations,
        device=device,
        core=thread.core,
        copy=names,
        semaphore=None if access.copy is None else counter_text(access.counter),
        from_device=thread.device if thread.device != device else None,
        is_next=is_next,
    )


def _line(access: MemoryAccess) -> SourceLine | None:
    return None if access.step is None else access.step.site.line


def name_in(access: MemoryAccess) -> str:
    """Return the buffer's name in the access."""
    if access.names is None:
        return access.operand or access.buffer.name
    name = access.names[access.writes]
    is_sliced = bool(access.buffer.content.shape) and name.endswith("]")
    return name.rpartition("[")[0] if is_sliced else name  # the name may have an index: refs[1]


def of_copy(launch: Launch, copy: StartedCopy, **values: str) -> Sighting:
    """Position of the start of a DMA; the operand is its destination."""
    shape = shape_text(copy.dma.destination.buffer)
    given: dict[str, Any] = {"operand": copy.operand, "index": copy.names[1], "shape": shape}
    return sighting_of(launch, copy.dma, values=values, **given)


def overlapping(launch: Launch, copy: StartedCopy, elements: Box) -> Finding:
    """Report a DMA that writes elements of its own source."""
    source, destination = copy.names
    overlap = box_text(copy.operand, elements)
    return of_copy(launch, copy, overlap=overlap).of(
        Fault.DATA_RACE, source=source, destination=destination, overlap=overlap
    )


def early(launch: Launch, copy: StartedCopy, sender: int, receiver: int) -> Finding:
    """Report a DMA to a device that may not have entered the kernel yet."""
    return of_copy(launch, copy, sender=f"device {sender}", receiver=f"device {receiver}").of(
        Fault.DATA_RACE,
        source=copy.names[0],
        what=copy.names[1],
        sender=sender,
        receiver=receiver,
    )


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
      undecided: sums by two DMAs and reads of semaphores, by line.
    """

    def __init__(self, launch: Launch, tasks: OrderTasks, report: Report) -> None:
        self.launch = launch
        self.tasks = tasks
        self.histories: dict[int, AccessHistory] = {}
        self.raced: set[str] = set()
        self.raced_copies: set[object] = set()
        self.undecided: dict[tuple[str, object], UndecidedOrder] = {}
        self._report = report

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
            buffer, found, writes, 0, thread.number, thread.point,
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
            region.buffer, boxes(region), writes, 0, own.thread.number, point,
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
            is_equal = are_stores and not changes and not other.is_of_pipeline
            if not is_equal:  # otherwise, no order changes what the memory holds
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
        make = functools.partial(race_finding, self.launch, self.tasks, other, access, both, axes)
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

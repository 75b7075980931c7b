"""Order of a run: unordered accesses, and the balance of semaphores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch, LaunchOperand
from pallas_debug.machine.copies import Counter, DmaCopy
from pallas_debug.machine.grid import Window
from pallas_debug.machine.loops import ChunkAccess
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion, OutOfBounds, Ref, resolve
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.order.atomics import AtomicOrder
from pallas_debug.machine.order.facts import (
    BlockVisit,
    CrossCoreWait,
    EarlyCopy,
    EventPlace,
    OverlappingCopy,
    StartedCopy,
    UndecidedOrder,
)
from pallas_debug.machine.order.history import MemoryAccess
from pallas_debug.machine.order.ledger import SemaphoreLedger
from pallas_debug.machine.order.races import RaceDetector, changes
from pallas_debug.machine.order.regions import Box, boxes, boxes_text, first_meeting
from pallas_debug.machine.order.tasks import (
    CopyTasks,
    OrderedThread,
    OrderTasks,
    ParallelPoint,
    is_far,
)
from pallas_debug.machine.shadow.shadow import differing
from pallas_debug.machine.threads import Blocked, Thread
from pallas_debug.profile.blocks import grid_point


class OrderTracker(MachineObserver):
    """Observes the order of a run.

    Args:
      devices: number of devices that run the kernel together; by default, all of the mesh.

    Attributes:
      reads: reads of semaphores whose values depend on timing, by line.
      ledgers: ledgers of semaphores, by number of the buffer and entry.
      left_over: ledgers of ended scopes whose semaphores were not zero.
      visits: visits of output blocks, by array and indices, for each place on the parallel axes.
      blocked: pending waits, by thread number.
      has_ended: whether all threads have.
    """

    def __init__(self, launch: Launch, *, devices: int | None = None) -> None:
        self.launch = launch
        self.tasks = OrderTasks(launch, devices)
        self.detector = RaceDetector(self.tasks)
        self.atomics = AtomicOrder()
        self.reads: dict[Any, UndecidedOrder] = {}
        self.ledgers: dict[tuple[int, tuple[Any, ...]], SemaphoreLedger] = {}
        self.left_over: list[SemaphoreLedger] = []
        self.visits: dict[tuple[int, tuple[int, ...]], dict[ParallelPoint, BlockVisit]] = {}
        self.blocked: dict[int, Blocked] = {}
        self.has_ended = False
        self._aliased = _aliased(launch)

    follows_loops = False

    def accepts_chunk(self, thread: Thread, accesses: Sequence[ChunkAccess]) -> bool:
        """Accept a chunk that accesses only memory with which no other task is concerned."""
        if self.launch.is_gpu:
            return False
        for access in accesses:
            history = self.detector.histories.get(access.region.buffer.number)
            if history is not None and not (history.drops and not history.accesses):
                return False
        return True

    def point_begins(self, thread: Thread) -> None:
        own = self.tasks.thread(thread)
        self.tasks.enter(own)
        if not self.tasks.axes:
            return
        own.windows = {}
        for window in thread.walk.windows:
            if window.operand.kind == "output" and id(window.operand) not in self._aliased:
                visits = self.visits.setdefault((window.array.number, window.block), {})
                first = BlockVisit(window, window.block, thread.point)
                visit = visits.setdefault(own.parallel_point, first)
                own.windows[window.current.number] = visit

    def ends(self) -> None:
        self.has_ended = True

    # Memory

    def allocated(self, buffer: MemoryBuffer, thread: Thread | None) -> None:
        self.detector.allocated(buffer)

    def freed(self, buffer: MemoryBuffer, thread: Thread) -> None:
        self.detector.histories.pop(buffer.number, None)
        if buffer.type.semaphore is not None:
            for key in [key for key in self.ledgers if key[0] == buffer.number]:
                ledger = self.ledgers.pop(key)
                if ledger.is_raised:
                    self.left_over.append(ledger)

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        number = region.buffer.number
        if number in self.detector.histories:
            own = self.tasks.thread(thread)
            if self.launch.is_gpu:
                self.atomics.loads(own.far, step, region)
            self.detector.by_core(own, step, region, writes=False)
        if self.tasks.axes:
            visit = self.tasks.thread(thread).windows.get(number)
            if visit is not None:
                visit.read()

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        number = region.buffer.number
        if number in self.detector.histories:
            own = self.tasks.thread(thread)
            self.detector.by_core(own, step, region, writes=True, value=value)
            if self.launch.is_gpu:
                self.atomics.stores(own.far, step, region)
        if self.tasks.axes:
            visit = self.tasks.thread(thread).windows.get(number)
            if visit is not None:
                visit.store = visit.store or EventPlace.of(step, thread)
                visit.changes = visit.changes or changes(thread, step, region, value)
                visit.is_covered |= region.is_whole and getattr(step, "mask", None) is None

    # The pipeline

    def fetches(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        position = thread.walk.position + (window.filled != window.slot)
        self._moves(thread, window, window.slots[window.filled], block, position, fetches=True)

    def writes_back(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        if self.tasks.axes:
            visit = self.tasks.thread(thread).windows.get(window.current.number)
            if visit is not None and visit.changes:
                outer, inner = window.bounds(block)
                old, new = window.array.content[outer], window.current.content[inner]
                visit.changes = bool(differing(old, new.reshape(old.shape)).any())
        self._moves(thread, window, window.current, block, thread.walk.position, fetches=False)

    def _moves(
        self, thread: Thread, window: Window, slot: MemoryBuffer, block: tuple[int, ...],
        position: int, *, fetches: bool,
    ) -> None:  # fmt: skip
        is_watched = slot.number in self.detector.histories
        is_aliased = id(window.operand) in self._aliased
        if not (is_watched or is_aliased):
            return
        own = self.tasks.thread(thread)
        point = grid_point(thread.walk.grid, position)
        if is_watched:
            region = resolve(Ref(slot), (), [])
            self.detector.by_pipeline(own, own.near, region, block, point, writes=fetches)
        if is_aliased:
            # A fetch is over when its grid point begins, a write-back one grid point later.
            task = self.tasks.move(own, point, position if fetches else position + 2)
            region = MemoryRegion(window.array, window.bounds(block)[0])
            self.detector.by_pipeline(
                own, task, region, block, point, writes=not fetches, goes_on=True
            )

    # DMAs

    def copy_starts(self, thread: Thread, copy: DmaCopy) -> None:
        if not copy.nbytes:
            return
        own, step = self.tasks.thread(thread), copy.step
        when = self.detector.next()
        place = EventPlace(step, thread.device, copy.point, copy.iterations)
        source, destination = boxes(copy.source), boxes(copy.destination)
        target = thread.ref(step.destination).name
        names = (
            boxes_text(thread.ref(step.source).name, source, copy.source.buffer.content.shape),
            boxes_text(target, destination, copy.destination.buffer.content.shape),
        )
        started = StartedCopy(
            place, names, copy.destination.buffer, target, copy.nbytes, copy.nbytes
        )
        if copy.source.buffer is copy.destination.buffer and source != destination:
            overlap = first_meeting(source, destination)
            key = OverlappingCopy, step.site.line
            if overlap is not None and not self.detector.is_known(key):
                self.detector.facts[key] = OverlappingCopy(started, overlap)
        near, far = self.tasks.copy(own, copy)
        self._access(own, copy, copy.source, source, near.reads, far.reads, names, when)
        if self._has_entered(own, near, started):
            region = copy.destination
            self._access(own, copy, region, destination, near.writes, far.writes, names, when)
        self._raise(own, copy, copy.received, near.writes, far.writes, started)
        if copy.sent is not None:
            self._raise(own, copy, copy.sent, near.reads, far.reads, started)
        self.tasks.started(near, far)

    def _access(
        self, own: OrderedThread, copy: DmaCopy, region: MemoryRegion, found: tuple[Box, ...],
        near: Any, far: Any, names: tuple[str, str], when: int,
    ) -> None:  # fmt: skip
        access = MemoryAccess(
            region.buffer, found, region is copy.destination, 0, own.thread.number, when,
            copy.point, copy.iterations, copy.step, copy, names,
        )  # fmt: skip
        task = far if is_far(region.buffer) else near
        self.detector.access(own, task, access, goes_on=True)

    def _raise(
        self, own: OrderedThread, copy: DmaCopy, counter: Counter, near: Any, far: Any,
        started: StartedCopy,
    ) -> None:  # fmt: skip
        ledger = self.ledger(counter)
        amount = copy.amount(counter)
        ledger.started(replace(started, nbytes=amount, left=amount))
        ledger.release(near, far, _origin(own, counter), amount, copy)

    def _has_entered(self, own: OrderedThread, tasks: CopyTasks, copy: StartedCopy) -> bool:
        """Return whether the receiver's entry into the kernel happened before the DMA."""
        device = copy.destination.device
        if device == own.thread.device or tasks.writes.follows(self.tasks.entered(device)):
            return True
        key = EarlyCopy, copy.place.step.site.line
        if not self.detector.is_known(key):
            self.detector.facts[key] = EarlyCopy(copy)
        return False

    # Semaphores

    def signals(self, thread: Thread, step: ir.MachineStep, counter: Counter, amount: int) -> None:
        own = self.tasks.thread(thread)
        ledger = self.ledger(counter)
        place = EventPlace.of(step, thread)
        ledger.signalled(place, amount)
        ledger.release(own.near, own.far, _origin(own, counter), amount, place)

    def waited(self, thread: Thread, step: ir.MachineStep, counter: Counter, amount: int) -> None:
        self.blocked.pop(thread.number, None)
        if not amount and isinstance(step, ir.CopyWait):
            return
        own = self.tasks.thread(thread)
        ledger = self.ledger(counter)
        place = EventPlace.of(step, thread)
        crossing = ledger.take(own.near, own.far, own.parallel_point, amount)
        if crossing is not None:
            self._crosses(place, ledger, crossing)
        own.waits.append((self.detector.next(), ledger.name))
        if amount:
            ledger.waited(place, amount, lambda: self.descriptor(thread, step))

    def _crosses(self, wait: EventPlace, ledger: SemaphoreLedger, of: DmaCopy | EventPlace) -> None:
        """Record a wait for a DMA or signal of another grid point of a parallel axis."""
        key = CrossCoreWait, wait.step.site.line
        axes = tuple(axis for axis in self.tasks.axes if of.point[axis] != wait.point[axis])
        is_given = ledger.buffer.kind in ("input", "output")
        if not self.detector.is_known(key) and axes and not is_given:
            source = EventPlace(of.step, wait.device, of.point, of.iterations)
            is_copy = isinstance(of, DmaCopy)
            self.detector.facts[key] = CrossCoreWait(wait, source, ledger.name, axes, is_copy)

    def reads_semaphore(
        self, thread: Thread, step: ir.MachineStep, counter: Counter, value: int
    ) -> None:
        """Record a value that would differ under another legal timing."""
        own, line = self.tasks.thread(thread), step.site.line
        ledger = self.ledger(counter)
        late = [r for r in ledger.near.pending if not r.is_in(own.near.clock)]
        if line in self.reads or not late:
            return
        first = f"the signal of {ledger.name}"
        if ledger.copies:
            source, destination = ledger.copies[0].names
            first = f"the copy of {source} to {destination}"
        place = EventPlace.of(step, thread)
        second = f"the read of {ledger.name}"
        self.reads[line] = UndecidedOrder(
            place, first, second, of_copies=False, semaphore=ledger.name, value=value
        )

    @property
    def undecided(self) -> list[UndecidedOrder]:
        """Return results that depend on the order of unordered events, without being a race."""
        return [*self.reads.values(), *self.detector.undecided.values()]

    def blocks(self, thread: Thread, blocked: Blocked) -> None:
        self.tasks.thread(thread)
        self.blocked[thread.number] = blocked

    def ledger(self, counter: Counter) -> SemaphoreLedger:
        key = counter.buffer.number, counter.entry
        found = self.ledgers.get(key)
        if found is None:
            found = SemaphoreLedger(counter.buffer, counter.entry)
            found.far = {} if self.tasks.axes else None
            self.ledgers[key] = found
        return found

    # Names

    def descriptor(self, thread: Thread, step: ir.MachineStep) -> str | None:
        """Slice that gives the size of a wait; None if it is outside its reference.

        Such a slice stands for several copies together: the wait does not access it.
        """
        if not isinstance(step, ir.CopyWait):
            return None
        registers = thread.frames[-1].registers
        place = step.destination
        try:
            region = resolve(registers[place.ref.number], place.view, registers)
        except OutOfBounds:
            return None
        name = thread.ref(place).name
        return boxes_text(name, boxes(region), region.buffer.content.shape)


def _origin(own: OrderedThread, counter: Counter) -> ParallelPoint | None:
    """Coordinates from which a thread raises a semaphore; None on another device."""
    return own.parallel_point if counter.buffer.device == own.thread.device else None


def _aliased(launch: Launch) -> set[int]:
    """Return the identities of operands that share an array with another operand."""
    inputs = [operand for operand in launch.operands if operand.kind in ("prefetch", "input")]
    found: list[LaunchOperand] = []
    for operand in launch.operands:
        if operand.alias is not None:
            found += [operand, inputs[operand.alias]]
    return {id(operand) for operand in found}

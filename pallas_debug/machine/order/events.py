"""Order of a run: unordered accesses, and the balance of semaphores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch, LaunchOperand
from pallas_debug.machine.clocks import Task
from pallas_debug.machine.copies import Counter, DmaCopy
from pallas_debug.machine.grid import Window
from pallas_debug.machine.loops import ChunkAccess
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion, OutOfBounds, Ref, resolve
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.order.history import Box, MemoryAccess, boxes, boxes_text, first_meeting
from pallas_debug.machine.order.ledger import EventPlace, SemaphoreLedger, StartedCopy
from pallas_debug.machine.order.races import (
    AtomicOrder,
    RaceDetector,
    UndecidedOrder,
    changes,
    early,
    overlapping,
)
from pallas_debug.machine.order.tasks import (
    BlockVisit,
    CopyTasks,
    OrderedThread,
    OrderTasks,
    ParallelPoint,
    is_far,
)
from pallas_debug.machine.shadow.shadow import differing
from pallas_debug.machine.threads import Blocked, Thread
from pallas_debug.model import Finding
from pallas_debug.profile.blocks import grid_point


class OrderTracker(MachineObserver):
    """Observes the order of a run.

    Args:
      devices: number of devices that run the kernel together; by default, all of the mesh.

    Attributes:
      found: faults so far, by their identity.
      undecided: results that depend on the order of unordered events, without being a race.
      ledgers: ledgers of semaphores, by number of the buffer and entry.
      left_over: ledgers of ended scopes whose semaphores were not zero.
      visits: visits of output blocks, by array and indices, for each place on the parallel axes.
      blocked: pending waits, by thread number.
      has_ended: whether all threads have.
    """

    def __init__(self, launch: Launch, *, devices: int | None = None) -> None:
        self.launch = launch
        self.tasks = OrderTasks(launch, devices)
        self.found: dict[object, Finding] = {}
        self.detector = RaceDetector(launch, self.tasks, self.report)
        self.undecided = self.detector.undecided
        self.atomics = AtomicOrder()
        self.ledgers: dict[tuple[int, tuple[Any, ...]], SemaphoreLedger] = {}
        self.left_over: list[SemaphoreLedger] = []
        self.visits: dict[tuple[int, tuple[int, ...]], dict[ParallelPoint, BlockVisit]] = {}
        self.blocked: dict[int, Blocked] = {}
        self.has_ended = False
        self._aliased = _aliased(launch)

    follows_loops = False

    def report(self, key: object, make: Callable[[], Finding]) -> None:
        """Add a finding, or count a known one."""
        known = self.found.get(key)
        self.found[key] = make() if known is None else replace(known, count=known.count + 1)

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
        source, destination = boxes(copy.source), boxes(copy.destination)
        target = thread.ref(step.destination).name
        names = (
            boxes_text(thread.ref(step.source).name, source, copy.source.buffer.content.shape),
            boxes_text(target, destination, copy.destination.buffer.content.shape),
        )
        started = StartedCopy(copy, names, target, copy.nbytes, copy.nbytes)
        if copy.source.buffer is copy.destination.buffer and source != destination:
            overlap = first_meeting(source, destination)
            if overlap is not None:
                key = "overlap", step.site.line
                self.report(key, lambda: overlapping(self.launch, started, overlap))
        near, far = self.tasks.copy(own, copy)

        def access(region: MemoryRegion, found: tuple[Box, ...], *tasks: Task) -> None:
            self.detector.access(tasks[is_far(region.buffer)], MemoryAccess(
                region.buffer, found, region is copy.destination, 0, thread.number,
                copy.point, copy.iterations, step, copy, names,
            ), goes_on=True)  # fmt: skip

        access(copy.source, source, near.reads, far.reads)
        if self._has_entered(own, near, started):
            access(copy.destination, destination, near.writes, far.writes)
        for counter, core, hbm in (
            (copy.received, near.writes, far.writes),
            (copy.sent, near.reads, far.reads),
        ):
            if counter is not None:
                ledger, amount = self.ledger(counter), copy.amount(counter)
                ledger.started(replace(started, nbytes=amount, left=amount))
                ledger.release(core, hbm, _origin(own, counter), amount)
        self.tasks.started(near, far)

    def _has_entered(self, own: OrderedThread, tasks: CopyTasks, copy: StartedCopy) -> bool:
        """Return whether the receiver's entry into the kernel happened before the DMA."""
        device = copy.dma.destination.buffer.device
        if device == own.thread.device or tasks.writes.follows(self.tasks.entered(device)):
            return True
        key, sender = ("early", copy.dma.step.site.line), own.thread.device
        self.report(key, lambda: early(self.launch, copy, sender, device))
        return False

    # Semaphores

    def signals(self, thread: Thread, step: ir.MachineStep, counter: Counter, amount: int) -> None:
        own = self.tasks.thread(thread)
        ledger = self.ledger(counter)
        ledger.signalled(EventPlace.of(step, thread), amount)
        ledger.release(own.near, own.far, _origin(own, counter), amount)

    def waited(self, thread: Thread, step: ir.MachineStep, counter: Counter, amount: int) -> None:
        self.blocked.pop(thread.number, None)
        if not amount and isinstance(step, ir.CopyWait):
            return
        own = self.tasks.thread(thread)
        ledger = self.ledger(counter)
        ledger.take(own.near, own.far, own.parallel_point, amount)
        own.awaited.add(ledger.name)
        if amount:
            place = EventPlace.of(step, thread)
            ledger.waited(place, amount, lambda: self._descriptor(thread, step))

    def reads_semaphore(
        self, thread: Thread, step: ir.MachineStep, counter: Counter, value: int
    ) -> None:
        """Record a value that would differ under another legal timing."""
        own, key = self.tasks.thread(thread), ("read", step.site.line)
        ledger = self.ledger(counter)
        late = [r for r in ledger.near.pending if not r.is_in(own.near.clock)]
        if key in self.undecided or not late:
            return
        first = f"the signal of {ledger.name}"
        if ledger.copies:
            source, destination = ledger.copies[0].names
            first = f"the copy of {source} to {destination}"
        place = EventPlace.of(step, thread)
        second = f"the read of {ledger.name}"
        self.undecided[key] = UndecidedOrder(place, first, second, ledger.name)

    def blocks(self, thread: Thread, blocked: Blocked) -> None:
        self.tasks.thread(thread)
        self.blocked[thread.number] = blocked

    def ledger(self, counter: Counter) -> SemaphoreLedger:
        key = counter.buffer.number, counter.entry
        found = self.ledgers.get(key)
        if found is None:
            far: dict[Any, Any] | None = {} if self.tasks.axes else None
            found = self.ledgers[key] = SemaphoreLedger(counter.buffer, counter.entry, far=far)
        return found

    def _descriptor(self, thread: Thread, step: ir.MachineStep) -> str | None:
        """Slice that gives the size of a wait; None if it is outside its reference."""
        if not isinstance(step, ir.CopyWait):
            return None
        registers, place = thread.frames[-1].registers, step.destination
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

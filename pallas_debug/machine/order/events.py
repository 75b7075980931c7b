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
    EarlyCopy,
    EventPlace,
    LaneWait,
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
    Lane,
    OrderedThread,
    OrderTasks,
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
      early: DMAs to devices that may not have entered the kernel, by line.
      overlapping: DMAs that write elements of their own sources, by line.
      reads: reads of semaphores whose values depend on timing, by line.
      ledgers: ledgers of semaphores, by number of the buffer and entry.
      left_over: ledgers of ended scopes whose semaphores were not zero.
      visits: visits of output blocks, by array and indices, for each lane.
      blocked: pending waits, by thread number.
      lane_waits: waits for DMAs or signals of another lane, by line.
      has_ended: whether all threads have.
    """

    def __init__(self, launch: Launch, *, devices: int | None = None) -> None:
        self.launch = launch
        self.tasks = OrderTasks(launch, devices)
        self.detector = RaceDetector(self.tasks, self.ledger)
        self.atomics = AtomicOrder()
        self.early: dict[Any, EarlyCopy] = {}
        self.overlapping: dict[Any, OverlappingCopy] = {}
        self.reads: dict[Any, UndecidedOrder] = {}
        self.ledgers: dict[tuple[int, tuple[Any, ...]], SemaphoreLedger] = {}
        self.left_over: list[SemaphoreLedger] = []
        self.visits: dict[tuple[int, tuple[int, ...]], dict[Lane, BlockVisit]] = {}
        self.blocked: dict[int, Blocked] = {}
        self.lane_waits: dict[Any, LaneWait] = {}
        self.has_barrier = False
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
                lanes = self.visits.setdefault((window.array.number, window.block), {})
                visit = lanes.get(own.lane)
                if visit is None:
                    visit = lanes[own.lane] = BlockVisit(window, window.block, thread.point)
                own.windows[window.current.number] = visit

    def ends(self) -> None:
        self.has_ended = True

    # Memory

    def allocated(self, buffer: MemoryBuffer, thread: Thread | None) -> None:
        if buffer.kind == "barrier":
            self.has_barrier = True
        self.detector.allocated(buffer)

    def freed(self, buffer: MemoryBuffer, thread: Thread) -> None:
        self.detector.histories.pop(buffer.number, None)
        if buffer.type.semaphore is not None:
            for key in [key for key in self.ledgers if key[0] == buffer.number]:
                ledger = self.ledgers.pop(key)
                if ledger.near.count or ledger.copies:
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
                visit.wrote(step, thread, self.detector.next())
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
        own.started(step.site.line, when)
        place = EventPlace(step, thread.device, copy.point, copy.iterations)
        parts = boxes(copy.source), boxes(copy.destination)
        operands = thread.ref(step.source).name, thread.ref(step.destination).name
        names = (
            boxes_text(operands[0], parts[0], copy.source.buffer.content.shape),
            boxes_text(operands[1], parts[1], copy.destination.buffer.content.shape),
        )
        started = StartedCopy(
            place, names, copy.destination.buffer, operands[1], copy.nbytes, copy.nbytes
        )
        if copy.source.buffer is copy.destination.buffer and parts[0] != parts[1]:
            overlap = first_meeting(*parts)
            if overlap is not None:
                fact = OverlappingCopy(started, overlap, when, count=0)
                self.overlapping.setdefault(step.site.line, fact).count += 1
        near, far = self.tasks.copy(own, copy)
        self._access(own, copy, copy.source, parts[0], near.reads, far.reads, names, when)
        if self._is_known(own, near, started, when):
            destination = copy.destination
            self._access(own, copy, destination, parts[1], near.writes, far.writes, names, when)
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
        lane = own.lane if counter.buffer.device == own.thread.device else None
        ledger.release(near, far, lane, amount, copy)

    def _is_known(self, own: OrderedThread, tasks: CopyTasks, copy: StartedCopy, when: int) -> bool:
        """Return whether the receiver is known to have entered the kernel."""
        device = copy.destination.device
        if device == own.thread.device or tasks.writes.follows(self.tasks.entered(device)):
            return True
        line = copy.place.step.site.line
        if line in self.early:
            self.early[line].count += 1
        else:
            heard = tuple(sorted(own.heard - {own.thread.device}))
            self.early[line] = EarlyCopy(copy, heard, when)
        return False

    # Semaphores

    def signals(self, thread: Thread, step: ir.MachineStep, counter: Counter, amount: int) -> None:
        own = self.tasks.thread(thread)
        ledger = self.ledger(counter)
        place = EventPlace.of(step, thread)
        ledger.signalled(place, amount)
        ledger.cores.add(thread.number)
        lane = own.lane if counter.buffer.device == thread.device else None
        ledger.release(own.near, own.far, lane, amount, place)

    def waited(self, thread: Thread, step: ir.MachineStep, counter: Counter, amount: int) -> None:
        self.blocked.pop(thread.number, None)
        if not amount and isinstance(step, ir.CopyWait):
            return
        own = self.tasks.thread(thread)
        ledger = self.ledger(counter)
        crossing = ledger.take(own.near, own.far, own.lane, amount)
        if crossing is not None:
            self._crosses(own, step, ledger, crossing)
        own.waits.append((self.detector.next(), ledger.name))
        own.heard |= ledger.signallers
        own.heard_cores |= ledger.cores
        if amount:
            place = EventPlace.of(step, thread)
            target = None
            if isinstance(step, ir.CopyWait):
                target = thread.ref(step.destination).buffer
            ledger.waited(place, amount, target, lambda: self.descriptor(thread, step))

    def _crosses(
        self, own: OrderedThread, step: ir.MachineStep, ledger: SemaphoreLedger,
        of: DmaCopy | EventPlace,
    ) -> None:  # fmt: skip
        """Record a wait for a DMA or signal of another grid point of a parallel axis."""
        line, thread = step.site.line, own.thread
        if line in self.lane_waits:
            self.lane_waits[line].count += 1
            return
        source = (
            EventPlace(of.step, thread.device, of.point, of.iterations)
            if isinstance(of, DmaCopy)
            else of
        )
        axes = tuple(axis for axis in self.tasks.axes if source.point[axis] != thread.point[axis])
        if axes and ledger.buffer.kind not in ("input", "output"):
            self.lane_waits[line] = LaneWait(
                EventPlace.of(step, thread),
                source, ledger.name, axes, isinstance(of, DmaCopy), self.detector.next(),
            )  # fmt: skip

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
            if self.tasks.axes:
                found.far = {}
            self.ledgers[key] = found
        return found

    def ledger_of(self, blocked: Blocked) -> SemaphoreLedger:
        return self.ledger(blocked.counter)

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


def _aliased(launch: Launch) -> set[int]:
    """Return the identities of operands that share an array with another operand."""
    inputs = [operand for operand in launch.operands if operand.kind in ("prefetch", "input")]
    found: list[LaunchOperand] = []
    for operand in launch.operands:
        if operand.alias is not None:
            found += [operand, inputs[operand.alias]]
    return {id(operand) for operand in found}

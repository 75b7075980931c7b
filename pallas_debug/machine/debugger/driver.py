"""Step-by-step driver of the machine, in an order that is the same in every run."""

from __future__ import annotations

import bisect
import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.copies import Counter, DmaCopy
from pallas_debug.machine.grid import BlockOutOfBounds, Window
from pallas_debug.machine.machine import Machine, Stopped
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion, OutOfBounds
from pallas_debug.machine.observer import MachineObserver, max_iterations
from pallas_debug.machine.sightings import index_text, shape_text
from pallas_debug.machine.threads import Thread


class RunFault(Exception):
    """The run cannot continue; the message says why."""


@dataclass(frozen=True, slots=True)
class MemoryWrite:
    """A memory write of the most recent step.

    Attributes:
      how: "store", "copy" (a DMA has ended), "fetch" or "write-back" (by the pipeline), "count" (of
        a semaphore), "new" (the memory is allocated, or gets another block of an output).
      region: elements written; None for the whole buffer.
      window: the pipeline's window, for a fetch or write-back.
      block: block of the window that was fetched or written back.
      slot: slot of the window from which the block was written back.
      mask: elements of the region that a masked store wrote; None if it wrote all.
    """

    how: str
    buffer: MemoryBuffer
    region: MemoryRegion | None = None
    copy: DmaCopy | None = None
    window: Window | None = None
    block: tuple[int, ...] = ()
    slot: MemoryBuffer | None = None
    mask: np.ndarray[Any, Any] | None = None


class StepEvents(MachineObserver):
    """Effects of the most recent step, and the buffers changed since a snapshot."""

    def __init__(self) -> None:
        self.writes: list[MemoryWrite] = []
        self.printed: list[str] = []
        self.dirty: set[MemoryBuffer] = set()
        self.begins_point = False

    def clear(self) -> None:
        self.writes.clear()
        self.printed.clear()
        self.begins_point = False

    def _wrote(self, write: MemoryWrite) -> None:
        self.writes.append(write)
        self.dirty.add(write.buffer)

    def allocated(self, buffer: MemoryBuffer, thread: Thread | None) -> None:
        self._wrote(MemoryWrite("new", buffer))

    def point_begins(self, thread: Thread) -> None:
        self.begins_point = True

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        if isinstance(step, ir.WhileLoop) and iteration >= max_iterations(step):
            line = step.site.line
            where = "" if line is None else f" at line {line.line}"
            raise RunFault(
                f"endless loop: the `while_loop`{where} has not ended after {iteration:,} "
                "iterations"
            )

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        mask = getattr(step, "mask", None)
        held = None if mask is None else np.asarray(thread.frames[-1].registers[mask.number])
        self._wrote(MemoryWrite("store", region.buffer, region, mask=held))

    def fetches(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        slot = window.slots[window.filled]
        self._wrote(MemoryWrite("fetch", slot, window=window, block=block))

    def writes_back(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        slot = window.current
        self._wrote(MemoryWrite("write-back", window.array, window=window, block=block, slot=slot))

    def copy_ends(self, copy: DmaCopy) -> None:
        self._wrote(MemoryWrite("copy", copy.destination.buffer, copy.destination, copy))
        for counter in (copy.received, copy.sent):
            if counter is not None:
                self._wrote(MemoryWrite("count", counter.buffer))

    def signals(self, thread: Thread, step: ir.MachineStep, counter: Counter, amount: int) -> None:
        self._wrote(MemoryWrite("count", counter.buffer))

    waited = signals

    def prints(self, thread: Thread, step: ir.PrintStep, values: Sequence[Any]) -> None:
        self.printed.append(step.text(values))


class Driver:
    """Runs a machine step by step: each core until it has to wait, in order of core number.

    Attributes:
      tick: number of steps so far.
      turn: number of the thread whose turn it is.
      progress: whether any thread has executed a step since the first thread's last turn.
      ended: whether all threads have ended.
      is_broken: whether the most recent step could not be executed.
    """

    def __init__(self, machine: Machine, events: StepEvents) -> None:
        self.machine = machine
        self.events = events
        self.tick = 0
        self.turn = 0
        self.progress = False
        self.ended = False
        self.is_broken = False

    @property
    def thread(self) -> Thread:
        return self.machine.threads[self.turn]

    def advance(self) -> None:
        """Execute one step.

        Raises:
          RunFault: the step cannot be executed; the machine's state is undefined.
        """
        self.events.clear()
        self.is_broken = True
        try:
            self._advance()
        except RunFault:
            raise
        except Stopped as stopped:
            cause = stopped.__cause__
            raise RunFault(_of_fault(cause) if cause is not None else str(stopped)) from stopped
        except Exception as error:
            raise RunFault(_of_fault(error)) from error
        self.is_broken = False
        self.tick += 1

    def _advance(self) -> None:
        machine = self.machine
        while True:
            if machine.is_done:
                if machine.copies:
                    machine.complete(machine.copies[0])
                else:
                    self.ended = True
                return
            if not self.thread.is_done and machine.step(self.thread):
                self.progress = True
                return
            self.turn += 1
            if self.turn < len(machine.threads):
                continue
            self.turn = 0
            if self.progress:
                self.progress = False
            elif machine.copies:
                machine.complete(machine.copies[0])
                return
            else:
                raise RunFault(_deadlock(machine.threads))


def _of_fault(error: BaseException) -> str:
    if isinstance(error, OutOfBounds):
        selected = index_text(error.buffer.name + error.recast, error.index)
        return f"{selected} is out of bounds for {shape_text(error.buffer, error.shape)}"
    if isinstance(error, BlockOutOfBounds):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _deadlock(threads: Sequence[Thread]) -> str:
    waiting = []
    for thread in threads:
        blocked = thread.blocked
        if blocked is not None:
            who = f"device {thread.device} waits" if len(threads) > 1 else "the kernel waits"
            waiting.append(
                f"{who} until `{blocked.counter}` is {blocked.amount}, but it is "
                f"{blocked.counter.count}"
            )
    return "deadlock: nothing can run. " + "; ".join(waiting)


PIECE = 1 << 18
"""Size in bytes of a piece of a buffer."""

MAX_BYTES = 256 << 20
"""Maximum bytes of all snapshots of a run; beyond it, they are thinned."""

Pieces = tuple[np.ndarray[Any, Any], ...]


@dataclass(frozen=True, slots=True)
class ThreadState:
    """A copy of a thread, and the position and the windows of its walk over the grid."""

    thread: Thread
    position: int
    windows: list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a machine before a step.

    Attributes:
      nbytes: bytes in this snapshot that the previous one does not share.
    """

    tick: int
    turn: int
    progress: bool
    ended: bool
    buffers: list[MemoryBuffer]
    contents: dict[MemoryBuffer, Pieces]
    freed: frozenset[MemoryBuffer]
    early: frozenset[MemoryBuffer]
    copies: list[tuple[DmaCopy, bool]]
    num_copies: int
    barriers: list[tuple[MemoryBuffer, ...]]
    lasting: list[dict[Any, MemoryBuffer]]
    threads: list[ThreadState]
    nbytes: int


class Snapshots:
    """Snapshots of a run, in order, within a memory limit.

    Beyond the limit, it drops snapshots whose neighbours are close relative to their distance from
    the current step, so snapshots stay dense near it.
    """

    def __init__(self, driver: Driver, max_bytes: int = MAX_BYTES) -> None:
        self.driver = driver
        self.max_bytes = max_bytes
        self._kept: list[Snapshot] = []
        self._known: dict[MemoryBuffer, Pieces] = {}
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def before(self, tick: int) -> Snapshot:
        """Return the last snapshot at or before a step."""
        return self._kept[self._position(tick + 1) - 1]

    def has(self, tick: int) -> bool:
        position = self._position(tick)
        return position < len(self._kept) and self._kept[position].tick == tick

    def _position(self, tick: int) -> int:
        return bisect.bisect_left(self._kept, tick, key=lambda snapshot: snapshot.tick)

    def take(self) -> None:
        """Take a snapshot of the current state, unless one exists."""
        if self.has(self.driver.tick):
            return
        snapshot = self._taken()
        self._kept.insert(self._position(snapshot.tick), snapshot)
        self._nbytes += snapshot.nbytes
        while self._nbytes > self.max_bytes and len(self._kept) > 3:
            self._thin()

    def _thin(self) -> None:
        now, kept = self.driver.tick, self._kept

        def cost(i: int) -> float:
            gap = kept[i + 1].tick - kept[i - 1].tick
            return gap / (abs(kept[i].tick - now) + 1)

        position = min(range(1, len(kept) - 1), key=cost)
        # The next snapshot now holds the pieces that both shared: an estimate.
        self._nbytes -= kept.pop(position).nbytes

    def _taken(self) -> Snapshot:
        driver, machine = self.driver, self.driver.machine
        dirty = driver.events.dirty
        contents: dict[MemoryBuffer, Pieces] = {}
        nbytes = 0
        for buffer in machine.buffers:
            if buffer.is_freed:
                continue
            known = self._known.get(buffer)
            if known is None or buffer in dirty:
                known, new = _pieces(buffer.content, known)
                nbytes += new
            contents[buffer] = known
        dirty.clear()
        self._known = contents
        threads = [_state(thread) for thread in machine.threads]
        nbytes += sum(_register_bytes(state) for state in threads)
        return Snapshot(
            tick=driver.tick,
            turn=driver.turn,
            progress=driver.progress,
            ended=driver.ended,
            buffers=list(machine.buffers),
            contents=contents,
            freed=frozenset(b for b in machine.buffers if b.is_freed),
            early=frozenset(b for b in machine.buffers if b.is_early),
            copies=[(flying, flying.was_seen) for flying in machine.copies],
            num_copies=machine.num_copies,
            barriers=[device.barrier for device in machine.devices],
            lasting=[dict(device.lasting) for device in machine.devices],
            threads=threads,
            nbytes=nbytes,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Restore the machine to a snapshot."""
        driver, machine = self.driver, self.driver.machine
        for buffer, pieces in snapshot.contents.items():
            if buffer in driver.events.dirty or self._known.get(buffer) is not pieces:
                _fill(buffer.content, pieces)
        driver.events.dirty.clear()
        driver.events.clear()
        self._known = snapshot.contents
        machine.buffers[:] = snapshot.buffers
        for buffer in machine.buffers:
            buffer.is_freed = buffer in snapshot.freed
            buffer.is_early = buffer in snapshot.early
        machine.copies[:] = [flying for flying, _ in snapshot.copies]
        for flying, was_seen in snapshot.copies:
            flying.is_done, flying.was_seen = False, was_seen
        machine.num_copies = snapshot.num_copies
        for device, barrier, lasting in zip(
            machine.devices, snapshot.barriers, snapshot.lasting, strict=True
        ):
            device.barrier = barrier
            device.lasting = dict(lasting)
        for thread, state in zip(machine.threads, snapshot.threads, strict=True):
            _set_state(thread, state)
        driver.tick, driver.turn = snapshot.tick, snapshot.turn
        driver.progress, driver.ended = snapshot.progress, snapshot.ended
        driver.is_broken = False


def _pieces(content: np.ndarray[Any, Any], known: Pieces | None) -> tuple[Pieces, int]:
    """Copy a buffer in pieces; return them with the number of bytes that are new."""
    flat = content.reshape(-1)
    length = max(PIECE // max(content.itemsize, 1), 1)
    found, nbytes = [], 0
    for number, start in enumerate(range(0, max(flat.size, 1), length)):
        part = flat[start : start + length]
        if known is not None and part.nbytes and _same(part, known[number]):
            found.append(known[number])
        else:
            found.append(part.copy())
            nbytes += part.nbytes
    return tuple(found), nbytes


def _same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return bool(np.array_equal(a.view(np.uint8), b.view(np.uint8)))


def _fill(content: np.ndarray[Any, Any], pieces: Pieces) -> None:
    flat = content.reshape(-1)
    start = 0
    for piece in pieces:
        flat[start : start + piece.size] = piece
        start += piece.size


def _state(thread: Thread) -> ThreadState:
    windows = [(w.slot, w.block, w.next_block) for w in thread.walk.windows]
    return ThreadState(_copied(thread), thread.walk.position, windows)


def _copied(thread: Thread) -> Thread:
    return replace(
        thread,
        frames=[frame.copied() for frame in thread.frames],
        generator=copy.deepcopy(thread.generator),
    )


def _set_state(thread: Thread, state: ThreadState) -> None:
    again = _copied(state.thread)
    for part in fields(Thread):
        setattr(thread, part.name, getattr(again, part.name))
    thread.walk.position = state.position
    for window, (slot, block, following) in zip(thread.walk.windows, state.windows, strict=True):
        window.slot, window.block, window.next_block = slot, block, following


def _register_bytes(state: ThreadState) -> int:
    """Bytes of values computed by a thread that a snapshot keeps alive."""
    return sum(
        getattr(value, "nbytes", 0)
        for frame in state.thread.frames
        for value, constant in zip(frame.registers, frame.program.template, strict=True)
        if value is not constant
    )

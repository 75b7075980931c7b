"""Log of a run on the machine: reads and writes of memory, and what values were computed from."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.grid import PlacedBlock, Window
from pallas_debug.machine.memory import Entry, MemoryBuffer, MemoryRegion
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.slices import Follows, Slicer
from pallas_debug.machine.threads import Thread
from pallas_debug.model import SourceLine

Point = tuple[int, ...]
Index = tuple[Entry, ...]

MAX_EVENTS = 1 << 18
"""Maximum number of reads and writes that are kept; about 100 MB."""


class OutOfTime(Exception):
    """A run on the machine exceeded its time limit."""


@dataclass(frozen=True, slots=True)
class BufferName:
    """A buffer without its contents, which would be kept alive otherwise."""

    number: int
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LoggedRead:
    """A read of memory.

    Attributes:
      number: position in the order of all reads and writes.
      index: elements of the buffer; None if a single index cannot express them.
      line: the line; None for the pipeline.
    """

    number: int
    buffer: BufferName
    index: Index | None
    line: SourceLine | None
    point: Point


WriteKind = Literal["store", "copy", "fetch", "write back", "new"]
"""A store, a DMA, the copy of a block by the pipeline to or from memory, or memory that becomes
undefined: a scope begins, or an output gets another block."""


@dataclass(frozen=True, slots=True, eq=False)
class LoggedWrite:
    """A write to memory.

    Attributes:
      number, index, line: as for a read.
      keeps: whether what it writes continues from what was there, as an addition does.
      is_exact: whether it is known which elements it sets.
      block: the watched output's block on this core, if it has blocks.
      sources: reads from which the value was computed, each with whether every element of the value
        depends only on the element at the same position.
    """

    number: int
    buffer: BufferName
    index: Index | None
    line: SourceLine | None
    point: Point
    kind: WriteKind
    iterations: Point
    keeps: bool
    is_exact: bool
    block: Any
    sources: tuple[tuple[LoggedRead, bool], ...]

    @property
    def is_stored(self) -> bool:
        """True if a line of the kernel writes, and not the pipeline."""
        return self.kind in ("store", "copy")


class WriteObserver(MachineObserver):
    """Logs the reads and writes of a run; of a long one, the last.

    Attributes:
      log: reads and writes, in order.
      array: the output's array, after the first grid point has begun.

    Args:
      position: position of the watched output among the kernel's operands.
      deadline: deadline in terms of `time.monotonic()`.
    """

    def __init__(self, position: int, deadline: float) -> None:
        self._deadline = deadline
        self._position = position
        self.log: deque[LoggedRead | LoggedWrite] = deque(maxlen=MAX_EVENTS)
        self.array: BufferName | None = None
        self._number = 0
        self._names: dict[int, BufferName] = {}
        self._slicer = Slicer(Follows.DATA)
        self._behind: dict[tuple[int, ...], dict[int, bool]] = {}
        self._loaded: dict[tuple[int, int], LoggedRead] = {}
        self._windows: dict[int, Window] = {}

    @property
    def is_complete(self) -> bool:
        """True if the log has everything from the start of the run."""
        return self._number <= MAX_EVENTS

    # Events

    def point_begins(self, thread: Thread) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTime
        if thread.number in self._windows or thread.walk is None:
            return
        item = thread.walk.refs[self._position]
        if isinstance(item, Window):
            self._windows[thread.number] = item
        item = item.window if isinstance(item, PlacedBlock) else item
        self.array = self._name(item.array if isinstance(item, Window) else item.buffer)

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        if not iteration % 64 and time.monotonic() > self._deadline:
            raise OutOfTime

    def allocated(self, buffer: MemoryBuffer, thread: Thread | None) -> None:
        if thread is not None:
            self._writes("new", buffer, _whole(buffer), thread)

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        read = self._reads(region.buffer, region.index, thread.point, step.site.line)
        self._loaded[thread.number, id(step)] = read

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        assert isinstance(step, ir.StoreStep | ir.AtomicStep)
        self._writes(
            "store", region.buffer, region.index, thread, step.site.line, thread.iterations,
            keeps=isinstance(step, ir.AtomicStep) or step.adds, is_exact=step.mask is None,
            sources=self._sources(thread, step),
        )  # fmt: skip

    def copy_ends(self, copy: DmaCopy) -> None:
        line, source, destination = copy.step.site.line, copy.source, copy.destination
        read = self._reads(source.buffer, source.index, copy.point, line)
        self._writes(
            "copy", destination.buffer, destination.index, copy, line, copy.iterations,
            keeps=copy.adds, sources=((read, source.shape == destination.shape),),
        )  # fmt: skip

    def fetches(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        inside, outside = _parts(window, block)
        read = self._reads(window.array, outside, thread.point)
        buffer = window.slots[window.filled]
        self._writes("new", buffer, _whole(buffer), thread)
        self._writes("fetch", buffer, inside, thread, sources=((read, True),))

    def writes_back(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        inside, outside = _parts(window, block)
        read = self._reads(window.current, inside, thread.point)
        self._writes("write back", window.array, outside, thread, sources=((read, True),))

    # Log

    def _reads(
        self,
        buffer: MemoryBuffer,
        index: Index | None,
        point: Point,
        line: SourceLine | None = None,
    ) -> LoggedRead:
        self._number += 1
        read = LoggedRead(self._number, self._name(buffer), index, line, point)
        self.log.append(read)
        return read

    def _writes(
        self,
        kind: WriteKind,
        buffer: MemoryBuffer,
        index: Index | None,
        by: Thread | DmaCopy,
        line: SourceLine | None = None,
        iterations: Point = (),
        *,
        keeps: bool = False,
        is_exact: bool = True,
        sources: tuple[tuple[LoggedRead, bool], ...] = (),
    ) -> None:
        self._number += 1
        window = self._windows.get(by.thread if isinstance(by, DmaCopy) else by.number)
        block = None if window is None else window.block
        is_exact &= index is not None and not any(isinstance(e, np.ndarray) for e in index)
        name = self._name(buffer)
        self.log.append(
            LoggedWrite(
                self._number, name, index, line, by.point, kind, iterations, keeps, is_exact,
                block, sources,
            )
        )  # fmt: skip

    def _name(self, buffer: MemoryBuffer) -> BufferName:
        known = self._names.get(buffer.number)
        if known is None:
            known = BufferName(buffer.number, buffer.name, buffer.content.shape)
            self._names[buffer.number] = known
        return known

    def _sources(
        self, thread: Thread, step: ir.StoreStep | ir.AtomicStep
    ) -> tuple[tuple[LoggedRead, bool], ...]:
        value = step.values[-1] if isinstance(step, ir.AtomicStep) else step.value
        key = (*(id(frame.program) for frame in thread.frames), value.number)
        if key not in self._behind:
            behind = self._slicer.of_frames(thread.frames, value).steps
            self._behind[key] = {
                number: is_aligned
                for number, (load, is_aligned) in behind.items()
                if isinstance(load, ir.LoadStep | ir.StoreStep)
            }
        found = [
            (self._loaded[thread.number, load], is_aligned)
            for load, is_aligned in self._behind[key].items()
            if (thread.number, load) in self._loaded
        ]
        # A load that did not run at this grid point is in a branch that was not taken.
        here = (one for one in found if one[0].point == thread.point)
        return tuple(sorted(here, key=lambda one: one[0].number))


def _parts(window: Window, block: tuple[int, ...]) -> tuple[Index, Index]:
    """Elements of a window and of its array that a block's copy moves, in the same positions."""
    outer, inner = window.bounds(block)
    squeezed = window.spec.squeezed
    return inner, tuple(s.start if q else s for s, q in zip(outer, squeezed, strict=True))


def _whole(buffer: MemoryBuffer) -> Index:
    return tuple(slice(0, n, 1) for n in buffer.content.shape)

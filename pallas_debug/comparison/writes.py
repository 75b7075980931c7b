"""Log of a run on the machine: reads and writes of memory, and what values were computed from."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.comparison.dataflow import Dataflow
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.grid import PlacedBlock, Window
from pallas_debug.machine.memory import Entry, MemoryBuffer, MemoryRegion
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sanitizer import origins
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoggedWrite:
    """A write to memory.

    Attributes:
      number, index, line: as for a read.
      keeps: whether what it writes continues from what was there, as an addition does.
      is_exact: whether it is known which elements it sets.
      block: the watched output's block on this core, if it has blocks.
      sources: reads from which the value was computed, each with whether every element of the value
        depends only on the element at the same position.
      origin: for a copy, the table entry from which the index of its source comes.
    """

    number: int
    kind: WriteKind
    buffer: BufferName
    index: Index | None
    line: SourceLine | None
    point: Point
    iterations: Point = ()
    keeps: bool = False
    is_exact: bool = True
    block: Any = None
    sources: tuple[tuple[LoggedRead, bool], ...] = ()
    origin: str | None = None


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
        self._position = position
        self._deadline = deadline
        self.log: deque[LoggedRead | LoggedWrite] = deque(maxlen=MAX_EVENTS)
        self.array: BufferName | None = None
        self._number = 0
        self._names: dict[int, BufferName] = {}
        self._flow = Dataflow()
        self._behind: dict[tuple[int, ...], Mapping[int, bool]] = {}
        self._loaded: dict[tuple[int, int], LoggedRead] = {}
        self._origins: dict[int, str | None] = {}
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
        array = (
            item.buffer
            if not isinstance(item, Window | PlacedBlock)
            else (item.array if isinstance(item, Window) else item.window.array)
        )
        self.array = self._name(array)

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        if not iteration % 64 and time.monotonic() > self._deadline:
            raise OutOfTime

    def allocated(self, buffer: MemoryBuffer, thread: Thread | None) -> None:
        if thread is not None:
            self._writes("new", buffer, _whole(buffer), None, thread.point, thread=thread)

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        read = self._reads(region.buffer, region.index, step.site.line, thread.point)
        self._loaded[thread.number, id(step)] = read

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        assert isinstance(step, ir.StoreStep | ir.AtomicStep)
        self._writes(
            "store", region.buffer, region.index, step.site.line, thread.point, thread.iterations,
            keeps=isinstance(step, ir.AtomicStep) or step.adds, is_exact=step.mask is None,
            sources=self._sources(thread, step), thread=thread,
        )  # fmt: skip

    def copy_starts(self, thread: Thread, copy: DmaCopy) -> None:
        self._origins[copy.number] = origins.of_view(thread, copy.step.source)

    def copy_ends(self, copy: DmaCopy) -> None:
        line = copy.step.site.line
        read = self._reads(copy.source.buffer, copy.source.index, line, copy.point)
        is_aligned = copy.source.shape == copy.destination.shape
        self._writes(
            "copy", copy.destination.buffer, copy.destination.index, line, copy.point,
            copy.iterations, keeps=copy.adds, sources=((read, is_aligned),),
            origin=self._origins.pop(copy.number, None),
        )  # fmt: skip

    def fetches(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        inside, outside = _parts(window, block)
        read = self._reads(window.array, outside, None, thread.point)
        buffer = window.slots[window.filled]
        self._writes("new", buffer, _whole(buffer), None, thread.point, thread=thread)
        self._writes(
            "fetch", buffer, inside, None, thread.point, sources=((read, True),), thread=thread
        )

    def writes_back(self, thread: Thread, window: Window, block: tuple[int, ...]) -> None:
        inside, outside = _parts(window, block)
        read = self._reads(window.current, inside, None, thread.point)
        self._writes(
            "write back", window.array, outside, None, thread.point, sources=((read, True),),
            thread=thread,
        )  # fmt: skip

    # Log

    def _reads(
        self, buffer: MemoryBuffer, index: Index | None, line: SourceLine | None, point: Point
    ) -> LoggedRead:
        self._number += 1
        read = LoggedRead(
            number=self._number, buffer=self._name(buffer), index=index, line=line, point=point
        )
        self.log.append(read)
        return read

    def _writes(
        self,
        kind: WriteKind,
        buffer: MemoryBuffer,
        index: Index | None,
        line: SourceLine | None,
        point: Point,
        iterations: Point = (),
        *,
        thread: Thread | None = None,
        keeps: bool = False,
        is_exact: bool = True,
        sources: tuple[tuple[LoggedRead, bool], ...] = (),
        origin: str | None = None,
    ) -> None:
        self._number += 1
        window = (
            None
            if not self._windows
            else (
                self._windows.get(thread.number) if thread else next(iter(self._windows.values()))
            )
        )
        is_plain = index is not None and not any(isinstance(e, np.ndarray) for e in index)
        self.log.append(
            LoggedWrite(
                number=self._number,
                kind=kind,
                buffer=self._name(buffer),
                index=index,
                line=line,
                point=point,
                iterations=iterations,
                keeps=keeps,
                is_exact=is_exact and is_plain,
                block=None if window is None else window.block,
                sources=sources,
                origin=origin,
            )
        )

    def _name(self, buffer: MemoryBuffer) -> BufferName:
        known = self._names.get(buffer.number)
        if known is None:
            known = BufferName(buffer.number, buffer.name, buffer.content.shape)
            self._names[buffer.number] = known
        return known

    def _sources(
        self, thread: Thread, step: ir.StoreStep | ir.AtomicStep
    ) -> tuple[tuple[LoggedRead, bool], ...]:
        frames = thread.frames
        value = step.values[-1] if isinstance(step, ir.AtomicStep) else step.value
        key = (*(id(frame.program) for frame in frames), value.number)
        behind = self._behind.get(key)
        if behind is None:
            behind = self._behind[key] = self._flow.loads(frames, value)
        found = []
        for load, is_aligned in behind.items():
            read = self._loaded.get((thread.number, load))
            # A load that did not run at this grid point is in a branch that was not taken.
            if read is not None and read.point == thread.point:
                found.append((read, is_aligned))
        return tuple(sorted(found, key=lambda source: source[0].number))


def _parts(window: Window, block: tuple[int, ...]) -> tuple[Index, Index]:
    """Elements of a window and of its array that a block's copy moves, in the same positions."""
    outer, inner = window.bounds(block)
    squeezed = window.spec.squeezed
    return inner, tuple(s.start if q else s for s, q in zip(outer, squeezed, strict=True))


def _whole(buffer: MemoryBuffer) -> Index:
    return tuple(slice(0, n, 1) for n in buffer.content.shape)

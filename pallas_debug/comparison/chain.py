"""Chain of writers behind a wrong element, from a log of the kernel's run on the machine."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pallas_debug.bridge.hosted.client import evaluating
from pallas_debug.bridge.programs.launch import Launch, arrays, launch
from pallas_debug.bridge.walk import evaluate
from pallas_debug.bridge.walk.evaluate import CalledKernel
from pallas_debug.bridge.walk.origins import KernelOrigin
from pallas_debug.comparison.areas import Area, aligned, index_text
from pallas_debug.comparison.judged import Judged
from pallas_debug.comparison.writes import (
    BufferName,
    LoggedRead,
    LoggedWrite,
    OutOfTime,
    WriteObserver,
)
from pallas_debug.errors import MachineError
from pallas_debug.findings.wording.chain import (
    ChainCause,
    ChainPlace,
    Missing,
    Verb,
    WriterChain,
    WriterLink,
)
from pallas_debug.machine.machine import Machine, Stopped
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.model import SourceLine

SECONDS = 30.0
"""Time limit in seconds for a run on the machine that looks for the writes to an element."""

MAX_LINKS = 16
"""Maximum number of links of a chain."""

MAX_SCANNED = 1 << 14
"""Maximum number of writes to a buffer that are searched for those behind a read."""

Point = tuple[int, ...]


class NotWatched(Exception):
    """The run cannot be watched; the message is the reason, as the end of a sentence."""


def find(judged: Judged, origin: KernelOrigin, element: Point) -> WriterChain:
    """Find the chain of writers behind an element of a kernel's output.

    Raises:
      NotWatched: the machine cannot run the kernel, or not in time.
    """
    assert origin.captured is not None
    deadline = time.monotonic() + SECONDS
    observer = WriteObserver(_position(origin), deadline)
    try:
        _run(judged, origin.path, observer, deadline)
    except OutOfTime as error:
        raise NotWatched(f"a run on the kernel machine takes more than {SECONDS:g} s") from error
    except MachineError as error:
        raise NotWatched(str(error)) from error
    except Stopped as error:
        raise NotWatched(f"the kernel machine stops at a fault: {error.reason}") from error
    name = origin.captured.kernel.of_kind("output")[origin.output].name
    return _Chain(observer, name, element).found()


def _position(origin: KernelOrigin) -> int:
    assert origin.captured is not None
    operands = [o for o in origin.captured.kernel.operands if o.kind != "dynamic_grid"]
    outputs = [i for i, operand in enumerate(operands) if operand.kind == "output"]
    return outputs[origin.output]


class _Deadline(MachineObserver):
    def __init__(self, deadline: float) -> None:
        self._deadline = deadline

    def point_begins(self, thread: Any) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTime


def _run(judged: Judged, path: Point, observer: WriteObserver, deadline: float) -> None:
    """Run a function up to the end of the kernel that is called at this path."""
    program = evaluate.trace(judged.function, judged.args, judged.kwargs, judged.target)
    calls = program.calls()
    results: Any = None
    while True:
        try:
            called = calls.send(results)
        except StopIteration as error:
            raise NotWatched("the function did not call its kernel again") from error
        is_last = called.path == path
        decoded = _decoded(called)
        watching = observer if is_last else _Deadline(deadline)
        machine = Machine(decoded, [arrays(called.operands)], observer=watching, stray="nearest")
        with evaluating(enable_x64=decoded.enable_x64):
            (results,) = machine.run()
        if is_last:
            calls.close()
            return


def _decoded(called: CalledKernel) -> Launch:
    """A kernel's call, decoded.

    Raises:
      MachineError: the machine cannot run it, or not on one device.
    """
    name = called.captured.kernel.name
    if called.captured.kernel.mesh:
        raise MachineError(f"kernel `{name}` runs on several devices")
    try:
        return launch(called.captured)
    except (NotImplementedError, AssertionError) as error:
        message = str(error) or type(error).__name__
        raise MachineError(
            f"the kernel machine does not cover kernel `{name}`: {message}"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _History:
    """Writes behind some elements of a buffer.

    Attributes:
      read: the read that asks for them; None for the output itself.
      reader: the line of the write that uses what was read.
      writes: the writes, newest first; each reaches an element that no newer one has set.
      is_exact: whether it is known which elements each of them sets.
    """

    buffer: BufferName
    area: Area
    read: LoggedRead | None
    reader: SourceLine | None = None
    writes: list[LoggedWrite] = field(default_factory=list)
    is_exact: bool = True


class _Chain:
    """Search in a log for what is behind an element of an output.

    Attributes:
      block: the output's block that contains the element; None if it has no blocks.
    """

    def __init__(self, observer: WriteObserver, output: str, element: Point) -> None:
        self._observer = observer
        self._output = output
        self._element = element
        self._writes: dict[int, list[LoggedWrite]] = defaultdict(list)
        self._reads: dict[int, list[LoggedRead]] = defaultdict(list)
        for event in observer.log:
            known: list[Any] = (
                self._writes if isinstance(event, LoggedWrite) else self._reads
            )[event.buffer.number]  # fmt: skip
            known.append(event)
        self.block: Any = None

    def found(self) -> WriterChain:
        array = self._observer.array
        if array is None:
            return WriterChain(output=self._output)
        history = self._history(array, Area.of_element(self._element), None)
        newest = history.writes[0] if history.writes else None
        missing: Missing = "never"
        if newest is not None and newest.kind == "write back":
            self.block = newest.block
            read = newest.sources[0][0]
            at = aligned(read, newest, self._element)
            assert at is not None
            visits = [w for w in self._writes[array.number] if w.kind == "write back"]
            if any(self._has_store(w) for w in visits if w is not newest):
                missing = "not again"
            history = self._history(read.buffer, Area.of_element(at), read)
        stored = [w for w in history.writes if w.kind in ("store", "copy")]
        if not stored:
            known = missing if self._observer.is_complete else ""
            return WriterChain(output=self._output, missing=known)
        histories = [history, *self._behind(history, set())]
        return WriterChain(
            output=self._output,
            links=tuple(self._links(histories))[:MAX_LINKS],
            cause=self._cause(histories),
        )

    def _has_store(self, written: LoggedWrite) -> bool:
        """Return whether a write-back had anything to write to the element."""
        read = written.sources[0][0]
        if not Area.of_element(self._element).reached(written.index).any():
            return False
        at = aligned(read, written, self._element)
        if at is None:
            return False
        history = self._history(read.buffer, Area.of_element(at), read)
        return any(w.kind in ("store", "copy") for w in history.writes)

    # Histories

    def _history(self, buffer: BufferName, area: Area, read: LoggedRead | None) -> _History:
        """Writes behind some elements of a buffer when they are read, or at the end."""
        before = float("inf") if read is None else read.number
        found: list[LoggedWrite] = []
        is_exact = read is None or read.index is not None
        rest = area
        scanned = 0
        for write in reversed(self._writes[buffer.number]):
            if write.number > before:
                continue
            scanned += 1
            hits = rest.reached(write.index)
            if not hits.any():
                continue
            if write.kind != "new":
                found.append(write)
            is_exact &= write.is_exact
            if write.is_exact and not self._own(write, rest):
                rest = rest.without(hits)
            if not rest.mask.any() or scanned >= MAX_SCANNED:
                break
        return _History(buffer=buffer, area=area, read=read, writes=found, is_exact=is_exact)

    def _own(self, write: LoggedWrite, area: Area) -> list[LoggedRead]:
        """Reads of the elements that a write sets, if its values continue from theirs."""
        return [r for r, is_aligned in write.sources if self._continues(write, area, r, is_aligned)]

    def _continues(
        self, write: LoggedWrite, area: Area, read: LoggedRead, is_aligned: bool
    ) -> bool:
        if read.buffer != write.buffer:
            return False
        if is_aligned and area.element is not None:
            return aligned(read, write, area.element) == area.element
        return bool(area.reached(read.index).any())

    def _behind(
        self, history: _History, seen: set[Any], *, is_whole: bool = False
    ) -> Iterator[_History]:
        """Histories of what a history's values were computed from, nearest first.

        Args:
          seen: reads that were followed, by buffer and first element.
          is_whole: whether a read of elements at other positions is one of the whole buffer, and
            all writes are followed; otherwise the newest of each line.
        """
        lines = set()
        for write in history.writes:
            if not is_whole and (write.kind, write.line) in lines:
                continue
            lines.add((write.kind, write.line))
            for read, is_aligned in write.sources:
                if self._continues(write, history.area, read, is_aligned):
                    continue
                area = self._area(history, write, read, is_aligned, is_whole)
                key = read.buffer.number, read.number if is_whole else area.start
                if key in seen:
                    continue
                seen.add(key)
                inner = replace(self._history(read.buffer, area, read), reader=write.line)
                yield inner
                yield from self._behind(inner, seen, is_whole=is_whole)

    def _area(
        self, history: _History, write: LoggedWrite, read: LoggedRead, is_aligned: bool, whole: bool
    ) -> Area:
        element = history.area.element
        if is_aligned and element is not None:
            at = aligned(read, write, element)
            if at is not None:
                return Area.of_element(at)
        return Area.of_buffer(read) if whole else Area.of_read(read)

    def _is_other(self, write: LoggedWrite) -> bool:
        return self.block is not None and write.block != self.block

    # Links

    def _links(self, histories: Sequence[_History]) -> Iterator[WriterLink]:
        for history in histories:
            read = history.read
            stored = [w for w in history.writes if w.kind in ("store", "copy")]
            if not stored:
                continue
            if read is not None and read.line is not None and read.line != history.reader:
                place = ChainPlace(line=read.line, point=read.point)
                yield WriterLink(buffer=history.buffer.name, verb="reads", place=place)
            group: list[LoggedWrite] = []
            for write in stored:
                if group and not self._is_alike(group[-1], write):
                    yield self._link(history, group)
                    group = []
                group.append(write)
            yield self._link(history, group)

    def _is_alike(self, a: LoggedWrite, b: LoggedWrite) -> bool:
        return (a.line, a.kind, self._is_other(a)) == (b.line, b.kind, self._is_other(b))

    def _link(self, history: _History, group: Sequence[LoggedWrite]) -> WriterLink:
        newest, oldest = group[0], group[-1]
        is_update = newest.keeps or bool(self._own(newest, history.area))
        is_copy = newest.kind == "copy"
        verb: Verb = "copies to" if is_copy else "updates" if is_update else "sets"
        return WriterLink(
            buffer=history.buffer.name,
            verb=verb,
            place=_place(newest),
            since=oldest.point if oldest.point != newest.point else None,
            count=len(group),
            names=self._names(newest),
            is_constant=not newest.sources,
            of_other_block=self._is_other(newest),
            origin=newest.origin,
        )

    def _names(self, write: LoggedWrite) -> tuple[str, ...]:
        if write.kind == "copy":
            read = write.sources[0][0]
            return (index_text(read.buffer.name, read.index),)
        others = (r.buffer.name for r, _ in write.sources if r.buffer != write.buffer)
        return tuple(dict.fromkeys(others))

    # Causes

    def _cause(self, histories: Sequence[_History]) -> ChainCause | None:
        """What is certain to be unusual on the way to the element; the nearest of each kind."""
        for rule in (self._replaced_or_carried, self._early, self._left_over):
            for history in histories:
                cause = rule(history)
                if cause is not None:
                    return cause
        return None

    def _replaced_or_carried(self, history: _History) -> ChainCause | None:
        return self._replaced(history) or self._carried(history)

    def _replaced(self, history: _History) -> ChainCause | None:
        """A value for the same block that was replaced before anything had read it."""
        stored = [w for w in history.writes if w.kind in ("store", "copy")]
        element = history.area.element
        if not stored or element is None or not history.is_exact or self._is_other(stored[-1]):
            return None
        last = stored[-1]  # it does not continue from what was there
        if history.writes[-1] is not last or last.keeps:
            return None
        area = history.area
        for lost in reversed(self._writes[history.buffer.number]):
            if lost.number < last.number and area.reached(lost.index).any():
                break
        else:
            return None
        if lost.kind not in ("store", "copy") or not lost.sources or self._is_other(lost):
            return None
        reads = self._reads[history.buffer.number]
        is_read = any(
            lost.number < read.number < last.number and area.reached(read.index).any()
            for read in reads
        )
        if lost.point == last.point or is_read or self._is_behind(history, last, lost.point):
            return None
        return ChainCause(
            kind="replaced",
            output=self._output,
            buffer=history.buffer.name,
            place=_place(last),
            other=_place(lost),
        )

    def _is_behind(self, history: _History, write: LoggedWrite, point: Point) -> bool:
        """Return whether a value may depend on anything that was written at a grid point."""
        only = _History(buffer=history.buffer, area=history.area, read=None, writes=[write])
        return any(
            other.point == point and other.kind in ("store", "copy")
            for found in self._behind(only, set(), is_whole=True)
            for other in found.writes
        )

    def _carried(self, history: _History) -> ChainCause | None:
        """An update for this block of a value that was set for another one."""
        if not history.is_exact:
            return None
        stored = [w for w in history.writes if w.kind in ("store", "copy")]
        for new, old in itertools.pairwise(stored):
            own = self._own(new, history.area)
            if own and not self._is_other(new) and self._is_other(old):
                return ChainCause(
                    kind="not reset",
                    output=self._output,
                    buffer=history.buffer.name,
                    place=ChainPlace(line=own[0].line, point=new.point, iterations=new.iterations),
                    other=_place(old),
                    begun=_place(stored[-1]),
                )
        return None

    def _early(self, history: _History) -> ChainCause | None:
        """An update for this block after its value was stored."""
        read = history.read
        if read is None or read.line is None or not history.writes or not history.is_exact:
            return None
        for late in self._writes[history.buffer.number]:
            if late.number < read.number or not history.area.reached(late.index).any():
                continue
            if late.kind != "store" or self._is_other(late) or late.point == read.point:
                return None
            if not self._own(late, history.area):
                return None
            return ChainCause(
                kind="stored early",
                output=self._output,
                buffer=history.buffer.name,
                place=ChainPlace(line=read.line, point=read.point),
                other=_place(late),
            )
        return None

    def _left_over(self, history: _History) -> ChainCause | None:
        """A read for this block of what was written for another one."""
        read = history.read
        if read is None or read.line is None or not history.is_exact:
            return None
        for write in history.writes:
            if write.kind in ("store", "copy") and self._is_other(write):
                return ChainCause(
                    kind="left over",
                    output=self._output,
                    buffer=history.buffer.name,
                    place=ChainPlace(line=read.line, point=read.point),
                    other=_place(write),
                )
        return None


def _place(write: LoggedWrite) -> ChainPlace:
    return ChainPlace(line=write.line, point=write.point, iterations=write.iterations)

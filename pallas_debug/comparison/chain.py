"""Chain of writers behind a wrong element, from a log of the kernel's run on the machine."""

from __future__ import annotations

import contextlib
import itertools
import time
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pallas_debug.bridge import chip
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.hosted.client import evaluating
from pallas_debug.bridge.hosted.lowering import hosting
from pallas_debug.bridge.lowering import hook
from pallas_debug.bridge.programs.launch import arrays, launch
from pallas_debug.bridge.walk import evaluate
from pallas_debug.bridge.walk.origins import KernelOrigin
from pallas_debug.comparison.areas import Area, aligned
from pallas_debug.comparison.compared import ComparedCall
from pallas_debug.comparison.masks import MaskObserver
from pallas_debug.comparison.writes import (
    BufferName,
    LoggedRead,
    LoggedWrite,
    OutOfTime,
    WriteObserver,
)
from pallas_debug.errors import MachineError, OutOfBudget
from pallas_debug.findings.mismatch import ChainCause, ChainPlace, Verb, WriterChain, action
from pallas_debug.machine.host import MachineHost, Unobserved
from pallas_debug.machine.machine import Machine, Stopped
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.pace import Pace
from pallas_debug.machine.sightings import index_text
from pallas_debug.model import Link, SourceLine

SECONDS = 30.0
"""Time limit in seconds for a run on the machine that looks for the writes to an element."""

MAX_LINKS = 16
"""Maximum number of links of a chain."""

MAX_SCANNED = 1 << 14
"""Maximum number of writes to a buffer that are searched for those behind a read."""

Point = tuple[int, ...]


def find(compared: ComparedCall, origin: KernelOrigin, bad: np.ndarray) -> WriterChain:
    """Find the chain of writers behind the first wrong element of a kernel's output.

    Args:
      bad: mask of the wrong elements.

    Returns:
      The chain; if it is unknown, it says why.
    """
    assert origin.captured is not None
    deadline = time.monotonic() + SECONDS
    observer = WriteObserver(_position(origin), deadline)
    try:
        called = _called(compared, origin.path)
        _run(*called, observer)
    except (OutOfTime, OutOfBudget):
        return WriterChain(unknown=f"a run on the kernel machine takes more than {SECONDS:g} s")
    except MachineError as error:
        return WriterChain(unknown=str(error))
    except Stopped as error:
        return WriterChain(unknown=f"the kernel machine stops at a fault: {error.reason}")
    name = origin.captured.kernel.of_kind("output")[origin.output].name
    search = _Chain(observer, name, bad)
    found = search.found()
    if found.cause is None and found.links:
        newest = found.links[0]
        masks = MaskObserver(search.wrong, newest.grid_point or (), deadline)
        with contextlib.suppress(OutOfTime, MachineError):
            _run(*called, masks, fuse=False)
            found = replace(found, cause=_of_condition(masks, newest))
    return found


def _of_condition(masks: MaskObserver, newest: Link) -> ChainCause | None:
    if masks.found is None:
        return None
    line, is_true = masks.found
    point = newest.grid_point or ()
    return ChainCause(
        kind="where true" if is_true else "where false",
        place=ChainPlace(line=line, point=point),
        other=ChainPlace(line=newest.source, point=point, iterations=newest.loop),
        buffer=newest.buffer,
    )


def _position(origin: KernelOrigin) -> int:
    assert origin.captured is not None
    operands = [o for o in origin.captured.kernel.operands if o.kind != "dynamic_grid"]
    outputs = [i for i, operand in enumerate(operands) if operand.kind == "output"]
    return outputs[origin.output]


def _called(compared: ComparedCall, path: Point) -> tuple[Capture, Sequence[Any]]:
    """The kernel that a function calls at this path, and its operands."""
    host = MachineHost(Unobserved(), pace=Pace(SECONDS))
    with chip.answering(compared.target), hosting(host), hook.unannounced():
        given = compared.function, compared.args, compared.kwargs, compared.target
        return evaluate.called(*given, path)


def _run(
    captured: Capture, operands: Sequence[Any], observer: MachineObserver, *, fuse: bool = True
) -> None:
    """Run a kernel on the machine.

    Args:
      fuse: as for `launch`.

    Raises:
      MachineError: the machine cannot run the kernel.
    """
    try:
        decoded = launch(captured, fuse=fuse)
    except (NotImplementedError, AssertionError) as error:
        message = str(error) or type(error).__name__
        raise MachineError(
            f"the kernel machine does not cover kernel `{captured.kernel.name}`: {message}"
        ) from error
    machine = Machine(decoded, [arrays(operands)], observer=observer, outside="nearest")
    with evaluating(enable_x64=decoded.enable_x64):
        machine.run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _History:
    """Writes behind some elements of a buffer.

    Attributes:
      read: the read that asks for them; None for the output itself.
      reader: the line of the write that uses what was read.
      writes: stores, copies and blocks, newest first; each reaches an element that no newer one has
        set.
      is_exact: whether it is known which elements each of them sets.
    """

    buffer: BufferName
    area: Area
    read: LoggedRead | None
    reader: SourceLine | None
    writes: Sequence[LoggedWrite]
    is_exact: bool

    @property
    def stored(self) -> list[LoggedWrite]:
        """The writes by lines of the kernel."""
        return [write for write in self.writes if write.is_stored]


class _Chain:
    """Search in a log for what is behind an element of an output.

    Attributes:
      block: the output's block that contains the element; None if it has no blocks.
      wrong: mask of the wrong elements of that block, or of the output.
    """

    def __init__(self, observer: WriteObserver, output: str, bad: np.ndarray) -> None:
        self._observer = observer
        self._output = output
        self._bad = self.wrong = bad
        self._writes: dict[int, list[LoggedWrite]] = defaultdict(list)
        self._reads: dict[int, list[LoggedRead]] = defaultdict(list)
        for event in observer.log:
            if isinstance(event, LoggedWrite):
                self._writes[event.buffer.number].append(event)
            else:
                self._reads[event.buffer.number].append(event)
        self.block: Any = None

    def found(self) -> WriterChain:
        array = self._observer.array
        element = self._first(() if array is None else self._writes[array.number])
        chain = WriterChain(element=element)
        if array is None:
            return chain
        history = self._history(array, Area.of_element(element))
        newest = next(iter(history.writes), None)
        if newest is not None and newest.kind == "write back":
            self.block = newest.block
            self.wrong = self._bad if newest.index is None else self._bad[newest.index]
            block = index_text("", newest.index).strip("[]") if newest.index else ""
            chain = replace(chain, block=block, written=newest.point)
            (history,) = itertools.islice(self._behind(history, set()), 1)
        if not history.stored:
            return replace(chain, is_missing=self._observer.is_complete)
        histories = [history, *self._behind(history, set())]
        links = tuple(itertools.islice(self._links(histories), MAX_LINKS))
        return replace(chain, links=links, cause=self._cause(histories))

    def _first(self, writes: Sequence[LoggedWrite]) -> Point:
        """The first wrong element, in the order in which the run wrote them."""
        for write in writes:
            if write.index is not None and self._bad[write.index].any():
                area = Area.of_index(write.index)
                inside = np.argwhere(self._bad[area.slices] & area.mask)[0]
                return tuple(int(n) + at for n, at in zip(inside, area.start, strict=True))
        return tuple(int(n) for n in np.argwhere(self._bad)[0])

    # Histories

    def _history(
        self,
        buffer: BufferName,
        area: Area,
        read: LoggedRead | None = None,
        reader: SourceLine | None = None,
    ) -> _History:
        """Writes behind some elements of a buffer when they are read, or at the end."""
        found: list[LoggedWrite] = []
        is_exact = read is None or read.index is not None
        rest = area
        known = self._writes[buffer.number]
        end = len(known) if read is None else bisect(known, read.number, key=lambda w: w.number)
        for write in reversed(known[max(end - MAX_SCANNED, 0) : end]):
            hits = rest.reached(write.index)
            if not hits.any():
                continue
            if write.kind != "new":
                found.append(write)
            is_exact &= write.is_exact
            if write.is_exact and not self._own(write, rest):
                rest = rest.without(hits)
                if not rest.mask.any():
                    break
        return _History(
            buffer=buffer, area=area, read=read, reader=reader, writes=found, is_exact=is_exact
        )

    def _own(self, write: LoggedWrite, area: Area) -> list[LoggedRead]:
        """Reads of the elements that a write sets, if its values continue from theirs."""
        return [
            read
            for read, is_aligned in write.sources
            if read.buffer == write.buffer and self._area(area, write, read, is_aligned).meets(area)
        ]

    @staticmethod
    def _area(area: Area, write: LoggedWrite, read: LoggedRead, is_aligned: bool) -> Area:
        """Elements of a read behind some elements of a write."""
        at = aligned(read, write, area.element) if is_aligned and area.element is not None else None
        return Area.of_read(read) if at is None else Area.of_element(at)

    def _behind(self, history: _History, seen: set[Any]) -> Iterator[_History]:
        """Histories of what a history's values were computed from, nearest first.

        Of several writes by a line, the newest is followed.

        Args:
          seen: reads that were followed, by buffer and first element.
        """
        newest = {(write.kind, write.line): write for write in reversed(history.writes)}
        for write in reversed(newest.values()):
            own = self._own(write, history.area)
            for read, is_aligned in write.sources:
                area = self._area(history.area, write, read, is_aligned)
                key = read.buffer.number, area.start
                if key in seen or read in own:
                    continue
                seen.add(key)
                inner = self._history(read.buffer, area, read, write.line)
                yield inner
                yield from self._behind(inner, seen)

    def _is_other(self, write: LoggedWrite) -> bool:
        return self.block is not None and write.block != self.block

    # Links

    def _links(self, histories: Sequence[_History]) -> Iterator[Link]:
        for history in histories:
            read = history.read
            is_apart = read is not None and read.line not in (None, history.reader)
            if read is not None and is_apart and history.stored:
                name = history.buffer.name
                yield _link(_place(read), name, action("reads", name))
            for _, same in itertools.groupby(
                history.stored, key=lambda w: (w.line, w.kind, self._is_other(w))
            ):
                yield self._written(history, list(same))

    def _written(self, history: _History, group: Sequence[LoggedWrite]) -> Link:
        newest, oldest = group[0], group[-1]
        is_update = newest.keeps or bool(self._own(newest, history.area))
        verb: Verb = "updates" if is_update else "sets"
        names = [r.buffer.name for r, _ in newest.sources if r.buffer != newest.buffer]
        if newest.kind == "copy":
            read, _ = newest.sources[0]
            name = read.buffer.name
            verb, names = "copies to", [index_text(name, read.index) if read.index else name]
        names = list(dict.fromkeys(names))
        text = action(
            verb,
            history.buffer.name,
            names,
            is_constant=not newest.sources,
            count=len(group),
            output=self._output if self._is_other(newest) else "",
        )
        found = _link(_place(newest), history.buffer.name, text, names)
        return replace(found, since=oldest.point if oldest.point != newest.point else None)

    # Causes

    def _cause(self, histories: Sequence[_History]) -> ChainCause | None:
        """The nearest cause of the value, of the first kind of which there is one."""
        rules = self._replaced, self._carried
        causes = [
            replace(cause, buffer=history.buffer.name)
            for history in histories
            for rule in (rules if history.is_exact else ())
            if (cause := rule(history)) is not None
        ]
        return min(causes, key=lambda cause: cause.kind == "left over", default=None)

    def _replaced(self, history: _History) -> ChainCause | None:
        """A value for the same block that was replaced before anything had read it."""
        area, number = history.area, history.buffer.number
        last = history.writes[-1] if history.writes else None  # sets what was there
        if last is None or not last.is_stored or last.keeps or area.element is None:
            return None
        before = [w for w in self._writes[number] if w.number < last.number]
        lost = next((w for w in reversed(before) if area.reached(w.index).any()), None)
        if lost is None or not lost.is_stored or not lost.sources or lost.point == last.point:
            return None
        reads = (r for r in self._reads[number] if lost.number < r.number < last.number)
        if self._is_other(last) or self._is_other(lost):
            return None
        if any(area.reached(read.index).any() for read in reads):
            return None
        only = replace(history, writes=[last])
        behind = (w for found in self._behind(only, set()) for w in found.stored)
        if any(write.point == lost.point for write in behind):
            return None  # the new value contains the old one, as that of a sum does
        return ChainCause(kind="replaced", place=_place(last), other=_place(lost))

    def _carried(self, history: _History) -> ChainCause | None:
        """A value that was set for another block, and is continued from or read for this one."""
        stored, read = history.stored, history.read
        first = next((i for i, write in enumerate(stored) if self._is_other(write)), None)
        if first is None:
            return None
        own = self._own(stored[first - 1], history.area) if first else []
        if own:
            place = _place(stored[first - 1])._replace(line=own[0].line)
            return ChainCause(kind="not reset", place=place, other=_place(stored[-1]))
        if read is None or read.line is None:
            return None
        return ChainCause(kind="left over", place=_place(read), other=_place(stored[first]))


def _place(event: LoggedRead | LoggedWrite) -> ChainPlace:
    iterations = event.iterations if isinstance(event, LoggedWrite) else ()
    return ChainPlace(line=event.line, point=event.point, iterations=iterations)


def _link(at: ChainPlace, buffer: str, text: str, names: Sequence[str] = ()) -> Link:
    return Link(
        buffer=buffer,
        action=text,
        sources=tuple(name.partition("[")[0] for name in names),
        source=at.line,
        grid_point=at.point or None,
        loop=at.iterations,
    )

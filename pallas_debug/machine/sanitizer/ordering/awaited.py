"""Waits that name other data than the copy that they end.

A wait counts bytes: that its descriptor names another part of the source than the copy that filled
its destination goes unnoticed. Many kernels wait with any descriptor of the right size, so this is
a fault only if

- the same wait, or one in the same line, also ends copies of what it names;
- no copies in the whole run read all of what it names here;
- the kernel reads what has come: a prefetch past the end is only waited for;
- another copy reads the same part of the source as one that such a wait ends: that part comes
  twice, in place of another one; and
- the same tables and other buffers, if any, decide about the source of both.

All of this is the mark of a prefetch that starts the copy of the current block again, or skips one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.wording import semaphores
from pallas_debug.machine.copies import Counter, DmaCopy
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion, OutOfBounds, resolve
from pallas_debug.machine.sanitizer.ordering.regions import (
    Box,
    boxes,
    boxes_text,
    first_meeting,
    meet,
    whole,
)
from pallas_debug.machine.sanitizer.report import access_of, sighting_of
from pallas_debug.machine.sanitizer.shadows import reach
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding

MAX_COPIES = 1 << 14
"""Maximum number of copies that are kept; with more, nothing is reported."""

Boxes = tuple[Box, ...]


@dataclass(eq=False, slots=True)
class MisnamedWait:
    """A wait that names another part of the source than the copy that it ends.

    Attributes:
      named: the part that it names.
      step, point, iterations: those of the wait.
      twice: another copy of the same part as `copy`; None if there is none.
      count: number of such waits in this line.
      is_used: whether the kernel has read what the copy brought.
    """

    copy: DmaCopy
    named: MemoryRegion
    step: ir.CopyWait
    point: tuple[int, ...]
    iterations: tuple[int, ...]
    twice: DmaCopy | None = None
    count: int = 1
    is_used: bool = False


@dataclass(eq=False, slots=True)
class _Started:
    """A copy that nothing has waited for yet, and the buffers that decide about its source."""

    copy: DmaCopy
    source: Boxes
    destination: Boxes
    tables: frozenset[str]


@dataclass(eq=False, slots=True)
class _WaitSite:
    """Waits in one line, for copies to one buffer.

    Attributes:
      agrees: whether any of them ended a copy of what it names.
      is_vague: whether any of them names another array, or nothing that exists.
    """

    agrees: bool = False
    is_vague: bool = False
    others: list[tuple[_Started, MisnamedWait]] = field(default_factory=list)


class AwaitedCopies:
    """Copies and waits so far; none are judged if there are too many, or parts are unknown."""

    def __init__(self) -> None:
        self._pending: dict[tuple[int, Any], list[_Started]] = {}
        self._sites: dict[tuple[object, str], _WaitSite] = {}
        self._copied: dict[int, dict[Boxes, list[DmaCopy]]] = {}
        self._unread: dict[int, list[MisnamedWait]] = {}
        self._count = 0
        self._has_given_up = False

    def copy_starts(self, thread: Thread, copy: DmaCopy) -> None:
        """Handle the start of a copy."""
        if copy.step.of_pipeline or self._has_given_up:
            return
        self._count += 1
        source, destination = boxes(copy.source), boxes(copy.destination)
        is_gather = not source or not destination
        if is_gather or self._count > MAX_COPIES:
            self._has_given_up = True
            return
        self.reads(copy.source)
        self._replaces(copy.destination.buffer, destination)
        array = copy.source.buffer
        self._copied.setdefault(array.number, {}).setdefault(source, []).append(copy)
        if copy.sent is None and _is_array(array) and not copy.adds:
            key = copy.received.buffer.number, copy.received.entry
            started = _Started(copy, source, destination, _tables(thread, copy.step.source))
            self._pending.setdefault(key, []).append(started)

    def waited(self, thread: Thread, step: ir.MachineStep, counter: Counter) -> None:
        """Handle the end of a wait."""
        pending = self._pending.get((counter.buffer.number, counter.entry))
        if not pending or not isinstance(step, ir.CopyWait):
            return
        try:
            target, named = (_region(thread, place) for place in (step.destination, step.source))
        except OutOfBounds:
            self._has_given_up = True  # such a descriptor only gives the number of bytes
            return
        where = boxes(target)
        started = next(
            (
                one
                for one in pending
                if one.copy.destination.buffer is target.buffer and one.destination == where
            ),
            None,
        )
        if started is None:
            return
        pending.remove(started)
        site = self._sites.setdefault((step.site.line or id(step), target.buffer.name), _WaitSite())
        if named.buffer is not started.copy.source.buffer:
            site.is_vague = True
        elif boxes(named) == started.source:
            site.agrees = True
        elif _tables(thread, step.source) == started.tables:
            wait = MisnamedWait(started.copy, named, step, thread.point, thread.iterations)
            site.others.append((started, wait))
            self._unread.setdefault(target.buffer.number, []).append(wait)

    def reads(self, region: MemoryRegion) -> None:
        """Handle a read of memory."""
        unread = self._unread.get(region.buffer.number)
        if unread:
            found = boxes(region) or (whole(region.buffer.content.shape),)
            for wait in unread:
                wait.is_used |= first_meeting(found, boxes(wait.copy.destination)) is not None
            unread[:] = [wait for wait in unread if not wait.is_used]

    def _replaces(self, buffer: MemoryBuffer, parts: Boxes) -> None:
        """Handle a copy to a part of a buffer, whose contents are not read any more."""
        unread = self._unread.get(buffer.number, [])
        unread[:] = [w for w in unread if first_meeting(parts, boxes(w.copy.destination)) is None]

    def come_again(self, one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        """Return whether both grid points copy the same part of some array to scratch."""
        parts = (copies for array in self._copied.values() for copies in array.values())
        return any(
            {one, other} <= {c.point for c in copies if c.destination.buffer.kind != "output"}
            for copies in parts
        )

    def faults(self) -> Iterator[MisnamedWait]:
        """Yield the first such wait of each line, once the run has ended."""
        if self._has_given_up:
            return
        for site in self._sites.values():
            if site.is_vague or not site.agrees:
                continue
            copied = self._copied
            used = [one for one in site.others if one[1].is_used]
            again = [_others(copied, started) for started, _ in used]
            if not any(again):
                continue
            for (_, wait), twice in zip(used, again, strict=True):
                named, parts = boxes(wait.named), copied[wait.named.buffer.number]
                if _is_left_out(named, parts):
                    wait.twice, wait.count = next(iter(twice), None), len(used)
                    yield wait
                    break


def _others(
    copied: Mapping[int, Mapping[Boxes, Sequence[DmaCopy]]], started: _Started
) -> list[DmaCopy]:
    """Other copies of the same part of an array."""
    every = copied[started.copy.source.buffer.number][started.source]
    return [copy for copy in every if copy is not started.copy]


def _is_left_out(named: Boxes, parts: Iterable[Boxes]) -> bool:
    """Return whether no copies bring all of a part: of one with a halo, others bring some."""
    dims: set[int] = set()
    brought: set[int] = set()
    for box, other in itertools.product(named, itertools.chain.from_iterable(parts)):
        both = meet(box, other)
        if both is None:
            continue
        short = [d for d, (one, all_) in enumerate(zip(both, box, strict=True)) if one != all_]
        dims.update(short)
        if len(named) > 1 or len(short) != 1 or len(dims) > 1:
            return False
        brought.update(both[short[0]])
    return not dims or not brought.issuperset(named[0][dims.pop()])


def finding(launch: Launch, wait: MisnamedWait) -> Finding:
    """Report a wait that names data that no copy brings."""
    copy = wait.copy
    named, source, destination = (
        boxes_text(region.buffer.name, boxes(region), region.buffer.content.shape)
        for region in (wait.named, copy.source, copy.destination)
    )
    seen = sighting_of(
        launch, wait, copy.source.buffer, index=named, other=copy.step.site.line, count=wait.count
    )
    return semaphores.wait_source_mismatch(
        seen, named=named, source=source, destination=destination, started=access_of(copy),
        again=None if wait.twice is None else access_of(wait.twice),
    )  # fmt: skip


def _is_array(buffer: MemoryBuffer) -> bool:
    """Return whether a buffer is a whole array, which only copies read."""
    return buffer.kind in ("input", "output") and buffer.type.space == "hbm"


def _region(thread: Thread, place: ir.RefPlace) -> MemoryRegion:
    registers = thread.frames[-1].registers
    return resolve(registers[place.ref.number], place.view, registers, copies=True)


def _tables(thread: Thread, place: ir.RefPlace) -> frozenset[str]:
    """Names of the buffers whose contents decide which part of a reference a place is."""
    return frozenset(
        buffer.name
        for number in reach.registers_of(place.view)
        for buffer in reach.sources(thread.frames, number)
    )

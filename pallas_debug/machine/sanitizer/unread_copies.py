"""Data that a copy brings and that another copy or store replaces before anything reads it.

That may be harmless: the last prefetch of a row is often one too many, and what only some blocks
need is often fetched for all. So it is a fault only if

- the part of the source that it has read is not read by way of any other copy either, so that no
  result depends on it;
- at most one more of the line's copies is read than such parts are lost: of a prefetch, most are;
  or nothing ever reads the places to which the lost ones were copied, unlike those of others;
- no condition decides about reads of the destination, or about a store that replaces the copy: the
  data may be needed for some blocks alone; and
- the copy is in no loop that ends when data say so, which may be before the data are needed.

Destinations in HBM are left to `outputs`: of a state that each step stores, only the last value is
wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.wording import writers
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.sanitizer.ordering.regions import (
    Box,
    boxes,
    boxes_text,
    covers,
    first_meeting,
)
from pallas_debug.machine.sanitizer.report import access_of, sighting_of
from pallas_debug.machine.sanitizer.shadows import reach, shadow
from pallas_debug.machine.sanitizer.shadows.shadow import WriteChange
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding

MAX_FILLS = 256
"""Maximum number of unread copies to one buffer that are kept; with more, nothing is reported."""

Boxes = tuple[Box, ...]

_Source = tuple[int, Boxes]
"""Number of a buffer, and a part of it."""


@dataclass(eq=False, slots=True)
class _Fill:
    """A part of a buffer that a copy filled, and that has not been read since."""

    copy: DmaCopy
    boxes: Boxes
    source: _Source
    site: _CopySite


@dataclass(eq=False, slots=True)
class LostCopy:
    """A copy whose data are replaced before they are read.

    Attributes:
      step, point, iterations: those of the store or copy that replaces them.
      of_line: number of lost copies by the line, and of all copies by it.
      is_read: whether anything ever reads the places to which they copy.
    """

    copy: DmaCopy
    step: ir.MachineStep
    point: tuple[int, ...]
    iterations: tuple[int, ...]
    change: WriteChange
    of_line: tuple[int, int] = (0, 0)
    is_read: bool = True


@dataclass(eq=False, slots=True)
class _CopySite:
    """Copies by one line to one buffer.

    Attributes:
      runs, read: how often it ran, and how often its data were read.
      lost: sources of the copies that were replaced, with the first that replaced each.
      read_at: parts of the buffer that were read after any of its copies to them.
      is_vague: whether it is unknown what is read.
    """

    buffer: str
    runs: int = 0
    read: int = 0
    lost: list[tuple[_Source, LostCopy]] = field(default_factory=list)
    read_at: set[Boxes] = field(default_factory=set)
    is_vague: bool = False


class UnreadCopies:
    """Copies so far, and which of them have been read."""

    def __init__(self) -> None:
        self._sites: dict[tuple[object, str], _CopySite] = {}
        self._fills: dict[int, list[_Fill]] = {}
        self._used: dict[int, set[Boxes]] = {}
        self._read: set[str] = set()
        self._read_if: set[str] = set()
        self._on_data: dict[int, bool] = {}

    # Events

    def reads(self, thread: Thread, region: MemoryRegion) -> None:
        """Handle a load, or the start of a copy from a region."""
        self._read.add(region.buffer.name)
        if reach.conditions(thread.frames):
            self._read_if.add(region.buffer.name)
        fills = self._fills.get(region.buffer.number)
        if not fills:
            return
        found = boxes(region)
        kept = []
        for fill in fills:
            if found and first_meeting(found, fill.boxes) is None:
                kept.append(fill)
                continue
            fill.site.read += 1
            fill.site.read_at.add(fill.boxes)
            self._uses(fill.source)
        self._fills[region.buffer.number] = kept

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        """Handle a store, before it."""
        fills = self._fills.get(region.buffer.number)
        if not fills:
            return
        is_whole = isinstance(step, ir.StoreStep) and step.mask is None and not step.adds
        if not is_whole or reach.conditions(thread.frames):
            self.reads(thread, region)  # it may keep or select them
            return
        self._replaces(region, step, thread.point, thread.iterations, value, fills)

    def copy_starts(self, thread: Thread, copy: DmaCopy) -> None:
        """Handle the start of a copy."""
        self.reads(thread, copy.source)
        if id(copy.step) not in self._on_data:
            self._on_data[id(copy.step)] = reach.repeats_on_data(thread.frames)

    def copy_ends(self, copy: DmaCopy) -> None:
        """Handle the end of a copy, before it is performed."""
        region = copy.destination
        buffer = region.buffer
        if buffer.kind not in ("scratch", "scoped"):
            return
        fills = self._fills.get(buffer.number)
        if fills:
            new = copy.source.read()
            self._replaces(region, copy.step, copy.point, copy.iterations, new, fills)
        found, source = boxes(region), boxes(copy.source)
        if copy.step.of_pipeline or not found or not source or region.index is None:
            return
        key = copy.step.site.line or id(copy.step), buffer.name
        site = self._sites.setdefault(key, _CopySite(buffer.name))
        site.runs += 1
        is_near = copy.source.buffer.device == buffer.device
        site.is_vague |= copy.adds or not is_near or self._on_data[id(copy.step)]
        own = self._fills.setdefault(buffer.number, [])
        if len(own) >= MAX_FILLS:
            site.is_vague = True
            return
        own.append(_Fill(copy, found, (copy.source.buffer.number, source), site))

    def freed(self, buffer: MemoryBuffer) -> None:
        """Handle the end of a buffer."""
        self._fills.pop(buffer.number, None)

    def _uses(self, source: _Source) -> None:
        self._used.setdefault(source[0], set()).add(source[1])

    def _replaces(
        self, region: MemoryRegion, step: ir.MachineStep, point: tuple[int, ...],
        iterations: tuple[int, ...], value: Any, fills: list[_Fill],
    ) -> None:  # fmt: skip
        found = boxes(region)
        kept = []
        for fill in fills:
            if found and first_meeting(found, fill.boxes) is None:
                kept.append(fill)
            elif not covers(found, fill.boxes):
                fill.site.is_vague = True
            else:
                lost = _lost(fill.copy, step, point, iterations, region, value)
                if lost is None:
                    self._uses(fill.source)  # the same data again
                else:
                    fill.site.lost.append((fill.source, lost))
        self._fills[region.buffer.number] = kept

    # Findings

    def faults(self) -> Iterator[LostCopy]:
        """Yield the first lost copy of each line that loses them, once the run has ended."""
        for site in self._sites.values():
            if site.is_vague or not site.lost:
                continue
            if site.buffer not in self._read or site.buffer in self._read_if:
                continue
            is_most = site.read <= len(site.lost) + 1
            places = [boxes(found.copy.destination) for _, found in site.lost]
            is_read = not site.read_at.isdisjoint(places)
            is_most |= len(places) > 1 and not is_read
            if is_most and not any(self._is_used(source) for source, _ in site.lost):
                found = site.lost[0][1]
                found.of_line, found.is_read = (len(site.lost), site.runs), is_read
                yield found

    def _is_used(self, source: _Source) -> bool:
        """Return whether any copy of a part of a source has been read."""
        used = self._used.get(source[0], set())
        return source[1] in used or any(first_meeting(source[1], one) for one in used)


def _lost(
    copy: DmaCopy, step: ir.MachineStep, point: tuple[int, ...], iterations: tuple[int, ...],
    region: MemoryRegion, value: Any,
) -> LostCopy | None:  # fmt: skip
    """Describe what a write is about to replace; None if it changes nothing."""
    old = region.read()
    new = np.asarray(value)
    new = new.reshape(old.shape) if new.size == old.size else np.broadcast_to(new, old.shape)
    found = shadow.change_of(region, new.astype(old.dtype))
    return None if found is None else LostCopy(copy, step, point, iterations, found)


def finding(launch: Launch, lost: LostCopy) -> Finding:
    """Report a copy whose data are replaced before they are read."""
    copy, target = lost.copy, lost.copy.destination
    source, destination = (
        boxes_text(region.buffer.name, boxes(region), region.buffer.content.shape)
        for region in (copy.source, target)
    )
    seen = sighting_of(
        launch, lost, target.buffer, index=destination, other=copy.step.site.line,
        count=lost.of_line[0],
    )  # fmt: skip
    return writers.lost_copy(
        seen,
        copy=(source, destination),
        lost=access_of(copy),
        replaced_by=access_of(lost),
        element=lost.change.written,
        of_line=lost.of_line,
        is_read=lost.is_read,
    )

"""Partial sums that the next part replaces, as with `=` in place of `+=`.

A store writes a sum, a matrix product or another reduction where its previous run had written one
for the same output block, and nothing has read that value. Stores of one line are one store, as in
a loop that Python unrolls. Those to different parts of a buffer are followed one by one: a part is
lost if the next grid point that stores replaces it, but not in a ring. It is a fault if all values
except the last of each block are lost this way; if the store does not depend on data; and if the
value is computed from inputs, directly or through buffers that the kernel fills with them, and not
from a running state, of which only the last value may be wanted. If data decide when the value is
read, only the last value may be wanted as well. Both are faults if the store replaces a reset every
time the reset runs, which then has no use; for a running state, only if an input from which the
value is computed as well has moved on to another block each time.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine.memory import MemoryRegion
from pallas_debug.machine.sanitizer.ordering.regions import Box, boxes, first_meeting
from pallas_debug.machine.sanitizer.shadows import reach, shadow
from pallas_debug.machine.sanitizer.shadows.dropped import (
    DroppedSum,
    Point,
    block_begins,
    dropped_by,
    is_uniform,
)
from pallas_debug.machine.sanitizer.shadows.shadow import WriteRecord
from pallas_debug.machine.threads import Thread

if TYPE_CHECKING:
    from pallas_debug.machine.sanitizer.shadows.tracked import TrackedThread

MAX_PARTS = 64
"""Maximum number of parts of a buffer whose unread values are remembered."""

_SiteKey = tuple[object, str]
"""Line of a store, or the store itself if that is unknown, and the buffer to which it stores."""


@dataclass(eq=False, slots=True)
class _TotalSite:
    """A store of reductions to one buffer.

    Attributes:
      runs, lost, kept: how often it ran; how often its value was replaced unread by its next run;
        and how often its value was read, or was the last one of an output's block.
      first: first lost value.
      made_of: buffers from which its values are computed.
      depends: whether data decide when the value is read.
      is_unseen: whether its value may have been read at an unwatched grid point.
      latest: record of its last run.
      before: moment before that run at which it ran last; -1 if there is none.
      stays: whether a value was lost whose inputs all kept their blocks.
    """

    runs: int = 0
    lost: int = 0
    kept: int = 0
    first: DroppedSum | None = None
    made_of: set[str] = field(default_factory=set)
    depends: bool = False
    is_unseen: bool = False
    latest: WriteRecord | None = None
    before: int = -1
    stays: bool = False


@dataclass(eq=False, slots=True)
class _Left:
    """Unread value of the last store to a part of a buffer.

    Attributes:
      boxes: the part; empty if unknown.
      blocks: blocks of the inputs from which the value is computed.
    """

    site: _SiteKey
    boxes: tuple[Box, ...]
    record: WriteRecord
    is_output: bool
    blocks: tuple[Point | None, ...]


@dataclass(eq=False, slots=True)
class _Reset:
    """A reset of a buffer that has not been read since.

    Attributes:
      at: moment of the reset.
      conditions: identities of the enclosing conditions.
    """

    elements: int
    at: tuple[int, Point]
    conditions: frozenset[int]


class ReplacedTotals:
    """Stores of reductions so far."""

    def __init__(self, launch: Launch) -> None:
        stores = reach.stores_of(launch)
        self._stored = {s.operand for s in stores if isinstance(s.step, ir.StoreStep)}
        self._sites: dict[_SiteKey, _TotalSite] = {}
        self._left: dict[tuple[int, int], dict[int, _Left]] = {}
        self._is_total: dict[_SiteKey, bool] = {}
        self._sources: dict[_SiteKey, set[str]] = {}
        self._made_of: dict[str, set[str]] = {}
        self._is_reset: dict[_SiteKey, bool] = {}
        self._resets: dict[tuple[int, int], _Reset] = {}
        self._in_vain: dict[str, bool] = {}
        self._is_sampled = False

    def reads(self, thread: Thread, region: MemoryRegion) -> None:
        """Handle a read or copy of memory."""
        if self._resets.pop((thread.number, region.buffer.number), None):
            self._in_vain[region.buffer.name] = False
        for left in self._taken(thread, region).values():
            site = self._sites[left.site]
            site.kept += 1
            site.depends = site.depends or reach.depends_on_data(thread.frames)

    def _taken(
        self, thread: Thread, region: MemoryRegion, elements: int | None = None
    ) -> dict[int, _Left]:
        """Remove and return the unread values of parts that share elements with a region.

        Args:
          elements: key of the region; if it is a part, no other part shares elements with it.
        """
        key = thread.number, region.buffer.number
        parts = self._left.get(key)
        if not parts:
            return {}
        if elements in parts:
            return {elements: parts.pop(elements)}
        found = boxes(region)
        if not found or region.is_whole:
            return self._left.pop(key)
        shared = [
            one
            for one, left in parts.items()
            if not left.boxes or first_meeting(found, left.boxes) is not None
        ]
        return {one: parts.pop(one) for one in shared}

    def forget(self, thread: Thread) -> None:
        """Handle an unwatched grid point, whose reads are unknown."""
        for key in [key for key in self._left if key[0] == thread.number]:
            for left in self._left.pop(key).values():
                self._sites[left.site].is_unseen = True
        self._resets.clear()
        self._is_sampled = True

    def stores(
        self, thread: Thread, state: TrackedThread, step: ir.StoreStep, region: MemoryRegion,
        value: Any, written: WriteRecord, *, is_output: bool,
    ) -> None:  # fmt: skip
        """Handle a write to a buffer, before it; `written` is its record."""
        buffer = region.buffer
        key, step_key = (thread.number, buffer.number), (id(step), buffer.name)
        elements = shadow.index_key(region)
        left = self._taken(thread, region, elements).get(elements)
        if step_key not in self._is_total:
            made_of = {one.name for one in reach.sources(thread.frames, step.value.number)}
            is_update = step.adds or step.mask is not None or reach.depends_on_data(thread.frames)
            self._made_of.setdefault(buffer.name, set()).update(
                made_of, [buffer.name] if is_update else ()
            )
            is_total = not is_update and reach.is_total(thread.frames, step.value.number)
            self._is_total[step_key] = is_total
            self._sources[step_key] = made_of
        self._replaces(thread, state, step, region, value, is_total=self._is_total[step_key])
        if not self._is_total[step_key]:
            return
        site_key = step.site.line or id(step), buffer.name
        site = self._sites.setdefault(site_key, _TotalSite())
        site.made_of |= self._sources[step_key]
        site.runs += 1
        latest, site.latest = site.latest, written
        if latest is not None and latest.moment != state.moment:
            site.before = latest.moment
        parts = self._left.setdefault(key, {})
        if len(parts) == MAX_PARTS:
            parts.clear()
        blocks = tuple(
            w.block for w in state.windows
            if w.operand.kind == "input" and w.operand.name in self._sources[step_key]
        )  # fmt: skip
        parts[elements] = _Left(site_key, boxes(region), written, is_output, blocks)
        if left is None or left.site != site_key:
            return
        if left.record.number < block_begins(state, buffer.name):
            site.kept += is_output
            return
        if left.record is not latest and left.record.moment != site.before:
            return  # as in a ring
        site.lost += 1
        site.stays = site.stays or left.blocks == blocks
        if site.first is None:
            site.first = dropped_by(thread, state, step, region, value, left.record, "replaced")

    def _replaces(
        self, thread: Thread, state: TrackedThread, step: ir.StoreStep, region: MemoryRegion,
        value: Any, *, is_total: bool,
    ) -> None:  # fmt: skip
        """Handle the replacement of a reset, if there is one, by a total or by anything else."""
        name, elements = region.buffer.name, shadow.index_key(region)
        key = thread.number, region.buffer.number
        at = state.moment, thread.iterations
        around = frozenset(id(branch) for branch in reach.conditions(thread.frames))
        reset = self._resets.pop(key, None)
        if reset is not None:
            is_dead = (
                is_total and (reset.elements, reset.at) == (elements, at)
            ) and around <= reset.conditions
            self._in_vain[name] = is_dead and self._in_vain.get(name, True)
        if is_total:
            return
        site_key = id(step), name
        if site_key not in self._is_reset:
            self._is_reset[site_key] = not step.adds and step.mask is None and is_uniform(value)
        if self._is_reset[site_key]:
            self._resets[key] = _Reset(elements, at, around)

    def faults(self) -> list[DroppedSum]:
        """Return the sums whose parts are lost, once the run has ended."""
        for left in itertools.chain.from_iterable(parts.values() for parts in self._left.values()):
            self._sites[left.site].kept += left.is_output
        self._left.clear()
        return [
            site.first
            for (_, name), site in self._sites.items()
            if site.first is not None and site.kept and site.lost + site.kept == site.runs
            and not site.is_unseen and self._are_parts(name, site)
        ]  # fmt: skip

    def _are_parts(self, name: str, site: _TotalSite) -> bool:
        """Return whether more than the last value of a store is wanted."""
        is_reset = self._in_vain.get(name, False) and not self._is_sampled
        if site.depends and not is_reset:
            return False
        is_state = not all(self._is_of_inputs(one) for one in site.made_of)
        return not is_state or (is_reset and not site.stays)

    def _is_of_inputs(self, name: str, within: frozenset[str] = frozenset()) -> bool:
        """Return whether a buffer is an input, or filled from inputs alone: it is no running state.

        Args:
          within: buffers that are computed from it.
        """
        if name not in self._stored:
            return True
        within |= {name}
        made_of = self._made_of.get(name)
        return made_of is not None and all(
            one not in within and self._is_of_inputs(one, within) for one in made_of
        )

"""Parts of a sum that the next part replaces, as where `=` stands in place of `+=`.

A store puts a sum, a product of matrices or another reduction where its last run had put one for
the same output block, and nothing has read that. It is a fault if all values but the last of each
block are lost so; if the store does not depend on data; and if the value is made of inputs, not of
what the kernel itself stores: of a running state, the last value may be meant. Where data decide
when the value is read, the last one may be meant as well, unless the store replaces a reset as
often as that runs: such a reset has no use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine.memory import MemoryRegion
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

_SiteKey = tuple[int, str]
"""A store, and the buffer that it stores to."""


@dataclass(eq=False, slots=True)
class _TotalSite:
    """A store of reductions to one buffer.

    Attributes:
      runs, lost, kept: how often it ran; how often its value was replaced unread by its next run,
        and how often it was read, or was the last one of an output's block.
      first: the first value that was lost.
      depends: whether data decide when the value is read.
      is_unseen: whether its value may have been read at a grid point that is not watched.
    """

    runs: int = 0
    lost: int = 0
    kept: int = 0
    first: DroppedSum | None = None
    depends: bool = False
    is_unseen: bool = False


@dataclass(eq=False, slots=True)
class _Left:
    """What the last store to a buffer left there unread."""

    site: _SiteKey
    elements: int
    record: WriteRecord
    is_output: bool


@dataclass(eq=False, slots=True)
class _Reset:
    """A reset of a buffer that nothing has read yet.

    Attributes:
      at: the moment.
      conditions: identities of those around it.
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
        self._left: dict[tuple[int, int], _Left] = {}
        self._is_total: dict[_SiteKey, bool] = {}
        self._is_reset: dict[_SiteKey, bool] = {}
        self._resets: dict[tuple[int, int], _Reset] = {}
        self._in_vain: dict[str, bool] = {}
        self._is_sampled = False

    def reads(self, thread: Thread, region: MemoryRegion) -> None:
        """Memory is read or copied."""
        if self._resets.pop((thread.number, region.buffer.number), None):
            self._in_vain[region.buffer.name] = False
        left = self._left.pop((thread.number, region.buffer.number), None)
        if left is not None:
            site = self._sites[left.site]
            site.kept += 1
            site.depends = site.depends or reach.depends_on_data(thread.frames)

    def forget(self, thread: Thread) -> None:
        """A grid point is not watched: nothing is known of what it reads."""
        for key in [key for key in self._left if key[0] == thread.number]:
            self._sites[self._left.pop(key).site].is_unseen = True
        self._resets.clear()
        self._is_sampled = True

    def stores(
        self, thread: Thread, state: TrackedThread, step: ir.StoreStep, region: MemoryRegion,
        value: Any, written: WriteRecord, *, is_output: bool,
    ) -> None:  # fmt: skip
        """A buffer is about to be written; `written` is the record of that."""
        buffer = region.buffer
        key, site_key = (thread.number, buffer.number), (id(step), buffer.name)
        left = self._left.pop(key, None)
        if site_key not in self._is_total:
            self._is_total[site_key] = (
                not step.adds
                and step.mask is None
                and not reach.depends_on_data(thread.frames)
                and reach.is_total(thread.frames, step.value.number)
                and not any(
                    buffer.name in self._stored
                    for buffer in reach.sources(thread.frames, step.value.number)
                )
            )
        elements = shadow.index_key(region)
        self._replaces(thread, state, step, region, value, is_total=self._is_total[site_key])
        if not self._is_total[site_key]:
            return
        site = self._sites.setdefault(site_key, _TotalSite())
        site.runs += 1
        self._left[key] = _Left(site_key, elements, written, is_output)
        if left is None or (left.site, left.elements) != (site_key, elements):
            return
        if left.record.number < block_begins(state, buffer.name):
            site.kept += is_output
            return
        site.lost += 1
        if site.first is None:
            site.first = dropped_by(thread, state, step, region, value, left.record, "replaced")

    def _replaces(
        self, thread: Thread, state: TrackedThread, step: ir.StoreStep, region: MemoryRegion,
        value: Any, *, is_total: bool,
    ) -> None:  # fmt: skip
        """A reset is replaced, if there is one, by a total or by anything else."""
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
        """Sums whose parts are lost, once the run is over."""
        for left in self._left.values():
            self._sites[left.site].kept += left.is_output
        self._left.clear()
        return [
            site.first
            for (_, name), site in self._sites.items()
            if site.first is not None and site.kept and site.lost + site.kept == site.runs
            and not site.is_unseen
            and (not site.depends or (self._in_vain.get(name) and not self._is_sampled))
        ]  # fmt: skip

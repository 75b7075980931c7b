"""Parts of a sum that the next part replaces, as where `=` stands in place of `+=`.

A store puts a sum, a product of matrices or another reduction where its last run had put one for
the same output block, and nothing has read that. It is a fault if all values but the last of each
block are lost so; if neither the store nor a read of it depends on data; and if the value is made
of inputs, not of what the kernel itself stores: of a running state, the last value may be meant.
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
    block_begins,
    dropped_by,
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
    """

    runs: int = 0
    lost: int = 0
    kept: int = 0
    first: DroppedSum | None = None
    depends: bool = False


@dataclass(eq=False, slots=True)
class _Left:
    """What the last store to a buffer left there unread."""

    site: _SiteKey
    elements: int
    record: WriteRecord
    is_output: bool


class ReplacedTotals:
    """Stores of reductions so far."""

    def __init__(self, launch: Launch) -> None:
        stores = reach.stores_of(launch)
        self._stored = {s.operand for s in stores if isinstance(s.step, ir.StoreStep)}
        self._sites: dict[_SiteKey, _TotalSite] = {}
        self._left: dict[tuple[int, int], _Left] = {}
        self._is_total: dict[_SiteKey, bool] = {}

    def reads(self, thread: Thread, region: MemoryRegion) -> None:
        """Memory is read or copied."""
        left = self._left.pop((thread.number, region.buffer.number), None)
        if left is not None:
            site = self._sites[left.site]
            site.kept += 1
            site.depends = site.depends or reach.depends_on_data(thread.frames)

    def forget(self, thread: Thread) -> None:
        """A grid point is not watched: nothing is known of what it reads."""
        for key in [key for key in self._left if key[0] == thread.number]:
            self._sites[self._left.pop(key).site].depends = True

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
        if not self._is_total[site_key]:
            return
        site = self._sites.setdefault(site_key, _TotalSite())
        site.runs += 1
        elements = shadow.index_key(region)
        self._left[key] = _Left(site_key, elements, written, is_output)
        if left is None or (left.site, left.elements) != (site_key, elements):
            return
        if left.record.number < block_begins(state, buffer.name):
            site.kept += is_output
            return
        site.lost += 1
        if site.first is None:
            site.first = dropped_by(thread, state, step, region, value, left.record, "replaced")

    def faults(self) -> list[DroppedSum]:
        """Sums whose parts are lost, once the run is over."""
        for left in self._left.values():
            self._sites[left.site].kept += left.is_output
        self._left.clear()
        return [
            site.first
            for site in self._sites.values()
            if site.first is not None and not site.depends and site.kept
            and site.lost + site.kept == site.runs
        ]  # fmt: skip

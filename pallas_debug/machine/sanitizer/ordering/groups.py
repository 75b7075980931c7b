"""Sums of groups of steps that a table lists, stored before their last addition.

A table tells where groups begin: there, a sum in scratch is reset, and it is stored where the group
ends. Data decide about both, so additions that nothing reads may be intended: a flag may ask for
the state at any step. It is a fault only if

- the table, and any other buffer, that decides when the sum is stored also decides when it is
  reset: it has the ends of the groups;
- in each group of several steps, all additions but the last are stored, or only the first is; and
- there are three such groups, or two of different lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.memory import MemoryRegion
from pallas_debug.machine.sanitizer.shadows import reach
from pallas_debug.machine.sanitizer.shadows.dropped import DroppedSum, dropped_by, is_uniform
from pallas_debug.machine.sanitizer.shadows.shadow import WriteRecord
from pallas_debug.machine.threads import Thread

if TYPE_CHECKING:
    from pallas_debug.machine.sanitizer.shadows.tracked import TrackedThread

MAX_GROUPS = 1 << 12
"""Maximum number of groups of a sum; with more, the rest is not examined."""


@dataclass(eq=False, slots=True)
class _Group:
    """Additions between two resets.

    Attributes:
      begins: position along the last axis of the grid at which it begins.
      added: number of moments with an addition.
      kept: number of those before the last store, or at its moment.
      last: the last addition.
      stored: the last store.
    """

    begins: int
    added: int = 0
    kept: int = 0
    last: WriteRecord | None = None
    stored: WriteRecord | None = None


@dataclass(eq=False, slots=True)
class _Sum:
    """Groups of a sum in scratch so far.

    Attributes:
      stored_on, reset_on: buffers whose contents decide when it is stored, and when it is reset.
      is_vague: whether any group is stored for another block than it is computed for.
    """

    groups: list[_Group] = field(default_factory=list)
    stored_on: set[str] = field(default_factory=set)
    reset_on: set[str] = field(default_factory=set)
    is_vague: bool = False
    dropped: DroppedSum | None = None


class GroupedSums:
    """Sums whose resets data decide about."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}
        self._now: dict[tuple[int, str], _Group] = {}

    def stores(
        self, thread: Thread, state: TrackedThread, step: ir.StoreStep, region: MemoryRegion,
        value: Any, written: WriteRecord, *, is_sum: bool,
    ) -> None:  # fmt: skip
        """Handle a store to scratch, before it; `written` is its record."""
        name = region.buffer.name
        now = self._now.get((thread.number, name))
        if is_sum:
            if now is None:
                return
            if now.last is None or now.last.moment != written.moment:
                now.added += 1
                is_kept = now.stored is not None and now.stored.moment == written.moment
                now.kept += is_kept  # the sum before it is meant
            now.last = written
            return
        if not is_uniform(value) or not thread.point:
            return
        found = self._sums.setdefault(name, _Sum())
        if len(found.groups) > MAX_GROUPS:
            return
        if now is not None:
            self._ends(state, name, now)
            if found.dropped is None and now.last is not None and 0 < now.kept < now.added:
                found.dropped = dropped_by(thread, state, step, region, value, now.last, "early")
                if found.dropped is not None:
                    found.dropped.stored = now.stored
        self._now[thread.number, name] = _Group(thread.point[-1])
        found.groups.append(self._now[thread.number, name])
        found.reset_on |= _decided_by(thread)

    def stores_output(self, thread: Thread, step: ir.StoreStep, written: WriteRecord) -> None:
        """Handle a store to an output, or to a buffer that is copied to one."""
        for (number, name), now in self._now.items():
            if number != thread.number or not now.added:
                continue
            buffers = reach.sources(thread.frames, step.value.number)
            if any(buffer.name == name for buffer in buffers):
                now.kept, now.stored = now.added, written
                self._sums[name].stored_on |= _decided_by(thread)

    def _ends(self, state: TrackedThread, name: str, group: _Group) -> None:
        if group.last is None or group.stored is None:
            return
        for output in state.outputs_of(name):
            blocks = state.blocks_at_moments(output)
            self._sums[name].is_vague |= blocks[group.last.moment] != blocks[group.stored.moment]

    def faults(self) -> Iterator[DroppedSum]:
        """Yield the first lost addition to each sum, once the run has ended."""
        for found in self._sums.values():
            is_of_table = bool(found.stored_on) and found.stored_on <= found.reset_on
            if found.dropped is None or found.is_vague or not is_of_table:
                continue
            groups = [group for group in found.groups if group.added > 1]
            lengths = {group.added for group in groups}
            is_early = all(group.kept == group.added - 1 for group in groups)
            is_first = all(group.kept == 1 for group in groups)
            enough = len({group.begins for group in groups}) > 2 or len(lengths) > 1
            if enough and (is_early or is_first):
                yield found.dropped


def _decided_by(thread: Thread) -> set[str]:
    """Names of the buffers whose contents decide about the conditions around the current step."""
    return {buffer.name for buffer in reach.deciding(thread.frames)}

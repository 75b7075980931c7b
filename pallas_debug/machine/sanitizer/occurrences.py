"""The first of several reads by a step that matters, found by further runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pallas_debug.bridge.hosted.watch import WatchedPoints
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.memory import MemoryRegion
from pallas_debug.machine.sanitizer.again import KernelCall
from pallas_debug.machine.sanitizer.shadows import shadow
from pallas_debug.machine.sanitizer.shadows.replay import (
    MAX_NARROWING,
    AlteredRun,
    OtherValues,
    difference,
)
from pallas_debug.machine.sanitizer.shadows.shadow import (
    BufferShadow,
    ReadKind,
    SiteKey,
    SuspectRead,
)
from pallas_debug.machine.sanitizer.shadows.tracking import MemoryTracker
from pallas_debug.machine.threads import Thread


class _AlteredUntil(AlteredRun):
    """A run in which the first N reads of each step in question see other values."""

    def __init__(
        self, launch: Launch, altered: Iterable[SiteKey], until: int, **options: Any
    ) -> None:
        super().__init__(launch, altered, **options)
        self._until = until

    def alter(
        self, suspect: SuspectRead, region: MemoryRegion, found: BufferShadow,
        unseen: shadow.Unseen, value: Any,
    ) -> None:  # fmt: skip
        if suspect.count <= self._until:
            super().alter(suspect, region, found, unseen, value)


class _NotingRun(MemoryTracker):
    """A run that records one of several reads in full."""

    noted: SuspectRead | None = None

    def __init__(
        self, launch: Launch, key: SiteKey, number: int, *, watched: WatchedPoints | None
    ) -> None:
        super().__init__(launch, watched=watched)
        self._key, self._number = key, number

    def _suspect(
        self, kind: ReadKind, thread: Thread, step: ir.MachineStep, region: MemoryRegion,
        found: BufferShadow, unseen: shadow.Unseen, value: Any, copy: DmaCopy | None = None,
    ) -> None:  # fmt: skip
        super()._suspect(kind, thread, step, region, found, unseen, value, copy)
        key = id(step), region.buffer.name, kind
        if key == self._key and self.suspects[key].count == self._number:
            self.noted = self._noted(key, thread, step, region, found, unseen, copy)


def first_that_matters(
    call: KernelCall, suspect: SuspectRead, run: MemoryTracker, fill: OtherValues
) -> SuspectRead:
    """Return the first read by a suspect's step that matters; the suspect if it is unknown.

    A block of padding may be masked correctly, and a later one of the same line not.

    Args:
      run: the first run.
      fill: other values for which the reads matter.
    """

    def matter(until: int) -> bool:
        options: dict[str, Any] = {"keeps_results": run.keeps_results, "watched": run.watched}
        other = _AlteredUntil(call.launch, [suspect.key], until, fill=fill, **options)
        call.run(other)
        return difference(run, other).matters

    if suspect.count < 2 or matter(1) or not matter(suspect.count):
        return suspect
    low, high = 1, suspect.count
    for _ in range(MAX_NARROWING):
        if high - low <= 1:
            break
        middle = (low + high) // 2
        low, high = (low, middle) if matter(middle) else (middle, high)
    if high - low > 1:
        return suspect
    noting = _NotingRun(call.launch, suspect.key, high, watched=run.watched)
    call.run(noting)
    return suspect if noting.noted is None else replace(noting.noted, count=suspect.count)

"""Order that atomic updates of a GPU's memory establish."""

from __future__ import annotations

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.clocks import Task
from pallas_debug.machine.gpu.accesses import is_atomic
from pallas_debug.machine.memory import MemoryRegion
from pallas_debug.machine.order.regions import Box, boxes, first_meeting, whole

MAX_PLACES = 64
"""Maximum number of places in a buffer with an order of their own."""

_Clock = dict[int, int]


class AtomicOrder:
    """Clocks of the elements that are updated atomically.

    An update releases what its grid point did before. Another update of the same element acquires
    that only if the kernel uses the previous value: without it, the kernel cannot know which of the
    two came first. So locks, and counters that tell which grid point is the last, order accesses;
    sums do not.
    """

    def __init__(self) -> None:
        self._clocks: dict[int, dict[tuple[Box, ...], _Clock]] = {}

    def loads(self, task: Task, step: ir.MachineStep, region: MemoryRegion) -> None:
        """Acquire what earlier updates have released."""
        if not is_atomic(step) or getattr(step, "output", None) is None:
            return
        found = _places(region)
        for place, clock in self._clocks.get(region.buffer.number, {}).items():
            if first_meeting(found, place) is not None:
                task.join(clock)

    def stores(self, task: Task, step: ir.MachineStep, region: MemoryRegion) -> None:
        """Release what the grid point has done so far."""
        if not is_atomic(step):
            return
        found = _places(region)
        known = self._clocks.setdefault(region.buffer.number, {})
        stamp = task.release()
        if found not in known and len(known) >= MAX_PLACES:
            for clock in known.values():
                _merge(stamp, clock)
            known.clear()
            found = (whole(region.buffer.content.shape),)
        _merge(known.setdefault(found, {}), stamp)


def _places(region: MemoryRegion) -> tuple[Box, ...]:
    return boxes(region) or (whole(region.buffer.content.shape),)


def _merge(clock: _Clock, stamp: _Clock) -> None:
    for number, time in stamp.items():
        clock[number] = max(clock.get(number, 0), time)

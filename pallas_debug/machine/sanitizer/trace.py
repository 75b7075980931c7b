"""Trace of what values decide in a run: branches, iterations, indices, semaphores."""

from __future__ import annotations

from typing import Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.copies import Counter, DmaCopy
from pallas_debug.machine.memory import MemoryRegion, OutOfBounds
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.shadow.shadow import index_key
from pallas_debug.machine.threads import Thread


class ControlTrace(MachineObserver):
    """Records the branches taken, the indices computed and the semaphores changed.

    Attributes:
      trace: hash of them so far; two runs of a kernel with equal traces execute the same steps on
        the same elements.
    """

    def __init__(self) -> None:
        self.trace = 0
        self._dynamic: dict[int, bool] = {}

    def branches(self, thread: Thread, step: ir.Branch, chosen: int) -> None:
        self._decided(step, chosen)

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        if type(step) is ir.WhileLoop:
            self._decided(step, iteration)

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        self._accesses(step, region)

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        self._accesses(step, region)

    def copy_starts(self, thread: Thread, copy: DmaCopy) -> None:
        self._accesses(copy.step, copy.source, copy.destination)

    def signals(self, thread: Thread, step: ir.MachineStep, counter: Counter, amount: int) -> None:
        self._decided(step, counter.entry, amount)

    waited = signals

    def leaves(self, thread: Thread, step: ir.MachineStep, error: OutOfBounds) -> None:
        self._decided(step, str(error.index))

    reads_outside = leaves

    def _accesses(self, step: ir.MachineStep, *regions: MemoryRegion) -> None:
        found = self._dynamic.get(id(step))
        if found is None:
            found = self._dynamic[id(step)] = is_dynamic(step)
        if found:
            self._decided(step, *map(index_key, regions))

    def _decided(self, step: ir.MachineStep, *values: Any) -> None:
        self.trace = hash((self.trace, id(step), values))


def is_dynamic(step: ir.MachineStep) -> bool:
    """Return whether the elements that a step accesses depend on a value."""
    places = (getattr(step, name, None) for name in ("place", "source", "destination"))
    return any(True for place in places if place is not None for _ in ir.registers(place.view))

"""Assumptions in `pltpu.annotate` (jax 0.12) about memory, and what the kernel does to it.

Source: the docstring of `pltpu.annotate`. `no_store` lets the compiler reload a value later rather
than keep it; `no_hazard_no_deps` lets it move loads ahead of stores to the same elements. The two
other assumptions cost time if they are false, but do not change any value.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sightings import shape_text, sighting
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding, SourceLine

Assumption = Literal["no_store", "no_hazard_no_deps"]
NO_STORE: Assumption = "no_store"
NO_DEPENDENCIES: Assumption = "no_hazard_no_deps"


@dataclass(eq=False)
class _Use:
    """Accesses of one buffer by the kernel.

    Attributes:
      assumed: step that is annotated with `no_store`.
      stored: first store to the buffer.
      writers: number of the last store to each element, from 1, since the grid point began.
      stores: these stores, and whether they are annotated themselves.
    """

    buffer: MemoryBuffer
    assumed: Sighting | None = None
    stored: Sighting | None = None
    point: tuple[int, ...] = ()
    writers: Any = None
    stores: list[tuple[Sighting, bool]] = field(default_factory=list)


class AssumptionsObserver(MachineObserver):
    """Checks `pltpu.annotate(ref, no_store=True)` and `no_hazard_no_deps=True`."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._uses: dict[int, _Use] = {}
        self._found: dict[tuple[Assumption, SourceLine | None], tuple[Sighting, Sighting]] = {}

    @staticmethod
    def is_needed(launch: Launch) -> bool:
        """Return whether the kernel has such an annotation."""
        return any(_of(step) & {NO_STORE, NO_DEPENDENCIES} for step in launch.all_steps())

    def findings(self) -> list[Finding]:
        """Return the findings, one per line of code, in the order in which they were first seen."""
        return [
            seen.at(other=store.witness.source).of(Fault.FALSE_HINT, assumption=name)
            for (name, _), (seen, store) in self._found.items()
        ]

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        use = self._use(region.buffer)
        flags = _of(step)
        seen = self._sighting(thread, step, region.buffer)
        if NO_STORE in flags:
            use.assumed = use.assumed or seen
            self._check(use)
        if region.index is None or use.point != thread.point or use.writers is None:
            return
        for number in np.unique(use.writers[region.index]):
            if number:
                store, is_annotated = use.stores[number - 1]
                if is_annotated or NO_DEPENDENCIES in flags:
                    self._note(NO_DEPENDENCIES, seen, store)

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        use = self._use(region.buffer)
        flags = _of(step)
        seen = self._sighting(thread, step, region.buffer)
        use.stored = use.stored or seen
        if NO_STORE in flags:
            use.assumed = use.assumed or seen
        self._check(use)
        if use.point != thread.point or use.writers is None:
            use.point, use.stores = thread.point, []
            use.writers = np.zeros(region.buffer.content.shape, np.int32)
        is_masked = isinstance(step, ir.StoreStep) and step.mask is not None
        if region.index is not None and not is_masked:
            use.stores.append((seen, NO_DEPENDENCIES in flags))
            use.writers[region.index] = len(use.stores)

    def waited(self, thread: Thread, *_: Any) -> None:
        """Forget the stores: a wait is a barrier that loads do not cross."""
        for use in self._uses.values():
            use.writers = None

    def _check(self, use: _Use) -> None:
        if use.assumed is not None and use.stored is not None:
            self._note(NO_STORE, use.assumed, use.stored)

    def _note(self, name: Assumption, seen: Sighting, store: Sighting) -> None:
        key = name, seen.witness.source
        first, earlier = self._found.get(key, (replace(seen, count=0), store))
        self._found[key] = (replace(first, count=first.count + 1), earlier)

    def _use(self, buffer: MemoryBuffer) -> _Use:
        """Return the accesses of a buffer, which is kept alive so that its number stays unique."""
        return self._uses.setdefault(id(buffer), _Use(buffer))

    def _sighting(self, thread: Thread, step: ir.MachineStep, buffer: MemoryBuffer) -> Sighting:
        name = thread.ref(step.place).name if isinstance(step, _ACCESSES) else buffer.name
        return sighting(self._launch, thread, step, operand=name, shape=shape_text(buffer))


_ACCESSES = (ir.LoadStep, ir.StoreStep)


def _of(step: ir.MachineStep) -> frozenset[str]:
    """Assumptions that a step is annotated with."""
    return step.place.assumed if isinstance(step, _ACCESSES) else frozenset()

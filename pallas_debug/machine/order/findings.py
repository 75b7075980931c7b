"""Order of a run: what its observer has found, and results that another legal order changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pallas_debug.findings.facts import element_text, number
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.hints import HintKind
from pallas_debug.machine.machine import Machine, Stopped
from pallas_debug.machine.memory import Array
from pallas_debug.machine.numbers.observer import RepeatedArithmetic
from pallas_debug.machine.order import blocks
from pallas_debug.machine.order.counts import counts
from pallas_debug.machine.order.events import OrderTracker
from pallas_debug.machine.order.reports import name_in
from pallas_debug.machine.sanitizer.composite import ObserverGroup
from pallas_debug.machine.sightings import sighting_of
from pallas_debug.model import Finding, Hint

DeviceResults = Sequence[Sequence[Array]]
"""Arrays that the kernel returns, for each device."""


class OrderSanitizer(OrderTracker):
    """Checks the order of a run."""

    def findings(self) -> list[Finding]:
        """Return the findings of the run so far, causes before consequences."""
        shared = blocks.shared(self.launch, self.tasks.axes, self.visits)
        return [*self.found.values(), *shared, *counts(self)]

    def hints(self) -> list[Hint]:
        """Return unordered writes of equal values, which no order changes."""
        found = [
            (name_in(later), later.step, earlier.point, later.point)
            for earlier, later in self.detector.equal.values()
        ]
        for first, other in filter(None, map(blocks.equal, self.visits.values())):
            assert other.store is not None
            name = first.window.operand.name
            found.append((name, other.store.step, first.point, other.store.point))
        return [
            Hint(
                kind=HintKind.SEVERAL_WRITERS,
                kernel=self.launch.name,
                message=f"grid points {one} and {two} write equal values to one part of {name}, "
                "in an order that nothing guarantees: no order changes the result",
                source=None if step is None else step.site.line,
                operand=name,
                grid_point=two,
            )
            for name, step, one, two in found
        ]

    def deadlock(self) -> list[Finding]:
        """Return blocked waits, after their causes; nothing if a thread can still run."""
        return [] if self.has_ended else list(counts(self))

    def compared(
        self, arrays: Sequence[Sequence[Any]], results: DeviceResults, *, first: int = 0
    ) -> list[Finding]:
        """Run the kernel in other legal orders, if any may matter, and compare the results.

        After a race this is pointless: its two sides are known.

        Args:
          arrays: arrays of the call, for each device.
          results: results of the observed run.
          first: number of the first device in the mesh.
        """
        if self.detector.raced or not self.undecided:
            return []
        for backwards in (False, True):
            other = OrderSanitizer(self.launch, devices=len(arrays))
            machine = Machine(
                self.launch, arrays, observer=ObserverGroup([other, RepeatedArithmetic()]),
                first=first, eager=not backwards, backwards=backwards, compiles_loops=False,
                outside="nearest",
            )  # fmt: skip
            try:
                found = list(self._differing(results, machine.run()))[:1]
            except Stopped:
                found = other.deadlock()
            if found:
                return found
        return []

    def _differing(self, results: DeviceResults, others: DeviceResults) -> Iterator[Finding]:
        """Yield the first element of each result that another order changes."""
        outputs = [operand for operand in self.launch.operands if operand.kind == "output"]
        fact = next(iter(self.undecided.values()))
        for device, (own, changed) in enumerate(zip(results, others, strict=True)):
            for operand, a, b in zip(outputs, own, changed, strict=True):
                differs = (a != b) & ((a == a) | (b == b))  # not NaN in both
                if not differs.any():
                    continue
                index = tuple(int(i) for i in np.argwhere(differs)[0])
                one, two = (number(array[index].item()) for array in (a, b))
                on = {"device": str(device)} if len(results) > 1 else {}
                yield sighting_of(
                    self.launch,
                    fact.place,
                    operand=operand.name,
                    shape=f"{a.dtype}{list(a.shape)}",
                    values={**on, "one order": one, "other order": two},
                ).of(
                    Fault.NONDETERMINISTIC_RESULT,
                    element=element_text(operand.name, index),
                    one=one,
                    other_value=two,
                    first=fact.first,
                    second=fact.second,
                    differ=int(differs.sum()),
                    size=differs.size,
                    reads=fact.semaphore,
                )

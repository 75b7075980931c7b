"""Results that differ between two legal orders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pallas_debug.findings.facts import element_text, number
from pallas_debug.findings.faults import Fault
from pallas_debug.machine.memory import Array
from pallas_debug.machine.order.events import OrderTracker
from pallas_debug.machine.order.facts import UndecidedOrder
from pallas_debug.machine.sightings import sighting_of
from pallas_debug.model import Finding

DeviceResults = Sequence[Sequence[Array]]
"""Arrays that the kernel returns, for each device."""


def found(
    run: OrderTracker, other: OrderTracker, results: DeviceResults, others: DeviceResults
) -> list[Finding]:
    """Report the first element of the results that another order changes, if there is one."""
    outputs = [operand for operand in run.launch.operands if operand.kind == "output"]
    for device, (own, changed) in enumerate(zip(results, others, strict=True)):
        for operand, a, b in zip(outputs, own, changed, strict=True):
            differs = (a != b) & ((a == a) | (b == b))  # not NaN in both
            if differs.any():
                on = {"device": str(device)} if len(results) > 1 else {}
                return [_finding(run, other, operand.name, a, b, differs, on)]
    return []


def _finding(
    run: OrderTracker, other: OrderTracker, name: str, a: Array, b: Array, differs: Array,
    on: dict[str, str],
) -> Finding:  # fmt: skip
    fact = run.undecided[0]
    index = tuple(int(i) for i in np.argwhere(differs)[0])
    values = [number(array[index].item()) for array in (a, b)]
    if _came_first(fact, other):
        values.reverse()
    shape = f"{a.dtype}{list(a.shape)}"
    orders = {"one order": values[0], "other order": values[1]}
    return sighting_of(run.launch, fact.place, operand=name, shape=shape, values=on | orders).of(
        Fault.NONDETERMINISTIC_RESULT,
        element=element_text(name, index),
        one=values[0],
        other_value=values[1],
        first=fact.first,
        second=fact.second,
        differ=int(differs.sum()),
        size=differs.size,
        of_copies=fact.of_copies,
        reads=fact.semaphore,
    )


def _came_first(fact: UndecidedOrder, other: OrderTracker) -> bool:
    """Return whether the first of two events came first in the other run, but not in this one."""
    if fact.of_copies:
        return False  # the observed run performs copies in the order in which they start
    again = other.reads.get(fact.place.step.site.line)
    return again is not None and again.value > fact.value

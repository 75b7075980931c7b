"""Wrapped integers that reach an index, a size, a condition or a semaphore.

The kernel is run again with the saturated number in place of the wrapped one. The number reaches
one of these if other branches are taken, other elements accessed, or a semaphore is changed by
another amount: it is followed through registers, memory and loops alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.arithmetic import numeric_faults, numerics
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sanitizer.trace import ControlTrace
from pallas_debug.machine.threads import Thread

MAX_RUNS = 8
"""Maximum number of operations for which a kernel is run again."""

Equation = tuple[Any, int]
"""A unit, and the number of an equation in it."""


class _Saturated(ControlTrace):
    """A run in which an equation saturates.

    Args:
      units: identities of units that are evaluated equation by equation, whether changed or not, so
        that their rounding is the same.
    """

    evaluates = True

    def __init__(self, units: Collection[int], changed: Equation | None = None) -> None:
        super().__init__()
        self._units = units
        self._changed = changed

    def evaluate(self, thread: Thread, step: ir.Compute, values: Sequence[Any]) -> Sequence[Any]:
        if step.unit is None:
            return step.evaluate(*values)
        if id(step.unit) not in self._units:
            return numerics.watch(step).run(values)[0]
        unit, equation = self._changed or (None, None)
        return numeric_faults.saturated(step.unit, values, equation if unit is step.unit else None)


def reaching(
    rerun: Callable[[MachineObserver], Any], equations: Sequence[Equation]
) -> list[Equation]:
    """Return the equations whose wrapped results decide about more than values."""
    known = equations[:MAX_RUNS]
    units = {id(unit) for unit, _ in known}
    before, found = _Saturated(units), []
    if known:
        rerun(before)
    for equation in known:
        after = _Saturated(units, equation)
        rerun(after)
        if before.trace != after.trace:
            found.append(equation)
    return found

"""Comparisons with a NaN: whether results would differ if they came out the other way.

A NaN that is only compared does not reach any result. So the kernel is run again with these
comparisons negated wherever an operand is NaN, and the results are compared bit by bit. If the only
difference is that they then contain NaNs, the comparison is a guard: `jnp.where(x >= 0, x, 0)`.

An infinity that represents a number too large for its dtype is larger than all other numbers, so
comparisons with those come out right. Two infinities are equal, whatever the numbers were; in that
case the kernel is run again with a comparison that distinguishes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs import units
from pallas_debug.bridge.programs.arithmetic import numeric_faults, numerics
from pallas_debug.bridge.programs.arithmetic.numeric_faults import NumericFault
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sanitizer.numbers.nan_trail import Facts
from pallas_debug.machine.sanitizer.shadows.shadow import differing
from pallas_debug.machine.threads import Thread

MAX_DECISIONS = 6
"""Maximum number of comparisons for which a kernel is run again."""

Rerun = Callable[[MachineObserver], list[list[Any]]]
"""Runs the kernel again with an observer, and returns each device's results."""


@dataclass(eq=False)
class Decision:
    """A comparison with a NaN that the kernel produced.

    Attributes:
      occasion: first such evaluation of the unit.
      equation: number of the comparison in the unit.
      fault: operation that produced the NaN, if it is in the same unit.
      made: occasions that produced the NaNs in the unit's inputs.
      is_tie: whether it compares two infinities produced by the unit, instead of a NaN.
    """

    occasion: Any
    step: ir.Compute
    equation: int
    fault: NumericFault | None
    made: Facts
    is_tie: bool = False

    @property
    def sign(self) -> str:
        return units.comparison_sign(self.step.unit.eqns[self.equation])


class DecisionLedger:
    """Decisions so far: the first of each equation."""

    def __init__(self, rerun: Rerun) -> None:
        self._rerun = rerun
        self._found: dict[tuple[int, int], Decision] = {}
        self._tries: dict[tuple[int, int], int] = {}

    def note(
        self, occasion: Any, step: ir.Compute, values: Sequence[Any], equations: Collection[int],
        made: Facts,
    ) -> None:  # fmt: skip
        """Record comparisons of a unit with a NaN.

        Args:
          made: occasions that produced NaNs in `values`.
        """
        unit = step.unit
        for equation in equations:
            key = id(unit), equation
            if not self._is_due(key):
                continue
            fault = numeric_faults.origin(unit, values, equation)
            if fault is not None or made:
                self._found[key] = Decision(occasion, step, equation, fault, made)

    def note_ties(
        self, occasion: Any, step: ir.Compute, values: Sequence[Any], equations: Collection[int]
    ) -> None:
        """Record comparisons of a unit in which both operands are infinite."""
        unit = step.unit
        for equation in equations:
            key = id(unit), ~equation
            if self._is_due(key) and numerics.is_tied(unit, values, equation):
                fault = numeric_faults.origin(unit, values, equation, "infinity")
                if fault is not None:
                    found = Decision(occasion, step, equation, fault, frozenset(), is_tie=True)
                    self._found[key] = found

    def _is_due(self, key: tuple[int, int]) -> bool:
        """Return whether to look for a comparison's cause: eight times, then ever less often."""
        if key in self._found:
            return False
        tries = self._tries[key] = self._tries.get(key, 0) + 1
        return tries <= 8 or not tries & (tries - 1)

    def that_matter(self) -> Iterator[Decision]:
        """Yield the decisions that affect a result."""
        known = list(self._found.values())[:MAX_DECISIONS]
        if not known:
            return
        steps = {id(decision.step) for decision in known}
        before = self._rerun(_Turned(steps))
        for decision in known:
            after = self._rerun(_Turned(steps, decision))
            if _differ(before, after):
                yield decision


class _Turned(MachineObserver):
    """A run in which a comparison with a NaN is negated.

    Args:
      steps: identities of units that are evaluated equation by equation, whether negated or not, so
        that their rounding is the same.
    """

    evaluates = True

    def __init__(self, steps: Collection[int], decision: Decision | None = None) -> None:
        self._steps = steps
        self._decision = decision

    def evaluate(self, thread: Thread, step: ir.Compute, values: Sequence[Any]) -> Sequence[Any]:
        if step.unit is None:
            return step.evaluate(*values)
        if id(step) not in self._steps:
            return numerics.watch(step).run(values)[0]
        known = self._decision
        if known is not None and known.step is step and known.is_tie:
            return numerics.without_ties(step.unit, values, known.equation)
        turned = (known.equation,) if known is not None and known.step is step else ()
        return units.turned(step.unit, values, turned)


def _differ(before: Sequence[Sequence[Any]], after: Sequence[Sequence[Any]]) -> bool:
    """Return whether any element that is not NaN in the second run differs between the two runs."""
    for one, other in zip(
        (array for arrays in before for array in arrays),
        (array for arrays in after for array in arrays),
        strict=True,
    ):
        changed = differing(one, other)
        if changed.any() and (changed & ~np.asarray(other != other)).any():
            return True
    return False

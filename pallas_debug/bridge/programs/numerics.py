"""Straight-line equations with cheap tests for wrong arithmetic.

A unit of equations is compiled together with a vector of flags. A flag is a suspicion, and
`numeric_faults.explain` decides.

- NaN and infinity are looked for in the unit's outputs alone. What a `where` discards reaches none
  of them. Minus infinity is a mask, and no suspicion.
- Each division of integers is tested for a zero divisor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.jaxprs import likeness, nested
from pallas_debug.bridge.primitives import MAKES_INFINITY, MAKES_NAN
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs import scalars, units

_ARITHMETIC = MAKES_NAN | MAKES_INFINITY

Flag = tuple[str, int]
"""A suspicion about an "output" or an "equation", by number."""


@dataclass(eq=False)
class WatchedUnit:
    """A unit that returns its outputs and a vector of flags.

    Attributes:
      flags: meaning of each flag, once it is traced.
    """

    unit: units.Unit
    flags: tuple[Flag, ...] = ()

    def run(self, values: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Flag]]:
        """Return the outputs and the suspicions."""
        outputs, flags = self.compiled(*values)
        if not self.flags or not np.asarray(flags).any():
            return outputs, ()
        return outputs, [flag for flag, is_set in zip(self.flags, flags, strict=True) if is_set]

    @cached_property
    def compiled(self) -> Callable[..., tuple[Sequence[Any], Any]]:
        """The unit as one program of jax."""
        program: Callable[..., tuple[Sequence[Any], Any]] = jax.jit(self.traced)
        return program

    def traced(self, *values: Any) -> tuple[list[Any], Any]:
        """Evaluate the unit on traced values; return the outputs, and a bool for each flag."""
        known = nested.JaxprValues(self.unit.invars, values)
        tests: list[tuple[Flag, Any]] = []
        makers: set[Any] = set()
        for i, eqn in enumerate(self.unit.eqns):
            inputs = known.read(eqn.invars)
            known.bind(eqn.outvars, units.bound(eqn, inputs))
            if divides_integers(eqn):
                tests.append((("equation", i), jnp.any(inputs[1] == 0)))
            if eqn.primitive.name in _ARITHMETIC or not makers.isdisjoint(
                nested.variables(eqn.invars)
            ):
                makers.update(eqn.outvars)
        results = known.read(self.unit.outvars)
        for k, (atom, result) in enumerate(zip(self.unit.outvars, results, strict=True)):
            is_made = not isinstance(atom, jax_core.Literal) and atom in makers
            if is_made and jnp.size(result) and jnp.issubdtype(result.dtype, jnp.floating):
                # Not by the maximum, which may drop NaNs on a CPU: openxla/xla#21461.
                tests.append((("output", k), jnp.any(~(result < jnp.inf))))
        self.flags = tuple(flag for flag, _ in tests)
        return results, jnp.array([test for _, test in tests], bool)


@dataclass(eq=False, frozen=True)
class WatchedScalars:
    """A unit on scalars, with the same interface."""

    unit: scalars.ScalarUnit

    def run(self, values: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Flag]]:
        """Return the outputs and the suspicions."""
        outputs, wrong = self.unit.watched(values)
        return outputs, [("equation", i) for i in wrong]


_shared: likeness.SharedPrograms[WatchedUnit] = likeness.SharedPrograms()


def watch(step: ir.Compute) -> WatchedUnit | WatchedScalars:
    """Return the unit of a step with tests of its arithmetic, cached.

    Units that compute the same share one, because it is compiled.
    """
    unit = step.unit
    if unit.watched is None:
        if isinstance(step.evaluate, scalars.ScalarUnit):
            unit.watched = WatchedScalars(step.evaluate)
        else:
            given = unit.eqns, unit.invars, unit.outvars
            unit.watched = _shared.get(*given, lambda: WatchedUnit(unit))
    found: WatchedUnit | WatchedScalars = unit.watched
    return found


def divides_integers(eqn: Any) -> bool:
    """Return whether an equation divides integers, by what may be zero."""
    if eqn.primitive.name not in ("div", "rem"):
        return False
    divisor = eqn.invars[1]
    if isinstance(divisor, jax_core.Literal) and np.all(divisor.val != 0):
        return False
    return bool(divisor.aval.size) and jnp.issubdtype(divisor.aval.dtype, jnp.integer)

"""Uses of rounded integers in which each bit counts: casts back, comparisons, and angles.

They are computed in float64, once from the integers and once from the rounded ones, and matter if
an output depends on the difference; see `whole_casts`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core as jax_core

from pallas_debug.bridge.instrument.primitives import COMPARISONS
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.bridge.programs import units
from pallas_debug.bridge.programs.arithmetic import exact, wrapping
from pallas_debug.bridge.programs.arithmetic.numeric_faults import NumericFault
from pallas_debug.bridge.programs.arithmetic.whole_casts import (
    ANGLES,
    CAST,
    EXTREMES,
    KEEPS,
    casts_integer,
    is_float,
)
from pallas_debug.bridge.programs.units import Unit
from pallas_debug.findings.wording.facts import array_text
from pallas_debug.model import SourceLine

MAX_ANGLE = 0.1
"""Largest error of a sine or cosine that is no fault."""


@dataclass(frozen=True, kw_only=True)
class RoundedInteger(NumericFault):
    """Facts about a cast that rounds an integer of which each bit counts.

    Attributes:
      operation: primitive that uses the float as an integer.
      used: line of that use.
    """

    used: SourceLine | None = None


@dataclass(frozen=True, kw_only=True)
class _Twin:
    """A float in float64, computed from integers and from the rounded ones.

    Attributes:
      cast: number of the first equation that rounded.
      is_position: whether an iota is among the integers.
      is_extreme: whether it is the largest or smallest of some.
      is_whole: whether it, and all that it is computed from, are whole numbers.
    """

    exact: Any
    rounded: Any
    cast: int | None
    is_position: bool
    is_extreme: bool = False
    is_whole: bool = True


def explain(
    unit: Unit, values: Sequence[Any], *, but: Collection[int] = ()
) -> RoundedInteger | None:
    """Return the first use of a rounded integer on which an output depends, or None.

    Args:
      values: inputs of the unit.
      but: equations whose faults are already known.
    """
    return _Wider(unit, values).first(but)


class _Wider:
    """A unit on concrete inputs, next to its floats in float64."""

    def __init__(self, unit: Unit, values: Sequence[Any]) -> None:
        self._eqns, self._outvars = unit.eqns, unit.outvars
        self._mixed = wrapping.bit_patterns(unit.eqns, unit.bits)
        self._known = nested.JaxprValues(unit.invars, values)
        self._twins: dict[Any, _Twin] = {}
        self._positions: set[Any] = set()

    def first(self, but: Collection[int]) -> RoundedInteger | None:
        uses: list[tuple[int, _Twin, Any]] = []
        for i, eqn in enumerate(self._eqns):
            inputs = self._known.arrays(eqn.invars)
            self._known.bind(eqn.outvars, units.bound(eqn, inputs))
            self._follow(i, eqn, inputs)
            use = self._use(eqn, inputs)
            if use is not None and use[0].cast not in but:
                uses.append((i, *use))
        for i, twin, instead in uses:
            if self._matters(i, instead):
                return self._fault(i, twin, instead)
        return None

    # Values in float64

    def _follow(self, i: int, eqn: Any, inputs: Sequence[Any]) -> None:
        name, variables = eqn.primitive.name, nested.variables(eqn.invars)
        if name == "iota" or not self._positions.isdisjoint(variables):
            self._positions.update(eqn.outvars)
        if casts_integer(eqn) and i not in self._mixed:
            given = np.asarray(inputs[0]).astype("float64")
            is_position = not self._positions.isdisjoint(variables)
            twin = _Twin(exact=given, rounded=given, cast=None, is_position=is_position)
            self._cast(i, eqn, twin)
        elif name == CAST and is_float(eqn.outvars[0]) and variables[:1]:
            if variables[0] in self._twins:
                self._cast(i, eqn, self._twins[variables[0]])
        elif name in KEEPS and (twins := [t for v in variables if (t := self._twins.get(v))]):
            wide = self._wide(eqn, inputs, "exact")
            floats = [x for a, x in zip(eqn.invars, inputs, strict=True) if is_float(a)]
            self._twins[eqn.outvars[0]] = _Twin(
                exact=wide,
                rounded=self._wide(eqn, inputs, "rounded"),
                cast=next((t.cast for t in twins if t.cast is not None), None),
                is_position=any(t.is_position for t in twins),
                is_extreme=name in EXTREMES or any(t.is_extreme for t in twins),
                is_whole=all(t.is_whole for t in twins) and all(map(_is_whole, [wide, *floats])),
            )

    def _cast(self, i: int, eqn: Any, twin: _Twin) -> None:
        rounded = np.asarray(twin.rounded).astype(eqn.outvars[0].aval.dtype).astype("float64")
        cast = twin.cast
        if cast is None and bool((rounded != twin.rounded).any()):
            cast = i
        self._twins[eqn.outvars[0]] = _Twin(
            exact=twin.exact, rounded=rounded, cast=cast, is_position=twin.is_position,
            is_extreme=twin.is_extreme, is_whole=twin.is_whole,
        )  # fmt: skip

    def _wide(self, eqn: Any, inputs: Sequence[Any], which: str) -> Any:
        given = []
        for atom, value in zip(eqn.invars, inputs, strict=True):
            twin = None if isinstance(atom, jax_core.Literal) else self._twins.get(atom)
            if twin is not None:
                given.append(getattr(twin, which))
            elif is_float(atom):
                given.append(np.asarray(value).astype("float64"))
            else:
                given.append(np.asarray(value))
        if eqn.primitive.name in exact.SUMS:
            return exact.floats(eqn, given)
        with jax.enable_x64(True):
            return np.asarray(units.bound(eqn, given)[0])

    # Uses

    def _use(self, eqn: Any, inputs: Sequence[Any]) -> tuple[_Twin, Any] | None:
        """The rounded operand of an equation, and its result without rounding; None if equal."""
        twins = [t for a in nested.variables(eqn.invars) if (t := self._twins.get(a)) is not None]
        lossy = next((twin for twin in twins if twin.cast is not None), None)
        if lossy is None:
            return None
        name, result = eqn.primitive.name, np.asarray(self._known[eqn.outvars[0]])
        if name in ANGLES:
            results = [getattr(np, name)(angle) for angle in (lossy.exact, lossy.rounded)]
            wrong = np.abs(results[0] - results[1]) > MAX_ANGLE
        elif name == CAST and jnp.issubdtype(result.dtype, jnp.integer) and lossy.is_whole:
            limits = jnp.iinfo(result.dtype)
            results = [
                np.clip(x, int(limits.min), int(limits.max)) for x in (lossy.exact, lossy.rounded)
            ]
            wrong = results[0] != results[1]
        elif name in COMPARISONS and _compares_integers(name, twins, len(eqn.invars)):
            results = [self._wide(eqn, inputs, which) for which in ("exact", "rounded")]
            wrong = results[0] != results[1]
        else:
            return None
        if not wrong.any():
            return None
        return lossy, np.where(wrong, results[0], result).astype(result.dtype)

    def _matters(self, equation: int, instead: Any) -> bool:
        """Return whether an output differs with another result of an equation."""
        known = nested.JaxprValues(self._known, self._known.values())
        known[self._eqns[equation].outvars[0]] = instead
        for eqn in self._eqns[equation + 1 :]:
            known.bind(eqn.outvars, units.bound(eqn, known.arrays(eqn.invars)))
        return any(
            np.asarray(known[v]).tobytes() != np.asarray(self._known[v]).tobytes()
            for v in nested.variables(self._outvars)
            if not jnp.issubdtype(v.aval.dtype, jax.dtypes.extended)
        )

    def _fault(self, equation: int, twin: _Twin, instead: Any) -> RoundedInteger:
        assert twin.cast is not None
        cast, use = self._eqns[twin.cast], self._eqns[equation]
        before, after = (np.asarray(self._known[v]) for v in (cast.invars[0], cast.outvars[0]))
        lost = before.astype("float64") != after.astype("float64")
        result = np.asarray(self._known[use.outvars[0]])
        if result.shape == lost.shape and (lost & (result != instead)).any():
            lost = lost & (result != instead)
        element = tuple(int(n) for n in np.argwhere(lost)[0])
        return RoundedInteger(
            trouble="narrowing",
            equation=twin.cast,
            operation=use.primitive.name,
            element=element,
            values=(before[element].item(),),
            operands=(array_text(before.dtype.name, before.shape),),
            result_type=array_text(after.dtype.name, after.shape),
            result=float(after[element]),
            count=int(lost.sum()),
            exact=before[element].item(),
            line=lines.source_of(cast),
            used=lines.source_of(use),
        )


def _compares_integers(name: str, twins: Sequence[_Twin], operands: int) -> bool:
    """Return whether a comparison is one of positions, or of two numbers for equality.

    An order of other rounded numbers, such as scores, is only less precise.
    """
    if len(twins) != operands or not all(twin.is_whole for twin in twins):
        return False
    if name in ("eq", "ne"):
        return not any(twin.is_extreme for twin in twins)
    return any(twin.is_position for twin in twins)


def _is_whole(value: Any) -> bool:
    wide = np.asarray(value).astype("float64")
    return bool((wide == np.floor(wide)).all())

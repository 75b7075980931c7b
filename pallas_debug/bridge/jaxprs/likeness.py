"""Equality of equations by what they compute, to share compiled programs.

A kernel that unrolls a loop has the same arithmetic many times, with other variables and lines.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.jaxprs import nested

MAX_BYTES = 1 << 12
"""Maximum size of a constant that is compared."""

MAX_SHARED = 1024
"""Maximum number of shared programs in the cache."""

Made = TypeVar("Made")


class SharedPrograms(Generic[Made]):
    """Thread-safe cache of programs, keyed by what their equations compute."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: OrderedDict[Hashable, Made] = OrderedDict()

    def get(
        self,
        eqns: Sequence[Any],
        invars: Sequence[Any],
        outvars: Sequence[Any],
        make: Callable[[], Made],
    ) -> Made:
        """Return the cached program for such equations, or create it."""
        key = key_of(eqns, invars, outvars)
        if key is None:
            return make()
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
                if len(self._made) > MAX_SHARED:
                    self._made.popitem(last=False)
            return self._made[key]


class _Incomparable(Exception):
    """A constant is too large, a parameter has no hash, or a variable comes from outside."""


def key_of(eqns: Sequence[Any], invars: Sequence[Any], outvars: Sequence[Any]) -> Hashable | None:
    """Key shared only by equations that compute the same; None if they cannot be compared.

    Args:
      eqns: in order.
      invars, outvars: variables of the inputs and outputs.
    """
    try:
        return _key(eqns, invars, (), outvars)
    except _Incomparable:
        return None


def _key(
    eqns: Sequence[Any], invars: Sequence[Any], constvars: Sequence[Any], outvars: Sequence[Any]
) -> Hashable:
    numbers: dict[Any, int] = {}

    def number(variable: Any) -> Hashable:
        numbers[variable] = len(numbers)
        aval: Hashable = variable.aval
        return aval

    def atom(value: Any) -> Hashable:
        if isinstance(value, jax_core.Literal):
            return value.aval, _constant(value.val)
        if value not in numbers:
            raise _Incomparable  # not of these equations
        return numbers[value]

    first = tuple(map(number, (*constvars, *invars)))
    steps = tuple(
        (
            eqn.primitive,
            tuple(map(atom, eqn.invars)),
            _parameter(eqn.params),
            eqn.ctx,  # interned: equal if identical
            tuple(map(number, eqn.outvars)),
        )
        for eqn in eqns
    )
    return first, steps, tuple(map(atom, outvars))


def _parameter(value: Any) -> Hashable:
    """Key of an equation's parameter, with its type: True equals 1."""
    if nested.is_jaxpr(value):
        jaxpr, consts = jaxcompat.opened(value)
        key = _key(jaxpr.eqns, jaxpr.invars, jaxpr.constvars, jaxpr.outvars)
        return key, tuple(map(_constant, consts))
    if isinstance(value, Mapping):
        return tuple((name, _parameter(value[name])) for name in sorted(value, key=str))
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_parameter, value))
    if isinstance(value, np.ndarray | np.generic | float | complex):
        return _constant(value)
    try:
        hash(value)
    except TypeError as error:
        raise _Incomparable from error
    return type(value), value


def _constant(value: Any) -> Hashable:
    """Key of a constant by its bits, as 0.0 equals -0.0."""
    if not isinstance(value, bool | int | float | complex | np.ndarray | np.generic):
        if math.prod(getattr(value, "shape", (MAX_BYTES,))) >= MAX_BYTES:
            raise _Incomparable
        if not isinstance(getattr(value, "dtype", None), np.dtype):
            raise _Incomparable  # such as a random key
    array = np.asarray(value)
    if array.nbytes > MAX_BYTES or array.dtype.hasobject:
        raise _Incomparable
    return type(value), array.dtype, array.shape, array.tobytes()

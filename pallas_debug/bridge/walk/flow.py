"""Dataflow from reads to vectors, and the mapping of their dimensions.

Only operations that certainly preserve the values of a read are followed. The flow ends at
`select_n`, which may be a mask, and at any operation that is not listed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pallas_debug.bridge.walk.events import Origin

Origins = frozenset[Origin]
NONE: Origins = frozenset()

ELEMENTWISE = {
    *("add", "sub", "mul", "div", "neg", "exp", "exp2", "log", "log1p", "tanh", "logistic", "abs"),
    *("sqrt", "rsqrt", "integer_pow", "square", "convert_element_type", "add_any", "copy", "sin"),
    *("cos", "reciprocal", "erf", "max", "min"),
}
"""Primitives that propagate NaN elementwise."""

REDUCTIONS = {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin"}


def outputs(eqn: Any, inputs: Sequence[Origins]) -> Origins:
    name = eqn.primitive.name
    if name in ELEMENTWISE:
        return _elementwise(eqn, inputs)
    if name == "broadcast_in_dim":
        return _mapped(inputs[0], _broadcast_axes(eqn))
    if name == "transpose":
        return _mapped(inputs[0], list(eqn.params["permutation"]))
    if name in REDUCTIONS:
        gone = eqn.params["axes"]
        rank = len(eqn.invars[0].aval.shape)
        return _mapped(inputs[0], [i for i in range(rank) if i not in gone])
    if name in ("squeeze", "expand_dims", "reshape"):
        return _mapped(inputs[0], _reshape_axes(eqn))
    if name == "dot_general":
        return _dot(eqn, inputs)
    return NONE


def reduced(eqn: Any, inputs: Sequence[Origins]) -> list[tuple[Origins, tuple[int, ...]]]:
    """Operands of a reduction: their origins and the reduced dimensions."""
    name = eqn.primitive.name
    if name in REDUCTIONS:
        return [(inputs[0], tuple(eqn.params["axes"]))]
    if name == "dot_general":
        (left, right), _ = eqn.params["dimension_numbers"]
        return [(inputs[0], tuple(left)), (inputs[1], tuple(right))]
    return []


def _elementwise(eqn: Any, inputs: Sequence[Origins]) -> Origins:
    shape = eqn.outvars[0].aval.shape
    adds = eqn.primitive.name in ("add", "add_any")
    found: set[Origin] = set()
    for atom, origins in zip(eqn.invars, inputs, strict=True):
        same = tuple(getattr(atom.aval, "shape", ())) == tuple(shape)
        for origin in origins:
            axes = origin.axes if same else (None,) * len(shape)
            if adds:
                dtype = str(eqn.outvars[0].aval.dtype)
                found.add(replace(origin, axes=axes, added=True, dtype=dtype))
            else:
                found.add(replace(origin, axes=axes))
    return frozenset(found)


def _mapped(origins: Origins, sources: Sequence[int | None]) -> Origins:
    """Map origins to new dimensions, given the old dimension of each, or None."""
    return frozenset(
        replace(o, axes=tuple(None if i is None else o.axes[i] for i in sources)) for o in origins
    )


def _broadcast_axes(eqn: Any) -> list[int | None]:
    rank = len(eqn.params["shape"])
    given = eqn.params["broadcast_dimensions"]
    old = eqn.invars[0].aval.shape
    sources: list[int | None] = [None] * rank
    for i, target in enumerate(given):
        if old[i] == eqn.params["shape"][target]:
            sources[target] = i
    return sources


def _reshape_axes(eqn: Any) -> list[int | None]:
    """Old dimensions other than 1, if a reshape preserves them in order; otherwise None."""
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    kept = [i for i, n in enumerate(old) if n != 1]
    if [old[i] for i in kept] != [n for n in new if n != 1]:
        return [None] * len(new)
    following = iter(kept)
    return [next(following) if n != 1 else None for n in new]


def _dot(eqn: Any, inputs: Sequence[Origins]) -> Origins:
    (contracted, batch) = eqn.params["dimension_numbers"]
    rank = len(eqn.outvars[0].aval.shape)
    found: set[Origin] = set()
    position = len(batch[0])
    for side in (0, 1):
        free = [
            i
            for i in range(len(eqn.invars[side].aval.shape))
            if i not in contracted[side] and i not in batch[side]
        ]
        sources: list[int | None] = [None] * rank
        for i, axis in enumerate(batch[side]):
            sources[i] = axis
        for axis in free:
            sources[position] = axis
            position += 1
        found |= _mapped(inputs[side], sources)
    return frozenset(found)

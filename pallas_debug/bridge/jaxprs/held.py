"""Buffers that a block of a kernel for a GPU holds at the same time, from its jaxpr."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.jaxprs.params import jaxprs_of, static_shape

_ACCUMULATOR = "WGMMAAbstractAccumulatorRef"
_SCOPE = "run_scoped"


class HeldBuffer(NamedTuple):
    """A buffer in shared memory (`smem`), or an accumulator in registers (`regs`)."""

    space: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


def held(params: Mapping[str, Any]) -> tuple[HeldBuffer, ...]:
    """Return the buffers that a kernel surely holds together: those of its largest nest of scopes.

    What is aligned or added by the compiler is not known, so a block needs at least as much.
    """
    nests = [_of_nest(jaxpr, is_outermost=True) for jaxpr in jaxprs_of(params)]
    return max(nests, key=_size, default=())


def _of_nest(jaxpr: Any, *, is_outermost: bool = False) -> tuple[HeldBuffer, ...]:
    own = tuple(_buffers(jaxpr.invars)) if is_outermost else ()
    deepest: tuple[HeldBuffer, ...] = ()
    for eqn in jaxpr.eqns:
        scoped = tuple(_buffers(v for i in nested.within(eqn.params) for v in i.jaxpr.invars))
        inner = [_of_nest(i.jaxpr) for i in nested.within(eqn.params)]
        below = max(inner, key=_size, default=())
        found = (*scoped, *below) if eqn.primitive.name == _SCOPE else below
        deepest = max(deepest, found, key=_size)
    return own + deepest


def _buffers(variables: Iterable[Any]) -> Iterable[HeldBuffer]:
    for variable in variables:
        aval = variable.aval
        space = str(getattr(aval, "memory_space", ""))
        size = getattr(getattr(aval, "dtype", None), "itemsize", 0)
        is_accumulator = type(aval).__name__ == _ACCUMULATOR
        if size and (is_accumulator or space == "smem"):
            shape = static_shape(aval)
            taken = math.prod(shape) * size
            name = "regs" if is_accumulator else space
            yield HeldBuffer(space=name, shape=shape, dtype=str(aval.dtype), bytes=taken)


def _size(buffers: tuple[HeldBuffer, ...]) -> int:
    return sum(buffer.bytes for buffer in buffers)

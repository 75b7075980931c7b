"""The walk through branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import lax

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import conditionals, jax_core, loops
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.walk import numbers
from pallas_debug.bridge.walk.events import KernelRef
from pallas_debug.bridge.walk.values import UNKNOWN, Exhausted, Value, WalkState

if TYPE_CHECKING:
    from pallas_debug.bridge.walk.walker import Walker

MAX_ITERATIONS = 1 << 16
"""Maximum iterations of a loop that is walked as a whole."""

MAX_UNROLLED = 6_000
"""Maximum number of equations of an unrolled loop, over all iterations."""


def _cond(walker: Walker, eqn: Any, inputs: list[Value], place: WalkState) -> Sequence[Value]:
    index, *operands = inputs
    branches = [jaxcompat.opened(branch) for branch in eqn.params["branches"]]
    if not isinstance(index, np.ndarray):
        for inner, consts in branches:
            maybe = replace(place, certain=False)
            walker.inner(inner, [walker.constant(c) for c in consts], operands, maybe)
        return [UNKNOWN] * len(eqn.outvars)
    index = np.clip(index.astype(np.int64), 0, len(branches) - 1)
    results: list[tuple[np.ndarray, list[Value]]] = []
    for number, (inner, consts) in enumerate(branches):
        chosen = index == number
        where = _both(place.where, chosen)
        if where is not None and not where.any():
            continue
        there = replace(place, certain=False) if where is None else replace(place, where=where)
        outputs = walker.inner(inner, [walker.constant(c) for c in consts], operands, there)
        results.append((chosen, outputs))
    return [_joined(results, i) for i in range(len(eqn.outvars))]


def _both(where: np.ndarray, chosen: np.ndarray) -> np.ndarray | None:
    if numbers.too_large(where, chosen):
        return None
    both: np.ndarray = where & chosen
    return both


def _scan(walker: Walker, eqn: Any, inputs: list[Value], place: WalkState) -> Sequence[Value]:
    consts, carry, xs = nested.scan_operands(eqn.params, inputs)
    n_carry = len(carry)
    inner, closed = jaxcompat.opened(eqn.params["jaxpr"])
    constants = [walker.constant(c) for c in closed]
    length = eqn.params["length"]

    def body(values: Sequence[Value], there: WalkState) -> list[Value]:
        args = [*consts, *values, *[UNKNOWN] * len(xs)]
        return walker.inner(inner, constants, args, there)[:n_carry]

    if walker.unrolls and length * _equations(inner) <= MAX_UNROLLED:
        for _ in range(length):
            carry = body(carry, place)
    elif length:
        steps = _leading(np.arange(min(length, MAX_ITERATIONS), dtype=np.int64), place)
        carry = _as_a_whole(inner, len(consts), carry, steps, length, body, place)
    return [*carry, *[UNKNOWN] * (len(eqn.outvars) - n_carry)]


def _while(walker: Walker, eqn: Any, inputs: list[Value], place: WalkState) -> Sequence[Value]:
    params = eqn.params
    cond_consts, body_consts, carry = nested.while_operands(params, inputs)
    test, test_closed = jaxcompat.opened(params["cond_jaxpr"])
    inner, closed = jaxcompat.opened(params["body_jaxpr"])
    test_constants = [walker.constant(c) for c in test_closed]
    constants = [walker.constant(c) for c in closed]

    def goes_on(values: Sequence[Value], there: WalkState) -> Value:
        return walker.inner(test, test_constants, [*cond_consts, *values], there)[0]

    def body(values: Sequence[Value], there: WalkState) -> list[Value]:
        return walker.inner(inner, constants, [*body_consts, *values], there)

    if not walker.unrolls:
        whole = _counted_while(inner, len(body_consts), carry, goes_on, body, place)
        return _unknown(carry, body, place) if whole is None else whole
    where = place.where
    while True:
        there = replace(place, where=where)
        more = goes_on(carry, there)
        if not isinstance(more, np.ndarray) or numbers.too_large(where, more):
            return _unknown(carry, body, there)
        where = where & more
        if not where.any():
            return carry
        before = carry
        carry = body(carry, replace(there, where=where))
        carry = [
            _joined([(where, [new]), (~where, [old])], 0)
            for new, old in zip(carry, before, strict=True)
        ]


def _unknown(carry: list[Value], body: Any, place: WalkState) -> list[Value]:
    """Walk a loop with an unknown number of iterations."""
    values: list[Value] = [v if isinstance(v, KernelRef) else UNKNOWN for v in carry]
    body(values, replace(place, certain=False))
    return values


def _counted_while(
    inner: Any, n_consts: int, carry: list[Value], goes_on: Any, body: Any,
    place: WalkState,
) -> list[Value] | None:  # fmt: skip
    """Walk a loop whose condition depends only on counters as a whole; None for other loops."""
    number = 64
    while number <= MAX_ITERATIONS:
        steps = _leading(np.arange(number, dtype=np.int64), place)
        # Its reads are uncertain: this may include iterations that do not exist.
        maybe = replace(place, certain=False)
        more = goes_on(_counters(inner, n_consts, carry, steps), maybe)
        if not isinstance(more, np.ndarray) or more.ndim < steps.ndim:
            return None
        if numbers.too_large(place.where, more):
            return None
        if not (more[-1] & place.where).any():
            # The loop ends once the condition is false.
            where = np.logical_and.accumulate(more, axis=0) & place.where
            there = replace(place, where=where)
            if where.any():
                body(_counters(inner, n_consts, carry, steps), there)
            return [v if isinstance(v, KernelRef) else UNKNOWN for v in carry]
        number *= 8
    return None


def _leading(steps: np.ndarray, place: WalkState) -> np.ndarray:
    """Add a leading dimension to those of the grid and the surrounding loops."""
    return steps.reshape(-1, *(1,) * place.where.ndim)


def _as_a_whole(
    inner: Any, n_consts: int, carry: list[Value], steps: np.ndarray, length: int,
    body: Any, place: WalkState,
) -> list[Value]:  # fmt: skip
    where = np.broadcast_to(place.where, (len(steps), *place.where.shape))
    if numbers.too_large(where):
        raise Exhausted("its loops have too many iterations")
    there = replace(place, where=where)
    body(_counters(inner, n_consts, carry, steps), there)
    last = np.full((1,) * place.where.ndim, length, np.int64)
    return _counters(inner, n_consts, carry, last)


def _counters(inner: Any, n_consts: int, carry: Sequence[Value], steps: np.ndarray) -> list[Value]:
    """Carried values in all iterations: constants and counters."""
    made = {out: eqn for eqn in inner.eqns for out in eqn.outvars}
    values: list[Value] = []
    for variable, out, start in zip(inner.invars[n_consts:], inner.outvars, carry, strict=False):
        step = _step(variable, out, made)
        if isinstance(start, KernelRef) or out is variable:
            values.append(start)
        elif isinstance(start, np.ndarray) and step is not None:
            dtype = start.dtype
            values.append((start + steps * step).astype(dtype))
        else:
            values.append(UNKNOWN)
    return values


def _step(variable: Any, out: Any, made: Mapping[Any, Any]) -> int | None:
    eqn = None if isinstance(out, jax_core.Literal) else made.get(out)
    if eqn is None or eqn.primitive is not lax.add_p or variable not in eqn.invars:
        return None
    steps = [a.val for a in eqn.invars if isinstance(a, jax_core.Literal)]
    return int(steps[0]) if steps and np.asarray(steps[0]).dtype.kind in "iu" else None


def _joined(results: Sequence[tuple[np.ndarray, list[Value]]], i: int) -> Value:
    """Merge the results of several branches, each at its grid points."""
    if not results:
        return UNKNOWN
    value = results[-1][1][i]
    for chosen, outputs in reversed(results[:-1]):
        other = outputs[i]
        if isinstance(value, KernelRef):
            return value
        if not isinstance(value, np.ndarray) or not isinstance(other, np.ndarray):
            return UNKNOWN
        if numbers.too_large(chosen, other, value):
            return UNKNOWN
        value = np.where(chosen, other, value)
    return value


def _equations(jaxpr: Any) -> int:
    return len(jaxpr.eqns) + sum(map(_equations, _inner(jaxpr)))


def _inner(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        for inner in nested.within(eqn.params):
            yield jaxcompat.opened(inner)[0]


RULES: dict[Any, Callable[[Walker, Any, list[Value], WalkState], Sequence[Value]]] = {
    conditionals.cond_p: _cond,
    loops.scan_p: _scan,
    loops.while_p: _while,
}

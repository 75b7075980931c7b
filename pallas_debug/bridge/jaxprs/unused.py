"""Lines of a kernel that compute a value for nothing: liveness, backwards through its equations.

Equations with an effect (stores, copies, semaphores, prints, checks) are live. So are all results
of a loop, and all that a line computes if anything that it computes is live: an operation of
`jax.numpy` may consist of several equations, not all of which are needed.

jax removes dead equations as it traces a `pallas_call`; `recording` keeps them.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from pallas_debug.bridge.jaxcompat import jax_core, source_info_util, state_primitives, state_types
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.model import SourceLine

source_info_util.register_exclusion(__file__)

_traced: weakref.WeakKeyDictionary[Any, Sequence[Any]] = weakref.WeakKeyDictionary()
"""Equations of kernels as they were traced, by jaxpr."""


def recording(function: Callable[..., Any], traced: list[Any]) -> Callable[..., Any]:
    """Wrap a kernel's function so that `traced` receives its equations."""

    @functools.wraps(function)
    def call_and_record(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        frame = getattr(jax_core.trace_ctx.trace, "frame", None)
        if frame is not None:
            traced.extend(frame.get_eqns())
        return result

    return call_and_record


def record(jaxpr: Any, traced: Sequence[Any]) -> None:
    """Keep the equations from which jax made a kernel's jaxpr."""
    if len(traced) > len(jaxpr.eqns):
        _traced[jaxpr] = traced


def unused_lines(jaxpr: Any) -> list[SourceLine]:
    """Lines that compute an array, and of which nothing uses any result.

    Those whose results only such lines use are left out.
    """
    live: set[SourceLine | None] = set()
    unused: dict[SourceLine, None] = {}

    def walk(eqns: Sequence[Any], outvars: Sequence[Any], calls: tuple[Any, ...]) -> None:
        needed = set(nested.variables(outvars))
        taken = set(needed)
        for eqn in reversed(eqns):
            if needed.isdisjoint(eqn.outvars) and not _has_effect(eqn):
                is_array = any(getattr(out.aval, "shape", ()) for out in eqn.outvars)
                is_load = eqn.primitive is state_primitives.get_p
                source = lines.source_of(eqn, calls)
                if source and is_array and not is_load and taken.isdisjoint(eqn.outvars):
                    unused[source] = None
                taken.update(nested.variables(eqn.invars))
                continue
            live.add(lines.source_of(eqn, calls))
            needed.update(nested.variables(eqn.invars))
            for inner, _ in nested.within(eqn.params):
                walk(inner.eqns, inner.outvars, (*calls, eqn))

    walk(_traced.get(jaxpr, jaxpr.eqns), jaxpr.outvars, ())
    return [line for line in unused if line not in live]


def _has_effect(eqn: Any) -> bool:
    return any(not isinstance(effect, state_types.ReadEffect) for effect in eqn.effects)

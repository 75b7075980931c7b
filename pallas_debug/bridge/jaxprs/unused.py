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

from pallas_debug.bridge import jaxcompat
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
    walk = _Liveness()
    inner, _ = jaxcompat.opened(jaxpr)
    outputs = set(nested.variables(inner.outvars))
    walk.run(_traced.get(inner, inner.eqns), set(outputs), outputs, ())
    if not walk.unused:
        return []
    live = {lines.source_of(*used) for used in walk.live}
    return [line for line in walk.unused if line not in live]


class _Liveness:
    """Backward walk.

    Attributes:
      live: equations with a result that reaches an output or an effect, and their calls.
      unused: lines with an array that no equation uses.
    """

    def __init__(self) -> None:
        self.live: list[tuple[Any, tuple[Any, ...]]] = []
        self.unused: dict[SourceLine, None] = {}

    def run(
        self, eqns: Sequence[Any], live: set[Any], used: set[Any], calls: tuple[Any, ...]
    ) -> set[Any]:
        """Walk equations; return the variables that an output or effect needs.

        Args:
          live: results that are needed.
          used: results that the equations after its call take, needed or not.
        """
        used = used.union(*(nested.variables(eqn.invars) for eqn in eqns))
        for eqn in reversed(eqns):
            inline = nested.inlined(eqn)
            if inline is not None:
                self._call(eqn, inline[0], live, used, calls)
                continue
            if live.isdisjoint(eqn.outvars) and not _has_effect(eqn):
                is_array = any(getattr(out.aval, "shape", ()) for out in eqn.outvars)
                is_load = eqn.primitive is state_primitives.get_p
                source = lines.source_of(eqn, calls)
                if source and is_array and not is_load and used.isdisjoint(eqn.outvars):
                    self.unused[source] = None
                continue
            self.live.append((eqn, calls))
            live.update(nested.variables(eqn.invars))
            for closed in nested.within(eqn.params):
                inner, _ = jaxcompat.opened(closed)
                results = set(nested.variables(inner.outvars))
                self.run(inner.eqns, results, set(results), (*calls, eqn))
        return live

    def _call(
        self, eqn: Any, inner: Any, live: set[Any], used: set[Any], calls: tuple[Any, ...]
    ) -> None:
        results = list(zip(eqn.outvars, inner.outvars, strict=True))
        needed, taken = (
            set(nested.variables(own for out, own in results if out in of)) for of in (live, used)
        )
        needed = self.run(inner.eqns, needed, taken, (*calls, eqn))
        given = zip(eqn.invars, inner.invars, strict=True)
        live.update(nested.variables(atom for atom, own in given if own in needed))


def _has_effect(eqn: Any) -> bool:
    return any(not isinstance(effect, state_types.ReadEffect) for effect in eqn.effects)

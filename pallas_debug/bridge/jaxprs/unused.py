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
from typing import Any, Literal, get_args

from pallas_debug.bridge.dataflow.backward import Backward
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
    walk.walk(_traced.get(jaxpr, jaxpr.eqns), jaxpr.outvars, [_LIVE] * len(jaxpr.outvars))
    if not walk.unused:
        return []
    live = {lines.source_of(*used) for used in walk.live}
    return [line for line in walk.unused if line not in live]


_Need = Literal[0, 1, 2]
_UNUSED, _TAKEN, _LIVE = get_args(_Need)
"""A pair: an equation takes the value; an output or effect needs it."""


class _Liveness(Backward[_Need]):
    """Walk of a kernel.

    Attributes:
      live: equations with a result that reaches an output or an effect, and their calls.
      unused: lines with an array that no equation uses.
    """

    nothing = _UNUSED

    def __init__(self) -> None:
        super().__init__()
        self.live: list[tuple[Any, tuple[Any, ...]]] = []
        self.unused: dict[SourceLine, None] = {}

    def join(self, a: _Need, b: _Need) -> _Need:
        return max(a, b)

    def equation(self, eqn: Any, wanted: Sequence[_Need]) -> Sequence[_Need]:
        if nested.inlined(eqn) is not None:
            return super().equation(eqn, wanted)
        return self.transfer(eqn, wanted)

    def transfer(self, eqn: Any, wanted: Sequence[_Need]) -> Sequence[_Need]:
        if _LIVE not in wanted and not _has_effect(eqn):
            is_array = any(getattr(out.aval, "shape", ()) for out in eqn.outvars)
            is_load = eqn.primitive is state_primitives.get_p
            source = lines.source_of(eqn, self.calls)
            if source and is_array and not is_load and _TAKEN not in wanted:
                self.unused[source] = None
            return [_TAKEN] * len(eqn.invars)
        self.live.append((eqn, self.calls))
        self.calls = (*self.calls, eqn)
        for inner, _ in nested.within(eqn.params):
            self.run(inner, [_LIVE] * len(inner.outvars))
        self.calls = self.calls[:-1]
        return [_LIVE] * len(eqn.invars)


def _has_effect(eqn: Any) -> bool:
    return any(not isinstance(effect, state_types.ReadEffect) for effect in eqn.effects)

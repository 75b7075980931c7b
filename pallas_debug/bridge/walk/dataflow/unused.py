"""Which outputs of a function's kernels nothing uses: backward dataflow, nothing runs.

Conservative: where the flow is not known in detail, all outputs count as used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax._src import core as jax_core

from pallas_debug.bridge.jaxprs import rewrite
from pallas_debug.bridge.lowering import hook
from pallas_debug.bridge.walk.dataflow import programs
from pallas_debug.model import Target


def unused_outputs(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    target: Target,
) -> dict[str, frozenset[int]]:
    """Outputs that no call of a kernel uses, by number, for each kernel by its digest.

    A kernel none of whose outputs is used has none here: it is called for something else.
    """
    walk = _Walk()
    jaxpr = programs.opened(function, args, kwargs, target)
    walk.run(jaxpr, [True] * len(jaxpr.outvars))
    return {
        digest: frozenset(range(count)) - walk.used[digest]
        for digest, count in walk.outputs.items()
        if walk.used[digest]
    }


class _Walk:
    def __init__(self) -> None:
        self.outputs: dict[str, int] = {}
        self.used: dict[str, frozenset[int]] = {}

    def run(self, jaxpr: Any, outputs: Sequence[bool]) -> list[bool]:
        """Walk backwards from the outputs that are used, and return which inputs are."""
        inner, _ = rewrite.opened(jaxpr)
        live = {
            atom
            for atom, is_used in zip(inner.outvars, outputs, strict=True)
            if is_used and not isinstance(atom, jax_core.Literal)
        }
        for eqn in reversed(inner.eqns):
            used = [var in live for var in eqn.outvars]
            needed = self._equation(eqn, used)
            live.update(
                atom
                for atom, is_needed in zip(eqn.invars, needed, strict=True)
                if is_needed and not isinstance(atom, jax_core.Literal)
            )
        return [var in live for var in inner.invars]

    def _equation(self, eqn: Any, used: Sequence[bool]) -> Sequence[bool]:
        if eqn.primitive in hook.PRIMITIVES.values():
            digest = programs.digest(eqn)
            self.outputs[digest] = len(used)
            found = frozenset(n for n, is_used in enumerate(used) if is_used)
            self.used[digest] = self.used.get(digest, frozenset()) | found
        elif rewrite.inlined(eqn) is not None:
            inner = eqn.params.get("jaxpr") or eqn.params["call_jaxpr"]
            if len(rewrite.opened(inner)[0].invars) == len(eqn.invars):
                return self.run(inner, used)
            self.run(inner, used)
        else:
            for inner in programs.jaxprs(eqn):
                self.run(inner, [True] * len(rewrite.opened(inner)[0].outvars))
        return [True] * len(eqn.invars)

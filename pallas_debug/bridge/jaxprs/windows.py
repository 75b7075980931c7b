"""Names for the buffers that `emit_pipeline` allocates: those of the arrays that pass through them.

jax calls them `allocations[0].window_ref`, by their number.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from pallas_debug.bridge.jaxcompat import pallas_primitives
from pallas_debug.bridge.jaxprs import lines, nested

_WINDOW = "window_ref"

_Window = tuple[dict[str, str], str]
"""Arrays by jax's names for what holds their windows in one scope, and one of these names."""


def with_names(jaxpr: Any) -> Any:
    """Rename `allocations[0].window_ref` of a kernel to `x_ref.window_ref`, and so on.

    An owner whose array is not known, or has an owner of that name already, keeps jax's name.
    """
    scopes = (e for e in nested.equations(jaxpr) if e.primitive is pallas_primitives.run_scoped_p)
    bodies = (inner for eqn in scopes for inner, _ in nested.within(eqn.params))
    if not any(
        name.endswith(f".{_WINDOW}") for inner in bodies for name in nested.arg_names(inner)
    ):
        return jaxpr
    return _renamed(jaxpr, dict(zip(jaxpr.invars, nested.arg_names(jaxpr), strict=True)))


def _renamed(jaxpr: Any, known: Mapping[Any, str | _Window]) -> Any:
    """A jaxpr whose scopes name their windows by the copies of pipelines within.

    Args:
      known: names of arrays, and windows, by the variables of their refs.
    """
    eqns = []
    for eqn in jaxpr.eqns:
        refs = [known.get(atom) for atom in eqn.invars if nested.is_ref(atom)]
        if eqn.primitive.name == "dma_start" and lines.is_of_pipeline(eqn):
            for window, array in zip(refs[:2], refs[1::-1], strict=True):
                if isinstance(window, tuple) and isinstance(array, str):
                    owners, owner = window
                    if array not in owners.values():
                        owners.setdefault(owner, array)
        edit = functools.partial(_body, eqn, known)
        has_bodies = bool(nested.within(eqn.params))
        eqns.append(eqn.replace(params=nested.edited(eqn.params, edit)) if has_bodies else eqn)
    return jaxpr.replace(eqns=eqns)


def _body(eqn: Any, known: Mapping[Any, str | _Window], inner: Any) -> Any:
    is_scope = eqn.primitive is pallas_primitives.run_scoped_p
    binders = (*inner.constvars, *inner.invars)
    # An inner jaxpr takes the last operands, in a `run_scoped` the first.
    outer = eqn.invars if is_scope else eqn.invars[-len(binders) :]
    pairs = zip(outer, binders, strict=False)
    bound = {b: known[a] for a, b in pairs if nested.is_ref(a) and a in known}
    if not is_scope:
        return _renamed(inner, bound)
    owners: dict[str, str] = {}
    parts = [name.rpartition(".") for name in nested.arg_names(inner)]
    for variable, (owner, _, field) in zip(inner.invars, parts, strict=True):
        if field == _WINDOW:
            bound[variable] = owners, owner
    inner = _renamed(inner, bound)
    names = (f"{owners.get(owner, owner)}{dot}{field}" for owner, dot, field in parts)
    return inner.replace(debug_info=inner.debug_info._replace(arg_names=tuple(names)))

"""Names for the buffers that `emit_pipeline` allocates: those of the arrays that pass through them.

jax calls them `allocations[0].window_ref`, by their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pallas_debug.bridge.jaxcompat import pallas_primitives
from pallas_debug.bridge.jaxprs import lines, nested

_WINDOW = ".window_ref"


class _Window(NamedTuple):
    """A buffer: the `run_scoped` jaxpr that has it as an input, and jax's name for its owner."""

    scope: int
    owner: str


_Names = dict[int, dict[str, str]]
"""Arrays by jax's names for what holds their windows, for each `run_scoped` jaxpr, by identity."""


def with_names(jaxpr: Any) -> Any:
    """Rename `allocations[0].window_ref` of a kernel to `x_ref.window_ref`, and so on.

    An owner whose array is not known, or has an owner of that name already, keeps jax's name.
    """
    names: _Names = {}
    operands = zip(jaxpr.invars, jaxpr.debug_info.arg_names or (), strict=False)
    for window, array in _copied(jaxpr, dict(operands)):
        owners = names.setdefault(window.scope, {})
        if array not in owners.values():
            owners.setdefault(window.owner, array)
    return _renamed(jaxpr, names) if names else jaxpr


def _copied(jaxpr: Any, known: Mapping[Any, str | _Window]) -> Iterator[tuple[_Window, str]]:
    """Windows and named arrays between which a pipeline copies."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dma_start" and lines.is_of_pipeline(eqn):
            here, there, *_ = (known.get(atom) for atom in eqn.invars if nested.is_ref(atom))
            if isinstance(here, _Window) and isinstance(there, str):
                yield here, there
            elif isinstance(here, str) and isinstance(there, _Window):
                yield there, here
            continue
        for inner, _ in nested.within(eqn.params):
            binders = [*inner.constvars, *inner.invars]
            bound = dict(_windows(inner)) if _is_scope(eqn) else {}
            # An inner jaxpr takes the last operands, in a `run_scoped` the first.
            outer = eqn.invars if _is_scope(eqn) else eqn.invars[-len(binders) :]
            for atom, binder in zip(outer, binders, strict=False):
                if nested.is_ref(atom) and atom in known:
                    bound[binder] = known[atom]
            if bound:
                yield from _copied(inner, bound)


def _is_scope(eqn: Any) -> bool:
    return eqn.primitive is pallas_primitives.run_scoped_p


def _windows(scope: Any) -> Iterator[tuple[Any, str | _Window]]:
    for variable, name in zip(scope.invars, scope.debug_info.arg_names or (), strict=False):
        owner, found, _ = name.rpartition(_WINDOW)
        if found:
            yield variable, _Window(id(scope), owner)


def _renamed(jaxpr: Any, names: _Names) -> Any:
    """A jaxpr like this one, with other names in its `run_scoped` jaxprs."""
    eqns = [
        eqn.replace(params=nested.edited(eqn.params, lambda inner: _renamed(inner, names)))
        if nested.within(eqn.params)
        else eqn
        for eqn in jaxpr.eqns
    ]
    info = jaxpr.debug_info
    if owners := names.get(id(jaxpr)):
        renamed = (_name(name, owners) for name in info.arg_names or ())
        info = info._replace(arg_names=tuple(renamed))
    return jaxpr.replace(eqns=eqns, debug_info=info)


def _name(name: str, owners: Mapping[str, str]) -> str:
    owner, dot, field = name.rpartition(".")
    return f"{owners.get(owner, owner)}{dot}{field}"

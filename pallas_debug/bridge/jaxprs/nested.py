"""Nested jaxprs: opening, calls, loops, arguments, and jaxprs within equations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from pallas_debug.bridge import jaxcompat, normal_forms
from pallas_debug.bridge import primitives as table
from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.normal_forms import InnerJaxpr

T = TypeVar("T")


def is_jaxpr(value: Any) -> bool:
    return isinstance(value, (jax_core.Jaxpr, jax_core.ClosedJaxpr))


def within(params: Mapping[str, Any]) -> list[InnerJaxpr]:
    """Jaxprs among the parameters of an equation, with their constants."""
    groups = (v if isinstance(v, (tuple, list)) else (v,) for v in params.values())
    found = (inner for group in groups for inner in group if is_jaxpr(inner))
    return [InnerJaxpr(*jaxcompat.opened(inner)) for inner in found]


def edited(params: Mapping[str, Any], edit: Callable[[Any], Any]) -> dict[str, Any]:
    """Replace the jaxprs in parameters of an equation; `edit` takes and returns an open one."""

    def new(value: Any) -> Any:
        if is_jaxpr(value):
            return jaxcompat.closed_as(value, edit(jaxcompat.opened(value)[0]))
        return type(value)(map(new, value)) if type(value) in (tuple, list) else value

    return {name: new(value) for name, value in params.items()}


def equations(jaxpr: Any) -> Iterator[Any]:
    """Equations of a jaxpr, each before those of the jaxprs within it."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in within(eqn.params):
            yield from equations(inner.jaxpr)


def primitives(jaxpr: Any) -> set[str]:
    """Names of the primitives of a jaxpr, and of all jaxprs within."""
    return {eqn.primitive.name for eqn in equations(jaxpr)}


def inlined(eqn: Any) -> InnerJaxpr | None:
    """Return the jaxpr of an equation that only calls it, with its constants; otherwise None."""
    call = table.form(eqn) if eqn.primitive.name in _CALLS else None
    return None if call is None else call.body


_CALLS = table.named(lambda row: row.unpack in (normal_forms.call, normal_forms.custom_call))


def bound(eqn: Any, inputs: Iterable[Any]) -> list[Any]:
    """Evaluate an equation, or trace it again, with these inputs; return its results."""
    params = eqn.primitive.get_bind_params(eqn.params)
    with eqn.ctx.manager:
        results = eqn.primitive.bind(*inputs, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


class JaxprValues(dict[Any, T]):
    """Values of a jaxpr's variables while its equations are evaluated."""

    def __init__(self, variables: Iterable[Any], values: Iterable[T]) -> None:
        super().__init__(zip(variables, values, strict=True))

    def bind(self, variables: Iterable[Any], values: Iterable[T]) -> None:
        self.update(zip(variables, values, strict=True))

    def read(self, atoms: Iterable[Any]) -> list[T]:
        """Values of variables and literals."""
        return [atom.val if isinstance(atom, jax_core.Literal) else self[atom] for atom in atoms]

    def arrays(self, atoms: Iterable[Any]) -> list[Any]:
        """Values of variables, and literals as arrays of their dtype."""
        return [
            np.asarray(atom.val, atom.aval.dtype)
            if isinstance(atom, jax_core.Literal)
            else self[atom]
            for atom in atoms
        ]


def arg_names(jaxpr: Any, unknown: str = "args") -> list[str]:
    """Names of a jaxpr's arguments in the user's function; `args[0]`, as in jax, if unknown."""
    names = list(jaxpr.debug_info.arg_names or ())[: len(jaxpr.invars)]
    return names + [f"{unknown}[{i}]" for i in range(len(names), len(jaxpr.invars))]


def is_ref(atom: Any) -> bool:
    return hasattr(atom.aval, "inner_aval")


def variables(atoms: Iterable[Any]) -> list[Any]:
    """Variables among the operands of an equation or jaxpr, without literals."""
    return [atom for atom in atoms if not isinstance(atom, jax_core.Literal)]


def results_of_refs(jaxpr: Any) -> frozenset[int]:
    """Positions of the results of an index map that depend on what it reads from its refs."""
    made = {variable for variable in jaxpr.invars if is_ref(variable)}
    for eqn in jaxpr.eqns:
        if made & set(variables(eqn.invars)):
            made.update(eqn.outvars)
    return frozenset(
        i
        for i, out in enumerate(jaxpr.outvars)
        if not isinstance(out, jax_core.Literal) and out in made
    )

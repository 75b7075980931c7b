"""Nested jaxprs: opening, calls, loops, arguments, and jaxprs within equations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

import jax
import numpy as np

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import (
    ad_checkpoint,
    custom_derivatives,
    jax_core,
    lax,
    loops,
    pjit,
)

T = TypeVar("T")


def is_jaxpr(value: Any) -> bool:
    return isinstance(value, (jax_core.Jaxpr, jax_core.ClosedJaxpr))


def within(params: Mapping[str, Any]) -> list[Any]:
    """Jaxprs among the parameters of an equation."""
    groups = (v if isinstance(v, (tuple, list)) else (v,) for v in params.values())
    return [inner for group in groups for inner in group if is_jaxpr(inner)]


def equations(jaxpr: Any) -> Iterator[Any]:
    """Equations of a jaxpr, each before those of the jaxprs within it."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in within(eqn.params):
            yield from equations(jaxcompat.opened(inner)[0])


def primitives(jaxpr: Any) -> set[str]:
    """Names of the primitives of a jaxpr, and of all jaxprs within."""
    return {eqn.primitive.name for eqn in equations(jaxpr)}


@functools.cache
def primitives_in(module: ModuleType) -> frozenset[jax_core.Primitive]:
    """Primitives that a module defines."""
    return frozenset(v for v in vars(module).values() if isinstance(v, jax_core.Primitive))


def replaced(jaxpr: Any, equation: Callable[[Any, int], Any], depth: int = 0) -> Any:
    """Return a jaxpr with each equation replaced; the same object if none changes.

    Args:
      equation: takes an equation, in whose jaxprs equations are already replaced, and the number
        of loops around it.
      depth: number of loops around the jaxpr.
    """
    eqns = [equation(_with_inner(eqn, equation, depth), depth) for eqn in jaxpr.eqns]
    if all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True)):
        return jaxpr
    return jaxpr.replace(eqns=eqns)


def _with_inner(eqn: Any, equation: Callable[[Any, int], Any], depth: int) -> Any:
    depth += eqn.primitive in (loops.scan_p, loops.while_p)
    inner = {name: replaced_within(v, equation, depth) for name, v in eqn.params.items()}
    if all(inner[name] is value for name, value in eqn.params.items()):
        return eqn
    return eqn.replace(params=inner)


def replaced_within(value: Any, equation: Callable[[Any, int], Any], depth: int = 0) -> Any:
    """The same as `replaced` for each jaxpr in a parameter of an equation; other values as is."""
    if isinstance(value, (tuple, list)) and any(map(is_jaxpr, value)):
        inner = [replaced_within(one, equation, depth) for one in value]
        is_same = all(new is old for new, old in zip(inner, value, strict=True))
        return value if is_same else type(value)(inner)
    if not is_jaxpr(value):
        return value
    old, _ = jaxcompat.opened(value)
    new = replaced(old, equation, depth)
    return value if new is old else jaxcompat.closed_as(value, new)


def renamed(jaxpr: Any, known: Mapping[Any, Any]) -> list[Any]:
    """Equations of a jaxpr with some of its inputs replaced."""

    def now(atom: Any) -> Any:
        return atom if isinstance(atom, jax_core.Literal) else known.get(atom, atom)

    return [eqn.replace(invars=[now(atom) for atom in eqn.invars]) for eqn in jaxpr.eqns]


def inlined(eqn: Any) -> tuple[Any, Sequence[Any]] | None:
    """Return the jaxpr of an equation that only calls it, with its constants; otherwise None."""
    if eqn.primitive is pjit.jit_p or eqn.primitive is ad_checkpoint.remat_p:
        return jaxcompat.opened(eqn.params["jaxpr"])
    if eqn.primitive in (
        custom_derivatives.custom_jvp_call_p,
        custom_derivatives.custom_vjp_call_p,
    ):
        return jaxcompat.opened(eqn.params["call_jaxpr"])
    return None


def scan_operands(
    params: Mapping[str, Any], operands: Iterable[T]
) -> tuple[list[T], list[T], list[T]]:
    """Split what a `scan` takes: constants, carried values, and values of one iteration each."""
    consts, carry = jaxcompat.scan_sizes(params)
    every = list(operands)
    return every[:consts], every[consts : consts + carry], every[consts + carry :]


def loop_counter(params: Mapping[str, Any]) -> Any:
    """Return the variable that counts iterations in the body of a `scan`; None if there is none.

    It is the first value that a `fori_loop` carries.
    """
    (num_consts, num_carry), jaxpr = (
        jaxcompat.scan_sizes(params),
        jaxcompat.opened(params["jaxpr"])[0],
    )
    if not num_carry:
        return None
    variable, out = jaxpr.invars[num_consts], jaxpr.outvars[0]
    if variable.aval.shape != () or str(variable.aval.dtype) != "int32":
        return None
    for eqn in jaxpr.eqns:
        if eqn.outvars and eqn.outvars[0] is out:
            adds_one = eqn.primitive is lax.add_p and any(
                isinstance(a, jax_core.Literal) and a.val == 1 for a in eqn.invars
            )
            return variable if adds_one and variable in eqn.invars else None
    return None


def with_counter(eqn: Any) -> Any:
    """Return a `scan` that first carries the number of iterations done, from zero.

    jax drops the counter of a `fori_loop` whose body does not use it.
    """
    num_consts, _ = jaxcompat.scan_sizes(eqn.params)
    old, _ = jaxcompat.opened(eqn.params["jaxpr"])
    counting, _ = jaxcompat.opened(jax.make_jaxpr(lambda i: i + np.int32(1))(np.int32(0)))
    names = old.debug_info.arg_names
    info = old.debug_info._replace(
        arg_names=names and (*names[:num_consts], "i", *names[num_consts:]), result_paths=None
    )
    body = old.replace(
        invars=[*old.invars[:num_consts], *counting.invars, *old.invars[num_consts:]],
        outvars=[*counting.outvars, *old.outvars],
        eqns=[*counting.eqns, *old.eqns],
        debug_info=info,
    )
    body = jaxcompat.closed_as(eqn.params["jaxpr"], body)
    params = {**jaxcompat.scan_with_one_more(eqn.params), "jaxpr": body}
    zero = jax_core.Literal(np.int32(0), counting.invars[0].aval)
    return eqn.replace(
        invars=[*eqn.invars[:num_consts], zero, *eqn.invars[num_consts:]],
        outvars=[jax_core.Var(counting.outvars[0].aval), *eqn.outvars],
        params=params,
    )


def while_operands(
    params: Mapping[str, Any], operands: Iterable[T]
) -> tuple[list[T], list[T], list[T]]:
    """Split what a `while` takes: constants of the condition and of the body, carried values."""
    cond, body = params["cond_nconsts"], params["body_nconsts"]
    every = list(operands)
    return every[:cond], every[cond : cond + body], every[cond + body :]


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

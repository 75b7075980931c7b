"""Replay of a kernel's jaxpr, equation by equation, with a visitor that can add operations.

A kernel is a jaxpr over refs with nested loops, branches and scoped buffers. `replay` retraces the
equations, each under its own source line, and enters every inner jaxpr. It calls the visitor before
and after each equation; the visitor may emit its own operations, including writes to a ref: refs
and scalars of the outer jaxpr can be closed over. Everything else is unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax import lax

from pallas_debug.bridge import jaxcompat, primitives
from pallas_debug.bridge.jaxcompat import (
    conditionals,
    config,
    jax_core,
    linear_util,
    loops,
    pallas_primitives,
    partial_eval,
    source_info_util,
)
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.normal_forms import InnerJaxpr


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A loop that is being entered.

    Attributes:
      iteration: a traced int32 scalar; -1 if the loop has no counter.
      begins: the `step` at which it was entered; identifies the loop.
    """

    iteration: Any
    begins: int


@dataclass(frozen=True, kw_only=True)
class ProgramPoint:
    """Position of an equation.

    Attributes:
      step: number of equations visited before it, including inner jaxprs; together with the loops
        it orders events at one grid point by time.
      loops: enclosing loops, outermost first.
      branches: number of enclosing branches.
      calls: enclosing call equations, outermost first; inside jax's own functions, such as
        `jnp.floor_divide`, only these have a line in the user's code.
    """

    step: int = 0
    loops: tuple[Loop, ...] = ()
    branches: int = 0
    calls: tuple[Any, ...] = ()


class Visitor:
    """Base visitor, which adds nothing."""

    def before(self, eqn: Any, inputs: Sequence[Any], place: ProgramPoint) -> Sequence[Any] | None:
        """Called before an equation; returning outputs replaces it."""
        return None

    def after(
        self, eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any], place: ProgramPoint
    ) -> None:
        """Called after an equation."""

    def entering(self, place: ProgramPoint) -> None:
        """Called at the start of a kernel, loop body, branch or scope."""

    def leaving(self, place: ProgramPoint) -> None:
        """Called at the end of a kernel, loop body, branch or scope."""

    def scoped(self, refs: Sequence[Any], names: Sequence[str]) -> None:
        """Called with the buffers of a `run_scoped`, and their names in the user's function."""

    def wants(self, jaxpr: Any) -> bool:
        """Return whether to add anything to the condition of a `while_loop`.

        A condition cannot write, so it is then evaluated a second time where writes are possible.
        """
        return False

    def unknown(self, eqn: Any) -> None:
        """Called for an equation with a jaxpr that `replay` cannot enter."""


def trace(
    function: Callable[..., Any], avals: Sequence[Any], debug_info: Any
) -> tuple[Any, list[Any]]:
    """Trace a flat function to an open jaxpr; also return the values that it closes over."""
    wrapped = linear_util.wrap_init(function, debug_info=debug_info)
    jaxpr, _, consts, *_ = partial_eval.trace_to_jaxpr_dynamic(wrapped, list(avals))
    return jaxcompat.with_consts(jaxpr, consts), list(consts)


def replay(jaxpr: Any, args: Sequence[Any], visitor: Visitor) -> Any:
    """Evaluate a jaxpr without constants under the current trace; return its outputs."""
    return _Replay(visitor).run(InnerJaxpr(jaxpr, ()), args, ProgramPoint())


class _Replay:
    def __init__(self, visitor: Visitor) -> None:
        self.visitor = visitor
        self._steps = 0

    def run(self, region: InnerJaxpr, args: Sequence[Any], place: ProgramPoint) -> list[Any]:
        self.visitor.entering(place)
        outputs = self._equations(region, args, place)
        self.visitor.leaving(place)
        return outputs

    def _equations(self, region: InnerJaxpr, args: Sequence[Any], place: ProgramPoint) -> list[Any]:
        jaxpr, consts = region
        known = nested.JaxprValues((*jaxpr.constvars, *jaxpr.invars), (*consts, *args))
        for eqn in jaxpr.eqns:
            inputs = known.read(eqn.invars)
            self._steps += 1
            with _line_of(eqn):
                outputs = self._equation(eqn, inputs, replace(place, step=self._steps))
            known.bind(eqn.outvars, outputs)
        return known.read(jaxpr.outvars)

    def _equation(self, eqn: Any, inputs: list[Any], place: ProgramPoint) -> Sequence[Any]:
        replaced = self.visitor.before(eqn, inputs, place)
        if replaced is not None:
            return replaced
        inline = nested.inlined(eqn)
        if inline is not None:
            called = replace(place, calls=(*place.calls, eqn))
            return self._equations(inline, inputs, called)
        rule = _RULES.get(eqn.primitive)
        if rule is not None:
            outputs: Sequence[Any] = rule(self, eqn, inputs, place)
        else:
            is_combining = eqn.primitive.name.startswith(_COMBINING)
            if not is_combining and nested.within(eqn.params):
                self.visitor.unknown(eqn)
            bound = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
            outputs = list(bound) if eqn.primitive.multiple_results else [bound]
        self.visitor.after(eqn, inputs, outputs, place)
        return outputs


def _cond(walk: _Replay, eqn: Any, inputs: list[Any], place: ProgramPoint) -> Sequence[Any]:
    form = primitives.form(eqn, inputs)
    arrays = [i for i, x in enumerate(form.inputs) if not is_ref(x)]
    place = replace(place, branches=place.branches + 1)

    def branch(inner: InnerJaxpr) -> Callable[..., list[Any]]:
        def filled(*given: Any) -> list[Any]:
            args = list(form.inputs)
            for i, x in zip(arrays, given, strict=True):
                args[i] = x
            return walk.run(inner, args, place)

        return filled

    branches = list(map(branch, form.branches))
    given = [form.inputs[i] for i in arrays]
    if len(branches) == 2:
        # The predicate of `pl.when` is a bool; a switch would first clamp its index.
        outputs: Sequence[Any] = lax.cond(form.index != 0, branches[1], branches[0], *given)
    else:
        outputs = lax.switch(form.index, branches, *given)
    return outputs


def _scan(walk: _Replay, eqn: Any, inputs: list[Any], place: ProgramPoint) -> Sequence[Any]:
    loop = primitives.form(eqn, inputs)
    # The first value that a `fori_loop` carries counts its iterations.
    is_counted = loop.steps()[:1] == [1] and _is_int_scalar(loop.carry[0])

    def body(carried: Any, x: Any) -> Any:
        values, number = carried
        iteration = values[0] - loop.carry[0] if is_counted else number
        inner = _entering(place, iteration)
        outputs = walk.run(loop.body, [*loop.constants, *values, *(x or ())], inner)
        following = None if is_counted else number + 1
        count = len(loop.carry)
        return (outputs[:count], following), tuple(outputs[count:])

    start = None if is_counted else lax.full((), 0, "int32")
    (values, _), ys = lax.scan(
        body,
        (list(loop.carry), start),
        tuple(loop.stacked) or None,
        length=loop.length,
        reverse=loop.reverse,
        unroll=eqn.params["unroll"],
    )
    return [*values, *ys]


def _while(walk: _Replay, eqn: Any, inputs: list[Any], place: ProgramPoint) -> Sequence[Any]:
    loop = primitives.form(eqn, inputs)
    # A `fori_loop` with explicit bounds has its index first.
    is_counted = bool(loop.carry) and _is_int_scalar(loop.carry[0])
    is_wanted = walk.visitor.wants(loop.condition.jaxpr)

    def condition(carried: Any) -> Any:  # messages call the values `carried[0]`, `carried[1]`
        return jax_core.eval_jaxpr(*loop.condition, *loop.condition_constants, *carried)[0]

    def body(values: Any) -> Any:
        inner = _entering(place, values[0] - loop.carry[0] if is_counted else None)
        if is_wanted:
            walk.run(loop.condition, [*loop.condition_constants, *values], inner)
        return walk.run(loop.body, [*loop.constants, *values], inner)

    outputs: Sequence[Any] = lax.while_loop(condition, body, list(loop.carry))
    if is_wanted:  # the final, false evaluation
        walk.run(loop.condition, [*loop.condition_constants, *outputs], place)
    return outputs


def _entering(place: ProgramPoint, iteration: Any) -> ProgramPoint:
    """Position in the body of a loop that is entered at a place."""
    number = lax.full((), -1, "int32") if iteration is None else iteration
    return replace(place, loops=(*place.loops, Loop(iteration=number, begins=place.step)))


def _run_scoped(walk: _Replay, eqn: Any, inputs: list[Any], place: ProgramPoint) -> Sequence[Any]:
    params = dict(eqn.params)
    inner = params.pop("jaxpr")

    def body(*scoped: Any) -> list[Any]:
        walk.visitor.scoped(scoped, nested.arg_names(inner, "scoped"))
        return walk.run(InnerJaxpr(inner, inputs), scoped, place)

    with config.mutable_array_checks(False):
        jaxpr, consts = trace(body, [v.aval for v in inner.invars], inner.debug_info)
    bound: Sequence[Any] = pallas_primitives.run_scoped_p.bind(*consts, jaxpr=jaxpr, **params)
    return bound


_RULES: dict[Any, Callable[[_Replay, Any, list[Any], ProgramPoint], Sequence[Any]]] = {
    conditionals.cond_p: _cond,
    loops.scan_p: _scan,
    loops.while_p: _while,
    pallas_primitives.run_scoped_p: _run_scoped,
}

_COMBINING = ("scatter", "reduce", "select_and_scatter")
"""Primitives whose jaxpr only combines two numbers."""


def _is_int_scalar(value: Any) -> bool:
    aval = jax_core.typeof(value)
    return aval.shape == () and str(aval.dtype) == "int32"


def is_ref(value: Any) -> bool:
    aval = jax_core.typeof(value) if isinstance(value, jax_core.Tracer) else None
    return aval is not None and hasattr(aval, "inner_aval")


@contextlib.contextmanager
def _line_of(eqn: Any) -> Iterator[None]:
    """Trace under the source line of `eqn`."""
    name_stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with (
        source_info_util.user_context(eqn.source_info.traceback, name_stack=name_stack),
        eqn.ctx.manager,
    ):
        yield

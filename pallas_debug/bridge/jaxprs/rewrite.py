"""Replay of a kernel's jaxpr, equation by equation, for a subclass that adds operations.

A kernel is a jaxpr over refs with nested loops, branches and scoped buffers. `Replay` retraces the
equations, each under its own source line, and enters every inner jaxpr. A subclass may emit its own
operations before and after each equation, including writes to a ref: refs and scalars of the outer
jaxpr can be closed over. Everything else is unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax

from pallas_debug.bridge import jaxcompat, primitives
from pallas_debug.bridge.dataflow.forward import Forward
from pallas_debug.bridge.jaxcompat import (
    config,
    jax_core,
    linear_util,
    pallas_primitives,
    partial_eval,
    source_info_util,
)
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.normal_forms import (
    BranchForm,
    CallForm,
    Control,
    InnerJaxpr,
    LoopForm,
    ScopeForm,
)


@dataclass(frozen=True, kw_only=True)
class ReplayedLoop:
    """A loop that is being entered.

    Attributes:
      iteration: a traced int32 scalar; -1 if the loop has no counter.
      begins: the `step` at which it was entered; identifies the loop.
    """

    iteration: Any
    begins: int


Loops = tuple[ReplayedLoop, ...]
"""Enclosing loops, outermost first."""


def trace(
    function: Callable[..., Any], avals: Sequence[Any], debug_info: Any
) -> tuple[Any, list[Any]]:
    """Trace a flat function to an open jaxpr; also return the values that it closes over."""
    wrapped = linear_util.wrap_init(function, debug_info=debug_info)
    jaxpr, _, consts, *_ = partial_eval.trace_to_jaxpr_dynamic(wrapped, list(avals))
    return jaxcompat.with_consts(jaxpr, consts), list(consts)


class Replay(Forward[Any, Loops]):
    """Walk with traced values under the current trace, which adds nothing.

    Attributes:
      step: number of equations visited so far, including inner jaxprs; together with the loops it
        orders events at one grid point by time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    # What a subclass adds

    def before(self, eqn: Any, inputs: Sequence[Any], loops: Loops) -> Sequence[Any] | None:
        """Called before an equation; returning outputs replaces it."""
        return None

    def after(self, eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any], loops: Loops) -> None:
        """Called after an equation."""

    def entering(self) -> None:
        """Called at the start of a kernel, loop body, branch or scope."""

    def leaving(self, loops: Loops) -> None:
        """Called at the end of a kernel, loop body, branch or scope."""

    def scoped(self, refs: Sequence[Any], names: Sequence[str]) -> None:
        """Called with the buffers of a `run_scoped`, and their names in the user's function."""

    def wants(self, jaxpr: Any) -> bool:
        """Return whether to add anything to the condition of a `while_loop`.

        A condition cannot write, so it is then evaluated a second time where writes are possible.
        """
        return False

    def unknown(self, eqn: Any) -> None:
        """Called for an equation with a jaxpr that is not entered."""

    # The replay

    def replay(self, region: InnerJaxpr, args: Sequence[Any], loops: Loops = ()) -> list[Any]:
        """Evaluate the jaxpr of a kernel, loop body, branch or scope; return its outputs."""
        self.entering()
        outputs = self.run(region, args, loops)
        self.leaving(loops)
        return outputs

    def constant(self, value: Any) -> Any:
        return value

    def enters(self, eqn: Any, form: Control, inputs: Sequence[Any]) -> bool:
        return isinstance(form, CallForm)

    def equation(self, eqn: Any, inputs: list[Any], place: Loops) -> Sequence[Any]:
        self.step += 1
        with _line_of(eqn):
            replaced = self.before(eqn, inputs, place)
            return super().equation(eqn, inputs, place) if replaced is None else replaced

    def plain(self, eqn: Any, inputs: list[Any], place: Loops) -> Sequence[Any]:
        outputs: Sequence[Any]
        match primitives.form(eqn, inputs):
            case BranchForm() as branch:
                outputs = self._branch(branch, place)
            case LoopForm(condition=None) as loop:
                outputs = self._scan(loop, eqn.params["unroll"], place)
            case LoopForm() as loop:
                outputs = self._while(loop, place)
            case ScopeForm() as scope:
                outputs = self._scope(scope, eqn, place)
            case _:
                is_combining = eqn.primitive.name.startswith(_COMBINING)
                if not is_combining and nested.within(eqn.params):
                    self.unknown(eqn)
                bound = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
                outputs = list(bound) if eqn.primitive.multiple_results else [bound]
        self.after(eqn, inputs, outputs, place)
        return outputs

    def _branch(self, form: BranchForm, loops: Loops) -> Sequence[Any]:
        arrays = [i for i, x in enumerate(form.inputs) if not _is_ref(x)]

        def branch(inner: InnerJaxpr) -> Callable[..., list[Any]]:
            def filled(*given: Any) -> list[Any]:
                args = list(form.inputs)
                for i, x in zip(arrays, given, strict=True):
                    args[i] = x
                return self.replay(inner, args, loops)

            return filled

        branches = list(map(branch, form.branches))
        given = [form.inputs[i] for i in arrays]
        if len(branches) == 2:
            # The predicate of `pl.when` is a bool; a switch would first clamp its index.
            outputs: Sequence[Any] = lax.cond(form.index != 0, branches[1], branches[0], *given)
        else:
            outputs = lax.switch(form.index, branches, *given)
        return outputs

    def _scan(self, loop: LoopForm, unroll: Any, loops: Loops) -> Sequence[Any]:
        # The first value that a `fori_loop` carries counts its iterations.
        is_counted = loop.steps()[:1] == [1] and _is_int_scalar(loop.carry[0])
        entered = self._entering(loops)

        def body(carried: Any, x: Any) -> Any:
            values, number = carried
            inner = entered(values[0] - loop.carry[0] if is_counted else number)
            outputs = self.replay(loop.body, [*loop.constants, *values, *(x or ())], inner)
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
            unroll=unroll,
        )
        return [*values, *ys]

    def _while(self, loop: LoopForm, loops: Loops) -> Sequence[Any]:
        assert loop.condition is not None
        tested, test_constants = loop.condition, loop.condition_constants
        # A `fori_loop` with explicit bounds has its index first.
        is_counted = bool(loop.carry) and _is_int_scalar(loop.carry[0])
        is_wanted = self.wants(tested.jaxpr)
        entered = self._entering(loops)

        def condition(carried: Any) -> Any:  # messages call the values `carried[0]`, `carried[1]`
            return jax_core.eval_jaxpr(*tested, *test_constants, *carried)[0]

        def body(values: Any) -> Any:
            inner = entered(values[0] - loop.carry[0] if is_counted else None)
            if is_wanted:
                self.replay(tested, [*test_constants, *values], inner)
            return self.replay(loop.body, [*loop.constants, *values], inner)

        outputs: Sequence[Any] = lax.while_loop(condition, body, list(loop.carry))
        if is_wanted:  # the final, false evaluation
            self.replay(tested, [*test_constants, *outputs], loops)
        return outputs

    def _entering(self, loops: Loops) -> Callable[[Any], Loops]:
        """Return the loops around the body of one that is entered here, by its iteration."""
        begins = self.step

        def entered(iteration: Any) -> Loops:
            number = lax.full((), -1, "int32") if iteration is None else iteration
            return (*loops, ReplayedLoop(iteration=number, begins=begins))

        return entered

    def _scope(self, scope: ScopeForm, eqn: Any, loops: Loops) -> Sequence[Any]:
        inner = scope.body.jaxpr

        def body(*scoped: Any) -> list[Any]:
            self.scoped(scoped, nested.arg_names(inner, "scoped"))
            return self.replay(InnerJaxpr(inner, scope.inputs), scoped, loops)

        with config.mutable_array_checks(False):
            jaxpr, consts = trace(body, [v.aval for v in inner.invars], inner.debug_info)
        params = {**eqn.params, "jaxpr": jaxpr}
        bound: Sequence[Any] = pallas_primitives.run_scoped_p.bind(*consts, **params)
        return bound


_COMBINING = ("scatter", "reduce", "select_and_scatter")
"""Primitives whose jaxpr only combines two numbers."""


def _is_int_scalar(value: Any) -> bool:
    aval = jax_core.typeof(value)
    return aval.shape == () and str(aval.dtype) == "int32"


def _is_ref(value: Any) -> bool:
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

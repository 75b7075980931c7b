"""Replay of a kernel's jaxpr, equation by equation, with a check for each that can fail.

A kernel is a jaxpr over refs with nested loops, branches and scoped buffers. `Checker` retraces the
equations, each under its own source line, and enters every inner jaxpr: refs and scalars of the
outer jaxpr can be closed over. For an equation that can fail, it emits the condition, and leaves
recording to the recorder (`recording.py`). Everything else is unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_debug.bridge import jaxcompat, primitives
from pallas_debug.bridge.dataflow.forward import Forward
from pallas_debug.bridge.instrument import conditions
from pallas_debug.bridge.instrument.recording import Pending, Recorder, any_of
from pallas_debug.bridge.instrument.sites import MAX_VALUES, Site
from pallas_debug.bridge.jaxcompat import (
    checkify,
    config,
    indexing,
    jax_core,
    linear_util,
    pallas_primitives,
    partial_eval,
    source_info_util,
)
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.bridge.jaxprs.params import block_entry
from pallas_debug.bridge.normal_forms import (
    AccessForm,
    BranchForm,
    CallForm,
    Control,
    CopyForm,
    InnerJaxpr,
    LoopForm,
    RefChain,
    ScopeForm,
)
from pallas_debug.bridge.primitives import MAKES_INFINITY, MAKES_NAN
from pallas_debug.findings.facts import array_text


def trace(
    function: Callable[..., Any], avals: Sequence[Any], debug_info: Any
) -> tuple[Any, list[Any]]:
    """Trace a flat function to an open jaxpr; also return the values that it closes over."""
    wrapped = linear_util.wrap_init(function, debug_info=debug_info)
    jaxpr, _, consts, *_ = partial_eval.trace_to_jaxpr_dynamic(wrapped, list(avals))
    return jaxcompat.with_consts(jaxpr, consts), list(consts)


class Checker(Forward[Any, None]):
    """Walk with traced values under the current trace, which adds checks and records failures.

    Args:
      names: names of the kernel's refs, by the `id` of their tracers.
      default_space: memory of operands without a memory space.
    """

    def __init__(
        self,
        checks: Sequence[str],
        names: dict[int, str],
        recorder: Recorder,
        *,
        default_space: str = "vmem",
    ) -> None:
        super().__init__()
        self._default_space = default_space
        self._checks = frozenset(checks)
        self._names = names
        self._recorder = recorder
        self._kept_alive: list[Any] = []
        self._pending: list[Pending] = []  # in the innermost region
        self.sites: list[Site] = []
        self.not_entered: list[str] = []
        self.left_out = 0

    def replay(self, region: InnerJaxpr, args: Sequence[Any]) -> list[Any]:
        """Evaluate the jaxpr of a kernel, loop body, branch or scope; return its outputs."""
        outputs = self.run(region, args, None)
        self._record()
        return outputs

    def _record(self) -> None:
        """Record failures at the end of a region, or before one within it."""
        if self._pending:
            self._recorder.write(self._pending)
            self._pending = []

    def enters(self, eqn: Any, form: Control, inputs: Sequence[Any]) -> bool:
        return isinstance(form, CallForm)

    def equation(self, eqn: Any, inputs: list[Any], place: None) -> Sequence[Any]:
        primitive = eqn.primitive
        with _line_of(eqn):
            if primitive is checkify.check_p:
                self._user_check(eqn, inputs)
                return []
            for at, what in _accessed(eqn, inputs):
                self._indices(eqn, at, what)
            if primitive is lax.dynamic_slice_p:
                self._dynamic_slice(eqn, inputs)
            elif primitive is pallas_primitives.multiple_of_p:
                self._hint(eqn, inputs[0])
            elif primitive in (lax.div_p, lax.rem_p):
                self._division(eqn, inputs)
            return super().equation(eqn, inputs, place)

    def plain(self, eqn: Any, inputs: list[Any], place: None) -> Sequence[Any]:
        outputs: Sequence[Any]
        form = primitives.form(eqn, inputs)
        if isinstance(form, BranchForm | LoopForm | ScopeForm):
            self._record()
        match form:
            case BranchForm() as branch:
                outputs = self._branch(branch)
            case LoopForm(condition=None) as loop:
                outputs = self._scan(loop, eqn.params["unroll"])
            case LoopForm() as loop:
                outputs = self._while(loop)
            case ScopeForm() as scope:
                outputs = self._scope(scope, eqn)
            case _:
                is_combining = eqn.primitive.name.startswith(_COMBINING)
                if not is_combining and nested.within(eqn.params):
                    self.not_entered.append(eqn.primitive.name)
                outputs = nested.bound(eqn, inputs)
        if eqn.primitive.name in MAKES_NAN and "nan" in self._checks:
            self._born("nan", conditions.is_nan, eqn, inputs, outputs[0])
        if eqn.primitive.name in MAKES_INFINITY and "inf" in self._checks:
            self._born("inf", conditions.is_infinite, eqn, inputs, outputs[0])
        return outputs

    def _branch(self, form: BranchForm) -> Sequence[Any]:
        arrays = [i for i, x in enumerate(form.inputs) if not _is_ref(x)]

        def branch(inner: InnerJaxpr) -> Callable[..., list[Any]]:
            def filled(*given: Any) -> list[Any]:
                args = list(form.inputs)
                for i, x in zip(arrays, given, strict=True):
                    args[i] = x
                return self.replay(inner, args)

            return filled

        branches = list(map(branch, form.branches))
        given = [form.inputs[i] for i in arrays]
        if len(branches) == 2:
            # The predicate of `pl.when` is a bool; a switch would first clamp its index.
            outputs: Sequence[Any] = lax.cond(form.index != 0, branches[1], branches[0], *given)
        else:
            outputs = lax.switch(form.index, branches, *given)
        return outputs

    def _scan(self, loop: LoopForm, unroll: Any) -> Sequence[Any]:
        count = len(loop.carry)

        def body(values: Any, x: Any) -> Any:
            outputs = self.replay(loop.body, [*loop.constants, *values, *(x or ())])
            return outputs[:count], tuple(outputs[count:])

        values, ys = lax.scan(
            body,
            list(loop.carry),
            tuple(loop.stacked) or None,
            length=loop.length,
            reverse=loop.reverse,
            unroll=unroll,
        )
        return [*values, *ys]

    def _while(self, loop: LoopForm) -> Sequence[Any]:
        assert loop.condition is not None
        tested, test_constants = loop.condition, loop.condition_constants
        # A condition cannot write: to check it, evaluate it once more where writes are possible.
        # That of a `fori_loop` cannot fail, and Mosaic recognises the loop by what is in it.
        is_checked = not loop.is_counted

        def condition(carried: Any) -> Any:  # messages call the values `carried[0]`, `carried[1]`
            return jax_core.eval_jaxpr(*tested, *test_constants, *carried)[0]

        def body(values: Any) -> Any:
            if is_checked:
                self.replay(tested, [*test_constants, *values])
            return self.replay(loop.body, [*loop.constants, *values])

        outputs: Sequence[Any] = lax.while_loop(condition, body, list(loop.carry))
        if is_checked:  # the final, false evaluation
            self.replay(tested, [*test_constants, *outputs])
        return outputs

    def _scope(self, scope: ScopeForm, eqn: Any) -> Sequence[Any]:
        inner = scope.body.jaxpr

        def body(*scoped: Any) -> list[Any]:
            for ref, name in zip(scoped, nested.arg_names(inner, "scoped"), strict=True):
                self._names[id(ref)] = name
                self._kept_alive.append(ref)
            return self.replay(InnerJaxpr(inner, scope.inputs), scoped)

        with config.mutable_array_checks(False):
            jaxpr, consts = trace(body, [v.aval for v in inner.invars], inner.debug_info)
        params = {**eqn.params, "jaxpr": jaxpr}
        bound: Sequence[Any] = pallas_primitives.run_scoped_p.bind(*consts, **params)
        return bound

    # Checks of indices.

    def blocks(self, mapping: Any, grid_point: Sequence[Any], prefetched: Sequence[Any]) -> None:
        """Check that each operand's block at the current grid point begins within its array.

        The last block of an array may reach past its end; what is read there is padding.
        """
        if "index" not in self._checks:
            return
        names = list(self._names.values())[mapping.num_index_operands :]
        batch = [np.int32(0)] * len(mapping.vmapped_dims)  # jax maps these blocks itself
        for name, block in zip(names, mapping.block_mappings, strict=False):
            inner, consts = jaxcompat.opened(block.index_map_jaxpr)
            indices = jax_core.eval_jaxpr(inner, consts, *batch, *grid_point, *prefetched)
            for dim, (index, entry, bound) in enumerate(
                zip(indices, block.block_shape, block.array_aval.shape, strict=False)
            ):
                kind, size, _ = block_entry(entry)
                last = (bound - 1) // size if kind not in ("element", "squeezed") else bound - 1
                if _stays(index, last, inner, dim, mapping):
                    continue
                self._index(
                    "block",
                    lines.of_function(block.index_map_jaxpr.debug_info),
                    index,
                    last,
                    operand=name,
                    details={
                        "dim": dim,
                        "bound": bound,
                        "blocks": last + 1,
                        "element": kind == "element",
                        "shape": tuple(block.array_aval.shape),
                        "dtype": str(block.array_aval.dtype),
                    },
                )
        self._record()

    def _indices(self, eqn: Any, at: RefChain, what: str) -> None:
        aval = jax_core.typeof(at.ref)
        view = ""
        for transform in at.indexers:
            dims = conditions.dims(transform)
            outer, view = view, f"{view}.at[{', '.join(dims)}]"
            for dim, (index, bound) in enumerate(
                zip(transform.indices, transform.shape, strict=True)
            ):
                is_slice = isinstance(index, indexing.Slice)
                start = index.start if is_slice else index
                size, stride = (index.size, index.stride) if is_slice else (1, 1)
                is_sized = all(isinstance(number, int) for number in (bound, size, stride))
                if not is_sized or not isinstance(start, jax_core.Tracer):
                    continue
                self._index(
                    what,
                    lines.source_of(eqn, self.calls),
                    start,
                    bound - 1 - (size - 1) * stride,
                    operand=self._names.get(id(at.ref)),
                    details={
                        "dim": dim,
                        "size": size if is_slice else None,
                        "bound": bound,
                        "dims": dims,
                        "view": outer,
                        "stride": stride,
                        "shape": tuple(transform.shape),
                        "dtype": str(aval.dtype),
                        "space": conditions.space(aval, self._default_space),
                    },
                )

    def _dynamic_slice(self, eqn: Any, inputs: Sequence[Any]) -> None:
        """Check a slice of an array rather than a ref."""
        operand, *starts = inputs
        sizes = eqn.params["slice_sizes"]
        for dim, (start, size) in enumerate(zip(starts[: operand.ndim], sizes, strict=True)):
            if not isinstance(start, jax_core.Tracer):
                continue
            self._index(
                eqn.primitive.name,
                lines.source_of(eqn, self.calls),
                start,
                operand.shape[dim] - size,
                details={
                    "dim": dim,
                    "size": size,
                    "bound": operand.shape[dim],
                    "dims": ("…",) * operand.ndim,
                    "shape": tuple(operand.shape),
                    "dtype": str(operand.dtype),
                    "space": None,
                },
            )

    def _index(
        self,
        operation: str,
        source: Any,
        index: Any,
        last: int,
        *,
        operand: str | None = None,
        details: Mapping[str, Any],
    ) -> None:
        """Check that an index is between 0 and `last`. No core has arrays of indices."""
        if "index" not in self._checks or jnp.ndim(index):
            return
        self._add(
            Site(
                check="index",
                operation=operation,
                source=source,
                operand=operand,
                values=(("index", "int32"),),
                details=details,
            ),
            conditions.is_outside(index, last),
            values=lambda: [index],
        )

    # The other checks.

    def _user_check(self, eqn: Any, inputs: Sequence[Any]) -> None:
        if "user" not in self._checks:
            self.left_out += 1  # like `checkify` for categories that were not requested
            return
        error = jax.tree.unflatten(eqn.params["err_tree"], inputs)
        is_one = len(error._metadata) == 1  # `check_error` may hold several
        for effect, failed in error._pred.items():
            payload = error._payload[effect]
            scalars = [x for x in payload if jnp.shape(x) == ()][:MAX_VALUES]
            self._add(
                Site(
                    check="user",
                    operation="check",
                    source=lines.source_of(eqn, self.calls),
                    values=_kept(scalars),
                    details={"arguments": len(payload)},
                    error=next(iter(error._metadata.values())) if is_one else None,
                ),
                failed,
                values=scalars.copy,
            )

    def _hint(self, eqn: Any, value: Any) -> None:
        if "hint" not in self._checks or not isinstance(value, jax_core.Tracer) or value.ndim:
            return
        # Several divisors may be claimed for one value; check their least common multiple.
        divisor = math.lcm(*map(int, np.atleast_1d(eqn.params["values"])))
        self._add(
            Site(
                check="hint",
                operation="multiple_of",
                source=lines.source_of(eqn, self.calls),
                values=(("value", "int32"),),
                details={"divisor": divisor, "of_pipeline": lines.is_of_pipeline(eqn)},
            ),
            lax.rem(value, lax.full_like(value, divisor)) != 0,
            values=lambda: [value],
        )

    def _division(self, eqn: Any, inputs: Sequence[Any]) -> None:
        left, right = inputs
        is_float = bool(jnp.issubdtype(jnp.result_type(right), jnp.inexact))
        if ("float_div" if is_float else "div") not in self._checks:
            return
        if not isinstance(right, jax_core.Tracer):
            return  # a constant; jax itself folds a division by a constant zero
        kept = [left] if jnp.shape(left) == () else []
        self._add(
            Site(
                check="div",
                operation=eqn.primitive.name,
                source=lines.source_of(eqn, self.calls),
                values=_kept(kept),
                details={"shape": array_text(str(right.dtype), right.shape), "float": is_float},
            ),
            conditions.wide(right) == 0,
            values=kept.copy,
        )

    def _born(
        self,
        check: str,
        is_bad: Callable[[Any], Any],
        eqn: Any,
        inputs: Sequence[Any],
        output: Any,
    ) -> None:
        """Check for a NaN or an infinity produced from operands that contain neither."""
        if not conditions.is_float(output) or conditions.has_bad_constant(is_bad, inputs):
            return
        arrays = [x for x in inputs if isinstance(x, jax_core.Tracer) and conditions.is_float(x)]
        shape = jnp.shape(output)
        scalars = [x for x in inputs if jnp.shape(x) == () and conditions.is_float(x) and not shape]
        elementwise = all(
            jnp.shape(x) in (shape, ()) for x in arrays
        ) and not eqn.primitive.name.startswith(("reduce", "dot"))
        born = is_bad(output)
        if elementwise:
            for x in arrays:
                born = born & ~is_bad(x)

        def confirmed() -> Any:
            return functools.reduce(lambda clean, x: clean & ~any_of(is_bad(x)), arrays, True)

        self._add(
            Site(
                check=check,
                operation=eqn.primitive.name,
                source=lines.source_of(eqn, self.calls),
                values=_kept(scalars[:MAX_VALUES]),
                details={
                    "shape": array_text(str(output.dtype), output.shape),
                    "operands": tuple(
                        array_text(str(jnp.result_type(x)), jnp.shape(x)) for x in inputs
                    ),
                },
            ),
            born,
            confirmed=None if elementwise else confirmed,
            values=lambda: scalars[:MAX_VALUES],
        )

    def _add(
        self,
        site: Site,
        failed: Any,
        *,
        values: Callable[[], Sequence[Any]],
        confirmed: Callable[[], Any] | None = None,
    ) -> None:
        self._pending.append(
            Pending(site=len(self.sites), failed=failed, confirmed=confirmed, values=values)
        )
        self.sites.append(site)


def _accessed(
    eqn: Any, inputs: Sequence[Any]
) -> Iterator[tuple[RefChain, Literal["read", "write"]]]:
    """Yield the parts of refs that an equation accesses, given its operands.

    Elements that a mask leaves out may be outside: such an access is not checked.
    """
    match primitives.form(eqn, inputs):
        case AccessForm(mask=None) as access:
            yield access.place, "read" if access.is_load else "write"
        case CopyForm(is_wait=False) as copy:
            yield copy.source, "read"
            yield copy.destination, "write"


def _kept(scalars: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    """Names and dtypes of recorded scalars."""
    return tuple((f"{i}", conditions.kept_dtype(x)) for i, x in enumerate(scalars))


def _stays(index: Any, last: int, inner: Any, dim: int, mapping: Any) -> bool:
    """Return whether a block index is statically known to be within the array."""
    if not isinstance(index, jax_core.Tracer):
        return 0 <= int(index) <= last
    out = inner.outvars[dim]
    return any(
        out is variable and isinstance(size, int) and size - 1 <= last
        for size, variable in zip(mapping.grid, inner.invars, strict=False)
    )


_COMBINING = ("scatter", "reduce", "select_and_scatter")
"""Primitives whose jaxpr only combines two numbers."""


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

"""Equations of a kernel that jax's TPU interpret mode lacks.

jax evaluates a kernel's jaxpr equation by equation, without a table that could be extended. A jaxpr
with an equation that has a rule here is evaluated in pieces, and jax evaluates the equations in
between.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax._src import core as jax_core
from jax._src import source_info_util
from jax._src.lax.control_flow import conditionals
from jax._src.pallas import primitives
from jax._src.pallas.mosaic import primitives as mosaic_primitives
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax._src.state import discharge
from jax._src.state import primitives as state_primitives
from jax._src.state.indexing import NDIndexer, Slice
from jax._src.state.types import SelectTransform, TransformedRef
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge.interpret.extend import semaphores
from pallas_debug.bridge.interpret.extend.memory import Adds
from pallas_debug.bridge.jaxprs import nested

Evaluate = Callable[..., Any]


@dataclass(frozen=True)
class _Piece:
    """Part of a jaxpr, with the attributes that jax's evaluation reads."""

    invars: list[Any]
    outvars: list[Any]
    eqns: list[Any]
    constvars: list[Any] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class EquationStep:
    """An equation to evaluate.

    Attributes:
      values: values of the equation's inputs.
      evaluate: jax's evaluation of a jaxpr.
    """

    eqn: Any
    values: Sequence[Any]
    ctx: Any
    token: Any
    evaluate: Evaluate

    def tree(self, name: str) -> tuple[Any, Any]:
        """Inputs as the pytree that a parameter describes: variables, and their values."""
        tree = self.eqn.params[name]
        return jax.tree.unflatten(tree, self.eqn.invars), jax.tree.unflatten(tree, self.values)

    def callback(self, function: Any, results: Any, *args: Any, **options: Any) -> Any:
        """Call a function of the host on this core; it receives and returns a token."""
        function = functools.partial(function, source_info=self.eqn.source_info, **options)
        core = self.ctx.device_id, self.ctx.local_core_id
        token = interpreter.TOKEN_SHAPE_DTYPE
        results = token if results is None else (token, results)
        return interpreter.callback.io_callback(function, results, self.token, *core, *args)

    def with_refs(self, variables: Any, values: Any, **params: Any) -> tuple[Any, Any]:
        """Evaluate a DMA's equation with other inputs, given as pytrees."""
        invars, tree = mosaic_primitives._dma_flatten(*variables)
        values, _ = mosaic_primitives._dma_flatten(*values)
        eqn = self.eqn.replace(
            invars=list(invars), params={**self.eqn.params, "tree": tree, **params}
        )
        return replace(self, eqn=eqn, values=values).run()

    def run(self) -> tuple[Any, Any]:
        rule = rule_of(self.eqn)
        if rule is not None:
            return rule(self)
        names, values = [], []
        for atom, value in zip(self.eqn.invars, self.values, strict=True):
            if not isinstance(atom, jax_core.Literal) and atom not in names:
                names.append(atom)
                values.append(value)
        piece = _Piece(names, self.eqn.outvars, [self.eqn])
        return self.evaluate(piece, *values, ctx=self.ctx, token=self.token)  # type: ignore[no-any-return]


Rule = Callable[[EquationStep], tuple[Any, Any]]


def evaluate(by_jax: Evaluate, jaxpr: Any, *args: Any, ctx: Any, token: Any) -> Any:
    """Evaluate a jaxpr as `_interpret_jaxpr` does, with our rules."""
    if not any(rule_of(eqn) for eqn in jaxpr.eqns):
        return by_jax(jaxpr, *args, ctx=ctx, token=token)
    known = nested.JaxprValues((*jaxpr.constvars, *jaxpr.invars), args)
    needed = _needed_after(jaxpr)
    start = 0
    for index, eqn in enumerate(jaxpr.eqns):
        rule = rule_of(eqn)
        if rule is None and index + 1 < len(jaxpr.eqns):
            continue
        stop = index + 1 if rule is None else index
        token = _evaluate_piece(by_jax, jaxpr.eqns[start:stop], needed, stop, known, ctx, token)
        start = index + 1
        if rule is not None:
            values = known.read(eqn.invars)
            with source_info_util.user_context(
                eqn.source_info.traceback, name_stack=eqn.source_info.name_stack
            ):
                step = EquationStep(eqn=eqn, values=values, ctx=ctx, token=token, evaluate=by_jax)
                token, outputs = rule(step)
            known.bind(eqn.outvars, outputs)
    return token, known.read(jaxpr.outvars)


def _needed_after(jaxpr: Any) -> dict[Any, int]:
    """Index of the last equation that uses each variable."""
    last = {}
    for index, eqn in enumerate(jaxpr.eqns):
        last.update(dict.fromkeys(nested.variables(eqn.invars), index))
    last.update(dict.fromkeys(nested.variables(jaxpr.outvars), len(jaxpr.eqns)))
    return last


def _evaluate_piece(
    by_jax: Evaluate,
    eqns: Sequence[Any],
    needed: Mapping[Any, int],
    stop: int,
    known: nested.JaxprValues[Any],
    ctx: Any,
    token: Any,
) -> Any:
    if not eqns:
        return token
    made = [variable for eqn in eqns for variable in eqn.outvars]
    used = dict.fromkeys(v for eqn in eqns for v in nested.variables(eqn.invars))
    invars = [variable for variable in used if variable in known]
    outvars = [variable for variable in made if needed.get(variable, -1) >= stop]
    piece = _Piece(invars, outvars, list(eqns))
    token, outputs = by_jax(piece, *(known[v] for v in invars), ctx=ctx, token=token)
    known.bind(outvars, outputs)
    return token


# Rules.


def _masked_load(step: EquationStep) -> tuple[Any, Any]:
    _, (ref, transforms, mask, other) = step.tree("args_tree")
    space = interpreter._get_memory_space_and_raise_if_hbm(step.eqn.invars[0].aval, "load_p")
    if isinstance(ref, TransformedRef):
        ref, transforms = ref.ref, (*ref.transforms, *transforms)
    token, loaded = step.callback(
        interpreter.get,
        step.eqn.outvars[0].aval,
        interpreter.TPU_MEMORY_SPACE_IDXS[space],
        ref,
        transforms,
        None,
        None,
        mask,
    )
    return token, [loaded if other is None else jnp.where(mask, loaded, other)]


def _repeating_load(step: EquationStep) -> tuple[Any, Any]:
    """Evaluate a load that repeats elements by slices of stride 0: read them once."""
    ref, *indices = step.values
    *before, indexer = jax.tree.unflatten(step.eqn.params["tree"], indices)
    repeats = [_is_repeating(index) for index in indexer.indices]
    once = tuple(
        Slice(index.start, 1) if repeated else index
        for index, repeated in zip(indexer.indices, repeats, strict=True)
    )
    kept = [r for r, i in zip(repeats, indexer.indices, strict=True) if isinstance(i, Slice)]
    result = step.eqn.outvars[0].aval
    shape = [1 if repeated else size for repeated, size in zip(kept, result.shape, strict=True)]
    space = interpreter._get_memory_space_and_raise_if_hbm(step.eqn.invars[0].aval, "get_p")
    token, loaded = step.callback(
        interpreter.get,
        jax.ShapeDtypeStruct(shape, result.dtype),
        interpreter.TPU_MEMORY_SPACE_IDXS[space],
        ref,
        (*before, replace(indexer, indices=once)),
    )
    return token, [jnp.broadcast_to(loaded, result.shape)]


def _add_update(step: EquationStep) -> tuple[Any, Any]:
    ref, value, *indices = step.values
    aval = step.eqn.invars[1].aval
    space = interpreter._get_memory_space_and_raise_if_hbm(step.eqn.invars[0].aval, "addupdate_p")
    transforms = jax.tree.unflatten(step.eqn.params["tree"], indices)
    if isinstance(ref, TransformedRef):
        ref, transforms = ref.ref, (*ref.transforms, *transforms)
    at = interpreter.TPU_MEMORY_SPACE_IDXS[space], ref, transforms
    token, before = step.callback(interpreter.get, aval, *at)
    token, _ = replace(step, token=token).callback(
        interpreter.swap, aval, *at, before + value, None
    )
    return token, []


def _read_semaphore(step: EquationStep) -> tuple[Any, Any]:
    _, (ref, transforms) = step.tree("args_tree")
    semaphore = discharge.transform_array(ref, transforms)
    result = jax.ShapeDtypeStruct((), jnp.int32)
    token, count = step.callback(semaphores.semaphore_read, result, semaphore)
    return token, [count]


def _wait_without_decrement(step: EquationStep) -> tuple[Any, Any]:
    _, (ref, transforms, value, _) = step.tree("args_tree")
    semaphore = discharge.transform_array(ref, transforms)
    return step.callback(semaphores.semaphore_wait, None, semaphore, value, decrement=False), []


def _adding_dma(step: EquationStep) -> tuple[Any, Any]:
    def adding(tree: Any) -> Any:
        source, destination, *rest = tree
        if isinstance(destination, TransformedRef):
            destination = TransformedRef(destination.ref, (*destination.transforms, Adds()))
        else:
            destination = TransformedRef(destination, (Adds(),))
        return (source, destination, *rest)

    variables, values = step.tree("tree")
    return step.with_refs(adding(variables), adding(values), add=False)


def _selected_dma(step: EquationStep) -> tuple[Any, Any]:
    """A DMA from or to one of several references, which an index selects."""
    variables, values = step.tree("tree")
    position = next(i for i, ref in enumerate(variables) if _is_selected(ref))

    def choose(tree: Any, choice: int) -> Any:
        return (*tree[:position], _resolved(tree[position], choice), *tree[position + 1 :])

    def branch(choice: int) -> Callable[[Any], Any]:
        def run(token: Any) -> Any:
            chosen = choose(variables, choice), choose(values, choice)
            return replace(step, token=token).with_refs(*chosen)[0]

        return run

    index, count = _selection(values[position])
    if step.eqn.primitive is mosaic_primitives.dma_wait_p and position < 2:
        # Only the size of the copy matters, which is the same for all.
        return branch(0)(step.token), []
    return lax.switch(index, [branch(choice) for choice in range(count)], step.token), []


def _is_selected(ref: Any) -> bool:
    return isinstance(ref, TransformedRef) and (ref.multiref or _is_selected(ref.ref))


def _selection(ref: Any) -> tuple[Any, int]:
    if ref.multiref:
        (transform,) = ref.transforms
        assert isinstance(transform, SelectTransform)
        return transform.idx, len(ref.ref)
    return _selection(ref.ref)


def _resolved(ref: Any, choice: int) -> Any:
    """The selected reference, with all transforms in one chain."""
    if not isinstance(ref, TransformedRef):
        return ref
    if ref.multiref:
        return ref.ref[choice]
    inner = _resolved(ref.ref, choice)
    if isinstance(inner, TransformedRef):
        return TransformedRef(inner.ref, (*inner.transforms, *ref.transforms))
    return TransformedRef(inner, ref.transforms)


def _nothing(step: EquationStep) -> tuple[Any, Any]:
    return step.token, []


def _platform(step: EquationStep) -> tuple[Any, Any]:
    """Index of the branch for Mosaic, not the CPU's."""
    platforms = enumerate(step.eqn.params["platforms"])
    index = next(i for i, names in platforms if names is None or "mosaic" in names)
    return step.token, [jnp.int32(index)]


def _has_memory_space(step: EquationStep) -> tuple[Any, Any]:
    """Operands without a memory space of their own are in HBM."""
    return step.token, [jnp.array(step.eqn.params["memory_space"] is pltpu.HBM)]


def rule_of(eqn: Any) -> Rule | None:
    """Rule for an equation that jax's TPU interpret mode lacks; None for any other."""
    find = _RULES.get(eqn.primitive)
    return None if find is None else find(eqn)


def _for_masked_load(eqn: Any) -> Rule | None:
    mask = jax.tree.unflatten(eqn.params["args_tree"], eqn.invars)[2]
    return None if mask is None else _masked_load


def _for_get(eqn: Any) -> Rule | None:
    transforms = jax.tree.unflatten(eqn.params["tree"], eqn.invars[1:])
    return _repeating_load if transforms and _repeats(transforms[-1]) else None


def _repeats(transform: Any) -> bool:
    """Return whether a transform repeats elements, by a slice of stride 0."""
    return isinstance(transform, NDIndexer) and any(map(_is_repeating, transform.indices))


def _is_repeating(index: Any) -> bool:
    return isinstance(index, Slice) and index.stride == 0


def _for_wait(eqn: Any) -> Rule | None:
    *_, decrement = jax.tree.unflatten(eqn.params["args_tree"], eqn.invars)
    return None if getattr(decrement, "val", decrement) else _wait_without_decrement


def _for_dma(eqn: Any) -> Rule | None:
    refs = jax.tree.unflatten(eqn.params["tree"], eqn.invars)
    if any(_is_selected(ref) for ref in refs):
        return _selected_dma
    return _adding_dma if eqn.params.get("add") else None


_RULES: dict[Any, Callable[[Any], Rule | None]] = {
    primitives.load_p: _for_masked_load,
    primitives.semaphore_wait_p: _for_wait,
    primitives.semaphore_read_p: lambda _: _read_semaphore,
    mosaic_primitives.dma_start_p: _for_dma,
    mosaic_primitives.dma_wait_p: _for_dma,
    conditionals.platform_index_p: lambda _: _platform,
    mosaic_primitives.touch_p: lambda _: _nothing,
    mosaic_primitives.trace_value_p: lambda _: _nothing,
    state_primitives.addupdate_p: lambda _: _add_update,
    state_primitives.get_p: _for_get,
}
if hasattr(mosaic_primitives, "has_memory_space_p"):  # since jax 0.12
    _RULES[mosaic_primitives.has_memory_space_p] = lambda _: _has_memory_space

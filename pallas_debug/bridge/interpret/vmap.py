"""Support for kernels under `vmap` in TPU interpret mode.

`vmap` adds a leading dimension to a kernel's grid and to the blocks of the mapped operands. Mosaic
supports such kernels. Two limitations of TPU interpret mode are worked around here: it requires
dimension semantics for the whole grid, and unblocked operands in HBM.

Within a kernel, jax maps `emit_pipeline` only as a primitive, which few interpreters evaluate:
`mapping_pipelines` does so while it is traced, for all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import config as jax_config
from jax._src import core as jax_core
from jax._src import source_info_util
from jax._src.interpreters import batching
from jax._src.pallas import core as pallas_core
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge.jaxprs import nested

# Pipelines are traced through this file; keep it out of their source locations.
source_info_util.register_exclusion(__file__)


def with_semantics(params: Mapping[str, Any]) -> dict[str, Any]:
    """Extend a kernel's dimension semantics to those of `vmap`: parallel, as in Mosaic."""
    grid = params.get("grid_mapping")
    compiler_params: Any = params.get("compiler_params")
    semantics = getattr(compiler_params, "dimension_semantics", None)
    if grid is None or semantics is None:
        return dict(params)
    missing = min(len(grid.vmapped_dims), len(grid.grid) - len(semantics))
    padded = (pltpu.PARALLEL,) * max(missing, 0) + tuple(semantics)
    return {**params, "compiler_params": compiler_params.replace(dimension_semantics=padded)}


def one_by_one(params: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return a function that runs the kernel once for each element of the outermost `vmap`.

    Needed for mapped operands in HBM. Unlike on a TPU, each element has fresh scratch memory, and
    elements cannot race.

    Returns:
      A function of the kernel's operands; None if the kernel does not need it.
    """
    grid = params.get("grid_mapping")
    if grid is None or 0 not in grid.vmapped_dims or not isinstance(grid.grid[0], int):
        return None
    in_hbm = [block for block in grid.block_mappings if _memory_space(block) in (pl.ANY, pltpu.HBM)]
    if all(_mapped_dim(block) is None for block in in_hbm):
        return None
    return functools.partial(_run_one_by_one, params)


def _memory_space(block: Any) -> Any:
    return block.transformed_block_aval.memory_space


def _mapped_dim(block: Any) -> int | None:
    """Dimension of an operand mapped by the outermost `vmap`, if the new index is unchanged."""
    index_map = nested.opened(block.index_map_jaxpr)[0]
    indices = jax.tree.unflatten(block.index_map_out_tree, index_map.outvars)
    return next((i for i, index in enumerate(indices) if index is index_map.invars[0]), None)


def _run_one_by_one(params: Mapping[str, Any], *args: Any) -> Any:
    grid = params["grid_mapping"]
    dims = [_mapped_dim(block) for block in grid.block_mappings]
    before = [None] * (grid.num_dynamic_grid_bounds + grid.num_index_operands)
    in_dims, out_dims = [*before, *dims[: grid.num_inputs]], dims[grid.num_inputs :]
    inner = _of_one(params, out_dims)

    def run(i: Any) -> Any:
        ours = [
            arg if dim is None else jax.lax.dynamic_index_in_dim(arg, i, dim, keepdims=False)
            for arg, dim in zip(args, in_dims, strict=True)
        ]
        return tuple(_interpreted(inner, *ours))

    outs = jax.lax.map(run, jnp.arange(grid.grid[0]))
    # An unmapped output would be overwritten by each element, but vmap maps all outputs.
    return [jnp.moveaxis(out, 0, dim or 0) for out, dim in zip(outs, out_dims, strict=True)]


def _interpreted(params: Mapping[str, Any], *args: Any) -> Any:
    again = one_by_one(params)
    if again is not None:
        return again(*args)
    params = with_semantics(params)
    interpret_params = params.pop("interpret")
    return interpret_pallas_call.interpret_pallas_call(
        *args, interpret_params=interpret_params, **params
    )


def _of_one(params: Mapping[str, Any], out_dims: list[int | None]) -> dict[str, Any]:
    """Return the kernel's parameters without the outermost `vmap`."""
    grid = params["grid_mapping"]
    names = grid.grid_names
    first, *rest = jax.tree.unflatten(grid.index_map_tree, grid.index_map_avals)[0]
    del first
    avals, tree = jax.tree.flatten((tuple(rest), {}))
    return {
        **params,
        "grid_mapping": grid.replace(
            grid=grid.grid[1:],
            # jax 0.10 does not extend the names.
            grid_names=names[1:] if names and len(names) == len(grid.grid) else names,
            vmapped_dims=tuple(dim - 1 for dim in grid.vmapped_dims if dim),
            block_mappings=tuple(_block_of_one(block) for block in grid.block_mappings),
            index_map_avals=tuple(avals),
            index_map_tree=tree,
        ),
        "out_avals": tuple(
            aval if dim is None else _aval_of_one(aval, dim)
            for aval, dim in zip(params["out_avals"], out_dims, strict=True)
        ),
    }


def _block_of_one(block: Any) -> Any:
    dim = _mapped_dim(block)
    index_map = nested.opened(block.index_map_jaxpr)[0]
    indices = jax.tree.unflatten(block.index_map_out_tree, index_map.outvars)
    kept = tuple(index for i, index in enumerate(indices) if i != dim)
    outvars, tree = jax.tree.flatten(kept)
    new_map = index_map.replace(invars=index_map.invars[1:], outvars=outvars)
    consts = block.index_map_jaxpr.consts
    if nested.opened(block.index_map_jaxpr)[0] is not block.index_map_jaxpr:
        new_map = jax_core.ClosedJaxpr(new_map, consts)
    shape = tuple(size for i, size in enumerate(block.block_shape) if i != dim)
    aval = block.array_aval if dim is None else _aval_of_one(block.array_aval, dim)
    return block.replace(
        block_shape=shape, array_aval=aval, index_map_jaxpr=new_map, index_map_out_tree=tree
    )


def _aval_of_one(aval: Any, dim: int) -> Any:
    return jax_core.ShapedArray((*aval.shape[:dim], *aval.shape[dim + 1 :]), aval.dtype)


def mapping_pipelines(emit: Callable[..., Any]) -> Callable[..., Any]:
    """Replacement for the function that traces `emit_pipeline` inline: maps it as its primitive is.

    The mapped axis becomes the first of the pipeline's grid, of which its functions see the rest.
    """

    @functools.wraps(emit)
    def emitting(
        body: Callable[..., Any],
        *,
        grid: Any,
        in_specs: Any = (),
        out_specs: Any = (),
        **params: Any,
    ) -> Callable[..., Any]:
        as_asked: Callable[..., Any] = emit(
            body, grid=grid, in_specs=in_specs, out_specs=out_specs, **params
        )
        if not jax_config.use_emit_pipeline_primitive.value:
            return as_asked

        @functools.wraps(as_asked)
        def run(*refs: Any, **kwargs: Any) -> Any:
            tracers = [ref for ref in refs if isinstance(ref, batching.BatchTracer)]
            specs, tree = jax.tree.flatten((in_specs, out_specs))
            is_known = len(specs) == len(refs) and all(s.block_shape is not None for s in specs)
            if not tracers or not is_known:
                return as_asked(*refs, **kwargs)
            trace: Any = tracers[-1]._trace
            axes = [_mapped_axis(ref, trace) for ref in refs]
            mapped = [_mapped_spec(s, a, len(grid)) for s, a in zip(specs, axes, strict=True)]
            new = dict(
                zip(("in_specs", "out_specs"), jax.tree.unflatten(tree, mapped), strict=True)
            )
            if params.get("dimension_semantics") is not None:
                semantics = (pltpu.PARALLEL, *params["dimension_semantics"])
                new["dimension_semantics"] = semantics
            inner = _mapped_body(body, len(grid), explicit=params.get("_explicit_indices", False))
            call = emitting(inner, grid=(trace.axis_data.size, *grid), **{**params, **new})
            with jax_core.set_current_trace(trace.parent_trace):
                return call(
                    *(r if a is None else r.val for r, a in zip(refs, axes, strict=True)), **kwargs
                )

        return run

    return emitting


def _mapped_axis(ref: Any, trace: Any) -> int | None:
    is_mapped = isinstance(ref, batching.BatchTracer) and ref._trace is trace
    return ref.batch_dim if is_mapped else None


def _mapped_spec(spec: pl.BlockSpec, axis: int | None, axes: int) -> pl.BlockSpec:
    """Add the mapped axis to the blocks of an operand.

    Args:
      axis: its position in the operand; None if the operand is not mapped.
      axes: number of axes of the pipeline's grid.
    """
    shape: Any = spec.block_shape
    index_map: Any = spec.index_map

    def index(element: Any, *indices: Any) -> tuple[Any, ...]:
        with _own_axes(axes):
            found = index_map(*indices)
        found = found if isinstance(found, tuple) else (found,)
        return found if axis is None else (*found[:axis], element, *found[axis:])

    if axis is not None:
        shape = (*shape[:axis], pl.squeezed, *shape[axis:])
    return dataclasses.replace(spec, block_shape=shape, index_map=index)


def _mapped_body(body: Callable[..., Any], axes: int, *, explicit: bool) -> Callable[..., Any]:
    """Hide the mapped axis from a pipeline's body.

    Args:
      explicit: whether the body takes the indices of its step as its first argument.
    """

    def inner(*args: Any) -> None:
        if explicit:
            step, *refs = args
            is_record = dataclasses.is_dataclass(step)
            own = dataclasses.replace(step, index=step.index[1:]) if is_record else step[1:]
            args = (own, *refs)
        with _own_axes(axes):
            body(*args)

    return inner


def _own_axes(axes: int) -> contextlib.AbstractContextManager[Any]:
    """Hide the mapped axis from `program_id` and `num_programs`."""
    env = pallas_core.current_grid_env()
    if env is None or len(env) != axes + 1:
        return contextlib.nullcontext()
    own: contextlib.AbstractContextManager[Any] = pallas_core.grid_env(list(env[1:]))
    return own

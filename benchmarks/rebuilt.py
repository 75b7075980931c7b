"""Kernels compiled with other blocks or another grid than their function gives to `pallas_call`."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import jax
from jax.experimental import pallas as pl

from pallas_debug.profile.blocks import BlockMap, OperandBlocks


@contextlib.contextmanager
def rebuilt(blocks: BlockMap, order: Sequence[int] | None) -> Iterator[None]:
    """Make `pallas_call` use these blocks.

    The kernel has to work with blocks of any size, and must not ask for its grid point if the order
    changes: nothing but the specs is rewritten.

    Args:
      blocks: the changed blocks, with an operand for each spec.
      order: the axes of the grid in their new order; None for the order that there is.

    Raises:
      ValueError: the call has other specs.
    """
    original = pl.pallas_call

    def call(kernel: Any, out_shape: Any, *, grid_spec: Any = None, **options: Any) -> Any:
        if grid_spec is None:
            names = ("grid", "in_specs", "out_specs", "scratch_shapes")
            grid_spec = pl.GridSpec(**{n: options.pop(n) for n in names if n in options})
        changed = copy.copy(grid_spec)
        specs, tree = jax.tree.flatten((grid_spec.in_specs, grid_spec.out_specs))
        found = [
            _spec(spec, operand, order)
            for spec, operand in zip(specs, blocks.operands, strict=True)
        ]
        changed.grid = blocks.grid
        changed.in_specs, changed.out_specs = jax.tree.unflatten(tree, found)
        params = options.get("compiler_params")
        semantics = getattr(params, "dimension_semantics", None)
        if order is not None and semantics is not None:
            moved = tuple(semantics[axis] for axis in order)
            options["compiler_params"] = replace(params, dimension_semantics=moved)
        return original(kernel, out_shape, grid_spec=changed, **options)

    with mock.patch.object(pl, "pallas_call", call):
        yield


def _spec(spec: Any, operand: OperandBlocks, order: Sequence[int] | None) -> Any:
    if spec.block_shape is None:
        return spec
    shape = tuple(
        dimension.size if isinstance(old, int) else old
        for old, dimension in zip(spec.block_shape, operand.dimensions, strict=True)
    )
    index_map = spec.index_map if order is None else _moved(spec.index_map, order)
    return pl.BlockSpec(
        shape, index_map, memory_space=spec.memory_space, pipeline_mode=spec.pipeline_mode
    )


def _moved(index_map: Callable[..., Any], order: Sequence[int]) -> Callable[..., Any]:
    def moved(*args: Any) -> Any:
        point = [args[order.index(axis)] for axis in range(len(order))]
        return index_map(*point, *args[len(order) :])

    return moved

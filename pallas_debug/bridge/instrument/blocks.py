"""Checks of index maps: each operand's block at the current grid point begins within its array.

The last block of an array may reach past its end; what is read there is padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax._src import core as jax_core

from pallas_debug.bridge.instrument import conditions
from pallas_debug.bridge.instrument.flow import Entry, Provenance
from pallas_debug.bridge.instrument.sites import Site
from pallas_debug.bridge.jaxprs import lines, rewrite


class BlockCheck(NamedTuple):
    """A block index that may leave its array, with the table entry that it comes from."""

    site: Site
    failed: Any
    index: Any
    entry: Entry | None


def checks(
    mapping: Any,
    operands: Sequence[Any],
    grid_point: Sequence[Any],
    prefetched: Sequence[Any],
    tables: Mapping[int, str],
) -> Iterator[BlockCheck]:
    """Check the blocks of all operands.

    Args:
      mapping: jax's `GridMapping`.
      operands: name and kind of each operand with blocks.
      prefetched: refs of the scalar-prefetch operands.
      tables: their names, by the `id` of their refs.
    """
    batch = [np.int32(0)] * len(mapping.vmapped_dims)  # jax maps these blocks itself
    for operand, block in zip(operands, mapping.block_mappings, strict=False):
        inner, consts = rewrite.opened(block.index_map_jaxpr)
        follower = _Follower(tables)
        if consts:
            indices = jax_core.eval_jaxpr(inner, consts, *batch, *grid_point, *prefetched)
        else:
            indices = rewrite.replay(inner, [*batch, *grid_point, *prefetched], follower)
        shape = tuple(conditions.block_size(b) for b in block.block_shape)
        for dim, (index, entry, bound) in enumerate(
            zip(indices, block.block_shape, block.array_aval.shape, strict=False)
        ):
            size = conditions.block_size(entry)
            is_element = type(entry).__name__ == "Element"
            number = bound - 1 if is_element or size is None else (bound - 1) // size
            if _stays(index, number, inner, dim, mapping):
                continue
            site = Site(
                check="index",
                operation="block",
                source=lines.of_function(block.index_map_jaxpr.debug_info),
                operand=operand.name,
                details={
                    "dim": dim,
                    "size": size,
                    "bound": bound,
                    "blocks": number + 1,
                    "element": is_element,
                    "kind": operand.kind,
                    "block": shape,
                    "shape": tuple(block.array_aval.shape),
                    "dtype": str(block.array_aval.dtype),
                },
            )
            failed = (index < 0) | (index > number)
            yield BlockCheck(site, failed, index, follower.origins.entry(index))


class _Follower(rewrite.Visitor):
    """Visitor of an index map that follows what it reads from tables."""

    def __init__(self, tables: Mapping[int, str]) -> None:
        self._tables = tables
        self.origins = Provenance()

    def after(
        self, eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any], place: rewrite.ProgramPoint
    ) -> None:
        self.origins.follow(eqn, inputs, outputs, self._tables)


def _stays(index: Any, last: int, inner: Any, dim: int, mapping: Any) -> bool:
    """Whether a block index is statically known to stay within the array."""
    if not isinstance(index, jax_core.Tracer):
        return 0 <= int(index) <= last
    out = inner.outvars[dim]
    for size, variable in zip(mapping.grid, inner.invars, strict=False):
        if out is variable and isinstance(size, int):
            return size - 1 <= last
    return False

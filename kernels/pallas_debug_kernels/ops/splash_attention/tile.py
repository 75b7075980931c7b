"""Code common to the three kernels: scores of one tile, their mask, and its operands.

The forward and dQ kernels hold a tile of scores as `[block_q, block_kv]`, keys along the lanes:
`kv_axis` is 1. The dkv kernel holds it transposed, so that its products need no transposes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.typing import DTypeLike

from ..._arguments import LANES, SegmentIds
from ..flash_attention.kernel import part_of, spread
from .mask_info import FULL, MaskInfo
from .masks import IntervalMask

# Below any real score, and far enough from -inf that differences stay finite: no inf - inf.
MASK_VALUE = -0.7 * float(jnp.finfo(jnp.float32).max)

Index = Callable[..., jax.Array]


@dataclass(frozen=True, kw_only=True)
class Score:
    """Processing of the products of queries and keys, as far as static under tracing.

    computed: the mask that the kernel computes; None if it loads mask blocks, or masks nothing.
    """

    sm_scale: float
    soft_cap: float | None
    computed: IntervalMask | None


class Masking(NamedTuple):
    """Mask operands: as arrays, as block specs, and in a kernel as refs.

    blocks: bool, a partial block, `[block_q, block_kv]`.
    q_sequence, q_ids: int32, one for each query, `[block_q, 128]`.
    kv_ids: int32, one for each key, `[1, block_kv]`.

    With keys along the sublanes: `[block_kv, block_q]`, `[1, block_q]` and `[block_kv, 128]`.
    """

    blocks: Any
    q_sequence: Any
    q_ids: Any
    kv_ids: Any


def masking_arrays(info: MaskInfo, segment_ids: SegmentIds | None, *, kv_axis: int) -> Masking:
    """Return the operands as arrays."""
    q_side, kv_side = (
        (_along_sublanes, _along_lanes) if kv_axis == 1 else (_along_lanes, _along_sublanes)
    )
    return Masking(
        blocks=info.partial_mask_blocks,
        q_sequence=None if info.q_sequence is None else q_side(info.q_sequence),
        q_ids=None if segment_ids is None else q_side(segment_ids.q),
        kv_ids=None if segment_ids is None else kv_side(segment_ids.kv),
    )


def masking_specs(
    masking: Masking,
    *,
    block_q: int,
    block_kv: int,
    q: Index,
    kv: Index,
    block: Index,
    kv_axis: int,
) -> Masking:
    """Return the block specs; `q`, `kv` and `block` map a grid point to a block number."""
    tile = (block_q, block_kv) if kv_axis == 1 else (block_kv, block_q)
    q_spec, kv_spec = (
        (_sublane_spec(block_q, q), _lane_spec(block_kv, kv))
        if kv_axis == 1
        else (_lane_spec(block_q, q), _sublane_spec(block_kv, kv))
    )
    return Masking(
        blocks=None
        if masking.blocks is None
        else pl.BlockSpec((None, *tile), lambda *at: (block(*at), jnp.int32(0), jnp.int32(0))),
        q_sequence=None if masking.q_sequence is None else q_spec,
        q_ids=None if masking.q_ids is None else q_spec,
        kv_ids=None if masking.kv_ids is None else kv_spec,
    )


def _along_sublanes(x: jax.Array | np.ndarray) -> jax.Array:
    """Broadcast [n] to [n, 128]: the same value in all lanes of a row."""
    rows: jax.Array = jnp.broadcast_to(x[:, None], (*x.shape, LANES))
    return rows


def _along_lanes(x: jax.Array | np.ndarray) -> jax.Array:
    """Reshape [n] to [1, n]."""
    row: jax.Array = jnp.asarray(x)[None, :]
    return row


def _sublane_spec(size: int, index: Index) -> pl.BlockSpec:
    return pl.BlockSpec((size, LANES), lambda *at: (index(*at), jnp.int32(0)))


def _lane_spec(size: int, index: Index) -> pl.BlockSpec:
    return pl.BlockSpec((1, size), lambda *at: (jnp.int32(0), index(*at)))


def step_of(
    table_shape: Sequence[int], head: jax.Array, row: jax.Array, column: jax.Array
) -> jax.Array:
    """Return the place of a step in a flat `[heads, rows, width]` table; one head if shared."""
    heads, rows, width = table_shape
    row = row if heads == 1 else head * rows + row
    return row * width + column


def entry(
    table: jax.Ref,
    table_shape: Sequence[int],
    head: jax.Array,
    row: jax.Array,
    column: jax.Array,
) -> jax.Array:
    """Return the entry of a flat table for a step."""
    value: jax.Array = table[step_of(table_shape, head, row, column)]
    return value


def index_maps(table_shape: tuple[int, ...]) -> tuple[Index, Index, Index]:
    """Return the numbers of the blocks of queries, of keys and of the mask for each grid point.

    The grid is (heads, blocks of queries, visible blocks).
    """

    def row(h: jax.Array, i: jax.Array, j: jax.Array, *tables: jax.Ref) -> jax.Array:
        return i

    def kv_block(h: jax.Array, i: jax.Array, j: jax.Array, *tables: jax.Ref) -> jax.Array:
        data_next, _, _ = tables
        return entry(data_next, table_shape, h, i, j)

    def mask_block(h: jax.Array, i: jax.Array, j: jax.Array, *tables: jax.Ref) -> jax.Array:
        _, _, mask_next = tables
        return entry(mask_next, table_shape, h, i, j)

    return row, kv_block, mask_block


def scaled(products: jax.Array, score: Score) -> tuple[jax.Array, jax.Array | None]:
    """Return the scores, and their slope against `sm_scale * products` if it is not 1."""
    scores = products if score.sm_scale == 1.0 else products * score.sm_scale
    if score.soft_cap is None:
        return scores, None
    t = jnp.tanh(scores / score.soft_cap)
    return score.soft_cap * t, 1.0 - t * t


def masked(
    scores: jax.Array,  # [block_q, block_kv_compute], or transposed
    masking: Masking,
    score: Score,
    *,
    kind: jax.Array,
    kv_block: jax.Array,
    block_kv: int,
    kv_start: int,
    kv_axis: int,
    q_start: int = 0,
) -> jax.Array:
    """Return the scores with MASK_VALUE where the query does not see the key.

    The tile starts at query `q_start` of its block, and at key `kv_start` of block `kv_block`,
    which is of `kind` (0, 1 or 2).
    """
    keys = slice(kv_start, kv_start + scores.shape[kv_axis])
    queries = slice(q_start, q_start + scores.shape[1 - kv_axis])
    visible = []
    if masking.blocks is not None:
        block = masking.blocks[(queries, keys) if kv_axis == 1 else (keys, queries)]
        # In a full block every key is visible, whatever was loaded.
        visible.append(jnp.logical_or(block, jnp.broadcast_to(kind == FULL, block.shape)))
    if score.computed is not None:
        first_key = kv_block * block_kv + kv_start
        key = lax.broadcasted_iota(jnp.int32, scores.shape, kv_axis)
        lower, upper = score.computed.bounds(_of_queries(masking.q_sequence, queries, kv_axis))
        if lower is not None:
            visible.append(key >= _spread(lower - first_key, scores.shape))
        if upper is not None:
            visible.append(key <= _spread(upper - first_key, scores.shape))
    if masking.q_ids is not None:
        kv_ids = masking.kv_ids[:, keys] if kv_axis == 1 else masking.kv_ids[keys, :]
        q_ids = _spread(_of_queries(masking.q_ids, queries, kv_axis), scores.shape)
        visible.append(q_ids == _spread(kv_ids, scores.shape))
    if not visible:
        return scores
    all_visible = reduce(jnp.logical_and, visible)
    shown: jax.Array = jnp.where(all_visible, scores, jnp.full_like(scores, MASK_VALUE))
    return shown


def _of_queries(ref: jax.Ref, queries: slice, kv_axis: int) -> jax.Array:
    """Return the rows of `[block_q, 128]`, or the columns of `[1, block_q]`, for these queries."""
    values: jax.Array = ref[queries, :] if kv_axis == 1 else ref[:, queries]
    return values


def parts_of(block_q: int, dtype: DTypeLike) -> tuple[slice, ...]:
    """Return the queries to process at a time; see `part_of`."""
    size = part_of(block_q, dtype)
    return tuple(slice(start, start + size) for start in range(0, block_q, size))


def _spread(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Broadcast `[rows, 128]`, equal in all lanes, or `[1, columns]`, to the shape of the tile."""
    wide: jax.Array = jnp.broadcast_to(x, shape) if x.shape[0] == 1 else spread(x, shape[1])
    return wide

"""The forward kernel of splash attention: an online softmax over the blocks that the mask shows.

For each query, scratch holds the largest score so far (m), the sum of exp(score - m) so far (l) and
the same sum weighted by the values (acc). m and l are replicated in all 128 lanes of a row.
"""
# mypy: disable-error-code="untyped-decorator"
# pl.when runs the function that it decorates and returns nothing.

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..._arguments import LANES, SegmentIds
from ..flash_attention.kernel import dot, spread
from .block_sizes import SplashBlockSizes
from .mask_info import EMPTY, MaskInfo
from .tile import (
    MASK_VALUE,
    Masking,
    Score,
    index_maps,
    masked,
    masking_arrays,
    masking_specs,
    parts_of,
    scaled,
    step_of,
)


def splash_attention_kernel(
    data_next_ref: jax.Ref,  # [heads * rows * width]
    block_mask_ref: jax.Ref,
    mask_next_ref: jax.Ref,
    q_ref: jax.Ref,  # [block_q, head_dim]
    k_ref: jax.Ref,  # [block_kv, head_dim]
    v_ref: jax.Ref,  # [block_kv, head_dim]
    masking: Masking,
    out_ref: jax.Ref,  # [block_q, head_dim]
    logsumexp_ref: jax.Ref | None,  # [1, block_q]
    m_ref: jax.Ref,  # [block_q, 128]
    l_ref: jax.Ref,  # [block_q, 128]
    acc_ref: jax.Ref,  # [block_q, head_dim]
    *,
    score: Score,
    table_shape: tuple[int, ...],
    block_kv_compute: int,
) -> None:
    """Process one block of keys, unless the mask hides it; the last step writes the output."""
    del mask_next_ref  # used by the index maps
    column = pl.program_id(2)
    step = step_of(table_shape, pl.program_id(0), pl.program_id(1), column)
    kind, kv_block = block_mask_ref[step], data_next_ref[step]
    block_kv = k_ref.shape[0]

    def _clear(i: jax.Array, _: None) -> None:
        rows = pl.ds(pl.multiple_of(i * LANES, LANES), LANES)
        m_ref[rows, :] = jnp.full((LANES, LANES), MASK_VALUE, m_ref.dtype)
        l_ref[rows, :] = jnp.zeros((LANES, LANES), l_ref.dtype)
        acc_ref[rows, :] = jnp.zeros((LANES, acc_ref.shape[1]), acc_ref.dtype)

    @pl.when(column == 0)
    def _start() -> None:
        # A loop: short code for what is rarely run.
        lax.fori_loop(jnp.int32(0), jnp.int32(q_ref.shape[0] // LANES), _clear, None)

    def scores_of(queries: slice, keys: slice) -> jax.Array:
        products = dot(q_ref[queries, :], k_ref[keys, :], contract=(1, 1))
        scores, _ = scaled(products, score)
        return masked(
            scores,  # [queries, keys]
            masking,
            score,
            kind=kind,
            kv_block=kv_block,
            block_kv=block_kv,
            kv_start=keys.start,
            kv_axis=1,
            q_start=queries.start,
        )

    @pl.when(kind != EMPTY)
    def _step() -> None:
        parts = parts_of(q_ref.shape[0], q_ref.dtype)
        for start in range(0, block_kv, block_kv_compute):
            keys = slice(start, start + block_kv_compute)
            tiles = [scores_of(queries, keys) for queries in parts]
            for queries, scores in zip(parts, tiles, strict=True):
                statistics = (ref.at[queries, :] for ref in (m_ref, l_ref, acc_ref))
                _accumulate(scores, v_ref[keys, :], *statistics)

    @pl.when(column == table_shape[2] - 1)
    def _finish() -> None:
        m, l = m_ref[...], l_ref[...]  # noqa: E741
        # A query that sees no key still has m = MASK_VALUE, and a sum over masked scores.
        sees_none = m <= 0.5 * MASK_VALUE
        divisor = jnp.where(sees_none, jnp.ones_like(l), l)
        factor = jnp.where(sees_none, jnp.zeros_like(l), 1.0 / divisor)
        out = acc_ref[...] * spread(factor, acc_ref.shape[1])
        out_ref[...] = out.astype(out_ref.dtype)
        if logsumexp_ref is not None:
            logsumexp = jnp.where(sees_none, m, m + jnp.log(divisor))  # [block_q, 128]
            logsumexp_ref[...] = logsumexp.T[:1]


def _accumulate(
    scores: jax.Array,  # [block_q, block_kv_compute]
    v: jax.Array,  # [block_kv_compute, head_dim]
    m_ref: jax.Ref,
    l_ref: jax.Ref,
    acc_ref: jax.Ref,
) -> None:
    """Perform one step of the online softmax.

    Until a row sees a key, masked scores count as 1; the first key it sees makes alpha 0.
    """
    m_prev = m_ref[...]
    m_next = jnp.maximum(m_prev, jnp.max(scores, axis=1, keepdims=True))  # [block_q, 128]
    p = jnp.exp(scores - spread(m_next, scores.shape[1]))  # [block_q, block_kv_compute]
    alpha = jnp.exp(m_prev - m_next)  # [block_q, 128]
    m_ref[...] = m_next
    l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
    products = dot(p.astype(v.dtype), v, contract=(1, 0))  # [block_q, head_dim]
    acc_ref[...] = products + spread(alpha, acc_ref.shape[1]) * acc_ref[...]


@partial(jax.jit, static_argnames=("score", "block_sizes", "save_logsumexp"))
def launch_forward(
    info: MaskInfo,
    q: jax.Array,  # [num_q_heads, q_seq, head_dim]
    k: jax.Array,  # [num_kv_heads, kv_seq, head_dim]
    v: jax.Array,  # [num_kv_heads, kv_seq, head_dim]
    segment_ids: SegmentIds | None,
    *,
    score: Score,
    block_sizes: SplashBlockSizes,
    save_logsumexp: bool,
) -> tuple[jax.Array, jax.Array | None]:
    """Run the kernel over the grid (heads, q blocks, visible blocks).

    Returns the output, and the logsumexp of each query `[num_q_heads, q_seq]` if requested.
    """
    heads, q_seq, head_dim = q.shape
    group = heads // k.shape[0]
    block_q, block_kv = block_sizes.block_q, block_sizes.block_kv
    table_shape = info.data_next.shape

    row, kv_block, mask_block = index_maps(table_shape)
    q_spec = pl.BlockSpec((None, block_q, head_dim), lambda h, i, *_: (h, i, jnp.int32(0)))
    kv_spec = pl.BlockSpec(
        (None, block_kv, head_dim),
        lambda h, *at: (kv_head(h, group), kv_block(h, *at), jnp.int32(0)),
    )
    masking = masking_arrays(info, segment_ids, kv_axis=1)
    specs = masking_specs(
        masking, block_q=block_q, block_kv=block_kv, q=row, kv=kv_block, block=mask_block, kv_axis=1
    )
    logsumexp_shape = jax.ShapeDtypeStruct((heads, 1, q_seq), jnp.float32)
    logsumexp_spec = pl.BlockSpec((None, 1, block_q), lambda h, i, *_: (h, jnp.int32(0), i))
    attend = pl.pallas_call(
        partial(
            splash_attention_kernel,
            score=score,
            table_shape=table_shape,
            block_kv_compute=block_sizes.block_kv_compute,
        ),
        out_shape=(
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            logsumexp_shape if save_logsumexp else None,
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(heads, q_seq // block_q, table_shape[2]),
            in_specs=[q_spec, kv_spec, kv_spec, specs],
            out_specs=(q_spec, logsumexp_spec if save_logsumexp else None),
            scratch_shapes=[
                pltpu.VMEM((block_q, LANES), jnp.float32),
                pltpu.VMEM((block_q, LANES), jnp.float32),
                pltpu.VMEM((block_q, head_dim), jnp.float32),
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        name="splash_attention",
    )
    out, logsumexp = attend(*flat_tables(info), q, k, v, masking)
    return out, None if logsumexp is None else logsumexp[:, 0]


def flat_tables(info: MaskInfo) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Flatten the tables for scalar memory, which would pad the rows of an array."""
    data_next, block_mask, mask_next = map(
        jnp.asarray, (info.data_next, info.block_mask, info.mask_next)
    )
    return data_next.reshape(-1), block_mask.reshape(-1), mask_next.reshape(-1)


def kv_head(head: jax.Array, group: int) -> jax.Array:
    """Return the head of keys for a head of queries; `group` query heads share one."""
    return head if group == 1 else lax.div(head, jnp.int32(group))

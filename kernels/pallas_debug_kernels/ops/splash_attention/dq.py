"""The dQ kernel of splash attention.

For each block of queries, it iterates over the blocks of keys that they see, like the forward
kernel. With p = exp(score - logsumexp), recomputed,

    dS = p * (dO V^T - di),    dQ = dS K,    di = sum(dO * O).
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
from ..flash_attention.kernel import dot
from .block_sizes import SplashBlockSizes
from .kernel import flat_tables, kv_head
from .mask_info import EMPTY, MaskInfo
from .tile import (
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


def splash_attention_dq_kernel(
    data_next_ref: jax.Ref,  # [heads * rows * width]
    block_mask_ref: jax.Ref,
    mask_next_ref: jax.Ref,
    q_ref: jax.Ref,  # [block_q, head_dim]
    k_ref: jax.Ref,  # [block_kv, head_dim]
    v_ref: jax.Ref,  # [block_kv, head_dim]
    do_ref: jax.Ref,  # [block_q, head_dim]
    logsumexp_ref: jax.Ref,  # [1, block_q]
    di_ref: jax.Ref,  # [1, block_q]
    masking: Masking,
    dq_ref: jax.Ref,  # [block_q, head_dim]
    acc_ref: jax.Ref,  # [block_q, head_dim]
    *,
    score: Score,
    table_shape: tuple[int, ...],
) -> None:
    """Process one block of keys, unless the mask hides it; the last step writes dQ."""
    del mask_next_ref  # used by the index maps
    column = pl.program_id(2)
    step = step_of(table_shape, pl.program_id(0), pl.program_id(1), column)
    kind, kv_block = block_mask_ref[step], data_next_ref[step]

    def _clear(i: jax.Array, _: None) -> None:
        rows = pl.ds(pl.multiple_of(i * LANES, LANES), LANES)
        acc_ref[rows, :] = jnp.zeros((LANES, acc_ref.shape[1]), acc_ref.dtype)

    @pl.when(column == 0)
    def _start() -> None:
        # A loop: short code for what is rarely run.
        lax.fori_loop(jnp.int32(0), jnp.int32(q_ref.shape[0] // LANES), _clear, None)

    def scores_of(queries: slice) -> tuple[jax.Array, jax.Array | None]:
        products = dot(q_ref[queries, :], k_ref[...], contract=(1, 1))
        scores, slope = scaled(products, score)
        scores = masked(
            scores,  # [queries, block_kv]
            masking,
            score,
            kind=kind,
            kv_block=kv_block,
            block_kv=k_ref.shape[0],
            kv_start=0,
            kv_axis=1,
            q_start=queries.start,
        )
        return scores, slope

    @pl.when(kind != EMPTY)
    def _step() -> None:
        parts = parts_of(q_ref.shape[0], q_ref.dtype)
        tiles = [scores_of(queries) for queries in parts]
        dps = [dot(do_ref[queries, :], v_ref[...], contract=(1, 1)) for queries in parts]
        for queries, (scores, slope), dp in zip(parts, tiles, dps, strict=True):
            # Per-query values move from lanes to sublanes.
            p = jnp.exp(scores - logsumexp_ref[0, queries][:, None])
            ds = (dp - di_ref[0, queries][:, None]) * p
            if slope is not None:
                ds = ds * slope
            k = k_ref[...]  # [block_kv, head_dim]
            acc_ref[queries, :] += dot(ds.astype(k.dtype), k, contract=(1, 0))

    @pl.when(column == table_shape[2] - 1)
    def _finish() -> None:
        dq = acc_ref[...]
        dq = dq if score.sm_scale == 1.0 else dq * score.sm_scale
        dq_ref[...] = dq.astype(dq_ref.dtype)


@partial(jax.jit, static_argnames=("score", "block_sizes"))
def launch_dq(
    info: MaskInfo,
    q: jax.Array,  # [num_q_heads, q_seq, head_dim]
    k: jax.Array,  # [num_kv_heads, kv_seq, head_dim]
    v: jax.Array,  # [num_kv_heads, kv_seq, head_dim]
    do: jax.Array,  # [num_q_heads, q_seq, head_dim]
    logsumexp: jax.Array,  # [num_q_heads, q_seq]
    di: jax.Array,  # [num_q_heads, q_seq]
    segment_ids: SegmentIds | None,
    *,
    score: Score,
    block_sizes: SplashBlockSizes,
) -> jax.Array:
    """Run the kernel over the grid (heads, q blocks, visible blocks)."""
    heads, q_seq, head_dim = q.shape
    group = heads // k.shape[0]
    block_q, block_kv = block_sizes.block_q_dq, block_sizes.block_kv_dq
    table_shape = info.data_next.shape

    row, kv_block, mask_block = index_maps(table_shape)
    q_spec = pl.BlockSpec((None, block_q, head_dim), lambda h, i, *_: (h, i, jnp.int32(0)))
    q_row_spec = pl.BlockSpec((None, 1, block_q), lambda h, i, *_: (h, jnp.int32(0), i))
    kv_spec = pl.BlockSpec(
        (None, block_kv, head_dim),
        lambda h, *at: (kv_head(h, group), kv_block(h, *at), jnp.int32(0)),
    )
    masking = masking_arrays(info, segment_ids, kv_axis=1)
    specs = masking_specs(
        masking, block_q=block_q, block_kv=block_kv, q=row, kv=kv_block, block=mask_block, kv_axis=1
    )
    differentiate = pl.pallas_call(
        partial(splash_attention_dq_kernel, score=score, table_shape=table_shape),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(heads, q_seq // block_q, table_shape[2]),
            in_specs=[q_spec, kv_spec, kv_spec, q_spec, q_row_spec, q_row_spec, specs],
            out_specs=q_spec,
            scratch_shapes=[pltpu.VMEM((block_q, head_dim), jnp.float32)],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        name="splash_attention_dq",
    )
    per_query = logsumexp[:, None, :], di[:, None, :]
    dq: jax.Array = differentiate(*flat_tables(info), q, k, v, do, *per_query, masking)
    return dq

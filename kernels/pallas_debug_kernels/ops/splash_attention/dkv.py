"""The dK and dV kernel of splash attention.

For each block of keys, it iterates over the blocks of queries that see it, for every query head
that shares the keys. Tiles are transposed, [block_kv_compute, block_q]: per-query values lie along
the lanes, and no product needs a transpose. With p = exp(score - logsumexp), recomputed,

    dV = p^T dO,    dS = p * (dO V^T - di),    dK = dS^T Q,    di = sum(dO * O).
"""
# mypy: disable-error-code="untyped-decorator"
# pl.when runs the function that it decorates and returns nothing.

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..._arguments import SegmentIds
from ..flash_attention.kernel import dot
from .block_sizes import SplashBlockSizes
from .kernel import flat_tables
from .mask_info import EMPTY, MaskInfo
from .tile import (
    Masking,
    Score,
    entry,
    masked,
    masking_arrays,
    masking_specs,
    scaled,
    step_of,
)


def splash_attention_dkv_kernel(
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
    dk_ref: jax.Ref,  # [block_kv, head_dim]
    dv_ref: jax.Ref,  # [block_kv, head_dim]
    dk_acc_ref: jax.Ref,  # [block_kv, head_dim]
    dv_acc_ref: jax.Ref,  # [block_kv, head_dim]
    *,
    score: Score,
    table_shape: tuple[int, ...],
    group: int,
    block_kv_compute: int,
) -> None:
    """Process one block of queries, unless the mask hides it; the last step writes dK and dV."""
    del data_next_ref, mask_next_ref  # used by the index maps
    row, member, column = pl.program_id(1), pl.program_id(2), pl.program_id(3)
    head = pl.program_id(0) * group + member
    kind = block_mask_ref[step_of(table_shape, head, row, column)]
    block_kv = k_ref.shape[0]

    @pl.when((member == 0) & (column == 0))
    def _start() -> None:
        dk_acc_ref[...] = jnp.zeros(dk_acc_ref.shape, dk_acc_ref.dtype)
        dv_acc_ref[...] = jnp.zeros(dv_acc_ref.shape, dv_acc_ref.dtype)

    @pl.when(kind != EMPTY)
    def _step() -> None:
        for start in range(0, block_kv, block_kv_compute):
            keys = slice(start, start + block_kv_compute)
            q, do = q_ref[...], do_ref[...]  # [block_q, head_dim]
            scores, slope = scaled(dot(k_ref[keys, :], q, contract=(1, 1)), score)
            scores = masked(
                scores,  # [block_kv_compute, block_q]
                masking,
                score,
                kind=kind,
                kv_block=row,
                block_kv=block_kv,
                kv_start=start,
                kv_axis=0,
            )
            p = jnp.exp(scores - logsumexp_ref[...])
            dv_acc_ref[keys, :] += dot(p.astype(do.dtype), do, contract=(1, 0))
            dp = dot(v_ref[keys, :], do, contract=(1, 1))
            ds = (dp - di_ref[...]) * p
            if slope is not None:
                ds = ds * slope
            dk_acc_ref[keys, :] += dot(ds.astype(q.dtype), q, contract=(1, 0))

    @pl.when((member == group - 1) & (column == table_shape[2] - 1))
    def _finish() -> None:
        dk = dk_acc_ref[...]
        dk = dk if score.sm_scale == 1.0 else dk * score.sm_scale
        dk_ref[...] = dk.astype(dk_ref.dtype)
        dv_ref[...] = dv_acc_ref[...].astype(dv_ref.dtype)


@partial(jax.jit, static_argnames=("score", "block_sizes"))
def launch_dkv(
    info: MaskInfo,  # with rows of keys
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
) -> tuple[jax.Array, jax.Array]:
    """Run the kernel over the grid (kv heads, kv blocks, q heads per kv head, visible blocks)."""
    kv_heads, kv_seq, head_dim = k.shape
    group = q.shape[0] // kv_heads
    block_q, block_kv = block_sizes.block_q_dkv, block_sizes.block_kv_dkv
    table_shape = info.data_next.shape

    def q_head(h: jax.Array, i: jax.Array, g: jax.Array, *at: jax.Array) -> jax.Array:
        return h * group + g

    def row(h: jax.Array, i: jax.Array, *at: jax.Array) -> jax.Array:
        return i

    def q_block(
        h: jax.Array, i: jax.Array, g: jax.Array, j: jax.Array, *tables: jax.Ref
    ) -> jax.Array:
        data_next, _, _ = tables
        return entry(data_next, table_shape, h * group + g, i, j)

    def mask_block(
        h: jax.Array, i: jax.Array, g: jax.Array, j: jax.Array, *tables: jax.Ref
    ) -> jax.Array:
        _, _, mask_next = tables
        return entry(mask_next, table_shape, h * group + g, i, j)

    q_spec = pl.BlockSpec(
        (None, block_q, head_dim), lambda *at: (q_head(*at), q_block(*at), jnp.int32(0))
    )
    q_row_spec = pl.BlockSpec(
        (None, 1, block_q), lambda *at: (q_head(*at), jnp.int32(0), q_block(*at))
    )
    kv_spec = pl.BlockSpec((None, block_kv, head_dim), lambda h, i, *_: (h, i, jnp.int32(0)))
    masking = masking_arrays(info, segment_ids, kv_axis=0)
    specs = masking_specs(
        masking, block_q=block_q, block_kv=block_kv, q=q_block, kv=row, block=mask_block, kv_axis=0
    )
    differentiate = pl.pallas_call(
        partial(
            splash_attention_dkv_kernel,
            score=score,
            table_shape=table_shape,
            group=group,
            block_kv_compute=block_sizes.block_kv_dkv_compute,
        ),
        out_shape=(
            jax.ShapeDtypeStruct(k.shape, k.dtype),
            jax.ShapeDtypeStruct(v.shape, v.dtype),
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(kv_heads, kv_seq // block_kv, group, table_shape[2]),
            in_specs=[q_spec, kv_spec, kv_spec, q_spec, q_row_spec, q_row_spec, specs],
            out_specs=(kv_spec, kv_spec),
            scratch_shapes=[
                pltpu.VMEM((block_kv, head_dim), jnp.float32),
                pltpu.VMEM((block_kv, head_dim), jnp.float32),
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary")
        ),
        name="splash_attention_dkv",
    )
    per_query = logsumexp[:, None, :], di[:, None, :]
    dk, dv = differentiate(*flat_tables(info), q, k, v, do, *per_query, masking)
    return dk, dv

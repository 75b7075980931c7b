"""Kernels for the gradients of attention.

Neither kernel reads stored scores: both recompute them block by block, and need from the forward
pass only the logarithm of each query's sum (lse). With p = exp(score - lse), the weights,

    ds = p * (do @ v.T - di)
    dv = p.T @ do,  dk = sm_scale * ds.T @ q,  dq = sm_scale * ds @ k

where di is the sum of out * do over head_dim. A query that sees no key has an lse so large that p
is 0. The dK/dV kernel holds the scores as `[keys, queries]`, so that both its products take p and
ds without a transpose, and lse and di lie along the lanes.
"""
# mypy: disable-error-code="untyped-decorator"
# pl.when runs the function that it decorates and returns nothing.

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..._arguments import LANES
from .kernel import PositionMask, as_row, cost, dot, replicated, scaled_scores, spread


def flash_attention_dkv_kernel(
    q_ref: jax.Ref,  # [block_q_major, head_dim]
    k_ref: jax.Ref,  # [block_k_major, head_dim]
    v_ref: jax.Ref,  # [block_k_major, head_dim]
    ab_ref: jax.Ref | None,  # [block_q_major, block_k_major]
    q_ids_ref: jax.Ref | None,  # [1, block_q_major]
    kv_ids_ref: jax.Ref | None,  # [block_k_major, 128]
    do_ref: jax.Ref,  # [block_q_major, head_dim]
    lse_ref: jax.Ref,  # [1, block_q_major], base 2
    di_ref: jax.Ref,  # [1, block_q_major]
    dk_ref: jax.Ref,  # [block_k_major, head_dim]
    dv_ref: jax.Ref,  # [block_k_major, head_dim]
    dk_acc_ref: jax.Ref,  # [block_k_major, head_dim]
    dv_acc_ref: jax.Ref,  # [block_k_major, head_dim]
    *,
    sm_scale: float,
    mask: PositionMask,
    block_q: int,
    block_k: int,
) -> None:
    """Process one major block of queries; the last grid step along the queries writes dk and dv."""
    block_q_major, block_k_major = q_ref.shape[0], k_ref.shape[0]
    kv_step, q_step = pl.program_id(2), pl.program_id(3)
    last_q_step = pl.num_programs(3) - 1
    q_start, kv_start = q_step * block_q_major, kv_step * block_k_major

    @pl.when(q_step == 0)
    def _start() -> None:
        dk_acc_ref[...] = jnp.zeros(dk_acc_ref.shape, dk_acc_ref.dtype)
        dv_acc_ref[...] = jnp.zeros(dv_acc_ref.shape, dv_acc_ref.dtype)

    def add(first_query: int, first_key: int) -> None:
        queries, keys = pl.ds(first_query, block_q), pl.ds(first_key, block_k)
        q, do = q_ref[queries], do_ref[queries]  # [block_q, head_dim]
        ab = None if ab_ref is None else ab_ref[queries, keys].astype(jnp.float32).T
        scores = scaled_scores(k_ref[keys], q, ab, sm_scale=sm_scale)  # [block_k, block_q]
        same = None
        if q_ids_ref is not None and kv_ids_ref is not None:
            same = spread(kv_ids_ref[keys], block_q) == q_ids_ref[:, queries]
        scores = mask.apply(
            scores, q_start + first_query, kv_start + first_key, query_axis=1, same_segment=same
        )
        p = jnp.exp2(scores - lse_ref[:, queries])  # [block_k, block_q]
        dv_acc_ref[keys] += dot(p.astype(do.dtype), do, contract=(1, 0))
        dp = dot(v_ref[keys], do, contract=(1, 1))  # [block_k, block_q]
        ds = p * (dp - di_ref[:, queries])
        dk_acc_ref[keys] += dot(ds.astype(q.dtype), q, contract=(1, 0))

    @pl.when(mask.is_visible(q_start + block_q_major - 1, kv_start))
    def _step() -> None:
        for first_query in range(0, block_q_major, block_q):
            for first_key in range(0, block_k_major, block_k):
                add(first_query, first_key)

    @pl.when(q_step == last_q_step)
    def _finish() -> None:
        dk_ref[...] = (sm_scale * dk_acc_ref[...]).astype(dk_ref.dtype)
        dv_ref[...] = dv_acc_ref[...].astype(dv_ref.dtype)


def flash_attention_dq_kernel(
    q_ref: jax.Ref,  # [block_q, head_dim]
    k_ref: jax.Ref,  # [block_k_major, head_dim]
    v_ref: jax.Ref,  # [block_k_major, head_dim]
    ab_ref: jax.Ref | None,  # [block_q, block_k_major]
    q_ids_ref: jax.Ref | None,  # [block_q, 128]
    kv_ids_ref: jax.Ref | None,  # [1, block_k_major]
    do_ref: jax.Ref,  # [block_q, head_dim]
    lse_ref: jax.Ref,  # [block_q, 128], base 2
    di_ref: jax.Ref,  # [block_q, 128]
    dq_ref: jax.Ref,  # [block_q, head_dim]
    dab_ref: jax.Ref | None,  # [block_q, block_k_major]
    dq_acc_ref: jax.Ref,  # [block_q, head_dim]
    *,
    sm_scale: float,
    mask: PositionMask,
    block_k: int,
) -> None:
    """Process one major block of keys; the last grid step along the keys writes dq."""
    block_q, block_k_major = q_ref.shape[0], k_ref.shape[0]
    q_step, kv_step = pl.program_id(2), pl.program_id(3)
    last_kv_step = pl.num_programs(3) - 1
    q_start, kv_start = q_step * block_q, kv_step * block_k_major
    is_visible = mask.is_visible(q_start + block_q - 1, kv_start)

    @pl.when(kv_step == 0)
    def _start() -> None:
        dq_acc_ref[...] = jnp.zeros(dq_acc_ref.shape, dq_acc_ref.dtype)

    def add(first_key: int) -> None:
        keys = pl.ds(first_key, block_k)
        k = k_ref[keys]  # [block_k, head_dim]
        ab = None if ab_ref is None else ab_ref[:, keys]
        scores = scaled_scores(q_ref[...], k, ab, sm_scale=sm_scale)  # [block_q, block_k]
        same = None
        if q_ids_ref is not None and kv_ids_ref is not None:
            same = spread(q_ids_ref[...], block_k) == kv_ids_ref[:, keys]
        scores = mask.apply(scores, q_start, kv_start + first_key, same_segment=same)
        p = jnp.exp2(scores - spread(lse_ref[...], block_k))  # [block_q, block_k]
        dp = dot(do_ref[...], v_ref[keys], contract=(1, 1))  # [block_q, block_k]
        ds = p * (dp - spread(di_ref[...], block_k))
        if dab_ref is not None:
            dab_ref[:, keys] = (sm_scale * ds).astype(dab_ref.dtype)
        dq_acc_ref[...] += dot(ds.astype(k.dtype), k, contract=(1, 0))

    @pl.when(is_visible)
    def _step() -> None:
        for first_key in range(0, block_k_major, block_k):
            add(first_key)

    if dab_ref is not None and is_visible is not True:

        @pl.when(jnp.logical_not(is_visible))
        def _skip() -> None:
            dab_ref[...] = jnp.zeros(dab_ref.shape, dab_ref.dtype)

    @pl.when(kv_step == last_kv_step)
    def _finish() -> None:
        dq_ref[...] = (sm_scale * dq_acc_ref[...]).astype(dq_ref.dtype)


@partial(
    jax.jit,
    static_argnames=(
        "sm_scale",
        "mask",
        "block_q_major",
        "block_q",
        "block_k_major",
        "block_k",
    ),
)
def launch_dkv(
    q: jax.Array,  # [batch, heads, q_seq, head_dim]
    k: jax.Array,  # [batch, heads, kv_seq, head_dim]
    v: jax.Array,  # [batch, heads, kv_seq, head_dim]
    ab: jax.Array | None,  # [batch, heads, q_seq, kv_seq]
    q_ids: jax.Array | None,  # [batch, q_seq]
    kv_ids: jax.Array | None,  # [batch, kv_seq]
    do: jax.Array,  # [batch, heads, q_seq, head_dim]
    lse: jax.Array,  # [batch, heads, q_seq], base 2
    di: jax.Array,  # [batch, heads, q_seq]
    *,
    sm_scale: float,
    mask: PositionMask,
    block_q_major: int,
    block_q: int,
    block_k_major: int,
    block_k: int,
) -> tuple[jax.Array, jax.Array]:
    """Run the dK/dV kernel over the grid (batch, heads, kv blocks, q blocks)."""
    batch, heads, q_seq, head_dim = q.shape
    kv_seq = k.shape[2]

    def fetched(j: jax.Array, i: jax.Array) -> jax.Array:
        """For a skipped step, fetch the first block of queries that sees a key of block j."""
        if mask.diagonal is None:
            return i
        first_query = jnp.maximum(j * block_k_major - mask.diagonal, 0)
        first = lax.div(first_query, jnp.int32(block_q_major))
        fetch: jax.Array = jnp.maximum(i, jnp.minimum(first, q_seq // block_q_major - 1))
        return fetch

    q_block = pl.BlockSpec(
        (None, None, block_q_major, head_dim),
        lambda b, h, j, i: (b, h, fetched(j, i), jnp.int32(0)),
    )
    kv_block = pl.BlockSpec(
        (None, None, block_k_major, head_dim), lambda b, h, j, i: (b, h, j, jnp.int32(0))
    )
    ab_block = pl.BlockSpec(
        (None, None, block_q_major, block_k_major), lambda b, h, j, i: (b, h, fetched(j, i), j)
    )
    q_ids_block = pl.BlockSpec(
        (None, 1, block_q_major), lambda b, h, j, i: (b, jnp.int32(0), fetched(j, i))
    )
    kv_ids_block = pl.BlockSpec(
        (None, block_k_major, LANES), lambda b, h, j, i: (b, j, jnp.int32(0))
    )
    row_block = pl.BlockSpec(
        (None, None, 1, block_q_major),
        lambda b, h, j, i: (b, h, jnp.int32(0), fetched(j, i)),
    )
    differentiate = pl.pallas_call(
        partial(
            flash_attention_dkv_kernel,
            sm_scale=sm_scale,
            mask=mask,
            block_q=block_q,
            block_k=block_k,
        ),
        out_shape=(
            jax.ShapeDtypeStruct(k.shape, k.dtype),
            jax.ShapeDtypeStruct(v.shape, v.dtype),
        ),
        grid=(batch, heads, kv_seq // block_k_major, q_seq // block_q_major),
        in_specs=[
            q_block,
            kv_block,
            kv_block,
            None if ab is None else ab_block,
            None if q_ids is None else q_ids_block,
            None if kv_ids is None else kv_ids_block,
            q_block,
            row_block,
            row_block,
        ],
        out_specs=(kv_block, kv_block),
        scratch_shapes=[
            pltpu.VMEM((block_k_major, head_dim), jnp.float32),
            pltpu.VMEM((block_k_major, head_dim), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
        ),
        cost_estimate=cost(q, k, ab, mask=mask, products=4),
        name="flash_attention_dkv",
    )
    dk, dv = differentiate(
        q, k, v, ab, as_row(q_ids), replicated(kv_ids), do, as_row(lse), as_row(di)
    )
    return dk, dv


@partial(jax.jit, static_argnames=("sm_scale", "mask", "block_q", "block_k_major", "block_k"))
def launch_dq(
    q: jax.Array,  # [batch, heads, q_seq, head_dim]
    k: jax.Array,  # [batch, heads, kv_seq, head_dim]
    v: jax.Array,  # [batch, heads, kv_seq, head_dim]
    ab: jax.Array | None,  # [batch, heads, q_seq, kv_seq]
    q_ids: jax.Array | None,  # [batch, q_seq]
    kv_ids: jax.Array | None,  # [batch, kv_seq]
    do: jax.Array,  # [batch, heads, q_seq, head_dim]
    lse: jax.Array,  # [batch, heads, q_seq], base 2
    di: jax.Array,  # [batch, heads, q_seq]
    *,
    sm_scale: float,
    mask: PositionMask,
    block_q: int,
    block_k_major: int,
    block_k: int,
) -> tuple[jax.Array, jax.Array | None]:
    """Run the dQ kernel over the grid (batch, heads, q blocks, kv blocks); dab may be None."""
    batch, heads, q_seq, head_dim = q.shape
    kv_seq = k.shape[2]

    def fetched(i: jax.Array, j: jax.Array) -> jax.Array:
        """For a skipped step, fetch the block that the next row of blocks starts with."""
        is_visible = mask.is_visible(i * block_q + block_q - 1, j * block_k_major)
        return j if is_visible is True else jnp.where(is_visible, j, 0)

    q_block = pl.BlockSpec(
        (None, None, block_q, head_dim), lambda b, h, i, j: (b, h, i, jnp.int32(0))
    )
    kv_block = pl.BlockSpec(
        (None, None, block_k_major, head_dim),
        lambda b, h, i, j: (b, h, fetched(i, j), jnp.int32(0)),
    )
    ab_block = pl.BlockSpec(
        (None, None, block_q, block_k_major), lambda b, h, i, j: (b, h, i, fetched(i, j))
    )
    dab_block = pl.BlockSpec((None, None, block_q, block_k_major), lambda b, h, i, j: (b, h, i, j))
    q_ids_block = pl.BlockSpec((None, block_q, LANES), lambda b, h, i, j: (b, i, jnp.int32(0)))
    kv_ids_block = pl.BlockSpec(
        (None, 1, block_k_major), lambda b, h, i, j: (b, jnp.int32(0), fetched(i, j))
    )
    row_block = pl.BlockSpec(
        (None, None, block_q, LANES), lambda b, h, i, j: (b, h, i, jnp.int32(0))
    )
    differentiate = pl.pallas_call(
        partial(flash_attention_dq_kernel, sm_scale=sm_scale, mask=mask, block_k=block_k),
        out_shape=(
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            None if ab is None else jax.ShapeDtypeStruct(ab.shape, ab.dtype),
        ),
        grid=(batch, heads, q_seq // block_q, kv_seq // block_k_major),
        in_specs=[
            q_block,
            kv_block,
            kv_block,
            None if ab is None else ab_block,
            None if q_ids is None else q_ids_block,
            None if kv_ids is None else kv_ids_block,
            q_block,
            row_block,
            row_block,
        ],
        out_specs=(q_block, None if ab is None else dab_block),
        scratch_shapes=[pltpu.VMEM((block_q, head_dim), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
        ),
        cost_estimate=cost(q, k, ab, mask=mask, products=3),
        name="flash_attention_dq",
    )
    dq, dab = differentiate(
        q, k, v, ab, replicated(q_ids), as_row(kv_ids), do, replicated(lse), replicated(di)
    )
    return dq, dab

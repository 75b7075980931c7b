"""What runs on the core for attention.

The online softmax: scores arrive one block of keys at a time. For each query, scratch holds the
largest score so far (m), the sum of exp(score - m) so far (l) and the same sum weighted by the
values (acc). When a block raises m, the two sums are scaled down to match.
"""
# mypy: disable-error-code="untyped-decorator"
# pl.when runs the function that it decorates and returns nothing.

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

# Below any real score, and far enough from -inf that differences stay finite: no inf - inf.
MASK_VALUE = -0.7 * float(jnp.finfo(jnp.float32).max)


def flash_attention_kernel(
    q_ref: jax.Ref,  # [block_q, head_dim]
    k_ref: jax.Ref,  # [block_k, head_dim]
    v_ref: jax.Ref,  # [block_k, head_dim]
    out_ref: jax.Ref,  # [block_q, head_dim]
    m_ref: jax.Ref,  # [block_q, 1]
    l_ref: jax.Ref,  # [block_q, 1]
    acc_ref: jax.Ref,  # [block_q, head_dim]
    *,
    sm_scale: float,
    diagonal: int | None,
    kv_seq: int,
) -> None:
    """Take in one block of keys; the last grid step along the keys writes the output.

    Query i sees the keys up to i + `diagonal`; None means all keys.
    """
    block_q, block_k = q_ref.shape[0], k_ref.shape[0]
    q_step, kv_step = pl.program_id(2), pl.program_id(3)
    last_kv_step = pl.num_programs(3) - 1
    q_start, kv_start = q_step * block_q, kv_step * block_k
    is_ragged = kv_seq % block_k != 0

    @pl.when(kv_step == 0)
    def _start() -> None:
        m_ref[...] = jnp.full(m_ref.shape, MASK_VALUE, m_ref.dtype)
        l_ref[...] = jnp.zeros(l_ref.shape, l_ref.dtype)
        acc_ref[...] = jnp.zeros(acc_ref.shape, acc_ref.dtype)

    @pl.when(_any_visible(q_start + block_q - 1, kv_start, diagonal))
    def _step() -> None:
        scores = sm_scale * _dot(q_ref[...], k_ref[...], contract=(1, 1))  # [block_q, block_k]
        v = v_ref[...]  # [block_k, head_dim]
        mask = None
        if diagonal is not None or is_ragged:
            mask = _mask(scores.shape, q_start, kv_start, diagonal, kv_seq)
        if is_ragged:
            # Past the end of the keys a block holds anything, NaN too, and 0 * NaN is NaN.
            row = lax.broadcasted_iota(jnp.int32, v.shape, 0)
            v = jnp.where(kv_start + row < kv_seq, v, jnp.zeros_like(v))
        _accumulate(scores, v, mask, m_ref, l_ref, acc_ref)

    @pl.when(kv_step == last_kv_step)
    def _finish() -> None:
        # A query that sees no key has l = 0 and acc = 0: its output is 0.
        total = l_ref[...]  # [block_q, 1]
        divisor = jnp.where(total == 0.0, jnp.ones_like(total), total)
        out_ref[...] = (acc_ref[...] / divisor).astype(out_ref.dtype)


def _accumulate(
    scores: jax.Array,  # [block_q, block_k]
    v: jax.Array,  # [block_k, head_dim]
    mask: jax.Array | None,  # [block_q, block_k]
    m_ref: jax.Ref,
    l_ref: jax.Ref,
    acc_ref: jax.Ref,
) -> None:
    """One step of the online softmax."""
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.full_like(scores, MASK_VALUE))
    m_prev = m_ref[...]
    m_next = jnp.maximum(m_prev, jnp.max(scores, axis=1, keepdims=True))  # [block_q, 1]
    p = jnp.exp(scores - m_next)  # [block_q, block_k]
    if mask is not None:
        # In a row with nothing visible yet, m_next is MASK_VALUE and exp(0) is 1.
        p = jnp.where(mask, p, jnp.zeros_like(p))
    alpha = jnp.exp(m_prev - m_next)  # [block_q, 1]
    m_ref[...] = m_next
    l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
    acc_ref[...] = alpha * acc_ref[...] + _dot(p.astype(v.dtype), v, contract=(1, 0))


def _any_visible(
    last_query: jax.Array, first_key: jax.Array, diagonal: int | None
) -> jax.Array | bool:
    """Whether a block has a visible score: its bottom left corner is the last to be masked."""
    return True if diagonal is None else first_key <= last_query + diagonal


def _mask(
    shape: tuple[int, ...],
    q_start: jax.Array,
    kv_start: jax.Array,
    diagonal: int | None,
    kv_seq: int,
) -> jax.Array:
    """True where a query of the block sees a key of the block: `[block_q, block_k]`."""
    key: jax.Array = kv_start + lax.broadcasted_iota(jnp.int32, shape, 1)
    visible: jax.Array = key < kv_seq
    if diagonal is not None:
        query = q_start + lax.broadcasted_iota(jnp.int32, shape, 0)
        visible = visible & (key <= query + diagonal)
    return visible


def _dot(x: jax.Array, y: jax.Array, *, contract: tuple[int, int]) -> jax.Array:
    """A float32 product that sums over the dimensions `contract` of `x` and `y`."""
    x_dim, y_dim = contract
    product: jax.Array = lax.dot_general(
        x,
        y,
        (((x_dim,), (y_dim,)), ((), ())),
        precision=_precision(x.dtype),
        preferred_element_type=jnp.float32,
    )
    return product


def _precision(dtype: DTypeLike) -> lax.Precision:
    """By default the MXU rounds float32 to bfloat16; HIGHEST keeps all of it."""
    return lax.Precision.HIGHEST if dtype == jnp.float32 else lax.Precision.DEFAULT


@partial(jax.jit, static_argnames=("causal", "sm_scale", "block_q", "block_k"))
def launch(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool,
    sm_scale: float,
    block_q: int,
    block_k: int,
) -> jax.Array:
    """Run the kernel over the grid (batch, heads, q blocks, kv blocks)."""
    batch, heads, q_seq, head_dim = q.shape
    kv_seq = k.shape[2]
    diagonal = kv_seq - q_seq if causal else None

    def q_index(b: jax.Array, h: jax.Array, i: jax.Array, j: jax.Array) -> tuple[jax.Array, ...]:
        return b, h, i, jnp.int32(0)

    def kv_index(b: jax.Array, h: jax.Array, i: jax.Array, j: jax.Array) -> tuple[jax.Array, ...]:
        if diagonal is not None:
            # A skipped step fetches the block that the next row of blocks starts with.
            j = jnp.where(_any_visible(i * block_q + block_q - 1, j * block_k, diagonal), j, 0)
        return b, h, j, jnp.int32(0)

    q_block = pl.BlockSpec((None, None, block_q, head_dim), q_index)
    kv_block = pl.BlockSpec((None, None, block_k, head_dim), kv_index)
    attend = pl.pallas_call(
        partial(flash_attention_kernel, sm_scale=sm_scale, diagonal=diagonal, kv_seq=kv_seq),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid=(batch, heads, pl.cdiv(q_seq, block_q), pl.cdiv(kv_seq, block_k)),
        in_specs=[q_block, kv_block, kv_block],
        out_specs=q_block,
        scratch_shapes=[
            pltpu.VMEM((block_q, 1), jnp.float32),
            pltpu.VMEM((block_q, 1), jnp.float32),
            pltpu.VMEM((block_q, head_dim), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
        ),
        cost_estimate=_cost(q, k, causal=causal),
        name="flash_attention",
    )
    out: jax.Array = attend(q, k, v)
    return out


def _cost(q: jax.Array, k: jax.Array, *, causal: bool) -> pl.CostEstimate:
    batch, heads, q_seq, head_dim = q.shape
    kv_seq = k.shape[2]
    scores = batch * heads * q_seq * kv_seq // (2 if causal else 1)
    return pl.CostEstimate(
        flops=4 * scores * head_dim,
        transcendentals=scores,
        bytes_accessed=2 * (q.size + k.size) * q.dtype.itemsize,
    )

"""Forward kernel of flash attention.

The online softmax: scores arrive one block of keys at a time. For each query, scratch holds the
largest score so far (m), the sum of exp(score - m) so far (l) and the same sum weighted by the
values (acc). When a block raises m, the two sums are scaled down to match.

Two choices reduce work on the vector units. Scores are in base 2: `log2(e)` is folded into
`sm_scale`, and the core's native exponential is base 2. m and l are replicated in every lane, so
that no step has to broadcast them.
"""
# mypy: disable-error-code="untyped-decorator"
# pl.when runs the function that it decorates and returns nothing.

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from ..._arguments import LANES

# Below any real score, and finite: a masked score is -inf, and exp(-inf - M_START) is 0, not NaN.
M_START = -0.7 * float(jnp.finfo(jnp.float32).max)
LOG2_E = math.log2(math.e)

Indices = tuple[jax.Array, ...]


@dataclass(frozen=True, kw_only=True)
class PositionMask:
    """Mask by position: query i sees the keys up to i + `diagonal` (None: all keys).

    Keys from `kv_seq` on are padding; None means that there is no padding.
    """

    diagonal: int | None
    kv_seq: int | None

    def is_visible(self, last_query: jax.Array, first_key: jax.Array) -> jax.Array | bool:
        """Return whether any score of a block is visible; its bottom left corner is masked last."""
        return True if self.diagonal is None else first_key <= last_query + self.diagonal

    def apply(
        self,
        scores: jax.Array,  # [block_q, block_k]; with query_axis=1 [block_k, block_q]
        q_start: jax.Array,
        kv_start: jax.Array,
        *,
        query_axis: int = 0,
        same_segment: jax.Array | None = None,  # the shape of scores
    ) -> jax.Array:
        """Return the scores, with -inf where a query does not see a key."""
        key = lax.broadcasted_iota(jnp.int32, scores.shape, 1 - query_axis)
        visible = same_segment
        if self.diagonal is not None:
            query = lax.broadcasted_iota(jnp.int32, scores.shape, query_axis)
            visible = _both(visible, key <= query + (q_start + self.diagonal - kv_start))
        if self.kv_seq is not None:
            visible = _both(visible, key < self.kv_seq - kv_start)
        return scores if visible is None else jnp.where(visible, scores, -jnp.inf)


def flash_attention_kernel(
    q_ref: jax.Ref,  # [block_b, block_q, head_dim]
    k_ref: jax.Ref,  # [block_b, block_k_major, head_dim]
    v_ref: jax.Ref,  # [block_b, block_k_major, head_dim]
    ab_ref: jax.Ref | None,  # [block_b, block_q, block_k_major]
    q_ids_ref: jax.Ref | None,  # [block_b, block_q, 128]
    kv_ids_ref: jax.Ref | None,  # [block_b, 1, block_k_major]
    out_ref: jax.Ref,  # [block_b, block_q, head_dim]
    l_out_ref: jax.Ref | None,  # [block_b, block_q, 128]
    m_out_ref: jax.Ref | None,  # [block_b, block_q, 128]
    m_ref: jax.Ref,  # [block_b, block_q, 128]
    l_ref: jax.Ref,  # [block_b, block_q, 128]
    acc_ref: jax.Ref,  # [block_b, block_q, head_dim]
    *,
    sm_scale: float,
    mask: PositionMask,
    block_k: int,
) -> None:
    """Process one major block of keys; the last grid step along the keys writes the output."""
    block_b, block_q, _ = q_ref.shape
    block_k_major = k_ref.shape[1]
    q_step, kv_step = pl.program_id(2), pl.program_id(3)
    last_kv_step = pl.num_programs(3) - 1
    q_start, kv_start = q_step * block_q, kv_step * block_k_major
    part = part_of(block_q, q_ref.dtype)
    # What is rarely run takes four turns of a loop: short code.
    turn_rows = block_q // 4 if block_q % 64 == 0 else block_q
    turns = jnp.int32(block_q // turn_rows)

    def _clear(b: int, i: jax.Array, _: None) -> None:
        rows = pl.ds(i * turn_rows, turn_rows)
        m_ref[b, rows] = jnp.full((turn_rows, LANES), M_START, m_ref.dtype)
        l_ref[b, rows] = jnp.zeros((turn_rows, LANES), l_ref.dtype)
        acc_ref[b, rows] = jnp.zeros((turn_rows, acc_ref.shape[2]), acc_ref.dtype)

    @pl.when(kv_step == 0)
    def _start() -> None:
        for b in range(block_b):
            lax.fori_loop(jnp.int32(0), turns, partial(_clear, b), None)

    def scores_of(b: int, first: int, keys: pl.Slice) -> jax.Array:  # [part, block_k]
        queries = pl.ds(first, part)
        scores = scaled_scores(
            q_ref[b, queries],
            k_ref[b, keys],
            None if ab_ref is None else ab_ref[b, queries, keys],
            sm_scale=sm_scale,
        )
        same = None
        if q_ids_ref is not None and kv_ids_ref is not None:
            same = spread(q_ids_ref[b, queries], block_k) == kv_ids_ref[b, :, keys]
        return mask.apply(scores, q_start + first, kv_start + keys.start, same_segment=same)

    @pl.when(mask.is_visible(q_start + block_q - 1, kv_start))
    def _step() -> None:
        for b in range(block_b):
            for start in range(0, block_k_major, block_k):
                keys = pl.ds(start, block_k)
                firsts = range(0, block_q, part)
                tiles = [scores_of(b, first, keys) for first in firsts]
                for first, scores in zip(firsts, tiles, strict=True):
                    at = b, pl.ds(first, part)
                    _accumulate(scores, v_ref[b, keys], m_ref.at[at], l_ref.at[at], acc_ref.at[at])

    def _write(b: int, i: jax.Array, _: None) -> None:
        rows = pl.ds(i * turn_rows, turn_rows)
        total = l_ref[b, rows]  # [rows, 128]
        # l is at least 1, the term of the largest score. A query that sees no key has l = 0 and
        # acc = 0: its output is 0.
        inverse = 1.0 / jnp.maximum(total, 0.5)
        out_ref[b, rows] = (acc_ref[b, rows] * spread(inverse, acc_ref.shape[2])).astype(
            out_ref.dtype
        )
        if l_out_ref is not None and m_out_ref is not None:
            l_out_ref[b, rows] = total
            m_out_ref[b, rows] = m_ref[b, rows]

    @pl.when(kv_step == last_kv_step)
    def _finish() -> None:
        for b in range(block_b):
            lax.fori_loop(jnp.int32(0), turns, partial(_write, b), None)


def _accumulate(
    scores: jax.Array,  # [block_q, block_k], base 2
    v: jax.Array,  # [block_k, head_dim]
    m_ref: jax.Ref,  # [block_q, 128]
    l_ref: jax.Ref,  # [block_q, 128]
    acc_ref: jax.Ref,  # [block_q, head_dim]
) -> None:
    """One step of the online softmax."""
    m_prev = m_ref[...]
    m_next = jnp.maximum(m_prev, jnp.max(scores, axis=1, keepdims=True))  # [block_q, 128]
    p = jnp.exp2(scores - spread(m_next, scores.shape[1]))  # [block_q, block_k]
    alpha = jnp.exp2(m_prev - m_next)  # [block_q, 128]
    m_ref[...] = m_next
    products = dot(p.astype(v.dtype), v, contract=(1, 0))  # [block_q, head_dim]
    acc_ref[...] = products + spread(alpha, v.shape[1]) * acc_ref[...]
    l_ref[...] = jnp.sum(p, axis=1, keepdims=True) + alpha * l_ref[...]


def scaled_scores(
    q: jax.Array,  # [block_q, head_dim]
    k: jax.Array,  # [block_k, head_dim]
    ab: jax.Array | None,  # [block_q, block_k]
    *,
    sm_scale: float,
) -> jax.Array:
    """Return the scores in base 2: exp2 of them is exp of `sm_scale * (q @ k.T + ab)`."""
    scores = dot(q, k, contract=(1, 1))  # [block_q, block_k]
    if ab is not None:
        scores += ab.astype(jnp.float32)
    return scores * (sm_scale * LOG2_E)


def part_of(block_q: int, dtype: DTypeLike) -> int:
    """Return the number of queries to process at a time: half a block, or all of a large one.

    The compiler keeps the order of matrix products. With the scores of both halves first, the MXU
    computes those of the second while the vector units process the first. A large block keeps both
    busy as it is, and each part would load the keys into the MXU again; for float32, several times.
    """
    smallest = 256 if dtype == jnp.float32 else 128
    return block_q // 2 if smallest <= block_q <= 256 and block_q % 32 == 0 else block_q


def spread(x: jax.Array, width: int) -> jax.Array:
    """Broadcast `[rows, 128]`, equal in all lanes, to `[rows, width]`."""
    if width <= LANES:
        return x[:, :width]
    tiled: jax.Array = jnp.tile(x, (1, pl.cdiv(width, LANES)))
    return tiled[:, :width]


def _both(x: jax.Array | None, y: jax.Array) -> jax.Array:
    return y if x is None else x & y


def dot(x: jax.Array, y: jax.Array, *, contract: tuple[int, int]) -> jax.Array:
    """Return the float32 product, summed over the dimensions `contract` of `x` and `y`."""
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
    """Return HIGHEST for float32, which the MXU otherwise rounds to bfloat16."""
    return lax.Precision.HIGHEST if dtype == jnp.float32 else lax.Precision.DEFAULT


@partial(
    jax.jit,
    static_argnames=(
        "sm_scale",
        "mask",
        "block_b",
        "block_q",
        "block_k_major",
        "block_k",
        "save_residuals",
    ),
)
def launch(
    q: jax.Array,  # [batch, heads, q_seq, head_dim]
    k: jax.Array,  # [batch, heads, kv_seq, head_dim]
    v: jax.Array,  # [batch, heads, kv_seq, head_dim]
    ab: jax.Array | None,  # [batch, heads, q_seq, kv_seq]
    q_ids: jax.Array | None,  # [batch, q_seq]
    kv_ids: jax.Array | None,  # [batch, kv_seq]
    *,
    sm_scale: float,
    mask: PositionMask,
    block_b: int,
    block_q: int,
    block_k_major: int,
    block_k: int,
    save_residuals: bool,
) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
    """Run the kernel over the grid (batch, heads, q blocks, kv blocks).

    Every sequence must be a multiple of its block. The residuals l and m (base 2) are `[batch,
    heads, q_seq]`, or None.
    """
    batch, heads, q_seq, head_dim = q.shape
    kv_seq = k.shape[2]

    def fetched(i: jax.Array, j: jax.Array) -> jax.Array:
        """For a skipped step, fetch the block that the next row of blocks starts with."""
        is_visible = mask.is_visible(i * block_q + block_q - 1, j * block_k_major)
        return j if is_visible is True else jnp.where(is_visible, j, 0)

    q_block = pl.BlockSpec(
        (block_b, None, block_q, head_dim), lambda b, h, i, j: (b, h, i, jnp.int32(0))
    )
    kv_block = pl.BlockSpec(
        (block_b, None, block_k_major, head_dim),
        lambda b, h, i, j: (b, h, fetched(i, j), jnp.int32(0)),
    )
    ab_block = pl.BlockSpec(
        (block_b, None, block_q, block_k_major), lambda b, h, i, j: (b, h, i, fetched(i, j))
    )
    q_ids_block = pl.BlockSpec((block_b, block_q, LANES), lambda b, h, i, j: (b, i, jnp.int32(0)))
    kv_ids_block = pl.BlockSpec(
        (block_b, 1, block_k_major), lambda b, h, i, j: (b, jnp.int32(0), fetched(i, j))
    )
    row_block = pl.BlockSpec(
        (block_b, None, block_q, LANES), lambda b, h, i, j: (b, h, i, jnp.int32(0))
    )
    rows = jax.ShapeDtypeStruct((batch, heads, q_seq, LANES), jnp.float32)
    attend = pl.pallas_call(
        partial(flash_attention_kernel, sm_scale=sm_scale, mask=mask, block_k=block_k),
        out_shape=(
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            rows if save_residuals else None,
            rows if save_residuals else None,
        ),
        grid=(batch // block_b, heads, q_seq // block_q, kv_seq // block_k_major),
        in_specs=[
            q_block,
            kv_block,
            kv_block,
            None if ab is None else ab_block,
            None if q_ids is None else q_ids_block,
            None if kv_ids is None else kv_ids_block,
        ],
        out_specs=(
            q_block,
            row_block if save_residuals else None,
            row_block if save_residuals else None,
        ),
        scratch_shapes=[
            pltpu.VMEM((block_b, block_q, LANES), jnp.float32),
            pltpu.VMEM((block_b, block_q, LANES), jnp.float32),
            pltpu.VMEM((block_b, block_q, head_dim), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
        ),
        cost_estimate=cost(q, k, ab, mask=mask, products=2),
        name="flash_attention",
    )
    out, *residuals = attend(q, k, v, ab, replicated(q_ids), as_row(kv_ids))
    total, largest = (x[..., 0] if save_residuals else None for x in residuals)
    return out, total, largest


def replicated(x: jax.Array | None) -> jax.Array | None:
    """Return `[..., seq]` as `[..., seq, 128]`: one value for each row of a block of scores."""
    return None if x is None else jnp.broadcast_to(x[..., None], (*x.shape, LANES))


def as_row(x: jax.Array | None) -> jax.Array | None:
    """Return `[..., seq]` as `[..., 1, seq]`: one value for each column of a block of scores."""
    return None if x is None else x[..., None, :]


def cost(
    q: jax.Array, k: jax.Array, ab: jax.Array | None, *, mask: PositionMask, products: int
) -> pl.CostEstimate:
    """Estimate the cost of a kernel with `products` matrix products per block of scores."""
    batch, heads, q_seq, head_dim = q.shape
    scores = batch * heads * q_seq * k.shape[2] // (1 if mask.diagonal is None else 2)
    ab_bytes = 0 if ab is None else ab.size * ab.dtype.itemsize
    return pl.CostEstimate(
        flops=2 * products * scores * head_dim,
        transcendentals=scores,
        bytes_accessed=products * (q.size + k.size) * q.dtype.itemsize + ab_bytes,
    )

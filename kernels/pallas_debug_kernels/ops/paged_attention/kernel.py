"""Kernel of paged attention.

The page table is available before the grid starts (scalar prefetch), so that an index map can
select the page of a grid step: the pipeline gathers pages, and the kernel never sees their place.
"""
# mypy: disable-error-code="untyped-decorator"
# pl.when runs the function that it decorates and returns nothing.

import math
from functools import partial
from numbers import Real

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..._arguments import LANES, check_dtype, check_ndim, check_same_dtype, sublanes
from ..flash_attention.kernel import dot


def paged_attention_kernel(
    lengths_ref: jax.Ref,  # [batch] in SMEM
    page_table_ref: jax.Ref,  # [batch * pages_per_seq] in SMEM; read by the index maps
    q_ref: jax.Ref,  # [group, head_dim]: the query heads of one key-value head
    k_ref: jax.Ref,  # [page_size, head_dim]
    v_ref: jax.Ref,  # [page_size, head_dim]
    out_ref: jax.Ref,  # [group, head_dim]
    max_ref: jax.Ref,  # [group, 128], float32: largest score so far, in every lane
    sum_ref: jax.Ref,  # [group, 128], float32: sum of exp(score - max), in every lane
    acc_ref: jax.Ref,  # [group, head_dim], float32: sum of exp(score - max) * v
    *,
    sm_scale: float,
) -> None:
    """Add one page to the online softmax; the last grid step along pages writes the output."""
    del page_table_ref
    step = pl.program_id(2)
    last_step = pl.num_programs(2) - 1
    remaining = lengths_ref[pl.program_id(0)] - step * k_ref.shape[0]

    @pl.when(step == 0)
    def _start() -> None:
        max_ref[...] = jnp.full_like(max_ref, -jnp.inf)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(remaining > 0)
    def _fold() -> None:
        scores = sm_scale * dot(q_ref[...], k_ref[...], contract=(1, 1))  # [group, page_size]
        scores = jnp.where(_index(scores, axis=1) < remaining, scores, -jnp.inf)
        # Past the length a page's content is undefined and may be NaN, and 0 * NaN is NaN.
        v = v_ref[...]
        v = jnp.where(_index(v, axis=0) < remaining, v, jnp.zeros_like(v))

        old_max, old_sum = max_ref[:, :1], sum_ref[:, :1]  # [group, 1]
        # At least one position of the page is visible, so the maximum is finite.
        new_max = jnp.maximum(old_max, jnp.max(scores, axis=1, keepdims=True))
        weights = jnp.exp(scores - new_max)
        shrink = jnp.exp(old_max - new_max)  # 0 for the first page
        new_sum = shrink * old_sum + jnp.sum(weights, axis=1, keepdims=True)
        weighted = dot(weights.astype(v.dtype), v, contract=(1, 0))  # [group, head_dim]
        acc_ref[...] = shrink * acc_ref[...] + weighted
        max_ref[...] = jnp.broadcast_to(new_max, max_ref.shape)
        sum_ref[...] = jnp.broadcast_to(new_sum, sum_ref.shape)

    @pl.when(step == last_step)
    def _finish() -> None:
        total = sum_ref[:, :1]
        seen = total > 0  # False for a length of 0
        out = jnp.where(seen, acc_ref[...] / jnp.where(seen, total, 1.0), 0.0)
        out_ref[...] = out.astype(out_ref.dtype)


def _index(array: jax.Array, *, axis: int) -> jax.Array:
    index: jax.Array = lax.broadcasted_iota(jnp.int32, array.shape, axis)
    return index


@partial(jax.jit, static_argnames=("sm_scale",))
def launch(
    q: jax.Array,  # [batch, num_kv_heads, group, head_dim]
    k_pages: jax.Array,  # [num_kv_heads, num_pages, page_size, head_dim]
    v_pages: jax.Array,
    lengths: jax.Array,  # [batch]
    page_table: jax.Array,  # [batch * pages_per_seq]: SMEM would pad a matrix to 128 columns
    *,
    sm_scale: float,
) -> jax.Array:
    """Run the kernel over the grid (batch, key-value heads, pages of a sequence)."""
    batch, num_kv_heads, group, head_dim = q.shape
    page_size = k_pages.shape[2]
    pages_per_seq = page_table.size // batch
    zero = partial(jnp.int32, 0)

    def query(b: jax.Array, h: jax.Array, step: jax.Array, *_: jax.Ref) -> tuple[jax.Array, ...]:
        return b, h, zero(), zero()

    def page(
        b: jax.Array, h: jax.Array, step: jax.Array, lengths_ref: jax.Ref, table_ref: jax.Ref
    ) -> tuple[jax.Array, ...]:
        # After its last page, repeat it: a block whose index is unchanged is not fetched.
        used = lax.div(lengths_ref[b] + (page_size - 1), jnp.int32(page_size))
        number = table_ref[b * pages_per_seq + jnp.clip(step, 0, jnp.maximum(used - 1, 0))]
        return h, jnp.where(used > 0, number, 0), zero(), zero()

    query_block = pl.BlockSpec((None, None, group, head_dim), query)
    page_block = pl.BlockSpec((None, None, page_size, head_dim), page)
    attend = pl.pallas_call(
        partial(paged_attention_kernel, sm_scale=sm_scale),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(batch, num_kv_heads, pages_per_seq),
            in_specs=[query_block, page_block, page_block],
            out_specs=query_block,
            scratch_shapes=[
                pltpu.VMEM((group, LANES), jnp.float32),
                pltpu.VMEM((group, LANES), jnp.float32),
                pltpu.VMEM((group, head_dim), jnp.float32),
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        name="paged_attention",
    )
    out: jax.Array = attend(lengths, page_table, q, k_pages, v_pages)
    return out


DTYPES = ("float32", "bfloat16")

_PAGES = ("num_kv_heads", "num_pages", "page_size", "head_dim")


def paged_attention(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_table: jax.Array,
    *,
    sm_scale: float | None = None,
) -> jax.Array:
    """Compute attention of one query per sequence over the keys and values in its pages (decoding).

    Position t of sequence b is in page `page_table[b, t // page_size]`, at `t % page_size`.
    Neighbouring query heads share a key-value head (GQA; all of them for MQA). The softmax and both
    sums are float32; float32 inputs are multiplied at full float32 precision.

    Data that a sequence does not reach may have any value: page table entries past its last page,
    and positions past its length within that page. Values are not checked: lengths must be in `[0,
    pages_per_seq * page_size]`, and table entries in use in `[0, num_pages)`.

    Args:
      q: float32 or bfloat16 `[batch, num_q_heads, head_dim]`.
      k_pages: `[num_kv_heads, num_pages, page_size, head_dim]`, with the dtype of `q`.
      v_pages: like `k_pages`.
      lengths: int32 `[batch]`. The output for a sequence of length 0 is zero.
      page_table: int32 `[batch, pages_per_seq]`.
      sm_scale: factor of the scores; None is `1 / sqrt(head_dim)`.

    Returns:
      `[batch, num_q_heads, head_dim]`, with the dtype of `q`.

    Raises:
      ValueError: for any other shape, dtype or scale.
    """
    _check_arrays(q, k_pages, v_pages)
    _check_tables(q, lengths, page_table)
    batch, num_q_heads, head_dim = q.shape
    num_kv_heads = k_pages.shape[0]
    scale = 1 / math.sqrt(head_dim) if sm_scale is None else sm_scale
    if not isinstance(scale, Real) or not math.isfinite(scale):
        raise ValueError(f"paged_attention: sm_scale is {scale!r}. It must be a finite number.")
    grouped = q.reshape(batch, num_kv_heads, num_q_heads // num_kv_heads, head_dim)
    out: jax.Array = launch(
        grouped, k_pages, v_pages, lengths, page_table.reshape(-1), sm_scale=float(scale)
    )
    return out.reshape(q.shape)


def _check_arrays(q: jax.Array, k_pages: jax.Array, v_pages: jax.Array) -> None:
    check_ndim("paged_attention", "q", q, ("batch", "num_q_heads", "head_dim"))
    check_ndim("paged_attention", "k_pages", k_pages, _PAGES)
    check_ndim("paged_attention", "v_pages", v_pages, _PAGES)
    _, num_q_heads, head_dim = q.shape
    num_kv_heads, _, page_size, _ = k_pages.shape
    if k_pages.shape[3] != head_dim:
        raise ValueError(
            f"paged_attention: k_pages has shape {k_pages.shape}. "
            f"Its last dimension must be {head_dim}, the head_dim of q."
        )
    if v_pages.shape != k_pages.shape:
        raise ValueError(
            f"paged_attention: v_pages has shape {v_pages.shape}. "
            f"It must be {k_pages.shape}, the shape of k_pages."
        )
    if num_q_heads % num_kv_heads:
        raise ValueError(
            f"paged_attention: q has {num_q_heads} heads. "
            f"It must have a multiple of {num_kv_heads}, the num_kv_heads of k_pages."
        )
    check_dtype("paged_attention", "q", q, DTYPES)
    check_same_dtype("paged_attention", "k_pages", k_pages, "q", q)
    check_same_dtype("paged_attention", "v_pages", v_pages, "q", q)
    tile = sublanes(q.dtype)
    if page_size % tile:
        raise ValueError(
            f"paged_attention: k_pages has page_size {page_size}. "
            f"It must be a multiple of {tile} for {q.dtype.name}."
        )


def _check_tables(q: jax.Array, lengths: jax.Array, page_table: jax.Array) -> None:
    batch = q.shape[0]
    check_ndim("paged_attention", "lengths", lengths, ("batch",))
    check_ndim("paged_attention", "page_table", page_table, ("batch", "pages_per_seq"))
    if lengths.shape != (batch,):
        raise ValueError(
            f"paged_attention: lengths has shape {lengths.shape}. "
            f"It must be ({batch},), the batch of q."
        )
    if page_table.shape[0] != batch:
        raise ValueError(
            f"paged_attention: page_table has shape {page_table.shape}. "
            f"Its first dimension must be {batch}, the batch of q."
        )
    check_dtype("paged_attention", "lengths", lengths, ("int32",))
    check_dtype("paged_attention", "page_table", page_table, ("int32",))

"""Public API of paged attention."""

import math
from numbers import Real

import jax

from ..._arguments import check_dtype, check_ndim, check_same_dtype, sublanes
from .kernel import launch

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

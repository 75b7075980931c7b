"""Processed masks: which blocks the kernels visit, and which of these they mask.

The kernels walk a table with a row for each block of queries (dkv: of keys). A row lists the blocks
to visit, non-empty ones first; the table is as wide as its longest row.
"""

from typing import NamedTuple

import numpy as np

from .masks import IntervalMask, Mask, MultiHeadMask

EMPTY, FULL, PARTIAL = 0, 1, 2


class MaskInfo(NamedTuple):
    """A processed mask. `heads` is 1 if all heads have the same mask.

    data_next: `[heads, rows, width]`, the block to have in VMEM at each step. An empty step names
      the block of the next non-empty one, which is thereby prefetched, once.
    block_mask: `[heads, rows, width]`, 0 to skip the step, 1 for a full block, 2 for a partial one.
    mask_next: like `data_next`, for the blocks of `partial_mask_blocks`.
    partial_mask_blocks: bool `[blocks, block_q, block_kv]` (dkv: transposed), the distinct partial
      blocks; None if the kernel computes the mask, or no block is partial. Pallas passes bool to a
      TPU kernel as int32: four times the bytes of int8, but no unpacking in every step, which is a
      seventh to a fifth of the bundles on v6e.
    q_sequence: `[q_seq]`, the positions of the queries if the kernel computes the mask.
    """

    data_next: np.ndarray
    block_mask: np.ndarray
    mask_next: np.ndarray
    partial_mask_blocks: np.ndarray | None
    q_sequence: np.ndarray | None


def process_mask(
    mask: Mask | MultiHeadMask, block_shape: tuple[int, int], *, kv_major: bool = False
) -> tuple[MaskInfo, IntervalMask | None]:
    """Return the mask cut into blocks `(block_q, block_kv)`, and the mask to compute in the kernel.

    With `kv_major` the rows are blocks of keys, as the dkv kernel walks them. Equal heads are
    processed once, and equal blocks are stored once.
    """
    masks = mask.masks if isinstance(mask, MultiHeadMask) else (mask,)
    distinct = list(dict.fromkeys(masks))
    if len(distinct) == 1:
        masks = masks[:1]
    computed = distinct[0] if len(distinct) == 1 else None
    computed = computed if isinstance(computed, IntervalMask) else None

    stored: dict[bytes, tuple[int, np.ndarray]] = {}
    if computed is not None:
        tables = [_interval_table(computed, block_shape)]
    else:
        tables = [_table(m, block_shape, stored) for m in distinct]
    of_head = [distinct.index(m) for m in masks]
    kinds, ids = (np.stack(part)[of_head] for part in zip(*tables, strict=True))
    blocks = np.stack([block for _, block in stored.values()]) if stored else None
    if kv_major:
        kinds, ids = kinds.swapaxes(1, 2), ids.swapaxes(1, 2)
        blocks = None if blocks is None else blocks.swapaxes(1, 2)
    width = max(1, int(np.count_nonzero(kinds, axis=-1).max()))
    info = _schedule(kinds, ids, width)
    if computed is None or not np.any(kinds == PARTIAL):
        return info._replace(partial_mask_blocks=blocks), None
    return info._replace(q_sequence=np.arange(computed.shape[0], dtype=np.int32)), computed


def _table(
    mask: Mask, block_shape: tuple[int, int], stored: dict[bytes, tuple[int, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the kind of each block, and the place of partial ones in `stored`, which grows."""
    block_q, block_kv = block_shape
    q_seq, kv_seq = mask.shape
    kinds = np.zeros((q_seq // block_q, kv_seq // block_kv), np.int32)
    ids = np.zeros_like(kinds)
    for i, j in np.ndindex(*kinds.shape):
        rows = slice(i * block_q, (i + 1) * block_q)
        columns = slice(j * block_kv, (j + 1) * block_kv)
        block = np.asarray(mask[rows, columns], np.bool_)
        if block.all():
            kinds[i, j] = FULL
        elif block.any():
            kinds[i, j] = PARTIAL
            ids[i, j] = stored.setdefault(block.tobytes(), (len(stored), block))[0]
    return kinds, ids


def _interval_table(
    mask: IntervalMask, block_shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the same from the bounds of each query, without evaluating any block."""
    block_q, block_kv = block_shape
    q_seq, kv_seq = mask.shape
    lower, upper = mask.bounds(np.arange(q_seq))
    lower = np.zeros(q_seq, int) if lower is None else np.maximum(lower, 0)
    upper = np.full(q_seq, kv_seq - 1) if upper is None else np.minimum(upper, kv_seq - 1)
    first = np.arange(0, kv_seq, block_kv)  # [columns]
    last = first + block_kv - 1
    lower, upper = lower[:, None], upper[:, None]  # [q_seq, 1]
    sees_some = np.maximum(lower, first) <= np.minimum(upper, last)  # [q_seq, columns]
    sees_all = (lower <= first) & (upper >= last)
    by_row = (q_seq // block_q, block_q, len(first))
    some, every = sees_some.reshape(by_row).any(axis=1), sees_all.reshape(by_row).all(axis=1)
    kinds = np.where(every, FULL, np.where(some, PARTIAL, EMPTY)).astype(np.int32)
    return kinds, np.zeros_like(kinds)


def _schedule(kinds: np.ndarray, ids: np.ndarray, width: int) -> MaskInfo:
    """Return the table of steps for `kinds` `[heads, rows, columns]`."""
    columns = np.argsort(kinds == EMPTY, axis=-1, stable=True)[..., :width]
    block_mask = np.take_along_axis(kinds, columns, axis=-1)
    mask_next = np.take_along_axis(ids, columns, axis=-1)
    return MaskInfo(
        data_next=_look_ahead(columns, block_mask != EMPTY).astype(np.int32),
        block_mask=block_mask.astype(np.int32),
        mask_next=_look_ahead(mask_next, block_mask == PARTIAL).astype(np.int32),
        partial_mask_blocks=None,
        q_sequence=None,
    )


def _look_ahead(values: np.ndarray, needed: np.ndarray) -> np.ndarray:
    """Replace values that are not needed by the next needed one in step order, cyclically."""
    flat, flat_needed = values.ravel(), needed.ravel()
    needed_places = np.argsort(~flat_needed, stable=True)
    before = np.cumsum(flat_needed) - flat_needed  # needed values before each step
    total = np.maximum(flat_needed.sum(), 1)
    ahead: np.ndarray = flat[needed_places[before % total]].reshape(values.shape)
    return ahead

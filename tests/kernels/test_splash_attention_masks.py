"""Masks of splash attention, and the processed masks."""

import numpy as np
import pytest
from pallas_debug_kernels.ops.splash_attention import (
    CausalMask,
    FullMask,
    LocalMask,
    MaskInfo,
    MultiHeadMask,
    NumpyMask,
    process_mask,
)
from pallas_debug_kernels.ops.splash_attention.masks import IntervalMask

SHAPE = (256, 384)
Q, K = np.arange(256)[:, None], np.arange(384)[None, :]
RANDOM = np.random.default_rng(0).random(SHAPE) < 0.5
EVERYTHING = (slice(None), slice(None))

MASKS = {
    "full": (FullMask(SHAPE), np.ones(SHAPE, bool)),
    "causal": (CausalMask(SHAPE), Q >= K),
    "causal_offset": (CausalMask(SHAPE, offset=128), K <= Q + 128),
    "local": (LocalMask(SHAPE, window_size=(10, 20)), (K >= Q - 10) & (K <= Q + 20)),
    "local_offset": (
        LocalMask(SHAPE, window_size=(10, None), offset=-3),
        np.broadcast_to(K >= Q - 13, SHAPE),
    ),
    "local_unbounded": (LocalMask(SHAPE, window_size=(None, None)), np.ones(SHAPE, bool)),
    "numpy": (NumpyMask(RANDOM), RANDOM),
}


@pytest.mark.parametrize("name", MASKS)
def test_slices(name: str) -> None:
    mask, dense = MASKS[name]
    assert mask.shape == SHAPE
    for index in (EVERYTHING, (slice(3, 90), slice(100, 300)), (slice(0, 1), slice(383, 384))):
        part = mask[index]
        assert part.dtype == np.bool_
        np.testing.assert_array_equal(part, dense[index])


def test_equality_and_hash() -> None:
    assert CausalMask(SHAPE) == CausalMask(SHAPE) != CausalMask(SHAPE, offset=1)
    assert CausalMask(SHAPE) != FullMask(SHAPE)
    assert NumpyMask(RANDOM) == NumpyMask(RANDOM.copy()) != NumpyMask(~RANDOM)
    assert len({NumpyMask(RANDOM), NumpyMask(RANDOM.copy())}) == 1


def rebuilt(
    info: MaskInfo, computed: IntervalMask | None, shape: tuple[int, int], *, kv_major: bool
) -> np.ndarray:
    """The dense masks `[heads, q_seq, kv_seq]` that the kernels would apply."""
    heads, rows, width = info.block_mask.shape
    block_row, block_column = shape[kv_major] // rows, 128
    size = (heads, *(shape[::-1] if kv_major else shape))
    dense = np.zeros(size, bool)
    for h, r, w in np.ndindex(heads, rows, width):
        kind, column = info.block_mask[h, r, w], info.data_next[h, r, w]
        if kind == 0:
            continue
        at = (
            slice(r * block_row, (r + 1) * block_row),
            slice(column * block_column, (column + 1) * block_column),
        )
        block = np.ones((block_row, block_column), bool)
        if kind == 2 and computed is not None:
            block = computed[at[::-1]].T if kv_major else computed[at]
        elif kind == 2:
            block = np.asarray(info.partial_mask_blocks[info.mask_next[h, r, w]], bool)
        assert not dense[(h, *at)].any(), "a block is visited twice"
        dense[(h, *at)] = block
    return dense.swapaxes(1, 2) if kv_major else dense


@pytest.mark.parametrize("kv_major", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_a_processed_mask_is_the_mask(name: str, kv_major: bool) -> None:
    mask, dense = MASKS[name]
    info, computed = process_mask(mask, (128, 128), kv_major=kv_major)
    np.testing.assert_array_equal(rebuilt(info, computed, SHAPE, kv_major=kv_major), dense[None])
    assert (computed is None) == (info.q_sequence is None)
    assert computed is None or info.partial_mask_blocks is None
    for table in (info.data_next, info.block_mask, info.mask_next):
        assert table.dtype == np.int32
        assert table.shape == info.block_mask.shape


def test_the_table_of_a_causal_mask() -> None:
    info, computed = process_mask(CausalMask((512, 512)), (128, 128))
    assert computed == CausalMask((512, 512))
    np.testing.assert_array_equal(
        info.block_mask[0], [[2, 0, 0, 0], [1, 2, 0, 0], [1, 1, 2, 0], [1, 1, 1, 2]]
    )
    # A skipped step names the block that the next row starts with.
    np.testing.assert_array_equal(
        info.data_next[0], [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 2, 0], [0, 1, 2, 3]]
    )
    np.testing.assert_array_equal(info.q_sequence, np.arange(512))


def test_equal_heads_and_equal_blocks_are_shared() -> None:
    diagonal = NumpyMask(np.tri(512, dtype=bool))
    info, _ = process_mask(MultiHeadMask([diagonal] * 8), (128, 128))
    assert info.block_mask.shape == (1, 4, 4)
    assert info.partial_mask_blocks.shape == (1, 128, 128)
    assert info.partial_mask_blocks.dtype == np.bool_

    other = NumpyMask(np.tri(512, k=128, dtype=bool))
    info, computed = process_mask(MultiHeadMask([diagonal, other, diagonal]), (128, 128))
    assert computed is None
    assert info.block_mask.shape == (3, 4, 4)
    assert info.partial_mask_blocks.shape == (1, 128, 128)
    np.testing.assert_array_equal(info.block_mask[0], info.block_mask[2])


def test_a_mask_of_whole_blocks_needs_no_masking() -> None:
    blocks = np.kron(np.eye(2, dtype=bool), np.ones((128, 128), bool))
    for mask in (FullMask((256, 256)), NumpyMask(blocks)):
        info, computed = process_mask(mask, (128, 128))
        assert computed is None
        assert info.partial_mask_blocks is None
    np.testing.assert_array_equal(info.data_next, [[[0], [1]]])

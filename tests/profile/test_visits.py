"""Counts of visits, against a walk through every grid point and every element."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from pallas_debug.profile import visits
from pallas_debug.profile.blocks import (
    BlockIndex,
    BlockMap,
    BlockVisits,
    OperandBlocks,
)


def operand(dimensions: tuple[BlockIndex, ...], **fields: object) -> OperandBlocks:
    plain = {
        "name": "x_ref",
        "kind": "input",
        "shape": tuple(d.bound for d in dimensions),
        "dtype": "float32",
        "bits": 32,
        "space": "vmem",
        "is_pipelined": True,
        "buffers": 2,
        "dimensions": dimensions,
    }
    return OperandBlocks(**{**plain, **fields})  # type: ignore[arg-type]


def random_case(seed: int) -> tuple[tuple[int, ...], list[BlockIndex], list[np.ndarray]]:
    """A small grid, the dimensions of blocks, and index maps that use some axes of the grid."""
    draw = random.Random(seed)
    grid = tuple(draw.randint(1, 4) for _ in range(draw.randint(0, 4)))
    dimensions, indices = [], []
    for _ in range(draw.randint(1, 3)):
        kind = draw.choice(["blocked", "blocked", "squeezed", "element"])
        size = 1 if kind == "squeezed" else draw.randint(1, 4)
        padding = (draw.randint(0, 2), draw.randint(0, 2)) if kind == "element" else (0, 0)
        dimensions.append(
            BlockIndex(kind=kind, size=size, bound=draw.randint(1, 9), padding=padding)  # type: ignore[arg-type]
        )
        shape = tuple(n if draw.random() < 0.5 else 1 for n in grid)
        if draw.random() < 0.5:
            index = np.full(shape, draw.randint(-1, 2))
            for axis, size in enumerate(shape):
                steps = np.arange(size) * draw.randint(-1, 2)
                index = index + steps.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        else:
            index = np.array([draw.randint(-1, 3) for _ in range(math.prod(shape))]).reshape(shape)
        indices.append(index)
    return grid, dimensions, indices


def walked(
    grid: tuple[int, ...], dimensions: list[BlockIndex], indices: list[np.ndarray]
) -> tuple[BlockVisits, list[tuple[int, ...]]]:
    """The same counts, one grid point and one element at a time."""
    copies: dict[tuple[int, ...], int] = {}
    before, outside, sequence = None, 0, []
    elements: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for point in itertools.product(*map(range, grid)):
        block = tuple(int(np.broadcast_to(i, grid)[point]) for i in indices)
        sequence.append(block)
        copies.setdefault(block, 0)
        copies[block] += block != before
        before = block
        starts = [i * d.unit - d.padding[0] for d, i in zip(dimensions, block, strict=True)]
        elements[block] = {
            e
            for e in itertools.product(
                *(range(a, a + d.size) for a, d in zip(starts, dimensions, strict=True))
            )
            if all(0 <= i < d.bound for i, d in zip(e, dimensions, strict=True))
        }
        outside += not elements[block]
    whole = list(itertools.product(*(range(d.bound) for d in dimensions)))
    counts = {e: sum(e in part for part in elements.values()) for e in whole}
    size = math.prod(d.size for d in dimensions)
    return BlockVisits(
        copies=sum(copies.values()),
        distinct=len(copies),
        outside=outside,
        partial=sum(0 < len(part) < size for part in elements.values()),
        untouched=sum(n == 0 for n in counts.values()),
    ), sequence


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_counts_equal_those_of_a_walk(start: int) -> None:
    for seed in range(start, start + 100):
        grid, dimensions, indices = random_case(seed)
        expected, sequence = walked(grid, dimensions, indices)
        found = visits.visits(dimensions, indices, grid)
        assert found is not None
        for name in BlockVisits.__dataclass_fields__:
            assert getattr(found, name) == getattr(expected, name), (seed, name)

        dims = tuple(visits.recorded(d, i, grid) for d, i in zip(dimensions, indices, strict=True))
        blocks = BlockMap(grid=grid, parallel=(False,) * len(grid), operands=(operand(dims),))
        (x,) = blocks.operands
        assert [blocks.block(x, blocks.point(n)) for n in range(blocks.points)] == sequence, seed


def test_an_affine_map_is_recorded_as_strides() -> None:
    plain = BlockIndex(kind="blocked", size=8, bound=10**9)
    index = np.arange(10**6).reshape(-1, 1) * 3 + 1
    found = visits.recorded(plain, index, (10**6, 5))
    assert (found.offset, found.strides, found.values) == (1, (3, 0), None)


def test_a_long_table_is_not_recorded() -> None:
    grid = (1 << 15, 2)
    index = (np.arange(1 << 15) ** 2 % 1000).reshape(-1, 1)
    dim = visits.recorded(BlockIndex(kind="blocked", size=8, bound=8000), index, grid)
    assert dim.strides is None
    assert dim.values is None
    assert dim.axes == (0,)
    x = operand((dim,))
    blocks = BlockMap(grid=grid, parallel=(False, False), operands=(x,))
    assert blocks.block(x, blocks.point(5)) is None


def test_huge_grids_are_not_counted() -> None:
    plain = BlockIndex(kind="blocked", size=8, bound=8)
    index = np.broadcast_to(np.zeros((1, 1), int), (1 << 11, 1 << 10))
    assert visits.visits([plain], [index], (1 << 11, 1 << 10)) is None


def test_a_grid_dimension_that_only_repeats_is_not_enumerated() -> None:
    plain = BlockIndex(kind="blocked", size=8, bound=32)
    found = visits.visits([plain], [np.arange(4).reshape(1, 4)], (10**12, 4))
    assert found is not None
    assert (found.copies, found.distinct) == (4 * 10**12, 4)


def test_coverage_of_too_many_blocks_is_missing() -> None:
    dims = [
        BlockIndex(kind="blocked", size=8, bound=10**6),
        BlockIndex(kind="element", size=8, bound=10**6),
    ]
    steps = np.arange(1 << 16)
    found = visits.visits(dims, [steps % 1500, steps * 977 % 10**6], (1 << 16,))
    assert found is not None
    assert found.untouched is None


def test_a_squeezed_dimension() -> None:
    x = operand(
        (BlockIndex(kind="blocked", size=8, bound=20), BlockIndex(kind="squeezed", size=1, bound=2))
    )
    assert (x.block_shape, x.total, x.block_bytes) == ((8, None), 6, 32)

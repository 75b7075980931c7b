"""Counts of visits, against a walk through every grid point and every element."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from pallas_debug.profile import visits
from pallas_debug.profile.blocks import BlockIndex, BlockMap, OperandBlocks


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
) -> tuple[int, list[tuple[int, ...]]]:
    """Elements in no block, and the block of each grid point, one at a time."""
    sequence = [
        tuple(int(np.broadcast_to(i, grid)[point]) for i in indices)
        for point in itertools.product(*map(range, grid))
    ]
    touched = {
        element
        for block in sequence
        for element in itertools.product(
            *(
                range(max(i * d.unit - d.padding[0], 0), i * d.unit - d.padding[0] + d.size)
                for i, d in zip(block, dimensions, strict=True)
            )
        )
        if all(i < d.bound for i, d in zip(element, dimensions, strict=True))
    }
    return math.prod(d.bound for d in dimensions) - len(touched), sequence


@pytest.mark.parametrize("start", range(0, 400, 100))
def test_counts_equal_those_of_a_walk(start: int) -> None:
    for seed in range(start, start + 100):
        grid, dimensions, indices = random_case(seed)
        expected, sequence = walked(grid, dimensions, indices)
        assert visits.untouched(dimensions, indices, grid) == expected, seed
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
    assert visits.untouched([plain], [index], (1 << 11, 1 << 10)) is None


def test_a_grid_dimension_that_only_repeats_is_not_enumerated() -> None:
    plain = BlockIndex(kind="blocked", size=8, bound=32)
    assert visits.untouched([plain], [np.arange(3).reshape(1, 3)], (10**12, 3)) == 8


def test_coverage_of_too_many_blocks_is_missing() -> None:
    dims = [
        BlockIndex(kind="blocked", size=8, bound=10**6),
        BlockIndex(kind="element", size=8, bound=10**6),
    ]
    steps = np.arange(1 << 16)
    assert visits.untouched(dims, [steps % 1500, steps * 977 % 10**6], (1 << 16,)) is None

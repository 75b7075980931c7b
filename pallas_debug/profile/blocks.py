"""Block map of a kernel: the block of each operand at every grid point.

It is recorded when the kernel is dumped, as only jax can evaluate index maps; reading needs no jax.
Grid points are numbered in the order in which a core runs them: the last grid dimension varies
fastest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

MAX_VALUES = 1 << 14
"""Maximum recorded values of one dimension of an index map that is not affine."""

MAX_SCALARS = 1 << 16
"""Maximum recorded values of a scalar operand."""

MAX_GRID_DIMENSIONS = 64
"""Maximum number of grid dimensions; the same as that of numpy arrays."""

Block = tuple[int, ...] | None
"""Indices of a block; None if unknown, which is assumed to differ from every other block."""

BlockDimensionKind = Literal["blocked", "squeezed", "element"]


@dataclass(frozen=True, kw_only=True)
class BlockIndex:
    """Dimension of an operand's blocks, and its index map.

    Attributes:
      kind: whether the index map counts blocks or elements.
      size: size of the block in elements; 1 if squeezed.
      bound: size of the array.
      padding: elements by which an `element` block may extend past the array, before and after.
      offset, strides: the index is `offset` plus the products of grid point and strides, if it is
        affine; else `strides` is None.
      axes: grid dimensions over which `values` ranges, the last one fastest.
      values: the index for all combinations of those dimensions; None if it is affine, or if there
        are more than `MAX_VALUES`.
    """

    kind: BlockDimensionKind
    size: int
    bound: int
    padding: tuple[int, int] = (0, 0)
    offset: int = 0
    strides: tuple[int, ...] | None = None
    axes: tuple[int, ...] = ()
    values: tuple[int, ...] | None = None

    @property
    def unit(self) -> int:
        """Number of elements between consecutive values of the index."""
        return self.size if self.kind == "blocked" else 1

    @property
    def count(self) -> int:
        """Number of values of the index that lie inside the array."""
        return math.ceil(self.bound / self.unit) if self.unit else 0

    def at(self, point: tuple[int, ...], grid: tuple[int, ...]) -> int | None:
        """Return the index at a grid point; None if it was not recorded."""
        if self.strides is not None:
            return self.offset + sum(i * n for i, n in zip(point, self.strides, strict=True))
        if self.values is None:
            return None
        position = 0
        for axis in self.axes:
            position = position * grid[axis] + point[axis]
        return self.values[position]


@dataclass(frozen=True, kw_only=True)
class OperandBlocks:
    """Blocks of one operand over the grid.

    Attributes:
      shape: shape of the whole array.
      bits: size in bits of an element in memory.
      space: memory space of the block.
      is_pipelined: whether Pallas moves the blocks; if not, the kernel gets the array where it is.
      buffers: number of buffers for a block.
      reads_back: whether an output's block is fetched before it is written again.
      dimensions: dimensions of the blocks.
      unknown: why the index map could not be evaluated, as the end of a sentence.
      tables: scalar prefetch operands that the index map reads, with the values of one call.
      untouched: number of elements that are in no block; None if not counted.
    """

    name: str
    kind: Literal["input", "output"]
    shape: tuple[int, ...]
    dtype: str
    bits: int
    space: str
    is_pipelined: bool
    buffers: int
    reads_back: bool = False
    dimensions: tuple[BlockIndex, ...] = ()
    unknown: str | None = None
    tables: tuple[str, ...] = ()
    untouched: int | None = None

    @property
    def block_bytes(self) -> int:
        """Bytes of a whole block, without padding to the tiles of the chip."""
        return math.prod(d.size for d in self.dimensions) * self.bits // 8


@dataclass(frozen=True, kw_only=True)
class ScalarValues:
    """Values of a scalar operand in one call: a table of scalar prefetch, or a size of the grid.

    Attributes:
      number: position among the operands of the call; grid sizes come first.
      shape: shape of the operand; empty for a size of the grid.
      bits: size in bits of an element.
      values: values in row-major order.
    """

    number: int
    name: str
    shape: tuple[int, ...]
    values: tuple[int, ...]
    bits: int = 32


@dataclass(frozen=True, kw_only=True)
class BlockMap:
    """Block of each operand that every grid point touches.

    Attributes:
      grid: sizes of all dimensions, including those that `vmap` added; empty without a grid.
      parallel: for each dimension, whether its grid points may run on different cores.
      operands: operands with blocks, in order.
      unknown: why there is no map at all, as the end of a sentence.
      scalars: known values of integer scalar operands, in one call.
    """

    grid: tuple[int, ...] = ()
    parallel: tuple[bool, ...] = ()
    operands: tuple[OperandBlocks, ...] = ()
    unknown: str | None = None
    scalars: tuple[ScalarValues, ...] = ()

    @property
    def points(self) -> int:
        """Number of grid points."""
        return math.prod(self.grid)

    @property
    def pipelined(self) -> tuple[OperandBlocks, ...]:
        """Operands whose blocks Pallas moves."""
        return tuple(operand for operand in self.operands if operand.is_pipelined)

    def point(self, position: int) -> tuple[int, ...]:
        """Return the grid point at a position in grid order."""
        return grid_point(self.grid, position)

    def block(self, operand: OperandBlocks, point: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the block of an operand at a grid point; None if it was not recorded."""
        if operand.unknown is not None:
            return None
        block = []
        for dimension in operand.dimensions:
            index = dimension.at(point, self.grid)
            if index is None:
                return None
            block.append(index)
        return tuple(block)


def grid_point(grid: tuple[int, ...], position: int) -> tuple[int, ...]:
    """Return the grid point at a position in grid order."""
    found = []
    for size in reversed(grid):
        position, index = divmod(position, size)
        found.append(index)
    return tuple(found[::-1])

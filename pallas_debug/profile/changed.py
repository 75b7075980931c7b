"""Changes of a kernel's blocks and grid: each function takes a block map and returns another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pallas_debug.errors import UsageError
from pallas_debug.profile.blocks import BlockIndex, BlockMap, OperandBlocks

if TYPE_CHECKING:
    import numpy as np  # slow to import, and only needed for index maps that are not affine

FOLLOWED = 0.5
"""Minimum share of the grid points at which the index of a block that skips others is that of its
axis. Causal attention skips up to half of the blocks (jax's `flash_attention`)."""


BITS = (1, 2, 4, 8, 16, 32, 64)
"""Bits that an element may have."""


def resized(blocks: BlockMap, sizes: Mapping[tuple[str, int], int]) -> BlockMap:
    """Change sizes of blocks, by operand and dimension; operands that follow the same axis change
    with it.

    Raises:
      UsageError: a name is no block, a size does not divide the array, or no single axis of the
        grid moves the blocks.
    """
    factors: dict[int, float] = {}
    for (name, dimension), size in sizes.items():
        operand = _named(blocks, name, dimension)
        bound = operand.dimensions[dimension].bound
        axis = axis_of(blocks, operand, dimension)
        if axis is None:
            raise UsageError(f"no axis of the grid moves the blocks of {name} along {dimension}")
        if size < 1 or bound % size:
            raise UsageError(
                f"blocks of {size} do not divide dimension {dimension} of {name}, which has "
                f"{bound:,} elements"
            )
        factor = size / operand.dimensions[dimension].size
        if factors.setdefault(axis, factor) != factor:
            raise UsageError(f"axis {axis} of the grid cannot follow two sizes of blocks")
    return scaled(blocks, factors)


def scaled(blocks: BlockMap, factors: Mapping[int, float]) -> BlockMap:
    """Multiply the sizes of all blocks along some axes of the grid.

    Raises:
      UsageError: an index map does not simply follow such an axis.
    """
    grid = tuple(
        max(math.ceil(points / factors.get(axis, 1.0)), 1)
        for axis, points in enumerate(blocks.grid)
    )
    return _mapped(blocks, lambda operand: _scaled(blocks, operand, factors, grid), grid=grid)


def reordered(blocks: BlockMap, order: Sequence[int]) -> BlockMap:
    """Run the axes of the grid in another order, as in `(1, 0, 2)`.

    Raises:
      UsageError: it is no permutation of the axes.
    """
    if sorted(order) != list(range(len(blocks.grid))):
        raise UsageError(
            f"{','.join(map(str, order))} is no order of the axes of a grid with "
            f"{len(blocks.grid)} axes, which are numbered from 0"
        )

    def moved(dimension: BlockIndex) -> BlockIndex:
        if dimension.strides is not None:
            return replace(dimension, strides=tuple(dimension.strides[axis] for axis in order))
        if dimension.values is None:
            return dimension
        from pallas_debug.profile import visits

        return visits.recorded(dimension, _values(dimension, blocks.grid).transpose(order), grid)

    grid = tuple(blocks.grid[axis] for axis in order)
    changed = _mapped(
        blocks,
        lambda operand: replace(operand, dimensions=tuple(map(moved, operand.dimensions))),
        grid=grid,
    )
    parallel = tuple(blocks.parallel[axis] for axis in order) if blocks.parallel else ()
    return replace(changed, parallel=parallel)


def of_operand(
    blocks: BlockMap,
    name: str,
    *,
    bits: int | None = None,
    buffers: int | None = None,
    resident: bool = False,
) -> BlockMap:
    """Change the bits of an operand's elements, its number of buffers, or keep it in VMEM whole.

    Raises:
      UsageError: a name is no operand with blocks, or a number is invalid.
    """
    chosen = _named(blocks, name)
    if bits is not None and bits not in BITS:
        raise UsageError(f"elements have {', '.join(map(str, BITS))} bits, not {bits}")
    if buffers == 0:
        raise UsageError(f"{name} needs at least one buffer")

    def change(operand: OperandBlocks) -> OperandBlocks:
        if operand is not chosen:
            return operand
        if resident:
            zero = (0,) * len(blocks.grid)
            operand = replace(
                operand,
                unknown=None,
                buffers=1,
                dimensions=tuple(
                    BlockIndex(kind="blocked", size=d.bound, bound=d.bound, strides=zero)
                    for d in operand.dimensions
                ),
            )
        return replace(
            operand,
            bits=operand.bits if bits is None else bits,
            buffers=operand.buffers if buffers is None else buffers,
        )

    return _mapped(blocks, change)


Followed = int | tuple[int, int]
"""Axis of the grid with which a dimension of blocks grows. If it is unknown because a table selects
the blocks: the sizes of the array and of the block, which other operands share."""


def grows_with(blocks: BlockMap, operand: OperandBlocks, dimension: int) -> Followed | None:
    """Return what a dimension of an operand's blocks grows with; None for nothing known."""
    axis = axis_of(blocks, operand, dimension)
    index = operand.dimensions[dimension]
    if axis is None and index.strides is None and index.size > 1:
        return index.bound, index.size
    return axis


def factors(before: BlockMap, after: BlockMap) -> dict[Followed, float]:
    """Return the factors by which blocks are larger, by what they grow with."""
    found: dict[Followed, float] = {}
    for old, new in zip(before.pipelined, after.pipelined, strict=False):
        pairs = zip(old.dimensions, new.dimensions, strict=False)
        for number, (one, other) in enumerate(pairs):
            followed_by = grows_with(before, old, number)
            if followed_by is not None and found.get(followed_by, 1.0) == 1:
                found[followed_by] = other.size / max(one.size, 1)
    return found


def axis_of(blocks: BlockMap, operand: OperandBlocks, dimension: int) -> int | None:
    """Return the axis of the grid whose index is that of the blocks along a dimension; None if
    there is no such axis, or several.

    If an index map reads tables with unknown values, it is the only axis with as many points as
    the dimension has blocks; of several, the only one that no other operand's blocks follow. An
    axis that two dimensions of an operand may follow is none.
    """
    index = operand.dimensions[dimension]
    if operand.unknown is None:
        return followed(index, blocks.grid)
    if index.size == 1:
        return None
    taken = {
        followed(other, blocks.grid)
        for o in blocks.pipelined
        if o.unknown is None
        for other in o.dimensions
    }
    unclear = {
        axis
        for o in blocks.pipelined
        if o.unknown is not None
        for axis, count in Counter(a for d in o.dimensions for a in _fitting(d, blocks)).items()
        if count > 1
    }
    fitting = [axis for axis in _fitting(index, blocks) if axis not in unclear]
    return fitting[0] if len(fitting) == 1 else _only(a for a in fitting if a not in taken)


def _fitting(index: BlockIndex, blocks: BlockMap) -> list[int]:
    """Return the axes with as many points as a dimension has blocks."""
    return [axis for axis, points in enumerate(blocks.grid) if points == index.count > 1]


def followed(dimension: BlockIndex, grid: Sequence[int]) -> int | None:
    """Return the axis whose index a dimension's index equals, at least at most grid points."""
    if dimension.kind == "element":
        return None
    if dimension.strides is not None:
        moving = [
            axis for axis, stride in enumerate(dimension.strides) if stride and grid[axis] > 1
        ]
        is_equal = len(moving) == 1 and dimension.strides[moving[0]] == 1
        return moving[0] if is_equal and not dimension.offset else None
    if dimension.values is None:
        return None
    values = _values(dimension, grid)
    shares = [(float((values == _counted(grid, axis)).mean()), axis) for axis in dimension.axes]
    # Of several axes the innermost: blocks are skipped along the axis that moves them.
    share, own = max(shares, default=(0.0, None))
    return own if share >= FOLLOWED else None


def busy_points(blocks: BlockMap) -> np.ndarray | None:
    """Return at which grid points no index map skips a block, to broadcast against the grid.

    None if no index map skips blocks. A map that skips blocks stays at the block of another step,
    and the kernel does nothing in that step: so does causal attention.
    """
    skipping = [
        (_values(d, blocks.grid), axis)
        for operand in blocks.pipelined
        for d in operand.dimensions
        if d.strides is None and d.values is not None
        if (axis := followed(d, blocks.grid)) is not None
    ]
    found = None
    for values, axis in skipping:
        is_own = values == _counted(blocks.grid, axis)
        found = is_own if found is None else found & is_own
    return found


def _scaled(
    blocks: BlockMap,
    operand: OperandBlocks,
    factors: Mapping[int, float],
    grid: tuple[int, ...],
) -> OperandBlocks:
    changed = []
    for number, dimension in enumerate(operand.dimensions):
        axis = axis_of(blocks, operand, number)
        factor = factors.get(axis, 1.0) if axis is not None else 1.0
        size = round(dimension.size * factor)
        larger = replace(dimension, size=size) if factor != 1 else dimension
        if dimension.strides is not None:
            moving = {a for a, stride in enumerate(dimension.strides) if stride and a != axis}
            if not moving.isdisjoint(factors):
                raise _not_simple(operand, number, moving & set(factors))
        elif dimension.values is not None and not set(dimension.axes).isdisjoint(factors):
            larger = _merged(dimension, larger, operand, number, axis, blocks, factors, grid)
        changed.append(larger)
    return replace(operand, dimensions=tuple(changed))


def _merged(
    dimension: BlockIndex,
    larger: BlockIndex,
    operand: OperandBlocks,
    number: int,
    own: int | None,
    blocks: BlockMap,
    factors: Mapping[int, float],
    grid: tuple[int, ...],
) -> BlockIndex:
    """Return the recorded index over a smaller grid: each of its points replaces several.

    It is that of the axis if it is so at one of the replaced points; else that of the first one.
    """
    import numpy as np

    from pallas_debug.profile import visits

    values = _values(dimension, blocks.grid)
    axes = [axis for axis in dimension.axes if factors.get(axis, 1.0) != 1]
    if any(factors[axis] < 1 or blocks.grid[axis] % factors[axis] for axis in axes):
        raise _not_simple(operand, number, axes)
    shape, inner = [], []
    for axis, points in enumerate(values.shape):
        factor = int(factors[axis]) if axis in axes else 1
        shape += [points // factor, factor]
        inner.append(2 * axis + 1)

    def grouped(array: np.ndarray) -> np.ndarray:
        return np.broadcast_to(array, values.shape).reshape(shape)

    first = grouped(values)[tuple(0 if n in inner else slice(None) for n in range(len(shape)))]
    if own is not None:
        is_own = grouped(values == _counted(blocks.grid, own)).any(axis=tuple(inner))
        first = np.where(is_own, _counted(grid, own), first // int(factors.get(own, 1)))
    return visits.recorded(larger, first, grid)


def _not_simple(operand: OperandBlocks, dimension: int, axes: Iterable[int]) -> UsageError:
    return UsageError(
        f"other blocks along axis {', '.join(map(str, axes))} of the grid cannot be simulated: the "
        f"index of {operand.name} along dimension {dimension} does not simply follow it"
    )


def _values(dimension: BlockIndex, grid: Sequence[int]) -> np.ndarray:
    import numpy as np

    shape = [points if axis in dimension.axes else 1 for axis, points in enumerate(grid)]
    return np.array(dimension.values, np.int64).reshape(shape)


def _counted(grid: Sequence[int], axis: int) -> np.ndarray:
    """Return the index along an axis, to broadcast against the grid."""
    import numpy as np

    return np.arange(grid[axis]).reshape([-1 if n == axis else 1 for n in range(len(grid))])


def _mapped(
    blocks: BlockMap,
    change: Callable[[OperandBlocks], OperandBlocks],
    grid: tuple[int, ...] | None = None,
) -> BlockMap:
    """Change the operands whose blocks Pallas moves."""
    operands = tuple(change(o) if o.is_pipelined else o for o in blocks.operands)
    if grid is not None:  # what was counted over the old grid
        operands = tuple(replace(o, untouched=None) for o in operands)
    return replace(blocks, operands=operands, grid=blocks.grid if grid is None else grid)


def _named(blocks: BlockMap, name: str, dimension: int = 0) -> OperandBlocks:
    operand = next((o for o in blocks.pipelined if o.name == name), None)
    if operand is None or not 0 <= dimension < max(len(operand.dimensions), 1):
        known = ", ".join(f"{o.name}[0..{len(o.dimensions) - 1}]" for o in blocks.pipelined)
        raise UsageError(f"{name}[{dimension}] is no block of this kernel, which has {known}")
    return operand


def _only(axes: Iterable[int]) -> int | None:
    found = list(axes)
    return found[0] if len(found) == 1 else None

"""Suggestions of block sizes that would fit into VMEM.

A block size along a grid axis changes for all operands that follow the axis: the kernel's body most
likely takes its sizes from its blocks, so they have to agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from pallas_debug.explain.memory import (
    LANES,
    SUBLANES,
    Overflow,
    amount,
    axes,
    bits_of,
    block_of,
    estimate,
)
from pallas_debug.model import Kernel, Operand

Blocks = tuple[tuple[int | None, ...], ...]

MAX_FACTOR = 1 << 12


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Blocks that would fit.

    Attributes:
      blocks: new blocks by operand name.
      bytes: sum over all operands.
      how: which grid axis gets how many times its steps.
    """

    blocks: dict[str, tuple[int | None, ...]]
    bytes: int
    how: str

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {_shape(block)}" for name, block in self.blocks.items())
        return f"{self.how}: {shapes}, {amount(self.bytes)} in total"


def suggestions(kernel: Kernel, overflow: Overflow) -> list[Suggestion]:
    """Find the largest blocks that fit, for each grid axis, else for all axes together.

    Memory beyond blocks and scratch, mostly spilled registers, is assumed to shrink with them.
    """
    needed = sum(allocation.bytes for allocation in estimate(kernel)) or 1
    budget = overflow.limit * min(1.0, needed / max(overflow.used, 1))
    used_axes = sorted({a for o in kernel.operands for a in axes(o) if a is not None})
    found = [_smallest(kernel, (axis,), budget) for axis in used_axes]
    if not used_axes:
        found = [_by_rows(kernel, budget)]
    elif not any(found):
        found = [_smallest(kernel, tuple(used_axes), budget)]
    return [suggestion for suggestion in found if suggestion is not None]


def _smallest(kernel: Kernel, along: tuple[int, ...], budget: float) -> Suggestion | None:
    """The smallest division along these axes that fits."""
    factor = 2
    while factor <= MAX_FACTOR:
        blocks = _divided(kernel, along, factor)
        if blocks is None:
            return None
        total = sum(allocation.bytes for allocation in estimate(kernel, blocks))
        if total <= budget:
            named = " and ".join(f"axis {axis}" for axis in along)
            return Suggestion(
                blocks=_changed(kernel, blocks),
                bytes=total,
                how=f"{factor} times the steps along {named} of the grid",
            )
        factor *= 2
    return None


def _divided(kernel: Kernel, along: tuple[int, ...], factor: int) -> Blocks | None:
    """Divide blocks along grid axes; None if one does not divide evenly or into whole tiles.

    Scratch follows no axis. A scratch dimension as long as a divided one, at the same distance from
    the last dimension, is assumed to hold a value of that block's shape.
    """
    followed = {
        (len(operand.block_shape) - position, operand.block_shape[position])
        for operand in kernel.operands
        if operand.block_shape is not None
        for position, axis in enumerate(axes(operand))
        if axis in along
    }
    blocks = []
    for operand in kernel.operands:
        block = block_of(operand) or ()
        indexed = axes(operand) or (None,) * len(block)
        divided: list[int | None] = []
        for position, (size, axis) in enumerate(zip(block, indexed, strict=True)):
            from_last = (len(block) - position, size)
            follows = axis in along or (operand.kind == "scratch" and from_last in followed)
            if follows and size is not None:
                if size % factor or (size // factor) % _tile(operand, position, len(block)):
                    return None
                size //= factor
            divided.append(size)
        blocks.append(tuple(divided))
    return tuple(blocks)


def _by_rows(kernel: Kernel, budget: float) -> Suggestion | None:
    """Blocks of rows, for a kernel without a grid whose operands share their first dimension."""
    operands = [o for o in kernel.operands if o.kind in ("input", "output")]
    lengths = {o.shape[0] for o in operands if len(o.shape) > 1}
    if len(lengths) != 1 or any(o.kind == "scratch" for o in kernel.operands):
        return None
    (length,) = lengths
    rows = length // 2
    while rows and rows % SUBLANES == 0:
        blocks = tuple(
            (rows, *o.shape[1:]) if o in operands and len(o.shape) > 1 else o.shape
            for o in kernel.operands
        )
        total = 2 * sum(allocation.bytes for allocation in estimate(kernel, blocks))
        if length % rows == 0 and total <= budget:
            return Suggestion(
                blocks=_changed(kernel, blocks),
                bytes=total,
                how=f"if rows are independent of each other, grid=({length // rows},) with blocks",
            )
        rows //= 2
    return None


def _tile(operand: Operand, position: int, rank: int) -> int:
    if position == rank - 1:
        return LANES
    if position == rank - 2:
        return SUBLANES * max(1, 32 // bits_of(operand.dtype))
    return 1


def _changed(kernel: Kernel, blocks: Blocks) -> dict[str, tuple[int | None, ...]]:
    return {
        operand.name: block
        for operand, block in zip(kernel.operands, blocks, strict=True)
        if block_of(operand) is not None and block != block_of(operand)
    }


def _shape(block: tuple[int | None, ...]) -> str:
    inside = ", ".join("None" if size is None else str(size) for size in block)
    return f"({inside},)" if len(block) == 1 else f"({inside})"

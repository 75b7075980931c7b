"""Whether blocks fit the tiles of the TPU's memory, as jax's lowering and libtpu demand it."""

from __future__ import annotations

import re

from pallas_debug.analysis.subject import Result, Subject, shape_text
from pallas_debug.bridge.walk.index_maps import Block

LANES = 128
SUBLANES = 8

NARROW_SINCE = (0, 0, 50)
"""The libtpu from which on a block of 8-bit numbers may have fewer rows than a tile."""


def look(subject: Subject) -> Result:
    """Blocks whose shape jax or libtpu refuses."""
    result = Result()
    said = set()
    for block in subject.grid.blocks:
        if 0 in block.shape or not _is_looked_at(block):
            continue
        problem = _problem(subject, block)
        if problem is None:
            continue
        message, cause, advice = problem
        # One spec often serves several operands.
        spec = (subject.block_line(block), block.block_shape)
        if spec in said:
            continue
        said.add(spec)
        result.add(
            subject.finding("BlockShapeTiling", message),
            source=subject.block_line(block),
            operand=block.name,
            shape=shape_text(block.dtype, block.shape),
            values={"block": str(block.block_shape)},
            cause=cause,
            advice=advice,
        )
    return result


def _is_looked_at(block: Block) -> bool:
    if block.space == "smem":
        return not block.is_whole
    return block.space in ("default", "vmem", "any", "hbm")


def _problem(subject: Subject, block: Block) -> tuple[str, str, str] | None:
    """What is wrong with a block, why, and what to do."""
    array = shape_text(block.dtype, block.shape)
    said = f"{block.name} comes in blocks of {block.block_shape} of {array}"
    if not block.shape:
        return f"{said}, which has no dimension", "a block has one at least", "reshape it to (1, 1)"
    if block.space in ("any", "hbm"):
        if block.is_whole:
            return None
        return (
            f"{said} in {block.space.upper()}",
            "what stays in HBM is not cut into blocks: the kernel gets it as a whole",
            "leave out block shape and index map, and copy the parts by DMA",
        )
    if len(block.shape) == 1:
        return _vector(said, block)
    rows, columns = block.dims[-2:]
    if columns.size != columns.bound and columns.size % LANES:
        best = min(_rounded(columns.size, LANES), columns.bound)
        return (
            f"{said}: {columns.size} is neither a multiple of {LANES} nor the whole dimension",
            f"a tile has {SUBLANES} rows of {LANES} lanes",
            f"take {best} columns, or all {columns.bound}",
        )
    if rows.size != rows.bound and rows.size % SUBLANES:
        best = min(_rounded(rows.size, SUBLANES), rows.bound)
        return (
            f"{said}: {rows.size} is neither a multiple of {SUBLANES} nor the whole dimension",
            f"a tile has {SUBLANES} rows of {LANES} lanes",
            f"take {best} rows, or all {rows.bound}; or reshape the array so that its last two "
            "dimensions are whole",
        )
    return _narrow(subject, said, block)


def _vector(said: str, block: Block) -> tuple[str, str, str] | None:
    (dim,) = block.dims
    least = LANES * (32 // max(block.bits, 1))
    is_power = dim.size >= least and dim.size & (dim.size - 1) == 0
    if dim.size == dim.bound or dim.size % (LANES * SUBLANES) == 0 or is_power:
        return None
    power = max(least, 1 << (dim.size - 1).bit_length())
    return (
        f"{said}: {dim.size} is neither the whole dimension, nor a multiple of {LANES * SUBLANES}, "
        f"nor a power of two from {least} on",
        f"a vector of {block.dtype} is laid out in tiles of {least}",
        f"take {min(power, dim.bound)} elements, or reshape the array to two dimensions",
    )


def _narrow(subject: Subject, said: str, block: Block) -> tuple[str, str, str] | None:
    """Older compilers want whole tiles of 8-bit numbers, of 32 rows."""
    rows = block.dims[-2]
    tile = SUBLANES * 32 // max(block.bits, 1)
    version = tuple(map(int, re.findall(r"\d+", _libtpu(subject))[:3]))
    if block.bits != 8 or not version or version >= NARROW_SINCE:
        return None
    if rows.size == rows.bound or rows.size % tile == 0 or rows.bound % tile:
        return None
    return (
        f"{said}: {rows.size} rows are no multiple of {tile}",
        f"a tile of {block.dtype} has {tile} rows, and libtpu {_libtpu(subject)} takes whole tiles",
        f"take {_rounded(rows.size, tile)} rows, or libtpu {'.'.join(map(str, NARROW_SINCE))}",
    )


def _libtpu(subject: Subject) -> str:
    return subject.captured.kernel.versions.get("libtpu", "")


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def padded(block_shape: tuple[int, ...], bits: int) -> int:
    """Bytes of a block in VMEM: its last two dimensions are filled up to tiles.

    Rows are filled up to the next power of two, or to whole tiles: no layout takes less.
    """
    if not block_shape:
        return 4
    packing = max(32 // max(bits, 1), 1)
    if len(block_shape) == 1:
        return _rounded(block_shape[0], LANES * packing) * bits // 8
    *outer, rows, columns = block_shape
    tile = min(SUBLANES * packing, max(packing, 1 << max(rows - 1, 0).bit_length()))
    entries = _rounded(rows, tile) * _rounded(columns, LANES)
    for size in outer:
        entries *= size
    return entries * bits // 8

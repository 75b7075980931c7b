"""Checks of block shapes against the tiling rules of jax's lowering and libtpu."""

from __future__ import annotations

import re
from typing import Any

from pallas_debug.analysis.subject import Result, Subject
from pallas_debug.bridge.walk.index_maps import Block
from pallas_debug.chips import LANES, SUBLANES, packing
from pallas_debug.findings.facts import array_text
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding

NARROW_SINCE = (0, 0, 50)
"""First libtpu release that accepts blocks of 8-bit numbers with fewer rows than a tile."""


def look(subject: Subject) -> Result:
    """Report blocks whose shape jax or libtpu rejects."""
    result = Result()
    known = set()
    for block in subject.grid.blocks:
        if 0 in block.shape or not _is_looked_at(block):
            continue
        finding = _problem(subject, block)
        if finding is None:
            continue
        # One spec often serves several operands.
        spec = (finding.witness.line, block.sizes)
        if spec not in known:
            known.add(spec)
            result.findings.append(finding)
    return result


def _is_looked_at(block: Block) -> bool:
    if block.memory_space == "smem":
        return not block.is_whole
    return block.memory_space in ("default", "vmem", "any", "hbm")


def _problem(subject: Subject, block: Block) -> Finding | None:
    facts = _facts(subject, block)
    if facts is None:
        return None
    seen = subject.of_block(block, values={"block": str(block.sizes)})
    array = array_text(block.dtype, block.shape)
    facts |= {"array": array, "block": block.sizes}
    return seen.of(Fault.BLOCK_SHAPE_TILING, **facts)


def _facts(subject: Subject, block: Block) -> dict[str, Any] | None:
    """Return facts about a block whose shape is rejected."""
    if not block.shape:
        return {}
    if block.memory_space in ("any", "hbm"):
        return None if block.is_whole else {"space": block.memory_space.upper()}
    if len(block.shape) == 1:
        return _vector(block)
    rows, columns = block.dims[-2:]
    if columns.size != columns.bound and columns.size % LANES:
        return {"size": columns.size, "unit": LANES}
    if rows.size != rows.bound and rows.size % SUBLANES:
        return {"size": rows.size, "unit": SUBLANES}
    return _narrow(subject, block)


def _vector(block: Block) -> dict[str, Any] | None:
    (dim,) = block.dims
    least = LANES * packing(block.bits)
    is_power = dim.size >= least and dim.size & (dim.size - 1) == 0
    if dim.size == dim.bound or dim.size % (LANES * SUBLANES) == 0 or is_power:
        return None
    return {"elements": dim.size, "least": least}


def _narrow(subject: Subject, block: Block) -> dict[str, Any] | None:
    """Facts about 8-bit blocks of partial tiles, which older compilers reject (of 32 rows)."""
    rows = block.dims[-2]
    tile = SUBLANES * packing(block.bits)
    libtpu = subject.captured.kernel.versions.get("libtpu", "")
    version = tuple(map(int, re.findall(r"\d+", libtpu)[:3]))
    if block.bits != 8 or not version or version >= NARROW_SINCE:
        return None
    if rows.size == rows.bound or rows.size % tile == 0 or rows.bound % tile:
        return None
    return {"narrow": rows.size, "tile": tile}


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def padded(block_shape: tuple[int, ...], bits: int) -> int:
    """Bytes of a block in VMEM, with its last two dimensions padded to tiles.

    Rows are padded to the next power of two or to whole tiles, the minimum over all layouts.
    """
    if not block_shape:
        return 4
    packed = packing(bits)
    if len(block_shape) == 1:
        return _rounded(block_shape[0], LANES * packed) * bits // 8
    *outer, rows, columns = block_shape
    tile = min(SUBLANES * packed, max(packed, 1 << max(rows - 1, 0).bit_length()))
    entries = _rounded(rows, tile) * _rounded(columns, LANES)
    for size in outer:
        entries *= size
    return entries * bits // 8

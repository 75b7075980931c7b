"""Bounds checks of index maps."""

from __future__ import annotations

import numpy as np

from pallas_debug.analysis.accesses import outside
from pallas_debug.analysis.subject import Result, Subject, at, first_spot, points_of
from pallas_debug.bridge.walk.index_maps import Block, Indices
from pallas_debug.findings.bounds import MissingBlock, Outside
from pallas_debug.findings.facts import OF_TABLE, array_text, block_text
from pallas_debug.findings.faults import Fault
from pallas_debug.profile.blocks import BlockIndex


def look(subject: Subject) -> Result:
    """Check for out-of-bounds blocks, element offsets, 64-bit index maps and empty operands."""
    result = Result()
    _wide_maps(subject, result)
    for block, indices in zip(subject.grid.blocks, subject.indices, strict=True):
        if 0 in block.shape:
            result.findings.append(subject.of_block(block).of(Fault.ZERO_SIZE_OPERAND))
            continue
        if block.is_whole:
            continue
        _table_reads(subject, block, indices, result)
        if indices.dims is None:
            result.left_out.append(f"the index map of {block.name}: {indices.reason}")
            continue
        _bounds(subject, block, indices, indices.dims, result)
    return result


def _wide_maps(subject: Subject, result: Result) -> None:
    """Report index maps in 64 bits; those that jax made are one finding."""
    wide = [block for block in subject.grid.blocks if _is_wide(subject, block)]
    if made := [block for block in wide if block.source is None]:
        seen = subject.of_block(made[0]).at(source=subject.site.line())
        names = [block.name for block in made]
        result.findings.append(seen.of(Fault.X64_INDEX_MAP, made=names))
    for block in wide:
        if block.source is not None:
            dim = block.index_dtypes.index("int64")
            seen = subject.of_block(block, values={"dimension": str(dim)})
            result.findings.append(seen.of(Fault.X64_INDEX_MAP, dim=dim))


def _is_wide(subject: Subject, block: Block) -> bool:
    """Return whether the compiler receives an index map that returns 64-bit integers.

    It receives none if there is no grid, or for operands that stay in HBM.
    """
    is_compiled = bool(subject.grid.sizes) and block.memory_space in ("default", "vmem", "smem")
    return is_compiled and "int64" in block.index_dtypes


def _limits(dim: BlockIndex) -> tuple[int, int] | None:
    """Smallest and largest value an index map may return; None if unknown."""
    if dim.bound < 0:
        return None
    if dim.kind in ("blocked", "squeezed"):
        return 0, dim.count - 1
    if dim.kind == "element":
        before, behind = dim.padding
        return -before, dim.bound + behind - 1
    return None


def _bounds(
    subject: Subject, block: Block, indices: Indices, dims: tuple[np.ndarray, ...], result: Result
) -> None:
    sizes = subject.grid.sizes
    for number, (dim, index) in enumerate(zip(block.dims, dims, strict=True)):
        limits = _limits(dim)
        if limits is None:
            result.left_out.append(
                f"the index map of {block.name}: dimension {number} is a {dim.kind} one"
            )
            continue
        bad = (index < limits[0]) | (index > limits[1])
        if not bad.any():
            continue
        point, _ = first_spot(bad, len(sizes))
        value, count = at(index, point), points_of(bad, sizes)
        seen = subject.of_block(
            block,
            grid_point=point,
            index=block_text(block.name, [at(i, point) for i in dims]),
            values={"index": str(value), "blocks": str(limits[1] + 1)},
            count=count,
        )
        finding = seen.of(
            Fault.BLOCK_OUT_OF_BOUNDS,
            block=MissingBlock(
                dim=number,
                value=value,
                first=limits[0],
                last=limits[1],
                is_element=dim.kind == "element",
            ),
            array=array_text(block.dtype, block.shape),
            origin=OF_TABLE if number in indices.from_tables else None,
            count=count,
            points=subject.grid.points,
        )
        result.findings.append(finding)
        return


def _table_reads(subject: Subject, block: Block, indices: Indices, result: Result) -> None:
    """Report scalar-prefetch tables that the index map itself reads past the end."""
    for event in indices.reads:
        place = outside(event, event.view) if event.what == "read" else None
        if place is None:
            continue
        _, number, bad = place
        dim, table = event.view.levels[0][number], event.view.buffer
        point, loops = first_spot(bad, len(subject.grid.sizes))
        value = at(dim.start, (*reversed(loops), *point)) if dim.start is not None else 0
        seen = subject.sighting(
            source=subject.block_line(block),
            grid_point=point,
            operand=table.name,
            index=f"{table.name}[{value}]",
            shape=str(table),
        )
        finding = seen.of(
            Fault.OUT_OF_BOUNDS_READ,
            map_of=block.name,
            slice=Outside(dim=number, start=value, size=None, bound=dim.bound),
        )
        result.findings.append(finding)

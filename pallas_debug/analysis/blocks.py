"""Whether the index maps point at blocks that there are."""

from __future__ import annotations

import numpy as np

from pallas_debug.analysis.subject import (
    Result,
    Subject,
    at,
    first_point,
    index_text,
    points_of,
    shape_text,
)
from pallas_debug.bridge.walk.index_maps import Block, BlockDim, Indices


def look(subject: Subject) -> Result:
    """Blocks out of bounds, element offsets for block indices, 64-bit maps, empty operands."""
    result = Result()
    for block, indices in zip(subject.grid.blocks, subject.indices, strict=True):
        _dtypes(subject, block, result)
        if 0 in block.shape:
            _empty(subject, block, result)
            continue
        if block.is_whole:
            continue
        _table_reads(subject, block, indices, result)
        if indices.dims is None:
            result.not_judged.append(f"the index map of {block.name}: {indices.reason}")
            continue
        _bounds(subject, block, indices.dims, result)
    return result


def _dtypes(subject: Subject, block: Block, result: Result) -> None:
    wide = [i for i, dtype in enumerate(block.index_dtypes) if dtype == "int64"]
    if not wide:
        return
    result.add(
        subject.finding(
            "X64IndexMap",
            f"the index map of {block.name} returns an int64 for dimension {wide[0]}; the TPU's "
            "index maps return int32",
        ),
        source=subject.block_line(block),
        operand=block.name,
        shape=shape_text(block.dtype, block.shape),
        cause="under jax_enable_x64 a bare Python number is an int64",
        advice="return jnp.int32(0) rather than 0, or call the kernel without x64",
    )


def _empty(subject: Subject, block: Block, result: Result) -> None:
    result.add(
        subject.finding(
            "ZeroSizeOperand",
            f"{block.name} is {shape_text(block.dtype, block.shape)}, which holds nothing",
        ),
        source=subject.block_line(block),
        operand=block.name,
        shape=shape_text(block.dtype, block.shape),
        cause="the compiler has no layout for an operand without elements",
        advice="return early in the caller where a size is 0, and call the kernel only otherwise",
    )


def _limits(dim: BlockDim) -> tuple[int, int] | None:
    """The least and the largest that an index map may return; None where that is not known."""
    if dim.bound < 0:
        return None
    if dim.kind == "blocked":
        return 0, dim.blocks - 1
    if dim.kind == "squeezed":
        return 0, dim.bound - 1
    if dim.kind == "element":
        before, behind = dim.padding
        return -before, dim.bound + behind - 1
    return None


def _bounds(subject: Subject, block: Block, dims: tuple[np.ndarray, ...], result: Result) -> None:
    sizes = subject.grid.sizes
    for number, (dim, index) in enumerate(zip(block.dims, dims, strict=True)):
        limits = _limits(dim)
        if limits is None:
            result.not_judged.append(
                f"the index map of {block.name}: dimension {number} is a {dim.kind} one"
            )
            continue
        outside = (index < limits[0]) | (index > limits[1])
        if not outside.any():
            continue
        point = first_point(outside, sizes)
        value = at(index, point)
        count = points_of(outside, sizes)
        unit = "block" if dim.kind == "blocked" else "element"
        last = limits[1]
        array = shape_text(block.dtype, block.shape)
        offset = _is_offset(dim, index)
        kind = "ElementOffsetAsBlockIndex" if offset else "BlockIndexOutOfBounds"
        message = (
            f"the index map of {block.name} gives {unit} {value} along dimension {number} of "
            f"{array}, which has {last + 1}; it is outside at {count} of "
            f"{subject.grid.points} grid points"
        )
        if offset:
            cause = (
                "an index map gives block numbers, and this looks like an element offset: "
                f"{value} is {value // dim.size} x {dim.size}"
            )
            advice = f"return `i` rather than `i * {dim.size}`"
        else:
            cause = "the grid is larger than the array has blocks, or the index map is wrong"
            advice = f"return a value between {limits[0]} and {last}"
        result.add(
            subject.finding(kind, message),
            source=subject.block_line(block),
            grid_point=point,
            operand=block.name,
            index=index_text(block.name, [at(i, point) for i in dims]),
            shape=array,
            values={"index": str(value), "blocks": str(last + 1)},
            count=count,
            cause=cause,
            advice=advice,
        )
        return


def _is_offset(dim: BlockDim, index: np.ndarray) -> bool:
    """Whether these are the elements at which the array's blocks begin."""
    if dim.kind != "blocked" or dim.size < 2 or index.size < 2:
        return False
    inside = (index >= 0) & (index < dim.bound)
    return bool((index % dim.size == 0).all() and inside.all())


def _table_reads(subject: Subject, block: Block, indices: Indices, result: Result) -> None:
    """Scalar prefetch that the index map itself reads past its end."""
    for event in indices.reads:
        view = event.view
        if event.what != "read" or not event.certain or view is None or not view.levels:
            continue
        for number, dim in enumerate(view.levels[0]):
            if dim.start is None or dim.is_slice:
                continue
            outside = event.where & ((dim.start < 0) | (dim.start >= dim.bound))
            if not outside.any():
                continue
            point = first_point(outside, subject.grid.sizes)
            value = at(dim.start, point)
            table = view.buffer
            result.add(
                subject.finding(
                    "OutOfBoundsRead",
                    f"the index map of {block.name} reads {table.name} at {value} of dimension "
                    f"{number}, which has {dim.bound}",
                ),
                source=subject.block_line(block),
                grid_point=point,
                operand=table.name,
                index=f"{table.name}[{value}]",
                shape=str(table),
                cause="the grid is larger than the table",
                advice=f"keep the index between 0 and {dim.bound - 1}",
            )
            return

"""Block map of a captured kernel: its index maps evaluated over the whole grid."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.walk import index_maps
from pallas_debug.bridge.walk.index_maps import Block, Grid, NotReadable
from pallas_debug.profile import visits
from pallas_debug.profile.blocks import (
    MAX_GRID_DIMENSIONS,
    MAX_SCALARS,
    BlockMap,
    OperandBlocks,
    ScalarValues,
)

TIME_LIMIT = 2.0
"""Maximum seconds per kernel; index maps not evaluated by then are recorded as unknown."""

MAX_GRID = (1 << 63) - 1
"""Maximum number of grid points: positions in the grid are 64-bit integers."""

_MOVED = ("default", "vmem", "smem")
"""Memory spaces of blocks that Pallas moves; the kernel itself handles operands in HBM."""

_BITS = {f"{sign}int{bits}": bits for sign in ("", "u") for bits in (8, 16, 32)}
"""Bits of the dtypes of scalar operands whose values are recorded."""


def block_map(
    captured: Capture,
    tables: Mapping[int, np.ndarray] | None = None,
    bounds: Sequence[np.ndarray | None] = (),
) -> BlockMap:
    """Evaluate the index maps of a kernel.

    Args:
      tables: known scalar-prefetch values, by position.
      bounds: sizes of the grid that the call passes, in order; None for unknown sizes.
    """
    sizes = [int(size) for size in bounds if size is not None]
    if bounds and len(sizes) == len(bounds):
        captured = index_maps.with_grid(captured, sizes)
    try:
        grid = index_maps.grid(captured)
    except NotReadable as error:
        return BlockMap(unknown=str(error))
    if 0 in grid.sizes:
        return BlockMap(grid=grid.sizes, parallel=grid.parallel, unknown="its grid has no points")
    if grid.points > MAX_GRID:
        return BlockMap(unknown=f"its grid has {grid.points:,} points")
    if len(grid.sizes) > MAX_GRID_DIMENSIONS:
        return BlockMap(unknown=f"its grid has {len(grid.sizes)} dimensions")
    deadline = time.monotonic() + TIME_LIMIT
    return BlockMap(
        grid=grid.sizes,
        parallel=grid.parallel,
        operands=tuple(
            _operand(captured, grid, block, tables or {}, deadline) for block in grid.blocks
        ),
        scalars=tuple(_scalars(captured, tables or {}, bounds)),
    )


def _scalars(
    captured: Capture, tables: Mapping[int, np.ndarray], bounds: Sequence[np.ndarray | None]
) -> Iterator[ScalarValues]:
    """Values of the scalar operands that a reader of the schedule can place in SMEM."""
    kinds = ("dynamic_grid", "scalar_prefetch")
    operands = [o for o in captured.kernel.operands if o.kind in kinds]
    sizes = len(captured.kernel.of_kind("dynamic_grid"))
    known = dict(enumerate(bounds)) | {sizes + i: table for i, table in tables.items()}
    for number, operand in enumerate(operands):
        values = known.get(number)
        if values is None or operand.dtype not in _BITS or values.size > MAX_SCALARS:
            continue
        yield ScalarValues(
            number=number,
            name=operand.name,
            shape=operand.shape,
            values=tuple(map(int, values.ravel())),
            bits=_BITS[operand.dtype],
        )


def _operand(
    captured: Capture,
    grid: Grid,
    block: Block,
    tables: Mapping[int, np.ndarray],
    deadline: float,
) -> OperandBlocks:
    is_pipelined = block.memory_space in _MOVED
    # Pallas keeps a single buffer for a block that is the whole array: it never changes.
    buffers = 1 if block.is_whole or not is_pipelined else block.buffers or 2
    odd = [d.kind for d in block.dims if d.kind not in ("blocked", "squeezed", "element")]
    found, plain = None, block.dims
    if odd:
        unknown: str | None = f"it has a dimension of kind {odd[0]}"
        plain = ()
    elif 0 in block.shape:
        unknown = "it has no elements"
    elif any(d.bound < 0 for d in block.dims):
        unknown = "a dimension of its array is known only at run time"
        plain = tuple(replace(d, bound=max(d.bound, 0)) for d in block.dims)
    else:
        found = index_maps.indices(captured, block.position, tables, deadline)
        unknown = None if found.dims is not None else found.reason
    described = OperandBlocks(
        name=block.name,
        kind="input" if block.kind == "input" else "output",
        shape=block.shape,
        dtype=block.dtype,
        bits=block.bits,
        space=block.memory_space,
        is_pipelined=is_pipelined,
        buffers=buffers,
        reads_back=block.revisits,
        dimensions=plain,
        unknown=unknown,
    )
    if found is None or found.dims is None:
        return described
    indices = [np.asarray(d, np.int64) for d in found.dims]
    dims = tuple(
        visits.recorded(d, index, grid.sizes) for d, index in zip(plain, indices, strict=True)
    )
    read = {e.view.buffer.position: e.view.buffer.name for e in found.reads if e.view is not None}
    return replace(
        described,
        dimensions=dims,
        tables=tuple(read[i] for i in sorted(p for p in read if p is not None)),
        untouched=visits.untouched(plain, indices, grid.sizes),
    )

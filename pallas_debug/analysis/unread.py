"""Inputs that a kernel reads block by block itself, and not to their end.

`fori_loop(0, size // block, …)` over slices or copies, and the inner grid of `emit_pipeline`, leave
the last, partial block out when the size is ragged. `visits` looks at the grid and its blocks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from pallas_debug.analysis.subject import Result, Subject, shape_text
from pallas_debug.bridge.walk.events import Dim, Event, View
from pallas_debug.bridge.walk.index_maps import Block
from pallas_debug.findings.wording import bounds
from pallas_debug.model import SourceLine

MAX_SPOTS = 1 << 20
"""Maximum grid points times iterations of one access."""


@dataclass(frozen=True, kw_only=True)
class _Extent:
    """Where the blocks of one access begin along a dimension, and how many elements they have."""

    starts: np.ndarray
    size: int
    source: SourceLine | None

    @property
    def stop(self) -> int:
        return int(self.starts.max()) + self.size


@dataclass(frozen=True, kw_only=True)
class _Cut:
    """A dimension of an input that is read in `steps` whole blocks, and no further."""

    block: Block
    dim: int
    steps: int
    size: int
    source: SourceLine | None

    @property
    def read(self) -> int:
        return self.steps * self.size


def look(subject: Subject, known: Collection[str]) -> Result:
    """Report inputs whose last, partial block the kernel neither slices nor copies.

    If an output has the size of what is read, or is written in as many steps, that is intended.

    Args:
      known: operands of which the grid leaves blocks out; with any, nothing is looked at.
    """
    result = Result()
    grid = subject.grid
    if 0 in grid.sizes or subject.walked.incomplete or known:
        return result
    extents: dict[int, list[list[_Extent]]] = {}
    for block in grid.blocks:
        if (parts := _extents(subject, block)) is not None:
            extents[block.position] = parts
    cuts: dict[tuple[int, int], list[_Cut]] = defaultdict(list)
    for block in grid.blocks[: grid.num_inputs]:
        for cut in _cuts(block, extents.get(block.position, [])):
            if not _reads_on(subject, cut, extents):
                cuts[cut.steps, cut.size].append(cut)
    for (steps, size), together in cuts.items():
        if any(_fits(block, extents.get(block.position), steps, size) for block in grid.outputs):
            continue
        first = together[0].block
        result.findings.append(
            bounds.input_not_sliced(
                subject.sighting(
                    source=together[0].source,
                    operand=first.name,
                    shape=shape_text(first.dtype, first.shape),
                ),
                parts=[_part(cut) for cut in together],
                steps=steps,
            )
        )
    return result


def _extents(subject: Subject, block: Block) -> list[list[_Extent]] | None:
    """Parts of an operand that the kernel accesses, along each dimension; None if unknown."""
    position = len(subject.grid.tables) + block.position
    found: list[list[_Extent]] = [[] for _ in block.shape]
    for event in subject.walked.events:
        for view in (event.view, event.other):
            if view is None or view.buffer.position != position or event.what == "dma_wait":
                continue
            box = view.box or _copied(event, view)
            if event.what == "escape" or box is None or len(box) != len(found):
                return None
            for extents, dim in zip(found, box, strict=True):
                extent = _extent(subject, event, dim)
                if extent is None:
                    return None
                if extent.starts.size:
                    extents.append(extent)
    return found


def _copied(event: Event, view: View) -> tuple[Dim, ...] | None:
    """The part that a copy of jax's pipeline takes: whole blocks, but for the last one.

    Its sizes are computed at run time; the buffer in VMEM has those of a block.
    """
    other = event.view if view is event.other else event.other
    if event.source is not None or other is None or len(view.levels) != 1:
        return None
    here = [dim for dim in view.levels[0] if dim.is_slice]
    there = [dim for dim in other.levels[-1] if dim.is_slice] if other.levels else []
    here = [dim for dim in here if dim.size is None]
    there = [dim for dim in there if dim.size is None]
    if not here or len(here) != len(there):
        return None
    sizes = iter([dim.bound for dim in there])
    return tuple(
        dim if dim.size is not None else _with_size(dim, next(sizes)) for dim in view.levels[0]
    )


def _with_size(dim: Dim, size: int) -> Dim:
    return Dim(start=dim.start, size=size, stride=1, is_slice=dim.is_slice, bound=dim.bound)


def _extent(subject: Subject, event: Event, dim: Dim) -> _Extent | None:
    if dim.start is None or dim.size is None or dim.stride != 1:
        return None
    shape = np.broadcast_shapes(event.where.shape, dim.start.shape)
    if math.prod(shape) > MAX_SPOTS:
        return None
    starts = np.broadcast_to(dim.start, shape)[np.broadcast_to(event.where, shape)]
    source = event.source or _used(subject, event)
    return _Extent(starts=np.unique(starts), size=dim.size, source=source)


def _used(subject: Subject, copy: Event) -> SourceLine | None:
    """The line that uses what jax's pipeline copies."""
    if copy.view is None:
        return None
    number = copy.view.buffer.number
    for event in subject.walked.events:
        if event.view is not None and event.view.buffer.number == number and event.source:
            return event.source
    return None


def _cuts(block: Block, extents: list[list[_Extent]]) -> Iterator[_Cut]:
    """Dimensions of an input that are read in whole blocks from the start, but not to the end."""
    if not block.is_whole and block.space in ("default", "vmem", "smem"):
        return
    for dim, (bound, along) in enumerate(zip(block.shape, extents, strict=False)):
        sizes = {extent.size for extent in along}
        if len(sizes) != 1:
            continue
        size = sizes.pop()
        starts = np.unique(np.concatenate([extent.starts for extent in along]))
        left = bound - (int(starts.max()) + size)
        if len(starts) < 2 or not 0 < left < size:
            continue
        if np.array_equal(starts, np.arange(len(starts)) * size):
            source = along[-1].source
            yield _Cut(block=block, dim=dim, steps=len(starts), size=size, source=source)


def _reads_on(subject: Subject, cut: _Cut, extents: dict[int, list[list[_Extent]]]) -> bool:
    """Whether another operand, which may be the same array, is read past the cut.

    Such an operand has the same shape and dtype. With aliasing, an output may be the input, updated
    in place, and keep what is not read.
    """
    mine = cut.block
    for block in subject.grid.blocks:
        if block is mine or (block.shape, block.dtype) != (mine.shape, mine.dtype):
            continue
        is_output = block.position >= subject.grid.num_inputs
        along = extents.get(block.position)
        if is_output and subject.grid.aliased:
            return True
        if not is_output and (along is None or any(e.stop > cut.read for e in along[cut.dim])):
            return True
    return False


def _fits(block: Block, extents: list[list[_Extent]] | None, steps: int, size: int) -> bool:
    """Whether an output has the size of what is read, or is written in as many steps."""
    if extents is None or {steps, steps * size} & set(block.shape):
        return True
    return any(
        len(np.unique(np.concatenate([extent.starts for extent in along]))) == steps
        for along in extents
        if along
    )


def _part(cut: _Cut) -> bounds.UnreadPart:
    block = cut.block
    return bounds.UnreadPart(
        operand=block.name,
        array=shape_text(block.dtype, block.shape),
        dimension=cut.dim,
        start=cut.read,
        stop=block.shape[cut.dim],
        block=cut.size,
    )

"""Inputs that a kernel itself reads block by block, but not completely.

`fori_loop(0, size // block, …)` over slices or copies, and the inner grid of `emit_pipeline`, omit
the last, partial block if the size is ragged; loops that end too early or begin too late skip a
whole block, the last or the first. `visits` checks the grid and its blocks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from pallas_debug.analysis.subject import Result, Subject, unread_part
from pallas_debug.bridge.walk.events import Dim, Event, View
from pallas_debug.bridge.walk.index_maps import Block
from pallas_debug.findings.wording import bounds
from pallas_debug.model import Finding, SourceLine

MAX_SPOTS = 1 << 20
"""Maximum product of grid points and iterations of an access."""

UNROLLED = 0
"""Number of an axis: that of loops whose iterations are walked one by one; others are negative."""


@dataclass(frozen=True, kw_only=True)
class _Extent:
    """Positions at which the blocks of an access begin along a dimension, and their size.

    Attributes:
      moves: axes of the grid and of loops along which the positions change, counted from the last
        axis of the grid.
      is_in_loop: whether it is one of several accesses, one for each iteration of a loop.
    """

    starts: np.ndarray
    size: int
    moves: frozenset[int]
    source: SourceLine | None
    is_in_loop: bool

    def meets(self, cut: _Cut) -> bool:
        """Return whether any block overlaps the unread elements."""
        return bool(((self.starts < cut.stop) & (self.starts + self.size > cut.start)).any())


@dataclass(frozen=True, kw_only=True)
class _Cut:
    """A dimension of an input that is read in `steps` whole blocks, except at one end.

    Attributes:
      start, stop: range of the unread elements.
      moves: axes along which the blocks of the accesses move, as in `_Extent`.
    """

    block: Block
    dim: int
    steps: int
    size: int
    start: int
    stop: int
    moves: frozenset[int]
    source: SourceLine | None

    @property
    def is_whole(self) -> bool:
        """True if the unread part is a whole block rather than a partial one."""
        return self.stop - self.start == self.size


def look(subject: Subject, known: Collection[str]) -> Result:
    """Report inputs whose first or last block the kernel neither slices nor copies.

    That is intended if an output has the size of the part that is read, or is written in as many
    steps. It is also intended for a whole block if an output moves with the reads, as in a shift.

    Args:
      known: operands with blocks that the grid leaves out; if there are any, nothing is checked.
    """
    result = Result()
    grid = subject.grid
    if 0 in grid.sizes or subject.walked.incomplete or known:
        return result
    extents: dict[int, list[list[_Extent]]] = {}
    for block in grid.blocks:
        if (parts := _extents(subject, block)) is not None:
            extents[block.position] = parts
    moved = {
        axis
        for block in grid.outputs
        for axis in (
            *_moves(subject.indices[block.position].dims or ()),
            *(a for part in extents.get(block.position, []) for e in part for a in e.moves),
        )
    }
    cuts: dict[tuple[int, int, int], list[_Cut]] = defaultdict(list)
    for block in grid.blocks[: grid.num_inputs]:
        for cut in _cuts(block, extents.get(block.position, [])):
            if not _reads_on(subject, cut, extents) and not (cut.is_whole and cut.moves & moved):
                cuts[cut.steps, cut.size, min(cut.start, 1)].append(cut)
    for (steps, size, _), together in cuts.items():
        fitting = [b for b in grid.outputs if _fits(b, extents.get(b.position), steps, size)]
        if not all(_is_slower(subject, block, together) for block in fitting):
            continue
        result.findings.append(
            bounds.input_not_sliced(
                subject.of_block(together[0].block, source=together[0].source),
                parts=[unread_part(c.block, c.dim, c.start, c.stop, c.size) for c in together],
                steps=steps,
                by_pipeline=all(_fetched(subject, cut.block) for cut in together),
            )
        )
    if not grid.tables:  # a table may hold the same block for all steps
        for block in grid.blocks[: grid.num_inputs]:
            still = _still(subject, block, extents) or _same_on_cores(subject, block, extents)
            if still is not None:
                result.findings.append(still)
    return result


def _still(
    subject: Subject, block: Block, extents: dict[int, list[list[_Extent]]]
) -> Finding | None:
    """Report an input of which the kernel copies one block along a dimension.

    That is so on purpose unless another operand moves through as many blocks of that size while the
    input keeps its block: in a pipeline within the kernel, along a dimension of the pipeline's grid
    that its index map does not use; otherwise, along a grid dimension or loop along which none of
    its copies moves. A single element may be wanted, such as the first state, unless a loop copies
    it in as many iterations.
    """
    copies = _fetched(subject, block)
    by_pipeline = bool(copies)
    if not by_pipeline and not _is_only_copied(subject, block):
        return None
    if may_be_shared(subject, block):
        return None
    parts = extents.get(block.position, [])
    moves = frozenset(axis for along in parts for axis in _axes(along))
    for dim, along in enumerate(parts):
        places = {(int(start), e.size) for e in along for start in e.starts}
        if len(places) != 1:
            continue
        ((start, size),) = places
        bound = block.shape[dim]
        if size >= bound or bound % size:
            continue
        if by_pipeline:
            other = _moving_beside(subject, copies, extents, bound, size)
        elif size > 1 or _iterations(subject, block) == bound:
            other = _moving(subject, moves, extents, bound, size)
        else:
            other = None
        if other is None:
            continue
        return bounds.copied_input_stays(
            subject.of_block(block, source=along[-1].source),
            part=unread_part(block, dim, start, start + size, size),
            moving=other.name,
            by_pipeline=by_pipeline,
        )
    return None


def _iterations(subject: Subject, block: Block) -> int:
    """Number of iterations of loops in each of which the kernel copies from an operand."""
    copies = [event for event in events_of(subject, block) if event.what == "dma_start"]
    return len({event.loops for event in copies if event.loops and event.where.any()})


def events_of(subject: Subject, block: Block) -> list[Event]:
    """Accesses to an operand, in program order."""
    position = len(subject.grid.tables) + block.position
    return [
        event
        for event in subject.walked.events
        for view in (event.view, event.other)
        if view is not None and view.buffer.position == position
    ]


def _same_on_cores(
    subject: Subject, block: Block, extents: dict[int, list[list[_Extent]]]
) -> Finding | None:
    """Report an input of which all cores copy the same part, as large as one core's share.

    That is so on purpose unless each core copies its own share of another operand.
    """
    if not subject.grid.is_of_cores or not _is_only_copied(subject, block):
        return None
    if may_be_shared(subject, block):
        return None
    cores = frozenset(range(-len(subject.grid.sizes), 0))
    parts = extents.get(block.position, [])
    if any(_axes(along) & cores for along in parts):
        return None
    for dim, along in enumerate(parts):
        bound, (start, stop) = block.shape[dim], _reach(along)
        if not 1 < stop - start == bound // subject.grid.points < bound:
            continue
        for other in subject.grid.blocks:
            shares = [
                there
                for size, there in zip(other.shape, extents.get(other.position, []), strict=False)
                if size == bound and _axes(there) & cores and _reach(there) == (0, bound)
            ]
            if shares and _is_only_copied(subject, other):
                return bounds.copied_input_stays(
                    subject.of_block(block, source=along[-1].source),
                    part=unread_part(block, dim, start, stop, stop - start),
                    moving=other.name,
                    by_pipeline=False,
                    on_cores=True,
                )
    return None


def _reach(along: list[_Extent]) -> tuple[int, int]:
    """First position of any access, and the one after the last; zeros if there are none."""
    reached = [(int(e.starts[0]), int(e.starts[-1]) + e.size) for e in along if e.starts.size]
    if not reached:
        return 0, 0
    return min(start for start, _ in reached), max(stop for _, stop in reached)


def _moving_beside(
    subject: Subject, copies: list[_BlockCopy], extents: dict[int, list[list[_Extent]]],
    bound: int, size: int,
) -> Block | None:  # fmt: skip
    """Return an operand of which a pipeline copies all blocks of a size beside one of another."""
    counts = {bound // size}
    if subject.grid.is_of_cores:  # the first core moves through its share
        counts.add(bound // size // subject.grid.points)
    return next(
        (
            other
            for other in subject.grid.blocks
            for d, there in enumerate(extents.get(other.position, []))
            if other.shape[d] == bound
            and {e.size for e in there} == {size}
            and _most_beside(copies, _fetched(subject, other), d) in counts - {1}
        ),
        None,
    )


def _moving(
    subject: Subject, kept: frozenset[int], extents: dict[int, list[list[_Extent]]], bound: int,
    size: int,
) -> Block | None:  # fmt: skip
    """Return an operand that the kernel copies block by block, all along one dimension.

    Args:
      kept: axes along which another operand moves; this one moves along others.
    """
    for other in subject.grid.blocks:
        if not _is_only_copied(subject, other):
            continue
        for d, there in enumerate(extents.get(other.position, [])):
            axes = _axes(there)
            starts = {int(start) for extent in there for start in extent.starts}
            is_all = starts == set(range(0, bound, size)) and {e.size for e in there} == {size}
            if other.shape[d] == bound and is_all and axes and not axes & kept:
                return other
    return None


def _axes(along: list[_Extent]) -> frozenset[int]:
    """Axes along which any access moves; all unrolled loops together are `UNROLLED`."""
    moves = frozenset(axis for extent in along for axis in extent.moves)
    in_loops = {extent.starts.tobytes() for extent in along if extent.is_in_loop}
    return moves | {UNROLLED} if len(in_loops) > 1 else moves


def _is_only_copied(subject: Subject, block: Block) -> bool:
    """Return whether a kernel accesses an operand only through its own DMAs."""
    accesses = [event for event in events_of(subject, block) if event.what != "dma_wait"]
    return bool(accesses) and all(e.what == "dma_start" and not e.of_pipeline for e in accesses)


def may_be_shared(subject: Subject, block: Block) -> bool:
    """Return whether another operand, an input or aliased output, may be the same array."""
    grid = subject.grid
    others = grid.blocks if grid.aliased else grid.blocks[: grid.num_inputs]
    alike = [b for b in others if (b.shape, b.dtype) == (block.shape, block.dtype)]
    return any(other is not block for other in alike)


@dataclass(frozen=True)
class _BlockCopy:
    """A copy of an operand's block by a pipeline.

    Attributes:
      step: iterations of the enclosing loops: copies for one step are started in the same ones.
      number: number of the event.
      starts: position of the block.
    """

    step: tuple[int, ...]
    number: int
    starts: tuple[int, ...]


def _fetched(subject: Subject, block: Block) -> list[_BlockCopy]:
    """Copies of an operand's blocks by a pipeline, in order; none if anything else accesses it."""
    position = len(subject.grid.tables) + block.position
    found = []
    for event in subject.walked.events:
        views = [v for v in (event.view, event.other) if v and v.buffer.position == position]
        if not views or event.what == "dma_wait":
            continue
        starts = [dim.start for view in views for dim in view.box or _copied(event, view) or ()]
        known = [int(n.ravel()[0]) for n in starts if n is not None]  # at the first grid point
        is_of_pipeline = event.what == "dma_start" and event.of_pipeline
        if not (is_of_pipeline and event.ordered and event.where.all()) or len(known) != len(
            block.shape
        ):
            return []
        found.append(_BlockCopy(event.loops, event.number, tuple(known)))
    return found


def _most_beside(copies: list[_BlockCopy], others: list[_BlockCopy], dim: int) -> int:
    """Number of positions along a dimension that an operand takes beside one block of another."""
    here: tuple[int, ...] = ()
    there: tuple[int, ...] = ()
    beside: dict[tuple[int, ...], set[int]] = defaultdict(set)
    together = [*((copy, True) for copy in copies), *((other, False) for other in others)]
    together.sort(key=lambda one: one[0].number)
    for i, (copy, is_here) in enumerate(together):
        here, there = (copy.starts, there) if is_here else (here, copy.starts)
        if there and (i + 1 == len(together) or together[i + 1][0].step != copy.step):
            beside[here].add(there[dim])
    return max(map(len, beside.values()), default=0)


def _is_slower(subject: Subject, output: Block, together: list[_Cut]) -> bool:
    """Return whether an output is copied less often than each of the inputs, as for a sum."""
    written = len(_fetched(subject, output))
    read = [len(_fetched(subject, cut.block)) for cut in together]
    return 0 < written < min(read)


def _extents(subject: Subject, block: Block) -> list[list[_Extent]] | None:
    """Accessed parts of an operand along each dimension; None if unknown."""
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
    """Part that a copy by jax's pipeline transfers: whole blocks, except for the last.

    Its sizes are computed at run time; the buffer in VMEM has the size of a whole block.
    """
    other = event.view if view is event.other else event.other
    if not event.of_pipeline or other is None or len(view.levels) != 1:
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
    moves = _moves([dim.start])
    return _Extent(
        starts=np.unique(starts), size=dim.size, moves=moves, source=source,
        is_in_loop=bool(event.loops),
    )  # fmt: skip


def _moves(indices: Iterable[np.ndarray]) -> frozenset[int]:
    """Axes along which any of these vary."""
    return frozenset(
        axis - index.ndim for index in indices for axis, n in enumerate(index.shape) if n > 1
    )


def _used(subject: Subject, copy: Event) -> SourceLine | None:
    """Return the line that uses the data copied by jax's pipeline."""
    if copy.view is None:
        return None
    number = copy.view.buffer.number
    for event in subject.walked.events:
        if event.view is not None and event.view.buffer.number == number and event.source:
            return event.source
    return None


def _cuts(block: Block, extents: list[list[_Extent]]) -> Iterator[_Cut]:
    """Yield dimensions of an input that are read in whole blocks, completely except for one end.

    Reads of single elements may be intentional: each of the offsets but the last begins a part.
    """
    if not block.is_whole and block.space in ("default", "vmem", "smem"):
        return
    for dim, (bound, along) in enumerate(zip(block.shape, extents, strict=False)):
        sizes = {extent.size for extent in along}
        if len(sizes) != 1:
            continue
        size = sizes.pop()
        starts = np.unique(np.concatenate([extent.starts for extent in along]))
        steps = len(starts)
        first, stop = int(starts[0]), int(starts[-1]) + size
        if steps < 2 or size < 2 or not np.array_equal(starts, first + np.arange(steps) * size):
            continue
        if first == 0 and 0 < bound - stop <= size:
            unread = stop, bound
        elif first == size and stop == bound:
            unread = 0, first
        else:
            continue
        yield _Cut(
            block=block, dim=dim, steps=steps, size=size, start=unread[0], stop=unread[1],
            moves=frozenset[int]().union(*(e.moves for e in along)), source=along[-1].source,
        )  # fmt: skip


def _reads_on(subject: Subject, cut: _Cut, extents: dict[int, list[list[_Extent]]]) -> bool:
    """Return whether another operand that may be the same array reads the rest.

    Such an operand has the same shape and dtype. With aliasing, an output may be the input, updated
    in place, and keep the unread elements.
    """
    mine = cut.block
    for block in subject.grid.blocks:
        if block is mine or (block.shape, block.dtype) != (mine.shape, mine.dtype):
            continue
        is_output = block.position >= subject.grid.num_inputs
        along = extents.get(block.position)
        if is_output and subject.grid.aliased:
            return True
        if not is_output and (along is None or any(e.meets(cut) for e in along[cut.dim])):
            return True
    return False


def _fits(block: Block, extents: list[list[_Extent]] | None, steps: int, size: int) -> bool:
    """Return whether an output has the size of the part read, or is written in as many steps."""
    if extents is None or {steps, steps * size} & set(block.shape):
        return True
    return any(
        len(np.unique(np.concatenate([extent.starts for extent in along]))) == steps
        for along in extents
        if along
    )

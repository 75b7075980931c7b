"""Advice: the grid goes over the same data several times."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, derived
from pallas_debug.profile.advice.pipelines import (
    copies,
    depends,
    has_own_blocks,
    size_text,
)
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.advice.tiles import LANES, SUBLANES
from pallas_debug.profile.blocks import BlockMap, OperandBlocks

ROOM = 0.75
"""Maximum share of VMEM for the windows of the operands; the rest is for computed values."""


def advise_two_passes(subject: AdviceSubject) -> Iterator[Advice]:
    blocks, limit = subject.blocks, subject.vmem_limit
    if blocks is None or limit is None or subject.is_compute_bound:
        return
    inputs = [o for o in blocks.pipelined if o.kind == "input"]
    if subject.resident.issuperset(o.name for o in inputs):
        return
    for axis, passes in enumerate(blocks.grid):
        if passes < 2 or any(depends(o, axis) is not False for o in inputs):
            continue
        if _reads_parts(subject, blocks, axis):
            continue
        for operand in inputs:
            inner = [n for n in range(axis + 1, len(blocks.grid)) if depends(operand, n)]
            count = copies(operand, blocks.grid)
            if count is None or math.prod(blocks.grid[n] for n in inner) < 2:
                continue
            block, size = _spanning(subject, blocks, operand)
            moved = count * operand.block_bytes
            fits = (
                f"let a block span the range of one pass, such as {block}: {size_text(size)} with "
                f"both buffers, of the {size_text(limit)} of VMEM that the kernel may use"
                if size <= ROOM * limit
                else "compute the results of the first pass together with those of the second"
            )
            yield KIND.advice(
                source=subject.block_source(operand.name),
                operand=operand.name,
                message=(
                    f"the grid goes over {operand.name} {passes} times, because no input's "
                    f"index map uses grid axis {axis}: {size_text(moved)} are fetched from an "
                    f"array of {size_text(moved / passes)}"
                ),
                remedy=f"fetch it once: {fits}, and make all passes over it in one grid step",
                evidence=(
                    derived(f"times {operand.name} is fetched", passes),
                    derived("bytes fetched of it", moved, unit="bytes"),
                    derived("bytes fetched of it in one pass", moved // passes, unit="bytes"),
                    derived("VMEM of one pass", size, "both buffers, and the outputs", "bytes"),
                ),
            )


def _reads_parts(subject: AdviceSubject, blocks: BlockMap, axis: int) -> bool:
    """Return whether the kernel reads another part of a whole input for each result."""
    program, axes = subject.program, range(len(blocks.grid))
    if axis >= len(program.counters):
        return False
    is_read = any(program.counters[axis] in o.operands for o in program.operations)
    whole = [
        o for o in blocks.pipelined if o.kind == "input" and not any(depends(o, n) for n in axes)
    ]
    outputs = [o for o in blocks.pipelined if o.kind == "output"]
    return is_read and bool(whole) and any(has_own_blocks(o, axis) for o in outputs)


def _spanning(subject: AdviceSubject, blocks: BlockMap, operand: OperandBlocks) -> tuple[str, int]:
    """Return a block that spans one pass, and the VMEM that it needs.

    The block is halved until it fits, along dimensions that the pass does not traverse.
    """
    outputs = sum(o.kind == "output" for o in blocks.pipelined)
    sizes = [d.size for d in operand.dimensions]
    covered: set[int] = set()
    for n, dimension in enumerate(operand.dimensions):
        if any(
            stride and blocks.grid[i] > 1
            for i, stride in enumerate(dimension.strides or ())
            if _is_inner(operand, blocks, i)
        ):
            sizes[n] = dimension.bound
            covered.add(n)
    size = math.prod(sizes) * operand.bits // 8 * 2 * (1 + outputs)
    units = [1] * len(sizes) + [SUBLANES * 32 // operand.bits, LANES]
    others = [n for n in reversed(range(len(sizes))) if n not in covered]
    for n in others:
        unit = units[2 + n]
        while size > ROOM * (subject.vmem_limit or 0) and sizes[n] % (2 * unit) == 0:
            sizes[n] //= 2
            size //= 2
    shown = [str(s) for s, d in zip(sizes, operand.dimensions, strict=True) if d.kind != "squeezed"]
    return f"({', '.join(shown)})", size


def _is_inner(operand: OperandBlocks, blocks: BlockMap, axis: int) -> bool:
    """Return whether an operand follows an axis and is fetched again for an axis outside of it."""
    return any(blocks.grid[n] > 1 and depends(operand, n) is False for n in range(axis)) and bool(
        depends(operand, axis)
    )


KIND = AdviceKind(
    name="two-passes",
    title="Several passes over the same data",
    condition=(
        "No input depends on some axis of the grid, so its steps fetch the same blocks again, and "
        "the kernel is not bound by computation."
    ),
    remedy="Let a block span the range of a pass, and make all passes over it in one grid step.",
    rule=advise_two_passes,
)

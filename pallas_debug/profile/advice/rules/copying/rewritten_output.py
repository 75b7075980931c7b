"""Advice: the grid returns to blocks of an output, so that they are written several times."""

from __future__ import annotations

from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, applies, derived
from pallas_debug.profile.advice.pipelines import (
    copies,
    depends,
    enlarged,
    repeated_copies,
    size_text,
)
from pallas_debug.profile.advice.rules.copying.grid_order import (
    MAX_ERROR,
    MIN_GAIN,
    cycles_in_order,
    is_affine,
    reordered,
)
from pallas_debug.profile.advice.rules.copying.two_passes import advise_two_passes
from pallas_debug.profile.advice.subject import AdviceSubject


def advise_rewritten_output(subject: AdviceSubject) -> Iterator[Advice]:
    blocks = subject.blocks
    if blocks is None or len(blocks.grid) < 2 or subject.is_compute_bound or not subject.cycles:
        return
    if not all(map(is_affine, blocks.pipelined)):
        return
    outputs = [
        o
        for o in blocks.pipelined
        if o.kind == "output"
        and o.name not in subject.resident
        and repeated_copies(o, blocks.grid) > 0
    ]
    if not outputs or applies(subject, advise_two_passes):
        return
    worst = max(outputs, key=lambda o: repeated_copies(o, blocks.grid) * o.block_bytes)
    unused = [axis for axis in range(len(blocks.grid)) if not depends(worst, axis)]
    order = (*(axis for axis in range(len(blocks.grid)) if axis not in unused), *unused)
    now = enlarged(subject, blocks, {}, 0.0)
    after = enlarged(subject, reordered(blocks, order), {}, 0.0)
    if now is None or after is None or abs(now.cycles / subject.cycles - 1) > MAX_ERROR:
        return
    cycles = cycles_in_order(subject, blocks, order)
    if cycles is None or cycles > (1 - MIN_GAIN) * subject.cycles or after.moved >= now.moved:
        return
    count, total = copies(worst, blocks.grid) or 0, worst.total or 0
    repeats = [axis for axis in unused if blocks.grid[axis] > 1]
    axes = " and ".join(map(str, repeats))
    grid = ", ".join(str(blocks.grid[axis]) for axis in order)
    inner = "axis" if len(repeats) == 1 else "axes"
    yield KIND.advice(
        source=subject.block_source(worst.name),
        operand=worst.name,
        message=(
            f"the grid returns to each block of {worst.name} for every index of its {inner} "
            f"{axes}, which is not the innermost: {count:,} write-backs of "
            f"{size_text(worst.block_bytes)}, although there are only {total:,} blocks"
        ),
        remedy=(
            f"make {inner} {axes} of the grid the innermost, as ({grid}), so that a block is "
            "complete when it is written; or, if only the last pass stores final values, let the "
            f"index map of {worst.name} stay at one block until then"
        ),
        evidence=(
            derived(f"write-backs of {worst.name}", count),
            derived(f"blocks of {worst.name}", total),
            derived("bytes moved", now.moved, unit="bytes"),
            derived("bytes moved in the other order", after.moved, unit="bytes"),
            derived("estimated cycles", round(subject.cycles), unit="cycles"),
            derived("estimated cycles in the other order", round(cycles), unit="cycles"),
        ),
    )


KIND = AdviceKind(
    name="rewritten-output",
    title="Output blocks that are written back several times",
    condition=(
        "A grid axis that the index map of an output ignores encloses one that it uses, and an "
        f"order that finishes each block before the next one would save at least {MIN_GAIN:.0%} "
        "of the estimated cycles of a kernel that is not bound by computation."
    ),
    remedy="Make the axes that an output does not depend on the innermost, or keep its index map "
    "at one block until the last pass.",
    rule=advise_rewritten_output,
)

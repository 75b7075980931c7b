"""Advice: an input is fetched repeatedly, although it would fit in VMEM as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, applies, derived
from pallas_debug.profile.advice.pipelines import (
    copies,
    enlarged,
    repeated_copies,
    running_in_bursts,
    size_text,
)
from pallas_debug.profile.advice.rules.copying.grid_order import (
    MAX_ERROR,
    advise_grid_order,
    is_affine,
)
from pallas_debug.profile.advice.rules.copying.small_blocks import advise_small_blocks
from pallas_debug.profile.advice.rules.copying.two_passes import advise_two_passes
from pallas_debug.profile.advice.rules.products.thin_steps import advise_thin_steps
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.blocks import OperandBlocks

MIN_GAIN = 0.25
"""Minimum share of the estimated cycles that the change must save."""

ROOM = 0.9
"""Maximum share of the VMEM limit that the kernel may use with the whole input in VMEM."""

OTHERS = (advise_small_blocks, advise_grid_order, advise_two_passes, advise_thin_steps)
"""Rules whose remedies also reduce the number of copies."""

_LETTERS = "ijklmn"


def advise_whole_operand(subject: AdviceSubject) -> Iterator[Advice]:
    blocks, limit, step = subject.blocks, subject.vmem_limit, subject.step
    if blocks is None or limit is None or step is None or subject.vmem is None:
        return
    if subject.is_compute_bound or not subject.cycles or not subject.bytes_per_cycle:
        return
    now = enlarged(subject, blocks, {}, 0.0)
    if now is None or abs(now.cycles / subject.cycles - 1) > MAX_ERROR:
        return
    best: tuple[float, OperandBlocks, int, int] | None = None
    for operand in blocks.pipelined:
        size, again = _bytes(operand), repeated_copies(operand, blocks.grid)
        if operand.name in subject.resident or operand.kind != "input" or again <= 0:
            continue
        vmem = subject.vmem - operand.block_bytes * operand.buffers + size
        if vmem > ROOM * limit or not is_affine(operand):
            continue
        moved = now.moved - (copies(operand, blocks.grid) or 0) * operand.block_bytes + size
        running = running_in_bursts(subject, blocks, operand.name)
        if running is None:
            continue
        # The first fetch of the whole input does not overlap with anything.
        cycles = running + size / subject.bytes_per_cycle + subject.latency
        if cycles <= (1 - MIN_GAIN) * now.cycles and (best is None or cycles < best[0]):
            best = cycles, operand, vmem, moved
    if best is None or applies(subject, *OTHERS):
        return
    cycles, operand, vmem, moved = best
    count, total = copies(operand, blocks.grid) or 0, operand.total or 0
    size = _bytes(operand)
    indices = ", ".join(_LETTERS[: len(blocks.grid)]) if len(blocks.grid) <= 6 else "*_"
    shape, zeros = ", ".join(map(str, operand.shape)), ", ".join("0" for _ in operand.shape)
    yield KIND.advice(
        source=subject.block_source(operand.name),
        operand=operand.name,
        message=(
            f"blocks of {operand.name} are fetched {count:,} times, although there are only "
            f"{total:,} and the whole operand has {size_text(size)}: {size_text(now.moved)} are "
            "moved in total"
        ),
        remedy=(
            f"fetch {operand.name} once, with pl.BlockSpec(({shape}), lambda {indices}: "
            f"({zeros}), pipeline_mode=pl.Buffered(1)), and let the kernel read the part that it "
            f"needs: {size_text(moved)} are moved, using {size_text(vmem)} of the "
            f"{size_text(limit)} of VMEM that the kernel may use"
        ),
        evidence=(
            derived(f"copies of {operand.name}", count),
            derived(f"blocks of {operand.name}", total),
            derived("bytes moved", now.moved, unit="bytes"),
            derived("bytes moved with all of it in VMEM", moved, unit="bytes"),
            derived("VMEM with all of it", vmem, unit="bytes"),
            derived("estimated cycles", round(now.cycles), unit="cycles"),
            derived("estimated cycles with all of it in VMEM", round(cycles), unit="cycles"),
        ),
    )


def _bytes(operand: OperandBlocks) -> int:
    return math.prod(operand.shape) * operand.bits // 8


KIND = AdviceKind(
    name="whole-operand",
    title="An input that is fetched repeatedly but would fit in VMEM",
    condition=(
        "The grid returns to blocks of an input; neither larger blocks, more rows in a step nor "
        "another grid order is advised; and keeping all of the input in VMEM, with at most "
        f"{ROOM:.0%} of the VMEM that the kernel may use, would save at least {MIN_GAIN:.0%} of "
        "the estimated cycles of a kernel that is not bound by computation."
    ),
    remedy="Give the input a single block, the whole array, with one buffer, and read parts of it.",
    rule=advise_whole_operand,
)

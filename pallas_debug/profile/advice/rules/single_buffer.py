"""Advice: an operand whose block changes has one buffer, so the kernel waits for each fetch."""

from __future__ import annotations

from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, derived
from pallas_debug.profile.advice.pipelines import copies, size_text
from pallas_debug.profile.advice.subject import AdviceSubject

MIN_SHARE = 0.1
"""Minimum share of a step's cycles spent waiting for the copy."""


def advise_single_buffer(subject: AdviceSubject) -> Iterator[Advice]:
    blocks, step, rate = subject.blocks, subject.step, subject.bytes_per_cycle
    if blocks is None or step is None or not rate or subject.vmem is None:
        return
    for operand in blocks.pipelined:
        count = copies(operand, blocks.grid)
        if operand.buffers != 1 or count is None or count < 2 or operand.name in subject.resident:
            continue
        waiting = count * operand.block_bytes / rate / blocks.points
        if waiting < MIN_SHARE * (step.total + waiting):
            continue
        larger = subject.vmem + operand.block_bytes
        if subject.vmem_limit is not None and larger > subject.vmem_limit:
            continue
        limit = ""
        if subject.vmem_limit is not None:
            limit = f", of the {size_text(subject.vmem_limit)} that it may use"
        yield KIND.advice(
            source=subject.block_source(operand.name),
            operand=operand.name,
            message=(
                f"{operand.name} has a single buffer, so the kernel waits for its {count:,} "
                f"copies of {size_text(operand.block_bytes)}: about {waiting:,.0f} cycles in "
                f"each grid step, next to {step.compute:,.0f} of computation"
            ),
            remedy=(
                f"remove pipeline_mode=pl.Buffered(1) from the BlockSpec of {operand.name}: "
                f"with two buffers, the kernel uses {size_text(larger)} of VMEM{limit}"
            ),
            evidence=(
                derived(f"buffers of {operand.name}", operand.buffers),
                derived(f"copies of {operand.name}", count),
                derived("cycles of a step that wait for it", waiting, unit="cycles"),
                derived("cycles of a step that compute", step.compute, unit="cycles"),
                derived("VMEM with two buffers", larger, unit="bytes"),
            ),
        )


KIND = AdviceKind(
    name="single-buffer",
    title="A single buffer for blocks that change",
    condition=(
        "An operand with `Buffered(1)` whose block changes along the grid; its copies take at "
        f"least {MIN_SHARE:.0%} of a step, and VMEM has space for a second buffer."
    ),
    remedy="Remove `pipeline_mode=pl.Buffered(1)`.",
    rule=advise_single_buffer,
)

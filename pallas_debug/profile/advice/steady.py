"""Cost of a grid whose steps compute equally long, simulated step by step.

Averages hide that a step which is shorter than a copy waits for the copy's latency.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.blocks import BlockMap, OperandBlocks
from pallas_debug.profile.timeline.parts import Block, Direction
from pallas_debug.profile.timeline.pipeline import Pipeline, PipelineOperand

MAX_STEPS = 4096
"""Maximum steps to simulate; the remaining steps are assumed to be similar."""


@dataclass(frozen=True, kw_only=True)
class SteadyOperand:
    """Operand whose blocks change at regular steps.

    Attributes:
      size: bytes of a block.
      copies: number of copies over all steps of a core.
    """

    direction: Direction
    size: float
    copies: float
    buffers: int = 2


def steady_cycles(
    subject: AdviceSubject, operands: Sequence[SteadyOperand], *, steps: float, compute: float
) -> float:
    """Estimate the cycles of all steps of a core, including the first fetch and last write-back.

    Args:
      compute: compute cycles of a step.
    """
    count, rate = max(round(steps), 1), subject.bytes_per_cycle
    if not rate:
        return count * compute
    lanes = [_lane(subject, n, o, count, rate) for n, o in enumerate(operands)]
    pipeline = Pipeline(lanes, steps=count, compute=lambda _: compute, keeps=lambda _: False)
    ran = min(count, MAX_STEPS)
    return pipeline.run(0, ran).end * count / ran


def affine_cycles(subject: AdviceSubject, blocks: BlockMap) -> float | None:
    """Estimate the cycles of a grid whose index maps are affine; None if they are not.

    Steps that fetch more blocks than others, as at the start of a row, wait for them.
    """
    step, rate = subject.step, subject.bytes_per_cycle
    if step is None or not rate or not blocks.points:
        return None
    moving = [o for o in blocks.pipelined if o.name not in subject.resident]
    if any(d.strides is None for o in moving for d in o.dimensions):
        return None
    strides = list(itertools.accumulate(reversed(blocks.grid), int.__mul__, initial=1))[-2::-1]

    def block_of(operand: OperandBlocks) -> Callable[[int], Block]:
        def block(number: int) -> Block:
            point = [number // n % size for n, size in zip(strides, blocks.grid, strict=True)]
            return tuple(sum(map(int.__mul__, point, d.strides or ())) for d in operand.dimensions)

        return block

    lanes = [
        PipelineOperand(
            lane=number,
            direction="in" if operand.kind == "input" else "out",
            buffers=operand.buffers,
            reads_back=operand.reads_back,
            block=block_of(operand),
            size=_always(operand.block_bytes),
            fetch=_taking(subject.latency, rate),
            write=_taking(subject.write_latency, rate),
        )
        for number, operand in enumerate(moving)
    ]
    pipeline = Pipeline(
        lanes, steps=blocks.points, compute=lambda _: step.compute, keeps=lambda _: False
    )
    ran = min(blocks.points, MAX_STEPS)
    return pipeline.run(0, ran).end * blocks.points / ran / subject.cores


def cycles_of_compute(subject: AdviceSubject, compute: float) -> float | None:
    """Estimate the kernel's cycles if a step computed for another number of cycles.

    None if that is not known. Where index maps are not affine, steps are assumed not to wait for
    copies that their computation hides.
    """
    step, blocks = subject.step, subject.blocks
    if step is None or not subject.cycles:
        return None
    if blocks is not None and blocks.pipelined:
        now = affine_cycles(subject, blocks)
        after = affine_cycles(replace(subject, step=replace(step, compute=compute)), blocks)
        if now and after:
            return subject.cycles * after / now
    saved = step.total - max(compute, step.copies)
    return subject.cycles - saved * (subject.core_points or 1.0)


def _always(size: float) -> Callable[[Block], float]:
    return lambda _: size


def _taking(latency: float, rate: float) -> Callable[[float], tuple[float, float]]:
    return lambda size: (latency, size / rate)


def _lane(
    subject: AdviceSubject, number: int, operand: SteadyOperand, steps: int, rate: float
) -> PipelineOperand:
    return PipelineOperand(
        lane=number,
        direction=operand.direction,
        buffers=operand.buffers,
        reads_back=False,
        block=lambda step: (int(step * min(operand.copies, steps) / steps),),
        size=_always(operand.size),
        fetch=_taking(subject.latency, rate),
        write=_taking(subject.write_latency, rate),
    )

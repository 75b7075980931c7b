"""Cost of a grid whose steps compute equally long, simulated step by step.

Averages hide that a step which is shorter than a copy waits for the copy's latency.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.blocks import BlockMap, OperandBlocks
from pallas_debug.profile.timeline.parts import Block
from pallas_debug.profile.timeline.pipeline import Pipeline, PipelineOperand

MAX_STEPS = 4096
"""Maximum steps to simulate; the remaining steps are assumed to be similar."""


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


def _always(size: float) -> Callable[[Block], float]:
    return lambda _: size


def _taking(latency: float, rate: float) -> Callable[[float], tuple[float, float]]:
    return lambda size: (latency, size / rate)

"""The pipeline: durations by hand, and what holds for any kernel."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from pallas_debug.profile.blocks import Block
from pallas_debug.profile.pipeline import PipelineOperand, pipeline_cycles


def operand(
    *numbers: int | None, is_input: bool = True, buffers: int = 2, size: float = 100,
    reads_back: bool = False, latency: float = 0,
) -> PipelineOperand:  # fmt: skip
    blocks: list[Block] = [None if n is None else (n,) for n in numbers]
    return PipelineOperand(
        is_input=is_input,
        buffers=buffers,
        reads_back=reads_back,
        block=blocks.__getitem__,
        fetch=(latency, size),
        write=(latency, size),
    )


def run(operands: Sequence[PipelineOperand], steps: int, ran: int | None = None) -> float:
    """Cycles of steps that compute for 100, with a bandwidth of a byte per cycle."""
    return pipeline_cycles(operands, steps=steps, ran=ran or steps, compute=lambda _: 100)


def output(*numbers: int, **fields: Any) -> PipelineOperand:
    return operand(*numbers, is_input=False, **fields)


@pytest.mark.parametrize(
    "operands, steps, cycles",
    [
        ([], 3, 300),
        ([operand(0, 1, 2, 3)], 4, 500),  # a fetch that is as long as a step is hidden
        ([operand(0, 1, 2, size=150)], 3, 550),  # a longer one is waited for
        ([operand(0, 0, 1, 1, 0, size=150)], 5, 750),  # a block that stays is fetched once
        ([operand(None, None, None, size=150)], 3, 550),  # an unknown one is a new one
        ([operand(0, 1, 2, buffers=1)], 3, 600),  # fetched while the core waits
        ([output(0, 0, 1, size=150)], 3, 500),  # written back while the last step runs
        ([output(0, 1, buffers=1)], 2, 400),  # awaited at once
        ([output(0, 0, 1, buffers=1, reads_back=True)], 3, 700),  # and fetched as well
        ([operand(0), operand(0)], 1, 300),  # copies share the bandwidth
        ([operand(0, latency=30), operand(0, latency=30)], 1, 330),  # but hide each other's latency
    ],
)
def test_durations(operands: list[PipelineOperand], steps: int, cycles: float) -> None:
    assert run(operands, steps) == cycles


def test_the_first_steps_of_a_grid() -> None:
    assert run([operand(*range(9))], 9, ran=2) == 300


def test_bounds_of_random_pipelines() -> None:
    for seed in range(150):
        draw = random.Random(seed)
        steps = draw.randint(1, 12)
        operands, moved = [], 0
        for _ in range(draw.randint(0, 4)):
            blocks = [draw.randint(0, 2) for _ in range(steps)]
            size, is_input = draw.choice([0, 40, 100, 500]), draw.random() < 0.5
            moved += size * (1 + sum(a != b for a, b in itertools.pairwise(blocks)))
            buffers = draw.randint(1, 2)
            operands.append(operand(*blocks, is_input=is_input, buffers=buffers, size=size))
        assert max(100 * steps, moved) <= run(operands, steps) <= 100 * steps + moved, seed

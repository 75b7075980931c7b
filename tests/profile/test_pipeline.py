"""The pipeline: durations by hand, and what holds for any kernel."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from pallas_debug.profile.timeline.parts import Block, TimelinePart, part_of
from pallas_debug.profile.timeline.pipeline import Pipeline, PipelineOperand, PipelineRun


def operand(
    blocks: Sequence[Block], *, direction: str = "in", buffers: int = 2, size: float = 100,
    reads_back: bool = False, latency: float = 0,
) -> PipelineOperand:  # fmt: skip
    return PipelineOperand(
        lane=0,
        direction=direction,  # type: ignore[arg-type]
        buffers=buffers,
        reads_back=reads_back,
        block=lambda step: blocks[step],
        size=lambda block: size,
        fetch=lambda size: (latency, size),
        write=lambda size: (latency, size),
    )


def run(operands: list[PipelineOperand], steps: int, *, start: int = 0) -> PipelineRun:
    """Steps that compute for 100 cycles, with a bandwidth of a byte per cycle."""
    numbered = [replace(each, lane=lane) for lane, each in enumerate(operands)]
    pipeline = Pipeline(numbered, steps=steps, compute=lambda _: 100, keeps=lambda step: True)
    return pipeline.run(start, steps)


def counted(numbers: Sequence[int]) -> list[Block]:
    return [(n,) for n in numbers]


def part(found: PipelineRun) -> TimelinePart:
    stop = found.steps[-1].step + 1
    return part_of(0, stop, steps=found.steps, copies=found.copies, waits=found.waits)


def spans(found: PipelineRun) -> list[tuple[float, float]]:
    return [(begin, end) for _, begin, end in part(found).computing()]


def test_a_fetch_that_is_as_long_as_a_step_is_hidden() -> None:
    found = run([operand(counted(range(4)))], 4)
    assert spans(found) == [(100, 200), (200, 300), (300, 400), (400, 500)]
    assert [(c.step, c.started, c.begin, c.end) for c in found.copies] == [
        (0, 0, 0, 100), (1, 0, 100, 200), (2, 200, 200, 300), (3, 300, 300, 400),
    ]  # fmt: skip
    assert [(w.begin, w.end) for w in found.waits] == [(0, 100)]
    assert (found.waiting, found.end) == (100, 500)


def test_a_longer_fetch_is_waited_for() -> None:
    found = run([operand(counted(range(3)), size=150)], 3)
    assert spans(found) == [(150, 250), (300, 400), (450, 550)]
    assert [(w.step, w.begin, w.end) for w in found.waits] == [
        (0, 0, 150),
        (1, 250, 300),
        (2, 400, 450),
    ]


def test_a_block_that_stays_is_fetched_once() -> None:
    found = run([operand(counted([0, 0, 1, 1, 0]))], 5)
    assert [(c.step, c.block) for c in found.copies] == [(0, (0,)), (2, (1,)), (4, (0,))]
    assert found.counts == [3]


def test_an_unknown_block_is_taken_for_a_new_one() -> None:
    assert run([operand([None] * 3)], 3).counts == [3]


def test_a_single_buffer_is_filled_while_the_core_waits() -> None:
    found = run([operand(counted(range(3)), buffers=1)], 3)
    assert spans(found) == [(100, 200), (300, 400), (500, 600)]
    assert found.waiting == 300


def test_a_write_back_is_awaited_a_step_later() -> None:
    found = run([operand(counted([0, 0, 1]), direction="out", size=150)], 3)
    assert spans(found) == [(0, 100), (100, 200), (200, 300)]
    assert [(c.step, c.block, c.begin, c.end) for c in found.copies] == [
        (1, (0,), 200, 350), (2, (1,), 350, 500),
    ]  # fmt: skip
    # The first while the last step is done, the second at the end.
    assert [(w.begin, w.end) for w in found.waits] == [(300, 350), (350, 500)]
    assert found.end == 500


def test_a_write_back_from_a_single_buffer_is_awaited_at_once() -> None:
    found = run([operand(counted([0, 1]), direction="out", buffers=1)], 2)
    assert spans(found) == [(0, 100), (200, 300)]
    assert found.end == 400


def test_an_output_that_is_read_back_is_fetched_as_well() -> None:
    found = run([operand(counted([0, 0, 1]), direction="out", buffers=1, reads_back=True)], 3)
    assert [(c.direction, c.step) for c in found.copies] == [
        ("in", 0),
        ("out", 1),
        ("in", 2),
        ("out", 2),
    ]


def test_copies_share_the_bandwidth() -> None:
    found = run([operand(counted([0])), operand(counted([0]))], 1)
    assert [(c.begin, c.end) for c in found.copies] == [(0, 100), (100, 200)]
    assert [(w.begin, w.end) for w in found.waits] == [(0, 100), (100, 200)]


def test_latency_is_hidden_behind_other_copies() -> None:
    found = run([operand(counted([0]), latency=30), operand(counted([0]), latency=30)], 1)
    assert [(c.begin, c.end) for c in found.copies] == [(30, 130), (130, 230)]


def test_the_end_of_a_grid_begins_with_an_empty_pipeline() -> None:
    found = run([operand(counted(range(9)))], 9, start=7)
    assert [step.step for step in found.steps] == [7, 8]
    assert [c.step for c in found.copies] == [7, 8]


def test_invariants_of_random_pipelines() -> None:
    for seed in range(150):
        draw = random.Random(seed)
        steps, latency = draw.randint(1, 12), draw.choice([0, 20])
        operands = [
            operand(
                counted([draw.randint(0, 2) for _ in range(steps)]),
                direction=draw.choice(["in", "out"]), buffers=draw.randint(1, 2),
                size=draw.choice([0, 40, 100, 500]), latency=latency,
            )
            for _ in range(draw.randint(0, 4))
        ]  # fmt: skip
        found = run(operands, steps)
        computed = {step: (begin, end) for step, begin, end in part(found).computing()}
        assert [s.step for s in found.steps] == list(range(steps)), seed
        waited = sum(w.end - w.begin for w in found.waits)
        assert (found.waiting, found.end) == (waited, waited + 100 * steps), seed
        for one, other in zip(found.copies, found.copies[1:], strict=False):
            assert other.begin >= one.end, seed
        for number, each in enumerate(operands):
            changes = 1 + sum(each.block(n) != each.block(n - 1) for n in range(1, steps))
            assert found.counts[number] == changes, seed
            own = [c for c in found.copies if c.lane == number]
            for copy in own:
                begin, end = computed[copy.step]
                if copy.direction == "in":
                    assert copy.end <= begin, seed
                else:
                    assert copy.started >= end, seed
                    # The buffer is free again before it is filled for the second time.
                    later = [c for c in own if c.step > copy.step][each.buffers - 1 :]
                    assert all(copy.end <= found.steps[c.step].end for c in later), seed
            if each.direction == "in":
                for copy, replaced in zip(own[each.buffers :], own, strict=False):
                    last = next(c.step for c in own if c.step > replaced.step) - 1
                    assert copy.started >= computed[last][1], seed

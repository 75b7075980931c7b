"""Regions of buffers, and which of many accesses one meets, compared with sets of elements."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.clocks import Tasks
from pallas_debug.machine.memory import Indexed, MemoryBuffer, Ref, resolve
from pallas_debug.machine.order import history
from pallas_debug.machine.order.history import (
    AccessHistory,
    Box,
    MemoryAccess,
    boxes,
    covers,
    masked,
    meet,
)

SHAPE = (12, 9)


def buffer() -> MemoryBuffer:
    type_ = ir.RefType(SHAPE, np.dtype(np.int32), "vmem")
    content = np.arange(108, dtype=np.int32).reshape(SHAPE)
    return MemoryBuffer(0, content, "x_ref", "scratch", type_)


def elements(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*box))


def random_box(generator: np.random.Generator) -> Box:
    parts = []
    for size in SHAPE:
        step = int(generator.integers(1, 5))
        start = int(generator.integers(0, size))
        count = int(generator.integers(1, (size - start - 1) // step + 2))
        parts.append(range(start, start + count * step, step))
    return tuple(parts)


def test_boxes_meet_where_they_share_elements() -> None:
    generator = np.random.default_rng(0)
    found = 0
    for _ in range(2000):
        a, b = random_box(generator), random_box(generator)
        both = meet(a, b)
        assert (set() if both is None else elements(both)) == elements(a) & elements(b)
        found += both is not None
        if covers([a], [b]):
            assert elements(b) <= elements(a)
    assert 200 < found < 1800


@pytest.mark.parametrize(
    "index",
    [
        (slice(2, 6, 1), slice(0, 9, 1)),
        (slice(1, 11, 3), 4),
        (3, slice(2, 8, 2)),
        (np.array([1, 5, 6]), slice(0, 9, 1)),
        (np.array([2, 3, 4]), slice(1, 9, 3)),
    ],
)
def test_the_boxes_of_a_region_are_what_it_selects(index: tuple[Any, ...]) -> None:
    memory = buffer()
    region = resolve(Ref(memory, (Indexed(index),)), (), [])
    found = [memory.content[at] for box in boxes(region) for at in elements(box)]
    assert sorted(found) == sorted(np.asarray(region.read()).ravel())


def test_the_order_of_gathers_of_pairs_is_not_checked() -> None:
    region = resolve(Ref(buffer(), (Indexed((np.array([1, 5]), np.array([0, 3]))),)), (), [])
    assert boxes(region) == ()


def test_masks_that_are_a_product_of_ranges_narrow_a_region() -> None:
    memory = buffer()
    region = resolve(Ref(memory, (Indexed((slice(2, 10, 2), 3)),)), (), [])
    assert masked(region, np.array(True)) == ((range(2, 10, 2), range(3, 4)),)
    assert masked(region, np.array([False, True, True, False])) == ((range(4, 8, 2), range(3, 4)),)
    assert masked(region, np.array([True, False, True, False])) == ()
    assert masked(region, np.array(False)) == ()
    rows = np.arange(12)[:, None] < 5
    everything = resolve(Ref(memory), (), [])
    assert masked(everything, rows) == ((range(5), range(9)),)
    assert masked(everything, rows & (np.arange(9) > 6)) == ((range(5), range(7, 9)),)
    assert masked(everything, rows ^ (np.arange(9) > 6)) == ()


@pytest.mark.parametrize("few", [0, 1000])
def test_unordered_accesses_are_found_among_many(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without the arrays of bounds; of one task, nothing is unordered."""
    monkeypatch.setattr(history, "FEW", few)
    generator = np.random.default_rng(few)
    memory, tasks = buffer(), Tasks()
    workers = [tasks.new() for _ in range(3)]
    kept, before = AccessHistory(drops=False), []
    found = 0
    for when in range(400):
        number = int(generator.integers(0, 3))
        worker = workers[number]
        box, writes = random_box(generator), bool(generator.integers(0, 4) == 0)
        access = MemoryAccess(memory, (box,), writes, worker.epoch, number, when, ())
        expected = {
            (other.thread, tuple(elements(box) & elements(other.boxes[0])) != ())
            for other in before
            if other.thread != number
            and (other.writes or writes)
            and elements(box) & elements(other.boxes[0])
        }
        races = kept.unordered(worker, access)
        assert {(other.thread, True) for other, _ in races} == expected
        for other, both in races:
            assert elements(both) == elements(box) & elements(other.boxes[0])
        found += bool(races)
        kept.keep(access)
        before.append(access)
    assert found > 300
    assert len(kept.accesses) < len(before)


def test_the_oldest_accesses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_ACCESSES", 32)
    tasks = Tasks()
    one, two = tasks.new(), tasks.new()
    memory, kept = buffer(), AccessHistory(drops=False)
    for when in range(100):
        box = (range(when % 12, when % 12 + 1), range(when // 12, when // 12 + 1))
        kept.keep(MemoryAccess(memory, (box,), True, one.epoch, 0, (when,)))
        assert len(kept.accesses) <= 32
    everything = (tuple(range(n) for n in SHAPE),)
    races = kept.unordered(two, MemoryAccess(memory, everything, False, two.epoch, 1, (100,)))
    assert [other.point[0] for other, _ in races] == list(range(100 - len(races), 100))

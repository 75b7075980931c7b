"""Decoding of recorded rows into failures: counts, places, values, and which came first."""

from __future__ import annotations

import numpy as np
import pytest

from pallas_debug.bridge.instrument.sites import MAX_LOOPS, RecordLayout, Site


def site(
    step: int, *, loops: tuple[int, ...] = (), values: tuple[tuple[str, str], ...] = ()
) -> Site:
    return Site(
        check="index", operation=f"at {step}", source=None, step=step, loops=loops, values=values
    )


def layout(*sites: Site, slices: int = 1, batch: tuple[int, ...] = ()) -> RecordLayout:
    return RecordLayout(sites=sites, capacity=len(sites), grid_rank=2, batch=batch, slices=slices)


def rows(
    where: RecordLayout,
    *records: tuple[int, int, int, tuple[int, int], tuple[int, ...], tuple[int, ...]],
) -> np.ndarray:
    """Words with these records: slice, site, count, grid point, loops, values."""
    words = np.zeros((where.slices, where.words), np.int32)
    for number, index, count, point, loops, values in records:
        padded = (*loops, *([0] * (MAX_LOOPS - len(loops))))
        record = (count, *point, *padded, *values)
        words[number, where.base(index) : where.base(index) + len(record)] = record
    return words


def test_counts_are_summed_and_the_first_slice_tells_the_place() -> None:
    where = layout(site(1), slices=3)
    words = rows(where, (1, 0, 2, (1, 5), (), ()), (2, 0, 3, (2, 0), (), ()))
    (failure,) = where.read(words)
    assert failure.count == 5
    assert failure.grid_point == (1, 5)


def test_the_batch_comes_first_in_the_grid_point() -> None:
    where = layout(site(1), slices=6, batch=(3,))
    (failure,) = where.read(rows(where, (4, 0, 1, (0, 7), (), ())))
    assert failure.grid_point == (2, 0, 7)


def test_an_earlier_grid_point_wins_over_an_earlier_line() -> None:
    where = layout(site(1), site(2))
    words = rows(where, (0, 0, 1, (0, 3), (), ()), (0, 1, 1, (0, 1), (), ()))
    assert [f.site.step for f in where.read(words)] == [2, 1]


@pytest.mark.parametrize(
    "first, second, order",
    [
        pytest.param((2, (1,), (4,)), (3, (1,), (0,)), [3, 2], id="an earlier iteration wins"),
        pytest.param((2, (1,), (0,)), (3, (1,), (0,)), [2, 3], id="then the earlier line"),
        pytest.param((9, (), ()), (3, (1,), (7,)), [3, 9], id="what stands behind a loop is later"),
        pytest.param((0, (), ()), (3, (1,), (0,)), [0, 3], id="what stands before it is earlier"),
        pytest.param((4, (1, 3), (0, 9)), (5, (1,), (0,)), [4, 5], id="an inner loop comes first"),
        pytest.param((4, (1, 3), (1, 0)), (5, (1,), (0,)), [5, 4], id="unless a turn later"),
    ],
)
def test_loops_decide_within_a_grid_point(
    first: tuple[int, tuple[int, ...], tuple[int, ...]],
    second: tuple[int, tuple[int, ...], tuple[int, ...]],
    order: list[int],
) -> None:
    sites = [site(step, loops=begins) for step, begins, _ in (first, second)]
    where = layout(*sites)
    words = rows(where, (0, 0, 1, (0, 0), first[2], ()), (0, 1, 1, (0, 0), second[2], ()))
    found = where.read(words)
    assert [f.site.step for f in found] == order
    assert {f.site.step: f.loops for f in found} == {first[0]: first[2], second[0]: second[2]}


def test_values_come_back_in_their_dtypes() -> None:
    kept = (("i", "int32"), ("f", "float32"), ("b", "bool"), ("u", "uint32"))
    where = layout(site(1, values=kept))
    bits = int(np.float32(2.5).view(np.int32))
    (failure,) = where.read(rows(where, (0, 0, 1, (0, 0), (), (-3, bits, 1, -1))))
    assert failure.values == (-3, 2.5, True, 2**32 - 1)

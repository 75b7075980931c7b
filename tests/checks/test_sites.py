"""Decoding of recorded rows into failures: counts, places and values."""

from __future__ import annotations

import numpy as np

from pallas_debug.bridge.instrument.sites import RecordLayout, Site


def site(name: str, *, values: tuple[tuple[str, str], ...] = ()) -> Site:
    return Site(check="index", operation=name, source=None, values=values)


def layout(*sites: Site, slices: int = 1, batch: tuple[int, ...] = ()) -> RecordLayout:
    return RecordLayout(sites=sites, grid_rank=2, batch=batch, slices=slices)


def rows(
    where: RecordLayout,
    *records: tuple[int, int, int, tuple[int, int], tuple[int, ...]],
) -> np.ndarray:
    """Words with these records: slice, site, count, grid point, values."""
    words = np.zeros((where.slices, where.words), np.int32)
    for number, index, count, point, values in records:
        record = (count, index, *point, *values)
        words[number, : len(record)] = record
    return words


def test_counts_are_summed_and_the_first_slice_tells_the_place() -> None:
    where = layout(site("a"), slices=3)
    words = rows(where, (1, 0, 2, (1, 5), ()), (2, 0, 3, (2, 0), ()))
    (failure,) = where.read(words)
    assert failure.count == 5
    assert failure.grid_point == (1, 5)


def test_slices_may_have_failed_first_at_different_sites() -> None:
    where = layout(site("a"), site("b"), slices=3)
    words = rows(where, (0, 1, 1, (0, 3), ()), (2, 0, 1, (2, 1), ()))
    found = where.read(words)
    assert [(f.site.operation, f.grid_point) for f in found] == [
        ("b", (0, 3)),
        ("a", (2, 1)),
    ]


def test_the_batch_comes_first_in_the_grid_point() -> None:
    where = layout(site("a"), slices=6, batch=(3,))
    (failure,) = where.read(rows(where, (4, 0, 1, (0, 7), ())))
    assert failure.grid_point == (2, 0, 7)


def test_values_come_back_in_their_dtypes() -> None:
    kept = (("i", "int32"), ("f", "float32"), ("b", "bool"), ("u", "uint32"))
    where = layout(site("a", values=kept))
    bits = int(np.float32(2.5).view(np.int32))
    (failure,) = where.read(rows(where, (0, 0, 1, (0, 0), (-3, bits, 1, -1))))
    assert failure.values == (-3, 2.5, True, 2**32 - 1)

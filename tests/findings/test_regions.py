"""Text of the regions of an array that are set in a mask."""

from __future__ import annotations

import numpy as np
import pytest

from pallas_debug.findings.regions import part_of


@pytest.mark.parametrize(
    "rows, columns, text, elements",
    [
        ([3], [0, 1], "a[3:4, 0:2]", 2),
        ([0, 1, 4], [2], "a[0:2, 2:3] and a[4:5, 2:3]", 3),
        ([1, 3, 5], [0], "a[1:6:2, 0:1]", 3),
        ([0, 2, 3, 5, 7], [0], "a[0:1, 0:1], a[2:4, 0:1], a[5:6, 0:1] and a[7:8, 0:1]", 5),
        ([0, 2], [0, 3, 4], "a[0:1, 0:1], a[0:1, 3:5], a[2:3, 0:1] and a[2:3, 3:5]", 6),
    ],
)
def test_regions(rows: list[int], columns: list[int], text: str, elements: int) -> None:
    mask = np.zeros((8, 6), bool)
    mask[np.ix_(rows, columns)] = True
    part = part_of("a", mask)
    assert (part.text, part.elements, part.of) == (text, elements, 48)


def test_regions_of_other_shapes() -> None:
    assert part_of("a", np.zeros((4, 4), bool)) is None
    scalar, steps = part_of("a", np.ones((), bool)), part_of("a", np.tri(4, dtype=bool))
    assert (scalar.text, scalar.elements) == ("a[]", 1)
    assert steps.text == "a[0:1, 0:1], a[1:2, 0:2], a[2:3, 0:3] and a[3:4, 0:4]"
    many = part_of("a", np.eye(8, dtype=bool))
    assert many.text == "a[0:1, 0:1], a[1:2, 1:2], a[2:3, 2:3], a[3:4, 3:4] and 4 more regions"

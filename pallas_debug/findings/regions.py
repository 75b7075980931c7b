"""Text of parts of an array: slices, and the regions that are set in a mask."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class ArrayPart:
    """Part of an array.

    Attributes:
      text: every region of it, as slices: `o_ref[1:33, 0:128] and o_ref[34:64, 0:128]`.
      regions: number of regions.
      elements: number of elements of the part; `of` is the number for the whole array.
    """

    text: str
    regions: int
    elements: int
    of: int


MAX_REGIONS = 4
"""Maximum number of regions that are listed; if there are more, only their number is given."""


def part_of(name: str, mask: np.ndarray) -> ArrayPart | None:
    """Describe the elements that are set in a mask of an array; None if there are none."""
    elements = int(np.count_nonzero(mask))
    if not elements:
        return None
    regions = [f"{name}[{', '.join(region)}]" for region in _regions(mask)]
    shown, left = regions[:MAX_REGIONS], len(regions) - MAX_REGIONS
    if left > 0:
        text = f"{', '.join(shown)} and {left} more region{'s' if left > 1 else ''}"
    else:
        text = " and ".join([*([", ".join(shown[:-1])] if shown[1:] else []), shown[-1]])
    return ArrayPart(text=text, regions=len(regions), elements=elements, of=int(mask.size))


def _regions(mask: np.ndarray) -> list[tuple[str, ...]]:
    """Disjoint boxes, or boxes with regular steps, that make up a mask."""
    if mask.ndim == 0:
        return [()]
    along = [
        np.flatnonzero(mask.any(axis=tuple(a for a in range(mask.ndim) if a != axis)))
        for axis in range(mask.ndim)
    ]
    if math.prod(map(len, along)) == np.count_nonzero(mask):  # the same in each row
        return list(itertools.product(*map(_spans, along)))
    rows = mask.reshape(len(mask), -1)
    changes = np.flatnonzero((rows[1:] != rows[:-1]).any(axis=1)) + 1
    bounds = [0, *map(int, changes), len(mask)]
    return [
        (f"{start}:{stop}", *region)
        for start, stop in itertools.pairwise(bounds)
        if rows[start].any()
        for region in _regions(mask[start])
    ]


def _spans(at: np.ndarray) -> list[str]:
    """Slices that select these ascending positions."""
    steps = np.diff(at)
    if len(at) > 2 and steps[0] > 1 and (steps == steps[0]).all():
        return [slice_text(int(at[0]), len(at), int(steps[0]))]
    ends = np.flatnonzero(steps != 1)
    starts = [0, *(int(i) + 1 for i in ends)]
    stops = [*(int(i) + 1 for i in ends), len(at)]
    return [f"{at[a]}:{at[b - 1] + 1}" for a, b in zip(starts, stops, strict=True)]


def slice_text(start: int, size: int, stride: Any = 1) -> str:
    """Format a slice as `8:16`, or as `0:15:2` with a stride of two."""
    if not isinstance(stride, int) or not isinstance(size, int):
        return "…"
    step = f":{stride}" if stride != 1 else ""
    return f"{start}:{start + (size - 1) * stride + 1}{step}"

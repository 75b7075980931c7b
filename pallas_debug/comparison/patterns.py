"""Where two arrays differ, and whether what differs is NaN, infinite or zero. Uses only numpy."""

from __future__ import annotations

import numpy as np

from pallas_debug.findings.mismatch import (
    DifferingIndices,
    DifferingRegion,
    SpecialKind,
    SpecialValues,
)

MIN_SHARE = 0.05
"""Minimum share of the differing elements for which NaN, infinities and zeros are reported."""


def region(bad: np.ndarray) -> DifferingRegion:
    """Smallest product of index sets that contains all elements of a mask."""
    dims = []
    for d in range(bad.ndim):
        others = tuple(i for i in range(bad.ndim) if i != d)
        dims.append(indices(np.flatnonzero(bad.any(axis=others)), bad.shape[d]))
    size = 1.0
    for one in dims:
        size *= one.number
    return DifferingRegion(dims=tuple(dims), share=float(bad.sum()) / size)


def indices(found: np.ndarray, size: int) -> DifferingIndices:
    """Describe a sorted set of indices of a dimension of this size."""
    steps = np.unique(np.diff(found))
    step = 1 if len(found) == 1 else int(steps[0]) if len(steps) == 1 else None
    return DifferingIndices(
        size=size, first=int(found[0]), last=int(found[-1]), number=len(found), step=step
    )


def special(actual: np.ndarray, bad: np.ndarray) -> tuple[SpecialValues, ...]:
    """NaN, infinities and zeros among the differing elements, if they are more than a few."""
    values = actual[bad]
    masks: tuple[tuple[SpecialKind, np.ndarray], ...] = (
        ("NaN", np.isnan(values)),
        ("infinite", np.isinf(values)),
        ("zero", values == 0),
    )
    shares = [(kind, float(mask.mean())) for kind, mask in masks]
    return tuple(SpecialValues(kind=k, share=share) for k, share in shares if share >= MIN_SHARE)

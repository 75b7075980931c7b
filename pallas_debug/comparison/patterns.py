"""Where two arrays differ, and whether what differs is NaN, infinite or zero. Uses only numpy."""

from __future__ import annotations

import numpy as np

from pallas_debug.findings.mismatch import DifferingPattern, SpecialKind


def pattern(actual: np.ndarray, bad: np.ndarray) -> DifferingPattern:
    """Describe the elements of a mask, and their values."""
    slices = []
    for d in range(bad.ndim):
        others = tuple(i for i in range(bad.ndim) if i != d)
        slices.append(_range(np.flatnonzero(bad.any(axis=others))))
    values = actual[bad]
    kinds: tuple[tuple[SpecialKind, np.ndarray], ...] = (
        ("NaN", np.isnan(values)),
        ("infinite", np.isinf(values)),
        ("zero", values == 0),
    )
    return DifferingPattern(
        bad.shape, slices, next((kind for kind, are in kinds if are.all()), None)
    )


def _range(found: np.ndarray) -> range:
    """Return the smallest range that contains sorted indices, with their step if it is constant."""
    steps = np.unique(np.diff(found))
    return range(int(found[0]), int(found[-1]) + 1, int(steps[0]) if len(steps) == 1 else 1)

"""Scalar equations of a jaxpr in numpy, over all grid points at once.

A value is an array that broadcasts against the grid: a value that depends on a single grid
dimension has a single dimension other than 1, however large the grid is. Values that cannot be
computed are None, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pallas_debug.bridge import primitives

MAX_ELEMENTS = 1 << 25
"""Maximum elements of one value; larger values are not computed."""


def compute(eqn: Any, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    """Compute the only output of a scalar equation; None without a rule, or if it is too large.

    Overflows as in XLA: call it within `np.errstate(all="ignore")`.
    """
    row = primitives.TABLE.get(eqn.primitive.name)
    if row is None or row.arrays is None or len(eqn.outvars) != 1:
        return None
    out = eqn.outvars[0].aval
    if getattr(out, "shape", None) != () or not is_number(out) or too_large(*inputs):
        return None
    value: np.ndarray = np.asarray(row.arrays(*inputs)).astype(out.dtype, copy=False)
    return value


def is_number(aval: Any) -> bool:
    """Return whether numpy has this dtype, unlike jax's own (keys, semaphores) and small floats."""
    dtype = getattr(aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"


def too_large(*values: np.ndarray) -> bool:
    """Return whether the broadcast result has too many elements."""
    if all(value.size == 1 for value in values):
        return False
    size = 1
    for dim in np.broadcast_shapes(*(value.shape for value in values)):
        size *= dim
    return size > MAX_ELEMENTS

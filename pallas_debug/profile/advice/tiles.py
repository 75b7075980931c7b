"""Vector registers: their size, and the number that a value occupies."""

from __future__ import annotations

import math
from collections.abc import Sequence

LANES = 128
SUBLANES = 8


def registers_for(sizes: Sequence[int], bits: int = 32) -> int:
    """Count the registers of a value of this shape; a column takes as many as 128 columns."""
    *outer, rows, columns = (1, 1, *sizes)
    return math.prod(outer) * -(-rows * bits // (SUBLANES * 32)) * -(-columns // LANES)

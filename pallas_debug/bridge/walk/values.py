"""What a value is to the walk over a jaxpr, and where the walk is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.bridge.walk.events import KernelRef, Origin


class Exhausted(Exception):
    """The walk would take too long; the message says what was too much."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """A value that is not known, and the reads that it comes of."""

    origins: frozenset[Origin] = frozenset()


UNKNOWN = Data()

Value = np.ndarray | Data | KernelRef
"""A scalar that is known, over the grid; one that is not, or a vector; a ref."""


@dataclass(frozen=True, kw_only=True)
class WalkState:
    """Where the walk is.

    Attributes:
      where: at which grid points, with loops that are walked as a whole in front.
      certain: no condition around it is unknown.
      ordered: it is walked once for each iteration of the loops around it.
      loops: iterations of those that are unrolled, outermost first.
      calls: equations that call what it is part of, outermost first.
    """

    where: np.ndarray
    certain: bool = True
    ordered: bool = True
    loops: tuple[int, ...] = ()
    calls: tuple[Any, ...] = ()

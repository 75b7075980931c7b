"""Values in the walk over a jaxpr, and the state of the walk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.bridge.walk.events import KernelRef


class Exhausted(Exception):
    """The walk would take too long; the message names the limit that was exceeded."""


class UnknownValue:
    """Type of `UNKNOWN`."""


UNKNOWN = UnknownValue()
"""An unknown scalar, or a vector."""

Value = np.ndarray | KernelRef | UnknownValue
"""A known scalar over the grid, a ref, or `UNKNOWN`."""


@dataclass(frozen=True, kw_only=True)
class WalkState:
    """Position of the walk.

    Attributes:
      where: grid points, with leading dimensions for loops walked as a whole.
      certain: whether all enclosing conditions are known.
      calls: enclosing call equations, outermost first.
    """

    where: np.ndarray
    certain: bool = True
    calls: tuple[Any, ...] = ()

"""Values in the walk over a jaxpr, and the state of the walk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.bridge.walk.events import KernelRef, Origin


class Exhausted(Exception):
    """The walk would take too long; the message names the limit that was exceeded."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """An unknown value, and the reads from which it was computed."""

    origins: frozenset[Origin] = frozenset()


UNKNOWN = Data()

Value = np.ndarray | Data | KernelRef
"""A known scalar over the grid, an unknown scalar or vector, or a ref."""


@dataclass(frozen=True, kw_only=True)
class WalkState:
    """Position of the walk.

    Attributes:
      where: grid points, with leading dimensions for loops walked as a whole.
      certain: whether all enclosing conditions are known.
      ordered: whether it is walked once per iteration of the enclosing loops.
      loops: iterations of unrolled loops, outermost first.
      calls: enclosing call equations, outermost first.
    """

    where: np.ndarray
    certain: bool = True
    ordered: bool = True
    loops: tuple[int, ...] = ()
    calls: tuple[Any, ...] = ()

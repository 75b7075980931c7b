"""Conditions of a kernel that tell its wrong elements from its right ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.comparison.writes import OutOfTime
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.threads import Thread
from pallas_debug.model import SourceLine

LEAST = 0.99
"""Minimum share of the elements with a condition's value that are wrong, if all wrong ones have it:
a few elements may be right by chance."""


class MaskObserver(MachineObserver):
    """Looks for the first condition of which the wrong elements of a block share the value.

    Attributes:
      found: its line, and that value; None if there is none.

    Args:
      wrong: mask of the wrong elements of the block.
      point: grid point that stores the block.
      deadline: as for `WriteObserver`.
    """

    evaluates = True

    def __init__(self, wrong: np.ndarray, point: tuple[int, ...], deadline: float) -> None:
        self.found: tuple[SourceLine, bool] | None = None
        self._deadline = deadline
        self._wrong = wrong
        self._point = point

    def evaluate(self, thread: Thread, step: ir.Compute, values: Sequence[Any]) -> Sequence[Any]:
        if time.monotonic() > self._deadline:
            raise OutOfTime
        results = step.evaluate(*values)
        line = step.site.line
        if self.found is None and line is not None and tuple(thread.point) == self._point:
            for value in map(np.asarray, results):
                if value.dtype == bool and (is_true := self._shared(value)) is not None:
                    self.found = line, is_true
        return results

    def _shared(self, condition: np.ndarray) -> bool | None:
        """Return the value of a condition that the wrong elements share, and right ones do not."""
        wrong = self._wrong
        if condition.ndim != wrong.ndim or not condition.ndim:
            return None
        # The last block of an array may reach past its end, where nothing is compared.
        condition = condition[tuple(slice(size) for size in wrong.shape)]
        if any(n not in (1, size) for n, size in zip(condition.shape, wrong.shape, strict=True)):
            return None
        is_true = np.broadcast_to(condition, wrong.shape)
        for value, has_it in ((True, is_true), (False, ~is_true)):
            is_shared = not (wrong & ~has_it).any() and wrong.sum() >= LEAST * has_it.sum()
            if is_shared and not has_it.all():
                return value
        return None

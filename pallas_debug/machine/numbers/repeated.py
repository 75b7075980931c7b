"""Arithmetic of a further run, evaluated by the compiled programs of the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pallas_debug.bridge.hosted.watch import WatchedPoints
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.arithmetic import numerics
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.threads import Thread


class RepeatedArithmetic(MachineObserver):
    """Evaluates units as `NumbersObserver` does, without checking them.

    The results of both runs are compared bit by bit, and XLA may round differently in a program
    without the tests. Compiling one would also take longer than a short run.

    Args:
      watched: grid points whose arithmetic was checked; None for all.
    """

    evaluates = True

    def __init__(self, watched: WatchedPoints | None = None) -> None:
        self._watched = watched

    def evaluate(self, thread: Thread, step: ir.Compute, values: Sequence[Any]) -> Sequence[Any]:
        if step.unit is None or not (self._watched is None or thread.point in self._watched):
            return step.evaluate(*values)
        return numerics.watch(step).run(values)[0]

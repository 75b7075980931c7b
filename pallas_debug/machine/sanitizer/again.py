"""Further runs of a kernel with the same arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_debug.bridge.hosted.watch import WatchedPoints
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.errors import MachineError
from pallas_debug.machine.machine import Machine, Stopped
from pallas_debug.machine.numbers.loops import LoopObserver
from pallas_debug.machine.numbers.observer import RepeatedArithmetic
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sanitizer.composite import ObserverGroup

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class KernelCall:
    """A kernel with its arguments, to be run again.

    Attributes:
      arrays: for each device, the arrays of the call.
      options: options of the machine.
      watched: grid points whose arithmetic is checked in the first run; None for all.
    """

    launch: Launch
    arrays: Sequence[Sequence[Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    watched: WatchedPoints | None = None

    def run(self, *observing: MachineObserver) -> list[list[Array]]:
        """Run the kernel to its end, or until a fault stops it, which altered values may cause.

        Returns:
          Each device's results, incomplete if the run was stopped.
        """
        observers = [*observing, LoopObserver(self.launch)]
        if not any(observer.evaluates for observer in observing):
            observers.append(RepeatedArithmetic(self.watched))
        machine = Machine(
            self.launch, self.arrays, observer=ObserverGroup(observers), calls_back=False,
            compiles_loops=False,
            **{"outside": "nearest", **self.options},
        )  # fmt: skip
        with contextlib.suppress(Stopped, MachineError):
            machine.run()
        return machine.results()

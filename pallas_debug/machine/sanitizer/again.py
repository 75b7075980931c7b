"""Further runs of a kernel with the same arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.errors import MachineError
from pallas_debug.machine.machine import Machine, Stopped
from pallas_debug.machine.numbers.loops import LoopObserver
from pallas_debug.machine.numbers.observer import RepeatedArithmetic
from pallas_debug.machine.observer import MachineObserver, ObserverGroup

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class KernelCall:
    """A kernel with its arguments, to be run again.

    Attributes:
      arrays: for each device, the arrays of the call.
      options: options of the machine.
    """

    launch: Launch
    arrays: Sequence[Sequence[Any]]
    options: Mapping[str, Any] = field(default_factory=dict)

    def run(self, *observing: MachineObserver) -> list[list[Array]]:
        """Run the kernel to its end, or until a fault stops it, which altered values may cause.

        Returns:
          Each device's results, incomplete if the run was stopped.
        """
        machine = self._machine(observing)
        with contextlib.suppress(Stopped, MachineError):
            machine.run()
        return machine.results()

    def completed(self, **options: Any) -> list[list[Array]] | None:
        """Return the results of a run with other options; None if it does not end."""
        try:
            return replace(self, options={**self.options, **options})._machine(()).run()
        except (Stopped, MachineError, NotImplementedError, AssertionError):
            return None

    def _machine(self, observing: Sequence[MachineObserver]) -> Machine:
        observers = [*observing, LoopObserver(self.launch)]
        if not any(observer.evaluates for observer in observing):
            observers.append(RepeatedArithmetic())
        return Machine(
            self.launch, self.arrays, observer=ObserverGroup(observers), calls_back=False,
            compiles_loops=False, **{"outside": "nearest", **self.options},
        )  # fmt: skip

"""Rendezvous for the callbacks of several devices that run a kernel together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pallas_debug.errors import MachineError

Operands = Sequence[Any]


@dataclass(eq=False)
class _Gathering:
    """One run of the kernel."""

    operands: dict[int, Operands] = field(default_factory=dict)
    results: Sequence[Sequence[Any]] = ()
    error: BaseException | None = None
    is_over: bool = False


class Meeting:
    """Gathers the operands of all devices, and runs a kernel on them in the last one's thread.

    Args:
      kernel: its name.
      count: number of devices.
    """

    def __init__(self, kernel: str, count: int) -> None:
        self._kernel = kernel
        self._count = count
        self._condition = threading.Condition()
        self._open: list[_Gathering] = []  # oldest first

    def join(
        self,
        device: int,
        operands: Operands,
        run: Callable[[Sequence[Operands]], Sequence[Sequence[Any]]],
        *,
        patience: float,
    ) -> Sequence[Any]:
        """Wait for the other devices and for the run; return this device's results.

        Args:
          run: runs the kernel on the operands of all devices, and returns their results.
          patience: seconds to wait for the next device.

        Raises:
          MachineError: the other devices did not arrive.
        """
        with self._condition:
            # A device may begin its next run before the others have arrived at this one.
            gathering = next((g for g in self._open if device not in g.operands), None)
            if gathering is None:
                gathering = _Gathering()
                self._open.append(gathering)
            gathering.operands[device] = operands
            is_last = len(gathering.operands) == self._count
            if is_last:
                self._open.remove(gathering)
            self._condition.notify_all()
        if is_last:
            self._run(gathering, run)
        else:
            self._wait(gathering, patience)
        if gathering.error is not None:
            raise gathering.error
        return gathering.results[device]

    def _run(
        self, gathering: _Gathering, run: Callable[[Sequence[Operands]], Sequence[Sequence[Any]]]
    ) -> None:
        try:
            gathering.results = run([gathering.operands[i] for i in range(self._count)])
        except BaseException as error:  # noqa: BLE001 - raised in every device's thread
            gathering.error = error
        with self._condition:
            gathering.is_over = True
            self._condition.notify_all()

    def _wait(self, gathering: _Gathering, patience: float) -> None:
        with self._condition:
            while not gathering.is_over:
                known = len(gathering.operands)
                is_waiting = known < self._count
                in_time = self._condition.wait(patience if is_waiting else None)
                if not in_time and len(gathering.operands) == known < self._count:
                    gathering.is_over = True
                    gathering.error = self._missing(gathering, patience)
                    if gathering in self._open:
                        self._open.remove(gathering)
                    self._condition.notify_all()

    def _missing(self, gathering: _Gathering, patience: float) -> MachineError:
        came = sorted(gathering.operands)
        missing = [i for i in range(self._count) if i not in gathering.operands]
        return MachineError(
            f"kernel `{self._kernel}` communicates between {self._count} devices, but within "
            f"{patience:g} s only {_devices(came)} called it, not {_devices(missing)}. Is it in a "
            "branch that only some devices take?"
        )


def _devices(numbers: Sequence[int]) -> str:
    names = ", ".join(map(str, numbers))
    return f"device {names}" if len(numbers) == 1 else f"devices {names}"

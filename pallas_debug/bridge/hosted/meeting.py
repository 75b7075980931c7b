"""Rendezvous for the callbacks of several devices that run a kernel together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from pallas_debug.errors import MachineError

Operands = Sequence[Any]
Run = Callable[[Sequence[Operands]], Sequence[Sequence[Any]]]


class _Gathering:
    """One run of the kernel, in the thread of the last device."""

    def __init__(self, count: int, run: Run) -> None:
        self.operands: dict[int, Operands] = {}
        self.results: Sequence[Sequence[Any]] = ()
        self.error: BaseException | None = None
        self.barrier = threading.Barrier(count, action=self._run)
        self._kernel = run

    def _run(self) -> None:
        try:
            self.results = self._kernel([self.operands[i] for i in range(self.barrier.parties)])
        except BaseException as error:  # noqa: BLE001 - raised in every device's thread
            self.error = error


class Meeting:
    """Gathers the operands of all devices, and runs a kernel on them in the last one's thread.

    Args:
      kernel: its name.
      count: number of devices.
    """

    def __init__(self, kernel: str, count: int) -> None:
        self._kernel = kernel
        self._count = count
        self._lock = threading.Lock()
        self._open: list[_Gathering] = []  # oldest first

    def join(self, device: int, operands: Operands, run: Run, *, patience: float) -> Sequence[Any]:
        """Wait for the other devices and for the run; return this device's results.

        Args:
          run: runs the kernel on the operands of all devices, and returns their results.
          patience: seconds to wait for the other devices.

        Raises:
          MachineError: the other devices did not arrive.
        """
        with self._lock:
            # A device may begin its next run before the others have arrived at this one.
            gathering = next((g for g in self._open if device not in g.operands), None)
            if gathering is None:
                gathering = _Gathering(self._count, run)
                self._open.append(gathering)
            gathering.operands[device] = operands
            if len(gathering.operands) == self._count:
                self._open.remove(gathering)
        try:
            gathering.barrier.wait(patience)
        except threading.BrokenBarrierError:
            with self._lock:
                if gathering in self._open:
                    self._open.remove(gathering)
                raise self._missing(gathering, patience) from None
        if gathering.error is not None:
            raise gathering.error
        return gathering.results[device]

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

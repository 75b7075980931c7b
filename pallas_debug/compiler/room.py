"""Detection of kernels that do not fit into a chip's memory, before anything is compiled or run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pallas_debug.analysis import memory
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.compiler.targets import BUILTIN
from pallas_debug.errors import KernelFault, PallasDebugError
from pallas_debug.guards import guarded
from pallas_debug.model import Finding, Target
from pallas_debug.render import finding_text


class RoomCheck:
    """Decides whether to stop a program at a kernel that does not fit.

    Args:
      chip: chip presented to the program, if the user chose it.
      is_asked: returns whether to check the kernels that are lowered now.
      report: called with our own errors, which do not stop the program.
    """

    def __init__(
        self,
        chip: Target | None,
        *,
        is_asked: Callable[[], bool],
        report: Callable[[PallasDebugError], None],
    ) -> None:
        self._chip = chip
        self._is_asked = is_asked
        self._report = report
        self._faults: dict[object, Finding | None] = {}

    def has_room(self, captured: Capture, targets: Sequence[Target]) -> bool:
        """Return whether a kernel fits on a target; without targets, on the chip or any TPU."""
        if not self._is_asked():
            return True
        kernel = captured.kernel
        if kernel.digest not in self._faults:
            targets = targets or ((self._chip,) if self._chip else BUILTIN)
            if kernel.chip is not None:  # traced only for this one
                targets = [t for t in targets if t.device_kind == kernel.chip] or targets[:1]
            with guarded("engine", f"measuring kernel `{kernel.name}`", self._report):
                names = {target.name for target in targets}
                faults = memory.too_large(captured, targets)
                everywhere = (fault for fault in faults if names <= set(fault.targets))
                self._faults[kernel.digest] = next(everywhere, None)
        return not self.is_refused(kernel.digest)

    def is_refused(self, token: object) -> bool:
        """Return whether a kernel was found not to fit."""
        return self._faults.get(token) is not None

    def refusal(self, token: object, found: Callable[[Finding], None]) -> KernelFault | None:
        """Report a kernel that does not fit, and return the exception with which to stop at it."""
        fault = self._faults.get(token)
        if fault is None or not self._is_asked():
            return None
        found(fault)
        return KernelFault(finding_text(fault), fault)

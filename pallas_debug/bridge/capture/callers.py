"""How the programs that call each kernel use its outputs."""

from __future__ import annotations

import threading

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.jaxprs.outputs import current_uses
from pallas_debug.findings.outputs import OutputUses, most
from pallas_debug.model import Kernel


class KernelCallers:
    """Callers of kernels, by digest. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: dict[str, list[OutputUses]] = {}

    def add(self, captured: Capture) -> None:
        """Record the program around the kernel that this thread lowers."""
        kernel = captured.kernel
        uses = current_uses(operand.name for operand in kernel.of_kind("output"))
        with self._lock:
            self._uses.setdefault(kernel.digest, []).append(uses)

    def uses(self, kernel: Kernel) -> OutputUses:
        """Uses of the kernel's outputs by programs; empty unless known for all programs."""
        with self._lock:
            known = tuple(self._uses.get(kernel.digest, ()))
        if not known or not all(known):
            return {}
        return {name: most([uses[name] for uses in known]) for name in known[0]}

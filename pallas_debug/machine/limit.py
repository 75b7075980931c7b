"""Limit on the memory of a process that runs kernels on the machine."""

from __future__ import annotations

import functools
import os
import resource
from pathlib import Path

from pallas_debug import defaults
from pallas_debug.errors import MachineError, UsageError
from pallas_debug.model import SourceLine
from pallas_debug.quantities import size_text

VARIABLE = "PALLAS_MAX_MEMORY"
"""Environment variable for the limit in GiB."""

_STATM = Path("/proc/self/statm")


def require_memory(kernel: str, where: SourceLine | None, needed: int = 0) -> None:
    """Check that the process is below its limit.

    Args:
      where: line of the current operation.
      needed: bytes about to be allocated.

    Raises:
      MachineError: it is not; the message names the kernel, the line and the remedy.
      UsageError: the environment variable is not a number.
    """
    most = limit()
    used = _resident() + needed
    if used <= most:
        return
    raise MachineError(
        f"kernel `{kernel}` was stopped: the process needs {size_text(used)} of memory, and the "
        f"limit is {size_text(most)}. Use smaller arrays, or set {VARIABLE} to a higher "
        "number of GiB",
        where,
    )


@functools.cache
def limit() -> int:
    """Maximum resident memory of the process in bytes."""
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        total = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
        return int(total * defaults.MEMORY_SHARE)
    try:
        return int(float(given) * (1 << 30))
    except ValueError:
        raise UsageError(f"{VARIABLE}={given}: expected a number of GiB, such as 16") from None


def _resident() -> int:
    with _STATM.open("rb", buffering=0) as statm:  # a third of read_text's time
        return int(statm.read().split()[1]) * resource.getpagesize()

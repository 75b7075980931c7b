"""Check of the grid points to watch against the kernels that were called."""

from __future__ import annotations

from collections.abc import Sequence

from pallas_debug.bridge.hosted.watch import WatchedPart, parse
from pallas_debug.errors import UsageError, meant
from pallas_debug.model import Kernel


def require(watch: str | None, kernels: Sequence[Kernel]) -> None:
    """Reject grid points that no kernel has.

    Raises:
      UsageError: a selection is for no kernel, or names grid points that none of its kernels has;
        the message names their grids.
    """
    if watch is None or not kernels:
        return
    for part in parse(watch).parts:
        named = [kernel for kernel in kernels if part.kernel in (None, kernel.name)]
        if not named:
            names = list(dict.fromkeys(kernel.name for kernel in kernels))
            raise UsageError(
                f"no kernel {part.kernel!r} to watch{meant(str(part.kernel), names)}; there "
                f"{'is' if len(names) == 1 else 'are'} {', '.join(names)}"
            )
        if not any(_has(kernel, part) for kernel in named):
            grids = dict.fromkeys(f"kernel `{kernel.name}` {_grid(kernel)}" for kernel in named)
            raise UsageError(
                f"there are no grid points {part.text!r} to watch: {'; '.join(grids)}. Write a "
                "position, a range or `*` for each axis of the grid, within its size"
            )


def _has(kernel: Kernel, part: WatchedPart) -> bool:
    """Return whether a kernel may have some of the grid points; axis sizes may be unknown."""
    if len(part.entries) != len(kernel.grid):
        return False
    return None in kernel.grid or all(part.ranges([size or 0 for size in kernel.grid]))


def _grid(kernel: Kernel) -> str:
    if not kernel.grid:
        return "has no grid"
    return f"has the grid ({', '.join('?' if n is None else str(n) for n in kernel.grid)})"

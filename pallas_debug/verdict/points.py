"""Check of the grid points to watch against the kernels that were called."""

from __future__ import annotations

from collections.abc import Iterable

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.hosted.watch import WatchedPart, parse
from pallas_debug.errors import UsageError, meant
from pallas_debug.model import Kernel


def require(watch: str | None, captures: Iterable[Capture]) -> None:
    """Reject a selection that is for no kernel, or for grid points that none of its kernels has."""
    kernels = [captured.kernel for captured in captures]
    for part in parse(watch).parts if watch is not None and kernels else ():
        named = [kernel for kernel in kernels if part.kernel in (None, kernel.name)]
        if not any(_has(kernel, part) for kernel in named):
            what = f"are no grid points {part.text!r}"
            if not named:
                hint = meant(str(part.kernel), [kernel.name for kernel in kernels])
                what = f"is no kernel {part.kernel!r}{hint}"
            raise UsageError(
                f"there {what} to watch: "
                f"{'; '.join(dict.fromkeys(map(_described, named or kernels)))}. Write a "
                "position, a range or `*` for each axis of the grid, within its size"
            )


def _has(kernel: Kernel, part: WatchedPart) -> bool:
    """Return whether a kernel may have some of the grid points; axis sizes may be unknown."""
    if len(part.entries) != len(kernel.grid):
        return False
    return None in kernel.grid or all(part.ranges([size or 0 for size in kernel.grid]))


def _described(kernel: Kernel) -> str:
    sizes = ", ".join("?" if size is None else str(size) for size in kernel.grid)
    return f"kernel `{kernel.name}` has {f'the grid ({sizes})' if sizes else 'no grid'}"

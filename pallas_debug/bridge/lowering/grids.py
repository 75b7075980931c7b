"""Empty grids: kernels that ran to completion although their body never ran.

The size of a grid may be an argument of the call. While a watcher is active, a callback before each
such kernel passes the sizes to the host.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from pallas_debug.bridge import inline
from pallas_debug.bridge.active import ActiveStack
from pallas_debug.bridge.capture import meshes
from pallas_debug.model import Kernel


class Grids:
    """Grid sizes that a program's calls pass, by digest of the kernel. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stepped: set[str] = set()
        self._empty: dict[str, tuple[int, ...]] = {}

    def note(self, digest: str, sizes: tuple[int, ...]) -> None:
        """Record the sizes that a call passes."""
        with self._lock:
            if min(sizes) > 0:
                self._stepped.add(digest)
            else:
                self._empty.setdefault(digest, sizes)

    def why_empty(self, kernel: Kernel) -> str | None:
        """Reason why no call of a kernel ran its body; None if one did, or if that is unknown."""
        with self._lock:
            has_stepped = kernel.digest in self._stepped
            passed = iter(() if has_stepped else self._empty.get(kernel.digest, ()))
        sizes = [next(passed, None) if size is None else size for size in kernel.grid]
        shown = ", ".join("?" if size is None else str(size) for size in sizes)
        if not any(size is not None and size <= 0 for size in sizes):
            return None
        return f"its grid of ({shown}{',' * (len(sizes) == 1)}) has no points: its body did not run"


_watchers: ActiveStack[Grids] = ActiveStack()


def watching(grids: Grids) -> contextlib.AbstractContextManager[None]:
    """Record the grids of kernels that are lowered in this context, in any thread."""
    return _watchers.adding(grids)


def emit(context: Any, nodes: Sequence[Any], params: dict[str, Any], digest: str) -> None:
    """Add a callback with the sizes that the kernel being lowered takes from its operands."""
    count = getattr(params.get("grid_mapping"), "num_dynamic_grid_bounds", 0)
    is_run = context.module_context.get_backend(optional=True) is not None
    if not count or not _watchers or not is_run or meshes.is_partitioned(context):
        return

    def note(*sizes: Any) -> tuple[()]:
        for watcher in _watchers:
            watcher.note(digest, tuple(np.asarray(size).item() for size in sizes))
        return ()

    inline.called_back(context, note, nodes[:count], context.avals_in[:count])

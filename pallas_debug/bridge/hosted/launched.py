"""Evidence that a kernel ran to completion: being lowered is not enough.

A kernel in an untaken branch is lowered with its program. The hook notes which kernel a thread is
lowering; the callback that runs the kernel on the machine, or reports its checks, reports it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pallas_debug.bridge.active import ActiveStack, ThreadValue
from pallas_debug.model import Kernel

Tokens = tuple[str, ...]
"""Kernel digests, outermost first: an interpreter may lower a kernel as several others."""

_tokens = ThreadValue[Tokens](())
_listeners: ActiveStack[Callable[[str, tuple[int, ...]], None]] = ActiveStack()


def lowering(token: object | None) -> contextlib.AbstractContextManager[None]:
    """Mark this token's kernel as being lowered in this thread; None is a no-op."""
    return _tokens.setting(current() if token is None else (*current(), str(token)))


def current() -> Tokens:
    """Return the kernels that this thread is lowering."""
    return _tokens.value


def num_bounds(params: Mapping[str, Any]) -> int:
    """Number of operands in front that are sizes of the kernel's grid."""
    return getattr(params.get("grid_mapping"), "num_dynamic_grid_bounds", 0)


def notify(tokens: Tokens, *bounds: Any) -> None:
    """Notify listeners that these kernels ran to completion, on a grid of these sizes."""
    sizes = tuple(map(int, bounds))
    for listener in _listeners:
        for token in tokens:
            listener(token, sizes)


def listening(
    listener: Callable[[str, tuple[int, ...]], None],
) -> contextlib.AbstractContextManager[None]:
    """Call `listener` with every kernel that runs to completion, in any thread.

    It receives the kernel's digest, and the sizes of its grid that the call passed; it is called
    within the user's program and must not raise.
    """
    return _listeners.adding(listener)


class Grids:
    """Grid sizes that a program's calls pass, by digest of the kernel. Thread-safe.

    A kernel with an empty grid runs to completion, although its body never runs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stepped: set[str] = set()
        self._empty: dict[str, tuple[int, ...]] = {}

    def note(self, digest: str, sizes: tuple[int, ...]) -> None:
        """Record the sizes that a call passed for dimensions whose size is known at run time."""
        with self._lock:
            if all(size > 0 for size in sizes):
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

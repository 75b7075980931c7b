"""Calls of kernels with their arrays: recorded while a program runs, and replayed on their own.

While a recorder is active, a callback before each kernel passes its operands to the host. Of calls
that differ only in floats one is kept: integers and bools decide which memory a kernel accesses.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pallas_debug.bridge.active import ActiveStack
from pallas_debug.bridge.instrument import observe
from pallas_debug.guards import guarded

Operands = tuple[np.ndarray[Any, Any], ...]

MAX_CALLS = 8
"""Maximum calls that are kept of one kernel."""

MAX_BYTES = 1 << 30
"""Maximum bytes of all arrays that are kept."""


class CallRecorder:
    """Calls of a program's kernels, by the digest of the kernel. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, list[Operands]] = {}
        self._known: dict[str, set[bytes]] = {}
        self._left_out: dict[str, str] = {}
        self._bytes = 0

    def calls(self, digest: str) -> Sequence[Operands]:
        """Recorded calls of a kernel, oldest first."""
        with self._lock:
            return tuple(self._calls.get(digest, ()))

    def left_out(self, digest: str) -> str | None:
        """Why calls of a kernel were not recorded; None if all were, or none happened."""
        with self._lock:
            known, kept = len(self._known.get(digest, ())), len(self._calls.get(digest, ()))
            reason = self._left_out.get(digest)
        if reason is not None and kept < known:
            return f"{known - kept} of {known} calls that differ in integers: {reason}"
        return reason

    def refuse(self, digest: str, reason: str) -> None:
        """Note why calls of a kernel cannot be recorded."""
        with self._lock:
            self._left_out.setdefault(digest, reason)

    def record(self, digest: str, arrays: Sequence[Any]) -> None:
        """Keep a call, unless one with the same integers is known, or the limits are reached."""
        operands = [np.asarray(array) for array in arrays]
        integers = _integers(operands)
        size = sum(array.nbytes for array in operands)
        with self._lock:
            known = self._known.setdefault(digest, set())
            if integers in known:
                return
            known.add(integers)
            calls = self._calls.setdefault(digest, [])
            if len(calls) >= MAX_CALLS:
                self._left_out.setdefault(digest, f"the first {MAX_CALLS} are kept")
            elif self._bytes + size > MAX_BYTES:
                limit = MAX_BYTES >> 20
                self._left_out.setdefault(digest, f"the arrays of all calls exceed {limit:,} MiB")
            else:
                self._bytes += size
                # The runtime reuses the memory behind a callback's arrays.
                calls.append(tuple(np.array(array, copy=True) for array in operands))


def _integers(operands: Sequence[np.ndarray[Any, Any]]) -> bytes:
    digest = hashlib.sha256()
    for array in operands:
        if array.dtype.kind in "biu" or "int" in array.dtype.name:
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.digest()


_recorders: ActiveStack[CallRecorder] = ActiveStack()


def recording(recorder: CallRecorder) -> contextlib.AbstractContextManager[None]:
    """Record the calls of kernels that are lowered in this context, in any thread."""
    return _recorders.adding(recorder)


def is_active() -> bool:
    """Whether any recorder is active."""
    return bool(_recorders)


def emit(context: Any, nodes: Sequence[Any], digest: str) -> None:
    """Add a callback with the operands of the kernel that is being lowered, for each recorder."""
    if not _recorders or context.module_context.get_backend(optional=True) is None:
        return
    reason = _why_not(context)
    for recorder in _recorders:
        if reason is not None:
            recorder.refuse(digest, reason)
            continue
        observe.call_back(context, _recorded(recorder, digest), nodes, context.avals_in)


def _recorded(recorder: CallRecorder, digest: str) -> Callable[..., tuple[()]]:
    def record(*arrays: Any) -> tuple[()]:
        def lose(problem: Exception) -> None:
            recorder.refuse(digest, str(problem))

        with guarded("hook", "recording a call of a kernel", lose):
            recorder.record(digest, arrays)
        return ()

    return record


def _why_not(context: Any) -> str | None:
    """Why the calls of a kernel cannot be replayed on their own; None if they can."""
    axes = context.module_context.axis_context
    if getattr(axes, "manual_axes", None) or getattr(axes, "num_devices", 1) not in (1, None):
        return "it runs on several devices at once, and its calls cannot be replayed on their own"
    for aval in context.avals_in:
        if not isinstance(getattr(aval, "dtype", None), np.dtype):
            return f"an operand of type {aval.str_short()} cannot be kept"
    return None

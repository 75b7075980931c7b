"""Recorder of kernel calls with their arrays, to replay one without the program.

While a recorder is active, a callback before each kernel passes its operands to the host.

A kernel under `shard_map` is called by each device of its mesh. These calls count as one, which is
kept once all devices have made it.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from pallas_debug.bridge import inline
from pallas_debug.bridge.active import ActiveStack
from pallas_debug.bridge.capture import meshes
from pallas_debug.bridge.instrument import observe
from pallas_debug.bridge.jaxcompat import jax_core, pallas_core
from pallas_debug.guards import guarded

Operands = tuple[np.ndarray[Any, Any], ...]

KernelCall = tuple[Operands, ...]
"""Operands of each device of the kernel's mesh, in its order; one without a mesh."""


class CallRecorder:
    """One call of each of a program's kernels, by digest of the kernel. Thread-safe.

    Args:
      number: of the call, counted from 1.
    """

    def __init__(self, number: int = 1) -> None:
        self._number = number
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._kept: dict[str, KernelCall] = {}
        self._begun: dict[str, list[dict[int, Operands]]] = {}
        self._refused: dict[str, str] = {}

    def call(self, digest: str) -> KernelCall | None:
        """The recorded call of a kernel; None if it was not made, or cannot be recorded."""
        with self._lock:
            return self._kept.get(digest)

    def count(self, digest: str) -> int:
        """Number of calls of a kernel that were made, on all devices of its mesh."""
        with self._lock:
            return self._counts[digest]

    def left_out(self, digest: str) -> str | None:
        """Reason why a call of a kernel was not recorded; None if there is none."""
        with self._lock:
            if begun := self._begun.get(digest):
                came = ", ".join(map(str, sorted(begun[0])))
                return f"of the devices of its mesh, only {came} called it"
            return self._refused.get(digest)

    def refuse(self, digest: str, reason: str) -> None:
        """Record why calls of a kernel cannot be recorded."""
        with self._lock:
            self._refused.setdefault(digest, reason)

    def called(self, digest: str, device: int, count: int, operands: Operands) -> None:
        """Take the call of one device of a mesh; a device makes its calls in order.

        Args:
          device: its number in the mesh.
          count: number of devices.
        """
        with self._lock:
            begun = self._begun.setdefault(digest, [])
            gathered = next((call for call in begun if device not in call), None)
            if gathered is None:
                gathered = {}
                begun.append(gathered)
            gathered[device] = operands
            if len(gathered) < count:
                return
            begun.remove(gathered)
            self._counts[digest] += 1
            if self._counts[digest] == self._number:
                self._kept[digest] = tuple(gathered[i] for i in range(count))


_recorders: ActiveStack[CallRecorder] = ActiveStack()


def recording(recorder: CallRecorder) -> contextlib.AbstractContextManager[None]:
    """Record the calls of kernels that are lowered in this context, in any thread."""
    return _recorders.adding(recorder)


def is_active() -> bool:
    """Return whether any recorder is active."""
    return bool(_recorders)


def emit(context: Any, nodes: Sequence[Any], digest: str) -> None:
    """Add a callback with the operands of the kernel that is being lowered, for each recorder."""
    if not _recorders or context.module_context.get_backend(optional=True) is None:
        return
    mesh = meshes.sizes(meshes.mesh_of(context))
    reason = _why_not(context)
    for recorder in _recorders:
        if reason is not None:
            recorder.refuse(digest, reason)
            continue
        record = _recorded(recorder, digest, math.prod(mesh.values()))
        device = inline.lowered(
            context, lambda: [meshes.device_number(mesh)], (), [meshes.DEVICE_NUMBER], ()
        )
        avals = [meshes.DEVICE_NUMBER, *map(jax_core.physical_aval, context.avals_in)]
        observe.call_back(context, record, [*device, *nodes], avals)


def _recorded(recorder: CallRecorder, digest: str, count: int) -> Callable[..., tuple[()]]:
    def record(device: Any, *arrays: Any) -> tuple[()]:
        def lose(problem: Exception) -> None:
            recorder.refuse(digest, str(problem))

        with guarded("hook", "recording a call of a kernel", lose):
            # The runtime reuses the memory behind a callback's arrays.
            operands = tuple(np.array(array, copy=True) for array in arrays)
            recorder.called(digest, int(device), count, operands)
        return ()

    return record


def _why_not(context: Any) -> str | None:
    """Reason why the calls of a kernel cannot be replayed separately; None if they can."""
    if meshes.is_partitioned(context):
        return meshes.PARTITIONED
    avals = (*context.avals_in, *context.avals_out)
    if any(jax.numpy.issubdtype(aval.dtype, pallas_core.semaphore_dtype) for aval in avals):
        return "it passes semaphores to or from another kernel"
    for aval in context.avals_in:
        dtype = getattr(aval, "dtype", None)
        is_key = dtype is not None and jax.numpy.issubdtype(dtype, jax.dtypes.prng_key)
        if not isinstance(dtype, np.dtype) and not is_key:
            return f"an operand of type {aval.str_short()} cannot be kept"
    return None

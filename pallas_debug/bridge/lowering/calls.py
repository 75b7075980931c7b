"""Recorder of kernel calls with their arrays, to replay them without the program.

While a recorder is active, a callback before each kernel passes its operands to the host. Of calls
that differ only in floats, only one is kept: integers and bools decide which memory a kernel
accesses.

A kernel under `shard_map` is called by each device of its mesh. These calls count as one, which is
kept once all devices have made it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import threading
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
from pallas_debug.quantities import size_text

Operands = tuple[np.ndarray[Any, Any], ...]

KernelCall = tuple[Operands, ...]
"""Operands of each device of the kernel's mesh, in its order; one without a mesh."""

MAX_CALLS = 8
"""Maximum number of calls that are kept per kernel."""

MAX_BYTES = 1 << 30
"""Maximum total bytes of the arrays that are kept."""


class CallRecorder:
    """Calls of a program's kernels, by digest of the kernel. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, list[KernelCall]] = {}
        self._begun: dict[str, list[dict[int, Operands]]] = {}
        self._known: dict[str, set[bytes]] = {}
        self._left_out: dict[str, str] = {}
        self._bytes = 0

    def calls(self, digest: str) -> Sequence[KernelCall]:
        """Recorded calls of a kernel, oldest first."""
        with self._lock:
            return tuple(self._calls.get(digest, ()))

    def left_out(self, digest: str) -> str | None:
        """Reason why calls of a kernel were not recorded; None if all were, or there were none."""
        with self._lock:
            known, kept = len(self._known.get(digest, ())), len(self._calls.get(digest, ()))
            reason = self._left_out.get(digest)
            if reason is None and self._begun.get(digest):
                came = ", ".join(map(str, sorted(self._begun[digest][0])))
                reason = f"of the devices of its mesh, only {came} called it"
        if reason is not None and kept < known:
            return f"{known - kept} of {known} calls that differ in integers: {reason}"
        return reason

    def refuse(self, digest: str, reason: str) -> None:
        """Record why calls of a kernel cannot be recorded."""
        with self._lock:
            self._left_out.setdefault(digest, reason)

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
        self.record(digest, tuple(gathered[i] for i in range(count)))

    def record(self, digest: str, call: KernelCall) -> None:
        """Keep a call, unless one with the same integers is known, or the limits are reached."""
        integers = _integers(call)
        size = sum(array.nbytes for operands in call for array in operands)
        with self._lock:
            known = self._known.setdefault(digest, set())
            if integers in known:
                return
            known.add(integers)
            calls = self._calls.setdefault(digest, [])
            if len(calls) >= MAX_CALLS:
                self._left_out.setdefault(digest, f"only the first {MAX_CALLS} are kept")
            elif self._bytes + size > MAX_BYTES:
                limit = size_text(MAX_BYTES)
                self._left_out.setdefault(digest, f"the arrays of all calls exceed {limit}")
            else:
                self._bytes += size
                calls.append(call)


def _integers(call: KernelCall) -> bytes:
    digest = hashlib.sha256()
    for array in itertools.chain(*call):
        if array.dtype.kind in "biu" or "int" in array.dtype.name:
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.digest()


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


def is_key(dtype: Any) -> bool:
    """Return whether an operand's elements are random keys, which are kept as their integers."""
    return dtype is not None and bool(jax.numpy.issubdtype(dtype, jax.dtypes.prng_key))


PASSES_SEMAPHORES = (
    "it passes semaphores to or from another kernel, but a script's calls are judged one by one; "
    "verify a function that calls both kernels, MODULE:FUNCTION"
)


def _why_not(context: Any) -> str | None:
    """Reason why the calls of a kernel cannot be replayed separately; None if they can."""
    if meshes.is_partitioned(context):
        return meshes.PARTITIONED
    avals = (*context.avals_in, *context.avals_out)
    if any(jax.numpy.issubdtype(aval.dtype, pallas_core.semaphore_dtype) for aval in avals):
        return PASSES_SEMAPHORES
    for aval in context.avals_in:
        dtype = getattr(aval, "dtype", None)
        if not isinstance(dtype, np.dtype) and not is_key(dtype):
            return f"an operand of type {aval.str_short()} cannot be kept"
    return None

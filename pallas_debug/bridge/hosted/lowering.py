"""Lowering of a kernel to a host callback, which passes its operands to a `KernelHost`.

The callback receives numpy arrays, and does not use the client whose program is waiting: anything
that the host evaluates with jax runs on a separate client (`client.py`). It therefore cannot wait
for a thread that is itself waiting for the callback.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from jax import lax

from pallas_debug import defaults
from pallas_debug.bridge import inline
from pallas_debug.bridge.active import ActiveStack
from pallas_debug.bridge.capture import capture, meshes
from pallas_debug.bridge.hosted import launched
from pallas_debug.bridge.hosted.meeting import Meeting
from pallas_debug.bridge.jaxcompat import dtypes, jax_core
from pallas_debug.bridge.jaxprs.params import gpu_backend, name_of
from pallas_debug.errors import MachineError, PallasDebugError
from pallas_debug.guards import problem_of

Array = np.ndarray[Any, Any]
Rule = Callable[..., Any]


class NotPrepared(Exception):
    """Failure of our own before a kernel runs, so that it may still run elsewhere.

    Attributes:
      problem: what to report; None if it is reported already.
    """

    def __init__(self, problem: PallasDebugError | None) -> None:
        super().__init__(str(problem))
        self.problem = problem


INSTEAD = "in HLO interpret mode without being judged"
"""How a kernel runs at which pallas-debug itself has failed."""

UNJUDGED = "on the kernel machine without being judged"
"""How a kernel runs that the sanitizer cannot judge."""

MAX_DEVICES = 32
"""Maximum number of devices of a mesh whose kernels are run together."""


class KernelHost(Protocol):
    """Host that runs kernels: the kernel machine, which is in a package above this one."""

    def prepare(self, captured: capture.Capture, *, is_sanitized: bool) -> Any:
        """Decode a kernel, at lowering.

        Args:
          is_sanitized: whether its runs are to be judged.

        Raises:
          MachineError: the kernel cannot be run.
        """

    def refused(self, kernel: str, error: MachineError, *, runs: str | None) -> None:
        """Handle a kernel that the host cannot run; `runs` says how it runs instead, if at all."""

    def communicates(self, prepared: Any) -> bool:
        """Return whether the devices of its mesh have to run the kernel together."""

    def run(
        self, prepared: Any, arrays: Sequence[Sequence[Array]], first: int
    ) -> list[list[Array]]:
        """Run a kernel.

        Args:
          prepared: result of `prepare`.
          arrays: for each device, its operands, with semaphores and keys as the numbers that
            represent them in a program. They are valid until this returns.
          first: number of the first of these devices in the mesh.

        Returns:
          For each device, its results, also as numbers.
        """


_hosts: ActiveStack[KernelHost] = ActiveStack()
_running = threading.RLock()


def hosting(host: KernelHost) -> contextlib.AbstractContextManager[None]:
    """Run kernels on this host in mode `machine`, in any thread; the innermost host is used."""
    return _hosts.adding(host)


def has_host() -> bool:
    """Return whether there is an active host."""
    return bool(_hosts)


def lowering(
    rule: Rule,
    params: Mapping[str, Any],
    ran: Callable[..., None],
    *,
    is_sanitized: bool = False,
) -> Rule:
    """Return a lowering rule that calls back to the host.

    A kernel that the host can run but not judge is run all the same.

    Args:
      rule: jax's own rule, for absent platforms, for which the kernel is only inspected.
      params: parameters of the kernel.
      ran: called when the kernel has run to its end, with the sizes of its grid that were passed.
      is_sanitized: whether its runs are to be judged.
    """
    primitive = "pallas_call" if "grid_mapping" in params else "mpmd_map"

    def lower(context: Any, *nodes: Any) -> Any:
        if context.module_context.get_backend(optional=True) is None:
            return rule(context, *nodes, **params)
        host = _hosts.innermost
        assert host is not None
        name, doing = name_of(params), "capturing"  # as the session has done before
        try:
            _check(context, params)
            captured = capture.capture(primitive, context, dict(params))
            doing = "preparing"
            decoded = _prepare(host, captured, is_sanitized=is_sanitized)
        except MachineError as error:
            advised = _advised(error, params)
            host.refused(name, advised, runs=None)
            raise advised from error
        except PallasDebugError:
            raise
        except Exception as error:
            problem = problem_of(error, "capture", f"{doing} kernel `{name}`")
            if is_sanitized and doing == "preparing":
                host.refused(name, MachineError(str(problem)), runs=INSTEAD)
            raise NotPrepared(problem if doing == "preparing" else None) from error
        return _Hosted(host, decoded, captured, ran).lower(context, nodes)

    return lower


def _prepare(host: KernelHost, captured: capture.Capture, *, is_sanitized: bool) -> Any:
    try:
        return host.prepare(captured, is_sanitized=is_sanitized)
    except MachineError as error:
        if not is_sanitized:
            raise
        decoded = host.prepare(captured, is_sanitized=False)
        host.refused(captured.kernel.name, error, runs=UNJUDGED)
        return decoded


def _advised(error: MachineError, params: Mapping[str, Any]) -> MachineError:
    """Add the modes that may run a kernel to the reason why the machine does not."""
    modes = {None: "hlo|tpu", "Triton": "hlo", "Mosaic GPU": "gpu"}[gpu_backend(params)]
    advised = MachineError(
        f"{error}. One of jax's interpreters may run it: --pallas-interpret={modes}, "
        f'pallas_debug.interpret("{modes.partition("|")[0]}")'
    )
    advised.where = error.where
    return advised


def _check(context: Any, params: Mapping[str, Any]) -> None:
    name = name_of(params)
    mesh = meshes.mesh_of(context)
    if mesh is None:
        return
    if automatic := meshes.automatic_axes(context):
        raise MachineError(
            f"kernel `{name}` runs in a mesh whose {', '.join(automatic)} is partitioned by jax, "
            "not by `shard_map`"
        )
    if mesh.size > MAX_DEVICES:
        raise MachineError(
            f"kernel `{name}` runs on {mesh.size} devices, but the kernel machine simulates at "
            f"most {MAX_DEVICES} together; use a smaller mesh"
        )


class _Hosted:
    """A kernel in a program."""

    def __init__(
        self,
        host: KernelHost,
        prepared: Any,
        captured: capture.Capture,
        ran: Callable[..., None],
    ) -> None:
        self._host = host
        self._prepared = prepared
        self._ran = ran
        self._name = captured.kernel.name
        self._params = captured.params
        self._mesh = captured.kernel.mesh
        self._meeting: Meeting | None = None
        count = math.prod(self._mesh.values())
        if count > 1 and host.communicates(prepared):
            self._meeting = Meeting(captured.kernel.name, count)

    def lower(self, context: Any, nodes: Sequence[Any]) -> Any:
        given = list(map(_Carried, context.avals_in))
        returned = [_Carried(aval, is_result=True) for aval in context.avals_out]

        def before(*arrays: Any) -> Any:
            numbers = [meshes.device_number(self._mesh)]
            return [*numbers, *(g.to_host(a) for g, a in zip(given, arrays, strict=True))]

        def after(*arrays: Any) -> Any:
            return [r.from_host(a) for r, a in zip(returned, arrays, strict=True)]

        avals_in, avals_out = [g.aval for g in given], [r.aval for r in returned]
        operand_avals = [meshes.DEVICE_NUMBER, *(g.host for g in given)]
        operands = inline.lowered(context, before, avals_in, operand_avals, nodes)
        result_avals = [r.host for r in returned]

        def call(device: Any, *arrays: Any) -> tuple[Array, ...]:
            values = [g.received(a) for g, a in zip(given, arrays, strict=True)]
            results = self._call(int(device), values)
            return tuple(r.sent(a) for r, a in zip(returned, results, strict=True))

        results = inline.called_back(context, call, operands, operand_avals, result_avals)
        return inline.lowered(context, after, result_avals, avals_out, results)

    def _call(self, device: int, arrays: Sequence[Array]) -> Sequence[Array]:
        host = _hosts.innermost or self._host  # jax keeps programs beyond a session

        def run(of_all: Sequence[Sequence[Array]], first: int) -> list[list[Array]]:
            with _running:
                return host.run(self._prepared, of_all, first)

        results: Sequence[Array]
        try:
            if self._meeting is None:
                (results,) = run([arrays], device)
            else:
                results = self._meeting.join(
                    device, arrays, lambda of_all: run(of_all, 0), patience=defaults.HANG_AFTER
                )
        except MachineError as error:
            advised = _advised(error, self._params)
            host.refused(self._name, advised, runs=None)
            raise advised from error
        self._ran(*arrays[: launched.num_bounds(self._params)])
        return results


class _Carried:
    """An array that passes between a program and the callback.

    The callback rejects elements smaller than a byte. A result with 64-bit elements is returned as
    bytes, because jax would narrow them: it decides that by a setting of the thread, and the
    callback runs in another thread.
    """

    def __init__(self, aval: Any, *, is_result: bool = False) -> None:
        # Without its memory space and varying axes. In a program, a semaphore is a number, and a
        # key of the TPU two numbers.
        self.aval = jax_core.physical_aval(jax_core.ShapedArray(aval.shape, aval.dtype))
        self.host = self.aval
        self._dtype = np.dtype(self.aval.dtype)
        bits = dtypes.itemsize_bits(self._dtype)
        self._is_packed = bits < 8 and self._dtype.kind != "b"
        self._is_wide = is_result and bits == 64 and self._dtype.kind in "iuf"
        if self._is_packed:
            self.host = jax_core.ShapedArray(aval.shape, np.dtype(np.int8))
        elif self._is_wide:
            self.host = jax_core.ShapedArray((*aval.shape, 8), np.dtype(np.uint8))

    def to_host(self, array: Any) -> Any:
        return array.astype(self.host.dtype) if self._is_packed else array

    def received(self, array: Any) -> Array:
        return np.asarray(array).astype(self._dtype) if self._is_packed else np.asarray(array)

    def sent(self, array: Array) -> Array:
        # Counts of semaphores are 64-bit numbers in the machine.
        array = np.ascontiguousarray(array, self._dtype).reshape(self.aval.shape)
        if self._is_wide:
            return array[..., None].view(np.uint8)
        return array.astype(np.int8) if self._is_packed else array

    def from_host(self, array: Any) -> Any:
        if self._is_wide:
            return lax.bitcast_convert_type(array, self._dtype)
        return array.astype(self._dtype) if self._is_packed else array

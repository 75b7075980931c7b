"""`pallas_debug.compile`: a function compiled for a TPU, with switches such as the log recorder."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, ParamSpec, TypeVar, cast

from pallas_debug import defaults
from pallas_debug.bridge import platform, versions
from pallas_debug.bridge.lowering import executable, trace
from pallas_debug.compiler import switches, targets
from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.guards import check_function
from pallas_debug.tracebacks import WithoutOurFrames

P = ParamSpec("P")
R = TypeVar("R")


def compile(
    function: Callable[P, R],
    /,
    *,
    log_recorder: bool = False,
    bounds_checks: bool = False,
    poison_vmem: bool = False,
    transpose_trace: bool = False,
    poison_buffers: bool = False,
    assertions: bool = False,
    chip: str | None = None,
    stages: object = None,
) -> Compiled[P, R]:
    """Compile `function` for the TPU of this host, with these switches.

        attention = pallas_debug.compile(attention, log_recorder=True, assertions=True)
        attention(q, k, v)

    The first call with given argument shapes compiles, as with `jax.jit`; later calls reuse the
    executable. Arrays are traced; all other arguments are part of the program.

    On a host without a TPU, calling the result raises `CannotRunError`. `lower(...)` still returns
    the program, `pallas_debug.dump(function, ..., switches=...)` compiles its kernels and saves
    every stage, and `pallas_debug.interpret` runs them.

    Args:
      function: a function that calls kernels, jitted or not.
      log_recorder: show the output of `pl.debug_print`.
      bounds_checks: halt the device at a slice, load or store outside its buffer.
      poison_vmem: fill fresh VMEM with a pattern.
      transpose_trace: trace transposes for the profiler.
      poison_buffers: initialise buffers of `pl.run_scoped` with NaN, or with the smallest integer.
      assertions: halt the device at a `pl.debug_check` that fails.
      chip: target whose chip is reported to code that queries it, on hosts without a TPU; v5e by
        default.
      stages: not supported, because libtpu reads the flags that write stages only once per process,
        before this call. Pass them to `pallas_debug.dump` instead.

    Returns:
      A function with the same arguments, and with methods `lower` and `compiled_for`.

    Raises:
      UnknownTargetError: an unknown chip.
      UsageError: `stages` is given.
    """
    check_function("pallas_debug.compile", function)
    if stages is not None:
        raise UsageError(_no_stages(function, stages))
    given = {
        "log_recorder": log_recorder,
        "bounds_checks": bounds_checks,
        "poison_vmem": poison_vmem,
        "transpose_trace": transpose_trace,
        "poison_buffers": poison_buffers,
        "assertions": assertions,
    }
    chosen = switches.parse(name for name, is_on in given.items() if is_on)
    return Compiled(function, switches=chosen, chip=chip or defaults.CHIP)


def _no_stages(function: Callable[..., object], stages: object) -> str:
    name = getattr(function, "__name__", repr(function))
    return (
        f"pallas_debug.compile cannot write stages ({stages!r}): libtpu reads the flags for them "
        "once per process, when it is loaded, and compile uses the libtpu of this process. To "
        f"write the stages from a process of their own: "
        f"pallas_debug.dump({name}, ..., stages={stages!r})."
    )


class Compiled(Generic[P, R]):
    """Compiled function, as returned by `compile`; `switches` are the names of enabled switches."""

    def __init__(
        self, function: Callable[P, R], *, switches: tuple[str, ...] = (), chip: str = defaults.CHIP
    ) -> None:
        functools.update_wrapper(self, function)
        self.switches = switches
        self._function = function
        self._chip = targets.resolve(chip)
        self._lock = threading.Lock()
        self._executables: dict[Hashable, Any] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function on the TPU of this host.

        Raises:
          CannotRunError: there is no TPU, or its compiler rejects a switch.
          UsageError: called within jit, vmap or grad.
        """
        with WithoutOurFrames():
            if trace.is_traced((args, kwargs)):
                raise UsageError(
                    f"{self._name} is compiled by pallas_debug.compile and cannot be traced by "
                    "jit, vmap or grad. Put it outside of them, as in compile(jax.vmap(f))."
                )
            if not platform.has_tpu():
                raise CannotRunError(self._no_tpu("call"))
            call = executable.call_of(args, kwargs)
            return cast(R, self._executable(call)(*call.arrays))

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return the program for these arguments, as passed to the compiler (`jax.stages.Lowered`).

        Arguments may be abstract. The program is lowered for a TPU even if there is none.
        """
        return self._lowered(executable.call_of(args, kwargs))

    def compiled_for(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return the executable (`jax.stages.Compiled`), which takes only the arrays.

        Arguments may be abstract, with a sharding that determines the device to compile for,
        including one from `jax.experimental.topologies`.

        Raises:
          CannotRunError: there is no TPU and no argument is on one, or the compiler rejects a
            switch.
        """
        call = executable.call_of(args, kwargs)
        if not platform.has_tpu() and call.device_kind() is None:
            raise CannotRunError(self._no_tpu("compile"))
        return self._executable(call)

    def _executable(self, call: executable.CallArguments) -> Any:
        key = call.key()
        with self._lock:
            found = self._executables.get(key)
            if found is None:
                found = self._executables[key] = self._compile(call)
        return found

    def _compile(self, call: executable.CallArguments) -> Any:
        lowered = self._lowered(call)
        try:
            return lowered.compile(dict(switches.compile_options(self.switches)))
        except Exception as error:
            refused = switches.refusal(str(error), versions.installed())
            if refused is None:
                raise
            raise CannotRunError(refused) from error

    def _lowered(self, call: executable.CallArguments) -> Any:
        kind = call.device_kind()
        stand_in = targets.of_device(kind) if kind else None
        return executable.lowered(
            self._function,
            call,
            settings=switches.lowering_settings(self.switches),
            chip_of=None if platform.has_tpu() else stand_in or self._chip,
        )

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", repr(self._function))

    def _no_tpu(self, verb: str) -> str:
        wanted = f", switches={','.join(self.switches)!r}" if self.switches else ""
        return (
            f"there is no TPU here to {verb} {self._name} {'on' if verb == 'call' else 'for'}. "
            f"To compile its kernels and keep every stage: "
            f"pallas_debug.dump({self._name}, ...{wanted}). To run them: "
            f"pallas_debug.interpret({self._name})(...)."
        )

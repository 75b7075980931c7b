"""`pallas_debug.compile`: a function compiled for a TPU, with switches such as the log recorder."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar, cast

from pallas_debug import defaults
from pallas_debug.bridge import platform, versions
from pallas_debug.bridge.lowering import executable, trace
from pallas_debug.bridge.lowering.lower import with_settings
from pallas_debug.compiler import switches as switches_of
from pallas_debug.compiler import targets
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

    Returns:
      A function with the same arguments, and with a method `lower`.

    Raises:
      UnknownTargetError: an unknown chip.
    """
    check_function("pallas_debug.compile", function)
    given = {
        "log_recorder": log_recorder,
        "bounds_checks": bounds_checks,
        "poison_vmem": poison_vmem,
        "transpose_trace": transpose_trace,
        "poison_buffers": poison_buffers,
        "assertions": assertions,
    }
    chosen = switches_of.parse(name for name, is_on in given.items() if is_on)
    return Compiled(function, switches=chosen, chip=chip or defaults.TARGET)


class Compiled(Generic[P, R]):
    """Compiled function, as returned by `compile`; `switches` are the names of enabled switches."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        switches: tuple[str, ...] = (),
        chip: str = defaults.TARGET,
    ) -> None:
        functools.update_wrapper(self, function)
        self.switches = switches
        self._function = function
        self._chip = targets.resolve(chip)
        self._programs = executable.Programs(function, switches_of.compile_options(switches))

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
                raise CannotRunError(self._no_tpu())
            program, arrays = self._programs.of(args, kwargs)
            with self._settings(), self._translating():
                return cast(R, program(*arrays))

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return the program for these arguments, as passed to the compiler (`jax.stages.Lowered`).

        Arguments may be abstract. The program is lowered for a TPU even if there is none.
        """
        program, arrays = self._programs.of(args, kwargs)
        kind = executable.device_kind(arrays)
        stand_in = targets.of_device(kind) if kind else None
        with self._settings():
            chip_of = None if platform.has_tpu() else stand_in or self._chip
            return executable.lowered(program, arrays, chip_of)

    def _settings(self) -> contextlib.AbstractContextManager[None]:
        return with_settings(switches_of.lowering_settings(self.switches))

    @contextlib.contextmanager
    def _translating(self) -> Iterator[None]:
        """Name the switch that the compiler rejects."""
        try:
            yield
        except Exception as error:
            refused = switches_of.refusal(str(error), versions.installed())
            if refused is None:
                raise
            raise CannotRunError(refused) from error

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", repr(self._function))

    def _no_tpu(self) -> str:
        wanted = f", switches={','.join(self.switches)!r}" if self.switches else ""
        return (
            f"there is no TPU here to call {self._name} on. To compile its kernels and keep every "
            f"stage: pallas_debug.dump({self._name}, ...{wanted}). To run them: "
            f"pallas_debug.interpret({self._name})(...)."
        )

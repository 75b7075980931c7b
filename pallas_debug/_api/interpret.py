"""`pallas_debug.interpret`: run kernels in one of jax's interpreters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from pallas_debug import defaults
from pallas_debug._api.debug import Debug
from pallas_debug.bridge.interpret.params import Mode
from pallas_debug.errors import UsageError
from pallas_debug.session import Options
from pallas_debug.tracebacks import WithoutOurFrames

P = ParamSpec("P")
R = TypeVar("R")


@overload
def interpret(
    function: Callable[P, R],
    /,
    *,
    chip: str = ...,
    pretend: bool = ...,
    **params: object,
) -> Callable[P, R]: ...


@overload
def interpret(
    mode: str | Mode = "auto",
    /,
    *,
    chip: str = ...,
    pretend: bool = ...,
    **params: object,
) -> Debug: ...


def interpret(
    mode: str | Mode | Callable[..., Any] = "auto",
    /,
    *,
    chip: str = defaults.TARGET,
    pretend: bool = False,
    **params: object,
) -> Any:
    """Interpret the kernels that a function calls, or those called within a `with` block.

        @pallas_debug.interpret
        def attention(q, k, v): ...

        @pallas_debug.interpret("tpu", detect_races=True)
        def attention(q, k, v): ...

        with pallas_debug.interpret("hlo"):
            attention(q, k, v)

        @pallas_debug.interpret(chip="v6e", pretend=True)
        def attention(q, k, v): ...  # jax.default_backend() == "tpu" in here

    Nothing is compiled or dumped. The mode applies in all threads and to all functions called, even
    if jitted before; when nested, the innermost mode applies. A kernel's failure is raised before
    the function or the block ends, and does not affect the next kernel.

    Args:
      mode: `auto` or `machine` for the kernel machine; `hlo`, `tpu` or `gpu` for one of jax's
        interpreters; `off` for the mode that the code selects.
        Parameters may follow: `"tpu,detect_races,num_cores_or_threads=2"`.
      chip: target whose chip is reported to code that queries it during tracing.
      pretend: whether jax's devices answer as `chip`, for code that runs its kernels only on a TPU;
        a no-op with an accelerator.
      **params: parameters of `pltpu.InterpretParams`, or of Mosaic GPU's.

    Raises:
      UsageError: an unknown mode or parameter, or a value of the wrong type.
      UnknownTargetError: an unknown chip.
    """
    if callable(mode):
        return interpret(chip=chip, pretend=pretend, **params)(mode)
    with WithoutOurFrames():
        asked = Mode.parse(mode)
        if twice := sorted(asked.params.keys() & params.keys()):
            raise UsageError(f"{twice[0]} is given twice: in {str(mode)!r} and as an argument")
    merged = Mode(asked.kind, {**asked.params, **params})
    options = Options(interpret=merged, chip=chip, pretend=pretend)
    return Debug(options, quiet=True, reports=False)

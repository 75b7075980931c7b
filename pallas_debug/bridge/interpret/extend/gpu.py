"""GPU interpret mode: for kernels of Mosaic GPU, in mode `auto`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pallas_debug.bridge.interpret.params import Mode
from pallas_debug.bridge.jaxprs.params import gpu_backend, name_of
from pallas_debug.errors import InterpretModeError, PallasDebugError, UsageError


def value_for(params: Mapping[str, Any]) -> Any:
    """Value for jax that runs a kernel of Mosaic GPU in GPU interpret mode.

    Returns None for other kernels, and if the installed jax has no such mode.
    """
    if gpu_backend(params) != "Mosaic GPU":
        return None
    try:
        return Mode("gpu").value()
    except UsageError:
        return None


def is_value(value: Any) -> bool:
    """Return whether a kernel's parameter `interpret` means GPU interpret mode."""
    return type(value).__name__ == "InterpretGPUParams"


def naming_mode(rule: Callable[..., Any], params: Mapping[str, Any]) -> Callable[..., Any]:
    """Lowering rule that names GPU interpret mode if that fails to trace a kernel.

    Args:
      rule: rule of that mode.
    """

    def lower(context: Any, *nodes: Any) -> Any:
        try:
            return rule(context, *nodes)
        except PallasDebugError:
            raise
        except Exception as error:
            message = ": ".join(filter(None, (type(error).__name__, str(error).partition("\n")[0])))
            raise InterpretModeError(
                f"kernel `{name_of(params)}` cannot be interpreted: GPU interpret mode fails to "
                f"trace it ({message}). Run it on a GPU"
            ) from error

    return lower

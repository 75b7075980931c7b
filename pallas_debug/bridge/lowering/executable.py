"""Jitted programs for `pallas_debug.compile`, with the compiler's options."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax

from pallas_debug.bridge import chip
from pallas_debug.bridge.jaxprs import arrays
from pallas_debug.errors import UsageError
from pallas_debug.model import Target


class Programs:
    """Jitted forms of a function: arrays are traced, all other arguments are constants."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, str]) -> None:
        self._function = function
        self._options = dict(options)
        self._made: dict[Hashable, Any] = {}

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Any]]:
        """Return the program for these arguments, and the arrays among them, which it takes.

        Raises:
          UsageError: a non-array argument is not hashable.
        """
        given, fixed, tree = arrays.separated(args, kwargs)
        key = (tree, fixed, tuple(map(type, fixed)))
        try:
            hash(key)
        except TypeError as error:
            raise UsageError(
                f"an argument can be neither traced nor compared: {error}. Pass arrays, numbers, "
                "strings or functions, or close over it."
            ) from error

        def program(*values: Any) -> Any:
            a, k = arrays.joined(values, fixed, tree)
            return self._function(*a, **k)

        program.__name__ = getattr(self._function, "__name__", "program")
        made = jax.jit(program, compiler_options=self._options)
        return self._made.setdefault(key, made), given


def lowered(program: Any, given: Sequence[Any], chip_of: Target | None) -> jax.stages.Lowered:
    """Lower a program.

    Args:
      chip_of: without a TPU, the target whose chip is presented to code that queries it.
    """
    if chip_of is None:
        return program.lower(*given)
    platforms = None if device_kind(given) else ("tpu",)
    with chip.answering(chip_of):
        return program.trace(*given).lower(lowering_platforms=platforms)


def device_kind(given: Sequence[Any]) -> str | None:
    """Device kind of the TPU, or its stand-in, on which an argument is; None for no TPU."""
    shardings = (getattr(array, "sharding", None) for array in given)
    devices = (device for s in shardings if s is not None for device in s.device_set)
    return next((str(d.device_kind) for d in devices if d.platform == "tpu"), None)

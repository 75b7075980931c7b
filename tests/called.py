"""Kernels whose function is their body."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

Function = Callable[..., Any]


def called(
    out: Any = None, *, like: int = -1, block: Any = None, prefetch: int = 0, **options: Any
) -> Callable[[Function], Function]:
    """Decorate the body of a kernel: make it a function that calls it.

    Keyword arguments of the function go to the body, and so choose a variant of it.

    Args:
      out: shape of the result, by default that of an argument.
      like: position of that argument.
      block: that of the only input and of the output.
      prefetch: how many of the first arguments are scalar prefetch.
      options: of `pallas_call`.
    """

    if block is not None:
        options |= {"in_specs": [block], "out_specs": block}
    if prefetch:
        of_grid = {"grid", "in_specs", "out_specs", "scratch_shapes"} & options.keys()
        taken = {name: options.pop(name) for name in of_grid}
        options["grid_spec"] = pltpu.PrefetchScalarGridSpec(prefetch, **taken)

    def wrap(body: Function) -> Function:
        @functools.wraps(body)
        def call(*args: Any, **variant: Any) -> Any:
            kernel = functools.partial(body, **variant) if variant else body
            shape = args[like] if out is None else out
            return pl.pallas_call(kernel, out_shape=shape, **options)(*args)

        # That of the body has references.
        call.__signature__ = inspect.signature(lambda *args: None)  # type: ignore[attr-defined]
        return call

    return wrap

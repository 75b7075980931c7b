"""Recorded calls of a kernel, made again on their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.lowering import hook
from pallas_debug.bridge.lowering.calls import Operands


def replay(captured: Capture, calls: Sequence[Operands]) -> Callable[[], list[Any]]:
    """Return a function that calls a kernel with each of these operands."""
    primitive = hook.PRIMITIVES[captured.kernel.primitive]
    params = {**captured.params, "interpret": False}  # the mode is chosen when it is bound
    params.pop("kernel_arg_transforms", None)  # present only under the GPU's interpreter

    def replayed() -> list[Any]:
        with jax.enable_x64(captured.enable_x64):
            kernel = jax.jit(lambda *operands: primitive.bind(*operands, **params))
            return [jax.block_until_ready(kernel(*operands)) for operands in calls]

    return replayed

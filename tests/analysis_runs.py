"""Kernels for the static analysis: calls over blocks of rows, and what is found in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.analysis import Analysis, analyze
from pallas_debug.bridge.capture.capture import Capture

F32 = jnp.float32
S = jax.ShapeDtypeStruct
Captures = Callable[..., list[Capture]]
HBM = pl.BlockSpec(memory_space=pl.ANY)
TILE = pltpu.VMEM((8, 128), F32)
DMA = pltpu.SemaphoreType.DMA
REGULAR = pltpu.SemaphoreType.REGULAR
X = S((32, 128), F32)


def rows(*grid: int, **options: Any) -> dict[str, Any]:
    """Input and output in blocks of eight rows, along the first dimension of the grid."""
    spec = pl.BlockSpec((8, 128), lambda i, *_: (i, 0))
    return {"grid": grid, "in_specs": [spec], "out_specs": spec, **options}


def look(
    captures: Captures, kernel: Callable[..., None], x: Any = X, out: Any = None, **options: Any
) -> Analysis:
    def run(x: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=out or S(x.shape, x.dtype), **options)(x)

    (captured,) = captures(run, (x,))
    return analyze(captured)


def kinds(analysis: Analysis) -> list[str]:
    return [finding.kind for finding in analysis.findings]

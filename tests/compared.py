"""Kernels and functions to compare, and the one finding of a comparison."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

import pallas_debug
from pallas_debug.model import Finding

F32, BF16 = jnp.float32, jnp.bfloat16
_NORMAL = np.random.default_rng(0).standard_normal((16, 256), np.float32)
X = jnp.asarray(_NORMAL + np.sign(_NORMAL))  # no element is so small that its error is allowed
BLOCK = pl.BlockSpec((8, 128), lambda i, j: (i, j))


def blocks(kernel: Callable[..., None], x: Any = X, **more: Any) -> Any:
    """Call a kernel on the four blocks of (8, 128) that `X` has."""
    given = {"grid": (2, 2), "in_specs": [BLOCK], "out_specs": BLOCK, **more}
    return pl.pallas_call(kernel, out_shape=x, **given)(x)


def double(x: jax.Array) -> jax.Array:
    return 2 * x


def copy_twice(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def at_block(i: int, j: int) -> Any:
    return (pl.program_id(0) == i) & (pl.program_id(1) == j)


def line_of(function: Callable[..., Any], text: str) -> int:
    """Number of the only line of a function that has this text."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [first + i for i, line in enumerate(lines) if text in line]
    return number


def one(function: Any, reference: Any, *args: Any, **options: Any) -> Finding:
    report = pallas_debug.compare(function, reference, *args, **options)
    (finding,) = report.findings
    assert not report.ok
    assert finding.kind == "ValueMismatch"
    assert finding.engines == ("reference",)
    return finding

"""Small kernels, and what `pallas_debug.check` finds in calls of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

import pallas_debug
from pallas_debug.model import Finding

F32 = jnp.float32
X = jnp.arange(16 * 128, dtype=F32).reshape(16, 128)
MODES = ("machine", "off")
"""The kernel machine, and checks inserted into kernels, which then run as `call` requests."""
ROWS = pl.BlockSpec((4, 128), lambda i: (i, 0))


def call(kernel: Callable[..., None], *args: Any, shape: Any = (16, 128), **kwargs: Any) -> Any:
    if not isinstance(shape, (list, jax.ShapeDtypeStruct)):
        shape = jax.ShapeDtypeStruct(shape, F32)
    kwargs.setdefault("interpret", True)
    return pl.pallas_call(kernel, out_shape=shape, **kwargs)(*args)


def checked(
    function: Callable[..., Any],
    *args: Any,
    errors: Any = "user,nan,index,div,hint",
    mode: str = "machine",
) -> tuple[tuple[Finding, ...], Any]:
    report, out = pallas_debug.check(function, errors, interpret=mode)(*args)
    assert report.not_checked == ()
    return report.findings, out


def one(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Finding:
    (finding,), _ = checked(function, *args, **kwargs)
    return finding


def logs(x: jax.Array) -> jax.Array:
    """The logarithm of 0 … 15 less 6 in each row, of four blocks: six rows are NaN."""

    def logs(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.log(x_ref[...] - 6)

    rows = jnp.broadcast_to(x[:, :1] / 128, x.shape)
    return call(logs, rows, grid=(4,), in_specs=[ROWS], out_specs=ROWS)


def _log_less_one(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.log(x_ref[...].astype(o_ref.dtype) - 1)

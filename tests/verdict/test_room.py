"""A kernel that has no room in a chip's memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import pallas_debug
from pallas_debug.errors import KernelFault


def has_no_room(x: jax.Array, rows: int = 1024) -> jax.Array:
    def has_no_room(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    spec = pl.BlockSpec((rows, 4096), lambda i: (i, 0))
    grid = (x.shape[0] // rows,)
    return pl.pallas_call(has_no_room, out_shape=x, grid=grid, in_specs=[spec], out_specs=spec)(x)


def test_check_stops_before_it_runs() -> None:
    ran = []

    def called(x: jax.Array) -> jax.Array:
        y = has_no_room(x)
        ran.append(y)
        return y

    x = jnp.zeros((2048, 4096))
    with pytest.raises(KernelFault, match="VmemOverflow in kernel `has_no_room`") as caught:
        pallas_debug.check(called, "index")(x)
    assert caught.value.finding.targets == ("v4", "v5e", "v5p", "v6e", "tpu7x")
    assert ran == []


def test_check_judges_the_chip_that_it_is_told() -> None:
    def halves(x: jax.Array) -> jax.Array:
        return has_no_room(x, 320)

    x = jnp.zeros((640, 4096))
    report, _ = pallas_debug.check(halves, "index")(x)  # fits v6e
    assert report.ok
    with pytest.raises(KernelFault, match="VmemOverflow"):
        pallas_debug.check(halves, "index", chip="v5e")(x)

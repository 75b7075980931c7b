"""Smaller kernels that fail the same way."""

from __future__ import annotations

import ast
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge import unparse
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.lowering import smaller, trace
from pallas_debug.compiler import targets
from pallas_debug.errors import UsageError
from pallas_debug.reproduce.shrink import shrink
from pallas_debug.session import Options, Session

V5E = targets.resolve("v5e")
ROWS = pl.BlockSpec((8, 128), lambda i, j: (i, 0))


def captured(kernel: Any, dtype: Any = jnp.float32) -> Capture:
    def call(x: jax.Array) -> Any:
        scratch = [pltpu.VMEM((8, 128), jnp.float32)]
        out = jax.ShapeDtypeStruct(x.shape, jnp.float32)
        return pl.pallas_call(
            kernel, out_shape=out, grid=(4, 3), in_specs=[ROWS], out_specs=ROWS,
            scratch_shapes=scratch,
        )(x)  # fmt: skip

    with (
        Session(Options(targets=("v5e",), interpret="off")) as session,
        session.collecting() as found,
    ):
        trace.lower_for_kernels(call, (jax.ShapeDtypeStruct((32, 128), dtype),), {}, V5E)
    return found[0]


def summed(x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def add(_: Any, scale: jax.Array) -> jax.Array:
        acc_ref[...] += jnp.exp(x_ref[...]) * scale
        return scale + 1.0

    scale = lax.fori_loop(0, 5, add, 1.0)
    o_ref[...] = jnp.cumsum(acc_ref[...], axis=1) * scale


def half(x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
    acc_ref[...] = x_ref[...].astype(jnp.float32) + 1
    o_ref[...] = jnp.tanh(acc_ref[...])


@pytest.mark.slow
def test_what_does_not_matter_disappears() -> None:
    steps: list[str] = []
    kernel = captured(summed)
    found = shrink(kernel, V5E, seconds=300, report=steps.append)
    assert smaller.size(kernel) == 20
    assert smaller.size(found.captured) <= 4
    assert "reduced grid dimension 0 from 4 to 1: 20 equations" in steps
    assert "Unimplemented primitive in Pallas TPU lowering for tc: cumsum" in found.note
    program = unparse.program_of(found.captured)
    ast.parse(program)
    assert "cumsum" in program
    assert "lax.exp" not in program
    assert "grid=(1, 1)," in program


@pytest.mark.slow
def test_a_failure_of_the_compiler() -> None:
    found = shrink(captured(half, jnp.float16), V5E, seconds=300)
    program = unparse.program_of(found.captured)
    assert "Invalid vector type for load" in found.note
    assert "x_ref[...]" in program
    assert "tanh" not in program


@pytest.mark.slow
def test_a_kernel_that_compiles() -> None:
    with pytest.raises(UsageError, match="half compiles for v5e: there is nothing to shrink"):
        shrink(captured(half), V5E, seconds=60)


def test_the_time_limit() -> None:
    found = shrink(captured(summed), V5E, seconds=0.0)
    assert found.note.startswith(
        "Shrunk by pallas-debug from 20 equations to 20, in 0 successful steps of 0 tried; the time "
        "limit ended the search."
    )

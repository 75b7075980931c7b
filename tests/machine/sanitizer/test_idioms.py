"""What healthy kernels do on purpose, of which the sanitizer reports nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import found

F32, I32 = jnp.float32, jnp.int32
TILE = pltpu.VMEM((8, 128), F32)


def _rows(
    kernel: Any, x: jax.Array, *scratch: Any, grid: tuple[int, ...] = (2, 2), **more: Any
) -> Any:
    """A kernel that computes a block of rows in `grid[1]` steps."""
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((8 * grid[0], 128), x.dtype),
        grid=grid,
        in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k))],
        out_specs=pl.BlockSpec((8, 128), lambda i, k: (i, 0)),
        scratch_shapes=scratch,
        **more,
    )(x)


def one_step_of_several_stores(x: jax.Array) -> jax.Array:
    def kernel(x_ref, out_ref):
        k = pl.program_id(1)

        @pl.when(k == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        @pl.when(k == 1)
        def _select() -> None:
            out_ref[...] = x_ref[...]

    return _rows(kernel, x)


def scratch_masked_where_not_written(x: jax.Array) -> jax.Array:
    def kernel(x_ref, out_ref, part_ref):
        part_ref[0:4, :] = x_ref[0:4, :]
        row = lax.broadcasted_iota(I32, (8, 128), 0)
        out_ref[...] = jnp.where(row < 4, part_ref[...], 0.0)

    return _rows(kernel, x, TILE, grid=(4, 1))


def updated_in_place(x: jax.Array, *, copies: bool) -> jax.Array:
    """Double the even blocks in place; the others are copied, or left out by mistake."""

    def kernel(x_ref, out_ref):
        @pl.when(pl.program_id(0) % 2 == 0)
        def _double() -> None:
            out_ref[...] = x_ref[...] * 2

        @pl.when((pl.program_id(0) % 2 == 1) & copies)
        def _copy() -> None:
            out_ref[...] = x_ref[...]

    spec = pl.BlockSpec((8, 256), lambda i: (i, 0))
    return pl.pallas_call(
        kernel, out_shape=x, grid=(5,), in_specs=[spec], out_specs=spec,
        input_output_aliases={0: 0},
    )(x)  # fmt: skip


def updated_in_place_with_copies(x: jax.Array) -> jax.Array:
    return updated_in_place(x, copies=True)


HEALTHY = (
    one_step_of_several_stores,
    scratch_masked_where_not_written,
    updated_in_place_with_copies,
)


@pytest.mark.parametrize("function", HEALTHY, ids=lambda function: function.__name__)
def test_healthy_idiom(function: Callable[[jax.Array], jax.Array]) -> None:
    rng = np.random.default_rng(0)
    assert not found(function, rng.standard_normal((40, 256)).astype(np.float32))


def test_a_block_of_an_aliased_output_that_is_not_stored_is_overwritten() -> None:
    x = np.ones((40, 256), np.float32)
    (finding,) = found(lambda x: updated_in_place(x, copies=False), x)
    assert (finding.kind, finding.operand) == ("OutputNotWritten", "out_ref")
    assert finding.message == (
        "out_ref[8:16, 0:256] and out_ref[24:32, 0:256] are never written, and hold whatever VMEM "
        "held before, not the input that shares memory with out_ref: 4,096 of 10,240 elements"
    )
    assert finding.advice == "copy the input's block to out_ref wherever nothing else is stored"

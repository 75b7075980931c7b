"""Outputs that are not all written, from programs of others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug


def both_panels(x: jax.Array) -> jax.Array:
    def panel(start):
        def kernel(x_ref, *refs):
            *_, out_ref, rows_ref, sem = refs
            columns = pl.ds(start, 128)
            pltpu.async_copy(x_ref.at[:, columns], rows_ref, sem).wait()
            rows_ref[...] *= 2
            pltpu.async_copy(rows_ref, out_ref.at[:, columns], sem).wait()

        return kernel

    hbm = pl.BlockSpec(memory_space=pl.ANY)
    scratch = [pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA]
    left = pl.pallas_call(
        panel(0), out_shape=x, in_specs=[hbm], out_specs=hbm, scratch_shapes=scratch
    )(x)
    return pl.pallas_call(
        panel(128),
        out_shape=x,
        in_specs=[hbm, hbm],
        out_specs=hbm,
        scratch_shapes=scratch,
        input_output_aliases={1: 0},
    )(x, left)


def test_an_array_that_a_later_kernel_completes_through_an_alias() -> None:
    """From fermix: unwritten elements count if they change a result of the function."""
    verdict = pallas_debug.verify(
        both_panels,
        np.ones((8, 256), np.float32),
        targets="v5e",
        engines="static,machine",
        reference=lambda x: x * 2,
    )
    assert not [finding for finding in verdict.findings if finding.counts], str(verdict)


def left_panel_only(x: jax.Array) -> jax.Array:
    def kernel(x_ref, out_ref, rows_ref, sem):
        columns = pl.ds(0, 128)
        pltpu.async_copy(x_ref.at[:, columns], rows_ref, sem).wait()
        pltpu.async_copy(rows_ref, out_ref.at[:, columns], sem).wait()

    hbm = pl.BlockSpec(memory_space=pl.ANY)
    scratch = [pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA]
    return pl.pallas_call(
        kernel, out_shape=x, in_specs=[hbm], out_specs=hbm, scratch_shapes=scratch
    )(x)


def copy_whole_blocks(x: jax.Array) -> jax.Array:
    """From JAXBench, level1_56: the line that rounds down is that of the dimension at fault."""

    def copy(x_ref, out_ref):
        out_ref[...] = x_ref[...]

    rows, columns = 16, 512
    grid_rows = x.shape[0] // rows
    grid_columns = x.shape[1] // columns
    block = pl.BlockSpec((rows, columns), lambda i, j: (i, j))
    return pl.pallas_call(
        copy, out_shape=x, grid=(grid_rows, grid_columns), in_specs=[block], out_specs=block
    )(x)


def scaled_too_much(x: jax.Array) -> jax.Array:
    """From JAXBench, level2_48: each block is wrong, and the grid leaves out the last one."""

    def scale(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 3

    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        scale, out_shape=x, grid=(x.shape[0] // 8,), in_specs=[rows], out_specs=rows
    )(x)

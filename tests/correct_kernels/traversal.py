"""Orders in which a grid visits blocks."""

import jax
import jax.numpy as jnp
import numpy as np
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import equals, normal

F32 = jnp.float32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
TILE = pltpu.VMEM((8, 128), F32)


@equals(lambda x: np.cumsum(x.reshape(4, 8, 128)[::-1], 0)[::-1].reshape(32, 128), normal(32, 128))
@called(grid=(4,), block=pl.BlockSpec((8, 128), lambda i: (3 - i, 0)), scratch_shapes=[TILE])
def suffix_sums_of_blocks(x_ref, out_ref, total_ref):
    """From the last block to the first."""

    @pl.when(pl.program_id(0) == 0)
    def _():
        total_ref[...] = jnp.zeros_like(total_ref)

    total_ref[...] += x_ref[...]
    out_ref[...] = total_ref[...]


@equals(lambda x: np.roll(x, -8, 0), normal(32, 128))
@called(
    grid=(4,), in_specs=[pl.BlockSpec((8, 128), lambda i: (lax.rem(i + 1, 4), 0))], out_specs=ROWS
)
def blocks_rolled_by_one(x_ref, out_ref):
    out_ref[...] = x_ref[...]


@equals(lambda x, y: jnp.dot(x, y, precision="highest"), normal(16, 384), normal(384, 256))
@called(
    jax.ShapeDtypeStruct((16, 256), F32),
    grid=(2, 2, 3),
    in_specs=[
        pl.BlockSpec((8, 128), lambda i, j, k: (i, k)),
        pl.BlockSpec((128, 128), lambda i, j, k: (k, j)),
    ],
    out_specs=pl.BlockSpec((8, 128), lambda i, j, k: (i, j)),
    compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
)
def sum_kept_in_the_output(x_ref, y_ref, out_ref):
    product = jnp.dot(x_ref[...], y_ref[...], precision="highest")

    @pl.when(pl.program_id(2) == 0)
    def _():
        out_ref[...] = product

    @pl.when(pl.program_id(2) > 0)
    def _():
        out_ref[...] += product


@equals(lambda x: x * 2, normal(8, 128))
@called(
    grid=(3,),
    block=pl.BlockSpec((8, 128), lambda i: (0, 0)),
    compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
)
def equal_values_from_parallel_points(x_ref, out_ref):
    out_ref[...] = x_ref[...] * 2


@equals(lambda x: (x - x.mean()) / x.std(), normal(32, 128))
@called(
    grid=(2, 4),
    in_specs=[pl.BlockSpec((8, 128), lambda phase, i: (i, 0))],
    out_specs=pl.BlockSpec((8, 128), lambda phase, i: (i * phase, 0)),
    scratch_shapes=[pltpu.SMEM((2,), F32)],
)
def statistics_then_normalisation(x_ref, out_ref, sums_ref):
    """Axis 0 is the phase: sums over all blocks, then the blocks again."""
    phase, i = pl.program_id(0), pl.program_id(1)

    @pl.when((phase == 0) & (i == 0))
    def _():
        sums_ref[0] = 0.0
        sums_ref[1] = 0.0

    @pl.when(phase == 0)
    def _():
        sums_ref[0] += jnp.sum(x_ref[...])
        sums_ref[1] += jnp.sum(x_ref[...] ** 2)

    @pl.when(phase == 1)
    def _():
        mean = sums_ref[0] / 4096
        variance = sums_ref[1] / 4096 - mean**2
        out_ref[...] = (x_ref[...] - mean) * lax.rsqrt(variance)


def snake(i, j):
    return i, jnp.where(i % 2 == 0, j, 3 - j)


@equals(lambda x: x * 2, normal(16, 512))
@called(grid=(2, 4), block=pl.BlockSpec((8, 128), snake))
def back_and_forth(x_ref, out_ref):
    """Each second row of blocks from the right to the left."""
    out_ref[...] = x_ref[...] * 2

"""Inputs, outputs and copies of which only a part is used."""

import jax
import jax.numpy as jnp
import numpy as np
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import equals, normal

F32 = jnp.float32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))


def _product(x, y):
    return jnp.dot(x, y, precision="highest")


@equals(lambda x, w: _product(x, w[1]), normal(32, 128), normal(4, 128, 128))
@called(
    like=0,
    grid=(4,),
    in_specs=[ROWS, pl.BlockSpec((1, 128, 128), lambda i: (1, 0, 0))],
    out_specs=ROWS,
)
def one_static_layer_of_stacked_weights(x_ref, w_ref, out_ref):
    out_ref[...] = jnp.dot(x_ref[...], w_ref[0], precision="highest")


@equals(lambda x: x.reshape(4, 2, 8, 128)[:, 0].reshape(32, 128), normal(64, 128))
@called(
    jax.ShapeDtypeStruct((32, 128), F32),
    grid=(4,),
    in_specs=[pl.BlockSpec((8, 128), lambda i: (2 * i, 0))],
    out_specs=ROWS,
)
def every_other_block(x_ref, out_ref):
    out_ref[...] = x_ref[...]


@equals(lambda x, bias: x + bias[:1], normal(32, 128), normal(8, 128))
@called(
    like=0, grid=(4,), in_specs=[ROWS, pl.BlockSpec((8, 128), lambda i: (0, 0))], out_specs=ROWS
)
def first_row_of_a_table(x_ref, bias_ref, out_ref):
    out_ref[...] = x_ref[...] + bias_ref[0:1, :]


@equals(lambda x, segments: x * 3, normal(16, 128), normal(16, 128))
@called(like=0, grid=(2,), in_specs=[ROWS, ROWS], out_specs=ROWS)
def argument_that_is_not_needed(x_ref, segments_ref, out_ref):
    """One signature for several variants of a kernel."""
    del segments_ref
    out_ref[...] = x_ref[...] * 3


@equals(lambda x: x / np.abs(x).max(1, keepdims=True), normal(16, 128))
def residuals_that_are_not_used(x):
    """As in a forward pass without a backward pass."""

    def kernel(x_ref, out_ref, largest_ref):
        largest = jnp.abs(x_ref[...]).max(1, keepdims=True)
        largest_ref[...] = jnp.broadcast_to(largest, (8, 128))
        out_ref[...] = x_ref[...] / largest

    out, _ = pl.pallas_call(
        kernel, out_shape=(x, x), grid=(2,), in_specs=[ROWS], out_specs=(ROWS, ROWS)
    )(x)
    return out


@equals(lambda x: x.sum(1, keepdims=True), normal(16, 128))
def first_column_of_a_wide_output(x):
    """Sums are kept in all lanes, or in one of them: the caller takes column 0."""

    def kernel(x_ref, out_ref):
        out_ref[...] = jnp.zeros_like(out_ref)
        out_ref[:, 0:1] = x_ref[...].sum(1, keepdims=True)

    sums = pl.pallas_call(kernel, out_shape=x, grid=(2,), in_specs=[ROWS], out_specs=ROWS)(x)
    return sums[:, :1]


@equals(lambda x: x + 1, normal(16, 128))
@called(scratch_shapes=[pltpu.VMEM((4, 8, 128), F32)])
def scratch_larger_than_needed(x_ref, out_ref, work_ref):
    """Sized for the largest configuration; this one uses two of its four rows of tiles."""
    work_ref[0] = x_ref[0:8, :] + 1
    work_ref[1] = x_ref[8:16, :] + 1
    out_ref[0:8, :] = work_ref[0]
    out_ref[8:16, :] = work_ref[1]

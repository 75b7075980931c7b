"""Inputs, outputs and copies of which only a part is used."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import equals, normal

F32 = jnp.float32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))


def _product(x, y):
    return jnp.dot(x, y, precision="highest")


@equals(lambda x, w: _product(x, w[1]), normal(32, 128), normal(4, 128, 128))
def one_static_layer_of_stacked_weights(x, weights):
    def kernel(x_ref, w_ref, out_ref):
        out_ref[...] = jnp.dot(x_ref[...], w_ref[0], precision="highest")

    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(4,),
        in_specs=[ROWS, pl.BlockSpec((1, 128, 128), lambda i: (1, 0, 0))],
        out_specs=ROWS,
    )(x, weights)


@equals(lambda x: x[:16] * 2, normal(64, 128))
def head_of_an_array(x):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    out = jax.ShapeDtypeStruct((16, 128), F32)
    return pl.pallas_call(kernel, out_shape=out, grid=(2,), in_specs=[ROWS], out_specs=ROWS)(x)


@equals(lambda x: x.reshape(4, 2, 8, 128)[:, 0].reshape(32, 128), normal(64, 128))
def every_other_block(x):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...]

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((32, 128), F32),
        grid=(4,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (2 * i, 0))],
        out_specs=ROWS,
    )(x)


@equals(lambda x, bias: x + bias[:1], normal(32, 128), normal(8, 128))
def first_row_of_a_table(x, bias):
    def kernel(x_ref, bias_ref, out_ref):
        out_ref[...] = x_ref[...] + bias_ref[0:1, :]

    first = pl.BlockSpec((8, 128), lambda i: (0, 0))
    return pl.pallas_call(kernel, out_shape=x, grid=(4,), in_specs=[ROWS, first], out_specs=ROWS)(
        x, bias
    )


@equals(lambda x, segments: x * 3, normal(16, 128), normal(16, 128))
def argument_that_is_not_needed(x, segments):
    """One signature for several variants of a kernel."""

    def kernel(x_ref, segments_ref, out_ref):
        del segments_ref
        out_ref[...] = x_ref[...] * 3

    return pl.pallas_call(kernel, out_shape=x, grid=(2,), in_specs=[ROWS, ROWS], out_specs=ROWS)(
        x, segments
    )


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


@equals(lambda x: x[:8] + x[16:24], normal(32, 128))
def copy_of_more_than_is_used(x):
    def kernel(x_ref, out_ref, rows_ref, sem):
        pltpu.async_copy(x_ref, rows_ref, sem).wait()
        out_ref[...] = rows_ref[0:8, :] + rows_ref[16:24, :]

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((8, 128), F32),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM((32, 128), F32), pltpu.SemaphoreType.DMA],
    )(x)


@equals(lambda x: x[:, :200].sum(1, keepdims=True), normal(8, 256))
def padded_columns_left_out(x):
    """The caller padded 200 columns to 256."""

    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[:, :200].sum(1, keepdims=True)

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8, 1), F32))(x)


@equals(lambda x: x + 1, normal(16, 128))
def scratch_larger_than_needed(x):
    """Sized for the largest configuration; this one uses two of its four rows of tiles."""

    def kernel(x_ref, out_ref, work_ref):
        work_ref[0] = x_ref[0:8, :] + 1
        work_ref[1] = x_ref[8:16, :] + 1
        out_ref[0:8, :] = work_ref[0]
        out_ref[8:16, :] = work_ref[1]

    return pl.pallas_call(kernel, out_shape=x, scratch_shapes=[pltpu.VMEM((4, 8, 128), F32)])(x)

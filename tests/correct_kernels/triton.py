"""Kernels for Triton."""

import jax
import jax.numpy as jnp
import numpy as np
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from .record import equals, integers, normal

PARAMS = plt.CompilerParams(num_warps=4)


@equals(lambda x, y: x + y, normal(100), normal(100) * 2)
@called(like=0, grid=(4,), compiler_params=PARAMS)
def masked_sum(x_ref, y_ref, out_ref):
    index = pl.program_id(0) * 32 + jnp.arange(32)
    mask = index < 100
    x = plt.load(x_ref.at[index], mask=mask, other=0.0)
    y = plt.load(y_ref.at[index], mask=mask, other=0.0)
    plt.store(out_ref.at[index], x + y, mask=mask)


def _softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@equals(_softmax, normal(4, 100))
@called(grid=(4,), compiler_params=PARAMS)
def masked_softmax(x_ref, out_ref):
    row, column = pl.program_id(0), jnp.arange(128)
    mask = column < 100
    x = plt.load(x_ref.at[row, column], mask=mask, other=-jnp.inf)
    e = jnp.exp(x - x.max())
    plt.store(out_ref.at[row, column], e / e.sum(), mask=mask)


@equals(lambda x: np.bincount(x, minlength=8).astype(np.int32), integers(0, 8, 64))
def histogram_by_atomics(x):
    def kernel(x_ref, _, out_ref):
        index = pl.program_id(0) * 16 + jnp.arange(16)
        plt.atomic_add(out_ref, (x_ref[index],), jnp.ones((16,), jnp.int32))

    zeros = jnp.zeros((8,), jnp.int32)
    return pl.pallas_call(
        kernel, out_shape=zeros, grid=(4,), input_output_aliases={1: 0}, compiler_params=PARAMS
    )(x, zeros)


@equals(lambda x, y: jnp.dot(x, y, precision="highest"), normal(32, 64), normal(64, 32))
@called(
    jax.ShapeDtypeStruct((32, 32), jnp.float32),
    grid=(2, 2),
    in_specs=[
        pl.BlockSpec((16, 64), lambda i, j: (i, 0)),
        pl.BlockSpec((64, 16), lambda i, j: (0, j)),
    ],
    out_specs=pl.BlockSpec((16, 16), lambda i, j: (i, j)),
    compiler_params=PARAMS,
)
def product_in_a_loop(x_ref, y_ref, out_ref):
    def add(k, acc):
        part = pl.ds(k * 16, 16)
        return acc + jnp.dot(x_ref[:, part], y_ref[part, :], precision="highest")

    out_ref[...] = jax.lax.fori_loop(0, 4, add, jnp.zeros((16, 16), jnp.float32))

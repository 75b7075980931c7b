"""Kernels for the lists of the terminal UI: one that compiles, and one for each way to fail."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def double_kernel(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
    o_ref[...] = x_ref[...] + x_ref[...]


def unaligned_kernel(start_ref: jax.Ref, x_ref: jax.Ref, o_ref: jax.Ref) -> None:
    start = start_ref[0]
    o_ref[...] = x_ref[:, pl.ds(start, 128)]


def running_kernel(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
    o_ref[...] = jnp.cumsum(x_ref[...], axis=0)


def double(x: jax.Array) -> jax.Array:
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    call = pl.pallas_call(
        double_kernel, out_shape=x, grid=(4,), in_specs=[block], out_specs=block, name="double"
    )
    return call(x)


def unaligned(start: jax.Array, x: jax.Array) -> jax.Array:
    smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    out = jax.ShapeDtypeStruct((8, 128), x.dtype)
    return pl.pallas_call(
        unaligned_kernel, out_shape=out, in_specs=[smem, pl.BlockSpec()], name="unaligned"
    )(start, x)


def running(x: jax.Array) -> jax.Array:
    return pl.pallas_call(running_kernel, out_shape=x, name="running")(x)

"""Loops that do not end."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from pallas_debug_kernels.broken import BrokenKernel, MachineFinding

X = (jax.ShapeDtypeStruct((8, 128), jnp.float32),)


def halves_nothing(x: jax.Array) -> jax.Array:
    def halves(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            count, size = state
            return count + 1, size  # the size stays as it is

        start = (jnp.float32(0), jnp.abs(x_ref[...]).max() + 4)
        count, _ = lax.while_loop(lambda state: state[1] > 1, step, start)  # FAULT
        out_ref[...] = x_ref[...] * count

    return pl.pallas_call(halves, out_shape=x)(x)


def halves_nothing_repaired(x: jax.Array) -> jax.Array:
    def halves(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            count, size = state
            return count + 1, size * 0.5

        start = (jnp.float32(0), jnp.abs(x_ref[...]).max() + 4)
        count, _ = lax.while_loop(lambda state: state[1] > 1, step, start)
        out_ref[...] = x_ref[...] * count

    return pl.pallas_call(halves, out_shape=x)(x)


KERNELS = (
    BrokenKernel(
        fault="EndlessLoop",
        summary="A loop waits for a value to become small, and its body leaves the value as it is.",
        function=halves_nothing,
        repaired=halves_nothing_repaired,
        reference=lambda x: x * jnp.ceil(jnp.log2(jnp.abs(x).max() + 4)),
        args=X,
        machine=MachineFinding(operand=None, grid_point=(), loop=(5,)),
    ),
)

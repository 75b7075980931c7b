"""Work that every grid step does again."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from .slow import SlowKernel

F32 = jnp.float32
ROWS, COLUMNS = 256, 128


def _angles() -> jax.Array:
    row = lax.broadcasted_iota(jnp.int32, (ROWS, COLUMNS), 0).astype(F32)
    column = lax.broadcasted_iota(jnp.int32, (ROWS, COLUMNS), 1).astype(F32)
    return row * jnp.exp(-0.07 * column)


def _all_steps(kernel: object, *arrays: jax.Array) -> jax.Array:
    """Every step works on the same blocks, so that computation decides."""
    whole = pl.BlockSpec((ROWS, COLUMNS), lambda i: (0, 0))
    return pl.pallas_call(
        kernel, out_shape=arrays[0], grid=(64,), in_specs=[whole] * len(arrays), out_specs=whole
    )(*arrays)


def cosines_in_every_step(x: jax.Array) -> jax.Array:
    """Multiplies a block by the same table, which is computed in every step."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        angles = _angles()
        out_ref[...] = x_ref[...] * jnp.cos(angles)  # SLOW

    return _all_steps(kernel, x)


def cosines_in_every_step_remedied(x: jax.Array, table: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, table_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * table_ref[...]

    return _all_steps(kernel, x, table)


KERNELS = (
    SlowKernel(
        advice="step-invariant",
        summary="A table of cosines that each grid step computes again.",
        function=cosines_in_every_step,
        remedied=cosines_in_every_step_remedied,
        rearrange=lambda x: (x, jnp.cos(_angles())),
        args=(jax.ShapeDtypeStruct((ROWS, COLUMNS), F32),),
        says=("each of the 64 grid steps", "of 128 KiB"),
    ),
)

"""Arithmetic on numbers of a table."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import BrokenKernel

F32, I32 = jnp.float32, jnp.int32


def _share(kernel: object, sizes: jax.Array, x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((24, 128), F32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(3,),
            in_specs=[pl.BlockSpec((8, 128), lambda i, *_: (i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i, *_: (i, 0)),
        ),
    )(sizes, x)


def search_that_does_not_narrow(ends: jax.Array, x: jax.Array) -> jax.Array:
    def search(ends_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        row = pl.program_id(0) * 8

        def step(between: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = between
            middle = (low + high) // 2
            is_after = ends_ref[middle] <= row
            # With high = low + 1 the middle is low, and low stays as it is.
            return jnp.where(is_after, middle, low), jnp.where(is_after, high, middle)

        start = (jnp.int32(0), jnp.int32(4))
        group, _ = lax.while_loop(lambda b: b[0] < b[1], step, start)  # FAULT
        out_ref[...] = x_ref[...] * group.astype(F32)

    return _share(search, ends, x)


def search_that_does_not_narrow_repaired(ends: jax.Array, x: jax.Array) -> jax.Array:
    def search(ends_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        row = pl.program_id(0) * 8

        def step(between: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = between
            middle = (low + high) // 2
            is_after = ends_ref[middle] <= row
            return jnp.where(is_after, middle + 1, low), jnp.where(is_after, high, middle)

        start = (jnp.int32(0), jnp.int32(4))
        group, _ = lax.while_loop(lambda b: b[0] < b[1], step, start)
        out_ref[...] = x_ref[...] * group.astype(F32)

    return _share(search, ends, x)


def search_reference(ends: jax.Array, x: jax.Array) -> jax.Array:
    groups = jnp.searchsorted(ends, jnp.arange(3) * 8, side="right")
    return x * jnp.repeat(groups, 8)[:, None].astype(F32)


X = jax.ShapeDtypeStruct((24, 128), F32)
KERNELS = (
    BrokenKernel(
        fault="EndlessLoop",
        summary="A binary search keeps its lower end, for some entries of the table.",
        function=search_that_does_not_narrow,
        repaired=search_that_does_not_narrow_repaired,
        reference=search_reference,
        args=(jax.ShapeDtypeStruct((5,), I32), X),
        values={0: [4, 8, 16, 24, 32]},
    ),
)

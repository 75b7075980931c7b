"""Arithmetic in more bits than the operands have."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from .slow import SlowKernel

F32, BF16 = jnp.float32, jnp.bfloat16


def _scores(kernel: object, q: jax.Array, k: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((q.shape[0], k.shape[1]), BF16),
        grid=(q.shape[0] // 128,),
        in_specs=[
            pl.BlockSpec((128, 256), lambda i: (i, 0)),
            pl.BlockSpec((256, 128), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((128, 128), lambda i: (i, 0)),
    )(q, k)


def upcast_before_product(q: jax.Array, k: jax.Array) -> jax.Array:
    """bf16 blocks are converted to f32 before they are multiplied."""

    def kernel(q_ref: jax.Ref, k_ref: jax.Ref, out_ref: jax.Ref) -> None:
        q = q_ref[...].astype(F32)
        k = k_ref[...].astype(F32)
        out = jnp.dot(q, k, precision=lax.Precision.HIGHEST)  # SLOW
        out_ref[...] = out.astype(BF16)

    return _scores(kernel, q, k)


def upcast_before_product_remedied(q: jax.Array, k: jax.Array) -> jax.Array:
    def kernel(q_ref: jax.Ref, k_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out = jnp.dot(q_ref[...], k_ref[...], preferred_element_type=F32)
        out_ref[...] = out.astype(BF16)

    return _scores(kernel, q, k)


def _smoothed(kernel: object, x: jax.Array) -> jax.Array:
    block = pl.BlockSpec((128, 512), lambda i: (i, 0))
    return pl.pallas_call(
        kernel, out_shape=x, grid=(x.shape[0] // 128,), in_specs=[block], out_specs=block
    )(x)


def rounded_in_between(x: jax.Array) -> jax.Array:
    """Each operation rounds its result to bf16, and the next one converts it back to f32."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...]
        for _ in range(24):
            x = (x.astype(F32) * 0.75 + 0.25).astype(BF16)  # SLOW
        out_ref[...] = x

    return _smoothed(kernel, x)


def rounded_in_between_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...].astype(F32)
        for _ in range(24):
            x = x * 0.75 + 0.25
        out_ref[...] = x.astype(BF16)

    return _smoothed(kernel, x)


KERNELS = (
    SlowKernel(
        advice="rounding",
        summary="Values that are rounded to bf16 and converted back between operations.",
        function=rounded_in_between,
        remedied=rounded_in_between_remedied,
        args=(jax.ShapeDtypeStruct((1024, 512), BF16),),
        says=("unless the rounding is intended", "converted back to f32"),
    ),
    SlowKernel(
        advice="wide-product",
        summary="A product in f32 of operands that were bf16.",
        function=upcast_before_product,
        remedied=upcast_before_product_remedied,
        args=(
            jax.ShapeDtypeStruct((1024, 256), BF16),
            jax.ShapeDtypeStruct((256, 128), BF16),
        ),
    ),
)

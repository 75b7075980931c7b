"""Arithmetic that results in NaN, infinity or a wrong number."""
# mypy: disable-error-code="no-any-return,untyped-decorator"

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from .record import BrokenKernel

F32 = jnp.float32


def softmax_of_masked_row(x: jax.Array, mask: jax.Array) -> jax.Array:
    def masked_softmax(x_ref: jax.Ref, mask_ref: jax.Ref, out_ref: jax.Ref) -> None:
        s = jnp.where(mask_ref[...] > 0, x_ref[...], -jnp.inf)
        m = s.max(axis=1, keepdims=True)
        # For a fully masked row m is -inf, and -inf - -inf is NaN.
        p = jnp.exp(s - m)  # FAULT
        out_ref[...] = p / p.sum(axis=1, keepdims=True)

    return pl.pallas_call(masked_softmax, out_shape=x)(x, mask)


def softmax_of_masked_row_repaired(x: jax.Array, mask: jax.Array) -> jax.Array:
    def masked_softmax(x_ref: jax.Ref, mask_ref: jax.Ref, out_ref: jax.Ref) -> None:
        s = jnp.where(mask_ref[...] > 0, x_ref[...], -jnp.inf)
        m = s.max(axis=1, keepdims=True)
        p = jnp.exp(s - jnp.where(m == -jnp.inf, 0.0, m))
        total = p.sum(axis=1, keepdims=True)
        out_ref[...] = p / jnp.where(total == 0.0, 1.0, total)

    return pl.pallas_call(masked_softmax, out_shape=x)(x, mask)


def masked_softmax_reference(x: jax.Array, mask: jax.Array) -> jax.Array:
    p = jax.nn.softmax(x, axis=1, where=mask > 0)
    return jnp.where(mask.any(axis=1, keepdims=True), p, 0.0)


X = jax.ShapeDtypeStruct((8, 128), F32)
MASK = [[0.0]] * 2 + [[1.0]] * 6

KERNELS = (
    BrokenKernel(
        fault="NanProduced",
        summary="The maximum of a fully masked row is -inf, and is subtracted.",
        function=softmax_of_masked_row,
        repaired=softmax_of_masked_row_repaired,
        reference=masked_softmax_reference,
        args=(X, X),
        values={1: MASK},
    ),
)

"""Arithmetic that results in NaN, infinity or a wrong number."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from pallas_debug_kernels.broken import BrokenKernel

F32 = jnp.float32


def softmax_without_maximum(x: jax.Array) -> jax.Array:
    def softmax(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # exp(100) is infinite in float32, and inf / inf is NaN.
        p = jnp.exp(x_ref[...])  # FAULT
        out_ref[...] = p / p.sum(axis=1, keepdims=True)

    return pl.pallas_call(softmax, out_shape=x)(x)


def softmax_without_maximum_repaired(x: jax.Array) -> jax.Array:
    def softmax(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        p = jnp.exp(x_ref[...] - x_ref[...].max(axis=1, keepdims=True))
        out_ref[...] = p / p.sum(axis=1, keepdims=True)

    return pl.pallas_call(softmax, out_shape=x)(x)


def entropy_of_zero(p: jax.Array) -> jax.Array:
    def entropy(p_ref: jax.Ref, out_ref: jax.Ref) -> None:
        p = p_ref[...]
        # log(0) is -inf, and 0 * -inf is NaN.
        terms = p * jnp.log(p)  # FAULT
        out_ref[...] = -terms.sum(axis=1, keepdims=True)

    return pl.pallas_call(entropy, out_shape=jax.ShapeDtypeStruct((8, 1), F32))(p)


def entropy_of_zero_repaired(p: jax.Array) -> jax.Array:
    def entropy(p_ref: jax.Ref, out_ref: jax.Ref) -> None:
        p = p_ref[...]
        terms = p * jnp.log(jnp.where(p > 0, p, 1.0))
        out_ref[...] = -terms.sum(axis=1, keepdims=True)

    return pl.pallas_call(entropy, out_shape=jax.ShapeDtypeStruct((8, 1), F32))(p)


def group_offsets_by_a_product(counts: jax.Array) -> jax.Array:
    def offsets(counts_ref: jax.Ref, out_ref: jax.Ref) -> None:
        row = lax.broadcasted_iota(jnp.int32, (128, 128), 0)
        before = row > lax.broadcasted_iota(jnp.int32, (128, 128), 1)
        counts = counts_ref[...].astype(F32)
        # A TPU multiplies 300 in place of 301, at default precision.
        sums = jnp.dot(before.astype(F32), counts)  # FAULT
        out_ref[...] = sums.astype(jnp.int32)

    return pl.pallas_call(offsets, out_shape=counts)(counts)


def group_offsets_by_a_product_repaired(counts: jax.Array) -> jax.Array:
    def offsets(counts_ref: jax.Ref, out_ref: jax.Ref) -> None:
        row = lax.broadcasted_iota(jnp.int32, (128, 128), 0)
        before = row > lax.broadcasted_iota(jnp.int32, (128, 128), 1)
        counts = counts_ref[...].astype(F32)
        sums = jnp.dot(before.astype(F32), counts, precision=lax.Precision.HIGHEST)
        out_ref[...] = sums.astype(jnp.int32)

    return pl.pallas_call(offsets, out_shape=counts)(counts)


def mean_of_nothing(x: jax.Array, mask: jax.Array) -> jax.Array:
    def masked_mean(x_ref: jax.Ref, mask_ref: jax.Ref, out_ref: jax.Ref) -> None:
        total = (x_ref[...] * mask_ref[...]).sum(axis=1, keepdims=True)
        count = mask_ref[...].sum(axis=1, keepdims=True)
        # A row without any entry has the mean 0 / 0.
        out_ref[...] = total / count  # FAULT

    return pl.pallas_call(masked_mean, out_shape=jax.ShapeDtypeStruct((8, 1), F32))(x, mask)


def mean_of_nothing_repaired(x: jax.Array, mask: jax.Array) -> jax.Array:
    def masked_mean(x_ref: jax.Ref, mask_ref: jax.Ref, out_ref: jax.Ref) -> None:
        total = (x_ref[...] * mask_ref[...]).sum(axis=1, keepdims=True)
        count = mask_ref[...].sum(axis=1, keepdims=True)
        out_ref[...] = total / jnp.maximum(count, 1.0)

    return pl.pallas_call(masked_mean, out_shape=jax.ShapeDtypeStruct((8, 1), F32))(x, mask)


def masked_mean_reference(x: jax.Array, mask: jax.Array) -> jax.Array:
    count = mask.sum(axis=1, keepdims=True)
    return (x * mask).sum(axis=1, keepdims=True) / jnp.maximum(count, 1.0)


def integer_division_by_zero(x: jax.Array, y: jax.Array) -> jax.Array:
    def divide(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # An integer has no NaN: the result for a zero in y looks like any other number.
        out_ref[...] = lax.div(x_ref[...], y_ref[...])  # FAULT

    return pl.pallas_call(divide, out_shape=x)(x, y)


def integer_division_by_zero_repaired(x: jax.Array, y: jax.Array) -> jax.Array:
    def divide(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        y = y_ref[...]
        out_ref[...] = jnp.where(y == 0, 0, lax.div(x_ref[...], jnp.where(y == 0, 1, y)))

    return pl.pallas_call(divide, out_shape=x)(x, y)


def division_reference(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.where(y == 0, 0, lax.div(x, jnp.where(y == 0, 1, y)))


def bfloat16_accumulator(x: jax.Array) -> jax.Array:
    def sum_blocks(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        # Eight bits of mantissa: from 256 on, 256 + 1 is 256.
        out_ref[...] += x_ref[...]  # FAULT

    return _sum_blocks(sum_blocks, x, jnp.bfloat16).astype(F32)


def bfloat16_accumulator_repaired(x: jax.Array) -> jax.Array:
    def sum_blocks(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...].astype(F32)

    return _sum_blocks(sum_blocks, x, F32)


def _sum_blocks(kernel: object, x: jax.Array, dtype: object) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((16, 128), dtype),
        grid=(20,),
        in_specs=[pl.BlockSpec((16, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((16, 128), lambda i: (0, 0)),
    )(x)


X = jax.ShapeDtypeStruct((8, 128), F32)
INT = jax.ShapeDtypeStruct((8, 128), jnp.int32)
MASK = [[0.0]] * 2 + [[1.0]] * 6
"""The first two rows are masked as a whole."""

KERNELS = (
    BrokenKernel(
        fault="InfinityProduced",
        summary="A softmax takes the exponential of large numbers as they are.",
        function=softmax_without_maximum,
        repaired=softmax_without_maximum_repaired,
        reference=lambda x: jax.nn.softmax(x, axis=1),
        args=(X,),
        values={0: 100.0},
    ),
    BrokenKernel(
        fault="NanProduced",
        summary="The logarithm of a zero probability is multiplied by it.",
        function=entropy_of_zero,
        repaired=entropy_of_zero_repaired,
        reference=lambda p: jax.scipy.special.entr(p).sum(axis=1, keepdims=True),
        args=(X,),
        values={0: [0.0] * 64 + [1 / 64] * 64},
    ),
    BrokenKernel(
        fault="NanProduced",
        summary="The mean of a row without entries divides zero by zero.",
        function=mean_of_nothing,
        repaired=mean_of_nothing_repaired,
        reference=masked_mean_reference,
        args=(X, X),
        values={1: MASK},
    ),
    BrokenKernel(
        fault="DivisionByZero",
        summary="An integer is divided by zero.",
        function=integer_division_by_zero,
        repaired=integer_division_by_zero_repaired,
        reference=division_reference,
        args=(INT, INT),
        values={1: [[0]] * 2 + [[3]] * 6},
    ),
    BrokenKernel(
        fault="ValueMismatch",
        summary="A long sum is accumulated in bfloat16.",
        function=bfloat16_accumulator,
        repaired=bfloat16_accumulator_repaired,
        reference=lambda x: x.astype(F32).reshape(20, 16, 128).sum(axis=0),
        args=(jax.ShapeDtypeStruct((320, 128), jnp.bfloat16),),
        values={0: 100.5},
        hint="low-precision sum",
    ),
    BrokenKernel(
        fault="LowPrecisionProduct",
        summary="Offsets of groups are summed by a product in float32, which a TPU rounds.",
        function=group_offsets_by_a_product,
        repaired=group_offsets_by_a_product_repaired,
        reference=lambda counts: jnp.cumsum(counts, axis=0) - counts,
        args=(jax.ShapeDtypeStruct((128, 128), jnp.int32),),
        values={0: 301},
    ),
)

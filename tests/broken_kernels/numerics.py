"""Arithmetic that results in NaN, infinity or a wrong number."""

import jax
import jax.numpy as jnp
from called import called
from jax import lax
from jax.experimental import pallas as pl

from .record import fault

F32, I32 = jnp.float32, jnp.int32
X = jax.ShapeDtypeStruct((8, 128), F32)
INT = jax.ShapeDtypeStruct((8, 128), I32)
COLUMN = jax.ShapeDtypeStruct((8, 1), F32)


@fault(
    "InfinityProduced",
    "A softmax takes the exponential of large numbers as they are.",
    lambda x: jax.nn.softmax(x, axis=1),
    X,
    values={0: 100.0},
)
@called()
def softmax_without_maximum(x_ref, out_ref, repaired=False):
    x = x_ref[...]
    if repaired:
        x -= x.max(axis=1, keepdims=True)
    # exp(100) is infinite in float32, and inf / inf is NaN.
    p = jnp.exp(x)  # FAULT
    out_ref[...] = p / p.sum(axis=1, keepdims=True)


@fault(
    "NanProduced",
    "The logarithm of a zero probability is multiplied by it.",
    lambda p: jax.scipy.special.entr(p).sum(axis=1, keepdims=True),
    X,
    values={0: [0.0] * 64 + [1 / 64] * 64},
)
@called(COLUMN)
def entropy_of_zero(p_ref, out_ref, repaired=False):
    p = p_ref[...]
    positive = jnp.where(p > 0, p, 1.0) if repaired else p
    # log(0) is -inf, and 0 * -inf is NaN.
    terms = p * jnp.log(positive)  # FAULT
    out_ref[...] = -terms.sum(axis=1, keepdims=True)


def masked_mean_reference(x, mask):
    count = mask.sum(axis=1, keepdims=True)
    return (x * mask).sum(axis=1, keepdims=True) / jnp.maximum(count, 1.0)


@fault(
    "NanProduced",
    "The mean of a row without entries divides zero by zero.",
    masked_mean_reference,
    X,
    X,
    values={1: [[0.0]] * 2 + [[1.0]] * 6},
)
@called(COLUMN)
def mean_of_nothing(x_ref, mask_ref, out_ref, repaired=False):
    total = (x_ref[...] * mask_ref[...]).sum(axis=1, keepdims=True)
    count = mask_ref[...].sum(axis=1, keepdims=True)
    if repaired:
        count = jnp.maximum(count, 1.0)
    # A row without any entry has the mean 0 / 0.
    out_ref[...] = total / count  # FAULT


@fault(
    "DivisionByZero",
    "An integer is divided by zero.",
    lambda x, y: jnp.where(y == 0, 0, lax.div(x, jnp.where(y == 0, 1, y))),
    INT,
    INT,
    values={1: [[0]] * 2 + [[3]] * 6},
)
@called()
def integer_division_by_zero(x_ref, y_ref, out_ref, repaired=False):
    y = y_ref[...]
    divisor = jnp.where(y == 0, 1, y) if repaired else y
    # An integer has no NaN: the result for a zero in y looks like any other number.
    quotient = lax.div(x_ref[...], divisor)  # FAULT
    out_ref[...] = jnp.where(y == 0, 0, quotient) if repaired else quotient


@fault(
    "ValueMismatch",
    "A long sum is accumulated in bfloat16.",
    lambda x: x.astype(F32).reshape(20, 16, 128).sum(axis=0),
    jax.ShapeDtypeStruct((320, 128), jnp.bfloat16),
    values={0: 100.5},
    hint="low-precision sum",
)
def bfloat16_accumulator(x, *, repaired=False):
    def sum_blocks(x_ref, out_ref):
        @pl.when(pl.program_id(0) == 0)
        def _start():
            out_ref[...] = jnp.zeros_like(out_ref)

        # Eight bits of mantissa: from 256 on, 256 + 1 is 256.
        out_ref[...] += x_ref[...].astype(out_ref.dtype)  # FAULT

    return pl.pallas_call(
        sum_blocks,
        out_shape=jax.ShapeDtypeStruct((16, 128), F32 if repaired else jnp.bfloat16),
        grid=(20,),
        in_specs=[pl.BlockSpec((16, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((16, 128), lambda i: (0, 0)),
    )(x).astype(F32)


@fault(
    "LowPrecisionProduct",
    "Offsets of groups are summed by a product in float32, which a TPU rounds.",
    lambda counts: jnp.cumsum(counts, axis=0) - counts,
    jax.ShapeDtypeStruct((128, 128), I32),
    values={0: 301},
)
@called()
def group_offsets_by_a_product(counts_ref, out_ref, repaired=False):
    row = lax.broadcasted_iota(I32, (128, 128), 0)
    before = row > lax.broadcasted_iota(I32, (128, 128), 1)
    counts = counts_ref[...].astype(F32)
    precision = lax.Precision.HIGHEST if repaired else None
    # A TPU multiplies 300 in place of 301, at default precision.
    sums = jnp.dot(before.astype(F32), counts, precision=precision)  # FAULT
    out_ref[...] = sums.astype(I32)

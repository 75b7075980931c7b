"""Masks by infinities, and last blocks that are not full."""

import jax
import jax.numpy as jnp
import numpy as np
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import equals, normal, table

F32, I32 = jnp.float32, jnp.int32
QUERY = pl.BlockSpec((128, 128), lambda i, j: (i, 0))
KEY = pl.BlockSpec((128, 128), lambda i, j: (j, 0))


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _attention(q, k, v):
    scores = q @ k.T / np.sqrt(np.float32(128))
    return _softmax(np.where(np.tril(np.ones_like(scores)) > 0, scores, -np.inf)) @ v


@equals(_attention, *(normal(256, 128) / (i + 1) for i in range(3)))
@called(
    grid=(2, 2),
    in_specs=[QUERY, KEY, KEY],
    out_specs=QUERY,
    scratch_shapes=[pltpu.VMEM((128, 1), F32)] * 2 + [pltpu.VMEM((128, 128), F32)],
)
def causal_flash_attention(q_ref, k_ref, v_ref, out_ref, max_ref, sum_ref, acc_ref):
    """Blocks above the diagonal are skipped; the running maximum begins at -inf."""
    i, j = pl.program_id(0), pl.program_id(1)

    @pl.when(j == 0)
    def _():
        max_ref[...] = jnp.full_like(max_ref, -jnp.inf)
        sum_ref[...] = jnp.zeros_like(sum_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(j <= i)
    def _():
        scores = jnp.dot(q_ref[...], k_ref[...].T, precision="highest") / np.sqrt(128)
        row = lax.broadcasted_iota(I32, (128, 128), 0) + i * 128
        column = lax.broadcasted_iota(I32, (128, 128), 1) + j * 128
        scores = jnp.where(row >= column, scores, -jnp.inf)
        largest = jnp.maximum(max_ref[...], scores.max(1, keepdims=True))
        correction = jnp.exp(max_ref[...] - largest)
        weights = jnp.exp(scores - largest)
        sum_ref[...] = sum_ref[...] * correction + weights.sum(1, keepdims=True)
        update = jnp.dot(weights, v_ref[...], precision="highest")
        acc_ref[...] = acc_ref[...] * correction + update
        max_ref[...] = largest

    @pl.when(j == pl.num_programs(1) - 1)
    def _():
        out_ref[...] = acc_ref[...] / sum_ref[...]


def _log_sum_exp(lengths, x):
    with np.errstate(divide="ignore"):
        masked = np.where(np.arange(128) < lengths[:, None], np.exp(x), 0)
        return np.log(masked.sum(1, keepdims=True))


@equals(_log_sum_exp, table(128, 0, 3, 50, 1, 128, 0, 64), normal(8, 128))
def log_sum_exp_with_empty_rows(lengths, x):
    """Minus infinity for a row without entries, by a maximum that is made finite."""

    def kernel(lengths_ref, x_ref, out_ref):
        valid = lax.broadcasted_iota(I32, (8, 128), 1) < lengths_ref[...]
        scores = jnp.where(valid, x_ref[...], -jnp.inf)
        largest = scores.max(1, keepdims=True)
        largest = jnp.where(jnp.isinf(largest), 0.0, largest)
        out_ref[...] = largest + jnp.log(jnp.exp(scores - largest).sum(1, keepdims=True))

    out = jax.ShapeDtypeStruct((8, 1), F32)
    return pl.pallas_call(kernel, out_shape=out)(lengths[:, None], x)


@equals(lambda x: np.sort(x, 1)[:, :-4:-1], normal(8, 128))
@called(jax.ShapeDtypeStruct((8, 3), F32))
def three_largest(x_ref, out_ref):
    """What was taken is masked with minus infinity."""
    left = x_ref[...]
    for i in range(3):
        largest = left.max(1, keepdims=True)
        out_ref[:, i : i + 1] = largest
        left = jnp.where(left == largest, -jnp.inf, left)


@equals(np.exp, normal(20, 200))
@called(grid=(3, 2), block=pl.BlockSpec((8, 128), lambda i, j: (i, j)))
def elementwise_with_ragged_blocks(x_ref, out_ref):
    """Padding is computed with, and not stored."""

    out_ref[...] = jnp.exp(x_ref[...])


@equals(lambda x: np.where(x > 0, np.log(np.maximum(x, 1e-30)), 0), normal(8, 128))
@called()
def logarithm_of_positive_numbers(x_ref, out_ref):
    """The other branch of a `where` is NaN, and not taken."""
    out_ref[...] = jnp.where(x_ref[...] > 0, jnp.log(x_ref[...]), 0.0)

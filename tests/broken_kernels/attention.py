"""The running state of a softmax: rescaled wrongly, or that of the query block before."""

import jax
import jax.numpy as jnp
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import fault

F32 = jnp.float32
TILE = pltpu.VMEM((8, 128), F32)
ROWS = pl.BlockSpec((8, 128), lambda i, j: (i, 0))
KEYS = pl.BlockSpec((128, 128), lambda i, j: (j, 0))


@fault(
    "ValueMismatch",
    "A flash attention rescales its accumulator by the wrong maximum.",
    lambda q, k, v: jax.nn.softmax(q @ k.T, axis=1) @ v,
    jax.ShapeDtypeStruct((16, 128), F32),
    *[jax.ShapeDtypeStruct((256, 128), F32)] * 2,
)
@called(
    jax.ShapeDtypeStruct((16, 128), F32),
    grid=(2, 2),
    in_specs=[ROWS, KEYS, KEYS],
    out_specs=ROWS,
    scratch_shapes=[TILE] * 3,
)
def rescaled_by_the_wrong_maximum(
    q_ref, k_ref, v_ref, out_ref, m_ref, l_ref, acc_ref, repaired=False
):
    @pl.when(pl.program_id(1) == 0)
    def _start():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    scores = jnp.dot(q_ref[...], k_ref[...].T, preferred_element_type=F32)
    in_block = scores.max(axis=1, keepdims=True)
    m = jnp.maximum(m_ref[...], in_block)
    weights = jnp.exp(scores - m)
    l_ref[...] = l_ref[...] * jnp.exp(m_ref[...] - m) + weights.sum(axis=1, keepdims=True)
    # The accumulator was computed for the maximum so far, and not for that of this block. Every
    # element is written and finite: only the values are wrong.
    before = m_ref[...] if repaired else in_block
    acc_ref[...] = acc_ref[...] * jnp.exp(before - m)  # FAULT
    acc_ref[...] += jnp.dot(weights, v_ref[...], preferred_element_type=F32)
    m_ref[...] = m
    out_ref[...] = acc_ref[...] / l_ref[...]


def logsumexp_reference(x):
    sums = jax.nn.logsumexp(x, axis=1, keepdims=True)
    return jnp.broadcast_to(sums, (x.shape[0], 128))


@fault(
    "ValueMismatch",
    "The running maximum of a softmax is not reset at a new query block.",
    logsumexp_reference,
    jax.ShapeDtypeStruct((16, 384), F32),
    hint="carried",
)
@called(
    jax.ShapeDtypeStruct((16, 128), F32),
    grid=(2, 3),
    in_specs=[pl.BlockSpec((8, 128), lambda i, j: (i, j))],
    out_specs=ROWS,
    scratch_shapes=[TILE, TILE],
)
def maximum_of_the_query_before(x_ref, out_ref, m_ref, l_ref, repaired=False):
    i, j = pl.program_id(0), pl.program_id(1)

    # A maximum that is too large cancels out of the result, until every exp underflows: with rows
    # of one size the values are right, and only who wrote the maximum tells.
    @pl.when((j == 0) if repaired else (i == 0) & (j == 0))
    def _start_once():
        m_ref[...] = jnp.full_like(m_ref, -1e30)

    @pl.when(j == 0)
    def _start():
        l_ref[...] = jnp.zeros_like(l_ref)

    m = jnp.maximum(m_ref[...], x_ref[...].max(axis=1, keepdims=True))  # FAULT
    sums = jnp.exp(x_ref[...] - m).sum(axis=1, keepdims=True)
    l_ref[...] = l_ref[...] * jnp.exp(m_ref[...] - m) + sums
    m_ref[...] = m
    out_ref[...] = m_ref[...] + jnp.log(l_ref[...])

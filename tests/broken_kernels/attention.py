"""The running state of a softmax: rescaled wrongly, or that of the query block before."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import BrokenKernel

F32 = jnp.float32
TILE = pltpu.VMEM((8, 128), F32)


def maximum_of_the_query_before(x: jax.Array) -> jax.Array:
    def logsumexp(x_ref: jax.Ref, out_ref: jax.Ref, m_ref: jax.Ref, l_ref: jax.Ref) -> None:
        i, j = pl.program_id(0), pl.program_id(1)

        # A maximum that is too large cancels out of the result, until every exp underflows: with
        # rows of one size the values are right, and only who wrote the maximum tells.
        @pl.when((i == 0) & (j == 0))
        def _start_once() -> None:
            m_ref[...] = jnp.full_like(m_ref, -1e30)

        @pl.when(j == 0)
        def _start() -> None:
            l_ref[...] = jnp.zeros_like(l_ref)

        m = jnp.maximum(m_ref[...], x_ref[...].max(axis=1, keepdims=True))  # FAULT
        sums = jnp.exp(x_ref[...] - m).sum(axis=1, keepdims=True)
        l_ref[...] = l_ref[...] * jnp.exp(m_ref[...] - m) + sums
        m_ref[...] = m
        out_ref[...] = m_ref[...] + jnp.log(l_ref[...])

    return _logsumexp(logsumexp, x)


def logsumexp_repaired(x: jax.Array) -> jax.Array:
    def logsumexp(x_ref: jax.Ref, out_ref: jax.Ref, m_ref: jax.Ref, l_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            m_ref[...] = jnp.full_like(m_ref, -1e30)
            l_ref[...] = jnp.zeros_like(l_ref)

        m = jnp.maximum(m_ref[...], x_ref[...].max(axis=1, keepdims=True))
        sums = jnp.exp(x_ref[...] - m).sum(axis=1, keepdims=True)
        l_ref[...] = l_ref[...] * jnp.exp(m_ref[...] - m) + sums
        m_ref[...] = m
        out_ref[...] = m_ref[...] + jnp.log(l_ref[...])

    return _logsumexp(logsumexp, x)


def _logsumexp(kernel: object, x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((16, 128), F32),
        grid=(2, 3),
        in_specs=[pl.BlockSpec((8, 128), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((8, 128), lambda i, j: (i, 0)),
        scratch_shapes=[TILE, TILE],
    )(x)


def logsumexp_reference(x: jax.Array) -> jax.Array:
    sums = jax.nn.logsumexp(x, axis=1, keepdims=True)
    return jnp.broadcast_to(sums, (x.shape[0], 128))


def rescaled_by_the_wrong_maximum(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    def attend(
        q_ref: jax.Ref, k_ref: jax.Ref, v_ref: jax.Ref, out_ref: jax.Ref,
        m_ref: jax.Ref, l_ref: jax.Ref, acc_ref: jax.Ref,
    ) -> None:  # fmt: skip
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
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
        acc_ref[...] = acc_ref[...] * jnp.exp(in_block - m)  # FAULT
        acc_ref[...] += jnp.dot(weights, v_ref[...], preferred_element_type=F32)
        m_ref[...] = m
        out_ref[...] = acc_ref[...] / l_ref[...]

    return _attention(attend, q, k, v)


def rescaled_by_the_wrong_maximum_repaired(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    def attend(
        q_ref: jax.Ref, k_ref: jax.Ref, v_ref: jax.Ref, out_ref: jax.Ref,
        m_ref: jax.Ref, l_ref: jax.Ref, acc_ref: jax.Ref,
    ) -> None:  # fmt: skip
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            m_ref[...] = jnp.full_like(m_ref, -1e30)
            l_ref[...] = jnp.zeros_like(l_ref)
            acc_ref[...] = jnp.zeros_like(acc_ref)

        scores = jnp.dot(q_ref[...], k_ref[...].T, preferred_element_type=F32)
        m = jnp.maximum(m_ref[...], scores.max(axis=1, keepdims=True))
        weights = jnp.exp(scores - m)
        l_ref[...] = l_ref[...] * jnp.exp(m_ref[...] - m) + weights.sum(axis=1, keepdims=True)
        acc_ref[...] = acc_ref[...] * jnp.exp(m_ref[...] - m)
        acc_ref[...] += jnp.dot(weights, v_ref[...], preferred_element_type=F32)
        m_ref[...] = m
        out_ref[...] = acc_ref[...] / l_ref[...]

    return _attention(attend, q, k, v)


def _attention(kernel: object, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    rows = pl.BlockSpec((8, 128), lambda i, j: (i, 0))
    keys = pl.BlockSpec((128, 128), lambda i, j: (j, 0))
    return pl.pallas_call(
        kernel,
        out_shape=q,
        grid=(2, 2),
        in_specs=[rows, keys, keys],
        out_specs=rows,
        scratch_shapes=[TILE] * 3,
    )(q, k, v)


WIDE = (jax.ShapeDtypeStruct((16, 384), F32),)
KEYS = jax.ShapeDtypeStruct((256, 128), F32)

KERNELS = (
    BrokenKernel(
        fault="ValueMismatch",
        summary="A flash attention rescales its accumulator by the wrong maximum.",
        function=rescaled_by_the_wrong_maximum,
        repaired=rescaled_by_the_wrong_maximum_repaired,
        reference=lambda q, k, v: jax.nn.softmax(q @ k.T, axis=1) @ v,
        args=(jax.ShapeDtypeStruct((16, 128), F32), KEYS, KEYS),
    ),
    BrokenKernel(
        fault="ValueMismatch",
        summary="The running maximum of a softmax is not reset at a new query block.",
        function=maximum_of_the_query_before,
        repaired=logsumexp_repaired,
        reference=logsumexp_reference,
        args=WIDE,
        hint="carried",
    ),
)

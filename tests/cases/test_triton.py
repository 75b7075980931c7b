"""Kernels for Triton, from programs of others: masks, in-place updates, equal stores, algorithms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

import pallas_debug

PARAMS = plt.CompilerParams(num_warps=4)


def update_in_place(x: jax.Array) -> jax.Array:
    def scale_tail(x_ref, _):
        start = 32 + pl.program_id(0) * 64
        columns = pl.ds(start, 64)
        mask = (start + jnp.arange(64) < 64)[None, :]
        tail = plt.load(x_ref.at[:, columns], mask=mask, other=0.0)
        plt.store(x_ref.at[:, columns], tail * 2, mask=mask)

    return pl.pallas_call(
        scale_tail, grid=(1,), out_shape=x, input_output_aliases={0: 0}, compiler_params=PARAMS
    )(x)


def test_a_masked_store_through_the_input_of_an_aliased_pair() -> None:
    """From fermix."""
    verdict = pallas_debug.verify(update_in_place, np.ones((16, 64), np.float32))
    assert not verdict.findings, str(verdict)


def product(x: jax.Array, y: jax.Array) -> jax.Array:
    def multiply(x_ref, y_ref, out_ref):
        preset = jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3
        out_ref[...] = jax.lax.dot(x_ref[...], y_ref[...], precision=preset)

    return pl.pallas_call(multiply, out_shape=x, compiler_params=PARAMS)(x, y)


def test_a_product_by_an_algorithm_that_a_cpu_does_not_have() -> None:
    """From fermix: it runs at a higher precision, with a note."""
    x = np.ones((16, 16), np.float32)
    verdict = pallas_debug.verify(product, x, x, reference=lambda x, y: x @ y)
    assert not verdict.findings, str(verdict)
    judged = {outcome.engine: outcome.status for outcome in verdict.outcomes}
    assert (judged["machine"], judged["values"]) == ("ok", "ok"), str(verdict)
    assert "TF32" in str(verdict), str(verdict)

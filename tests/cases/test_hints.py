"""Kernels that do what they should not, which no rule can know: hints, and the line by a reference."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from jax import lax
from jax.experimental import pallas as pl

import pallas_debug


def preload_erases(table: jax.Array, parts: jax.Array) -> jax.Array:
    """From pytorch/helion#2637: sums are erased by the preload that is to begin them."""

    def add_parts(table_ref, part_ref, out_ref):
        out_ref[...] = table_ref[...]
        out_ref[...] += part_ref[...]

    block = pl.BlockSpec((8, 128), lambda i, j: (i, 0))
    return pl.pallas_call(
        add_parts,
        out_shape=table,
        grid=(2, 3),
        in_specs=[block, pl.BlockSpec((8, 128), lambda i, j: (i, j))],
        out_specs=block,
        input_output_aliases={0: 0},
    )(table, parts)


TABLE, PARTS = np.ones((16, 128), np.float32), np.full((16, 384), 2, np.float32)


def column_sums(x: jax.Array) -> jax.Array:
    """From pytorch/xla#8671: 160 rows in steps of 64."""

    def add_rows(x_ref, out_ref):
        def add(j, total):
            rows = x_ref[pl.ds(pl.multiple_of(j * 64, 64), 64)]
            return total + rows.sum(0, keepdims=True)

        zero = jnp.zeros((1, 128), jnp.float32)
        out_ref[...] = lax.fori_loop(0, x_ref.shape[0] // 64, add, zero)

    return pl.pallas_call(add_rows, out_shape=jax.ShapeDtypeStruct((1, 128), x.dtype))(x)


@called(grid=(4,))
def fours(x_ref, out_ref):
    """From pallas-tpu-tutorial: starts are multiples of 4, and not of 128."""
    start = pl.program_id(0) * 4
    out_ref[pl.ds(start, 4)] = x_ref[pl.ds(start, 4)] + 1


@pytest.mark.parametrize("x", [np.ones((8, 128), np.float32)], ids=["f32"])
def test_a_number_that_is_concrete_only_in_eager_execution(x) -> None:
    """From tomojax: the kernel that does run is checked."""

    def scale(x):
        factor = jnp.float32(3.0) + 1
        steps = 8 if isinstance(factor, jax.core.Tracer) else int(factor)

        def scaled(x_ref, out_ref):
            out_ref[...] = x_ref[...] * steps

        return pl.pallas_call(scaled, out_shape=x)(x)

    verdict = pallas_debug.verify(
        scale, x, targets="v5e", engines="static,machine", reference=lambda x: x * 4
    )
    assert verdict.ok, str(verdict)
    judged = [(one.engine, one.status) for one in verdict.outcomes if one.engine != "trace"]
    statuses = {"static": ["ok", "ok"], "machine": ["skipped", "ok"], "values": ["skipped", "ok"]}
    assert judged == [(e, found[i]) for i in range(2) for e, found in statuses.items()]

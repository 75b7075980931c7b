"""Kernels that do what they should not, which no rule can know: hints, and the line by a reference."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

import pallas_debug
from pallas_debug.verdict import Verdict


def line_of(function: object, text: str) -> int:
    """The line of a function that contains a text."""
    lines, start = inspect.getsourcelines(function)  # type: ignore[arg-type]
    (number,) = [n for n, line in enumerate(lines, start) if text in line]
    return number


def verified(function, *args, reference=None) -> Verdict:
    return pallas_debug.verify(
        function, *args, targets="v5e", engines="static,machine", reference=reference
    )


def hinted(verdict: Verdict, kind: str) -> str:
    """Messages of the hints of a kind, where nothing is accused."""
    assert not [finding for finding in verdict.findings if finding.counts], str(verdict)
    messages = [hint.message for hint in verdict.hints if hint.kind == kind]
    assert messages, str(verdict)
    return "\n".join(messages)


def preload_erases(table: jax.Array, parts: jax.Array) -> jax.Array:
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


def test_a_preload_that_erases_sums() -> None:
    """From pytorch/helion#2637."""
    verdict = verified(preload_erases, TABLE, PARTS)
    hinted(verdict, "unread write")


def test_the_preload_is_named_with_a_reference() -> None:
    verdict = verified(
        preload_erases, TABLE, PARTS, reference=lambda t, p: t + p.reshape(16, 3, 128).sum(1)
    )
    (finding,) = [f for f in verdict.findings if f.kind == "ValueMismatch"]
    line = line_of(preload_erases, "out_ref[...] = table_ref")
    assert f"line {line}" in str(verdict) or f".py:{line}" in str(verdict), str(verdict)
    assert finding.counts


def column_sums(x: jax.Array) -> jax.Array:
    def add_rows(x_ref, out_ref):
        def add(j, total):
            rows = x_ref[pl.ds(pl.multiple_of(j * 64, 64), 64)]
            return total + rows.sum(0, keepdims=True)

        zero = jnp.zeros((1, 128), jnp.float32)
        out_ref[...] = lax.fori_loop(0, x_ref.shape[0] // 64, add, zero)

    return pl.pallas_call(add_rows, out_shape=jax.ShapeDtypeStruct((1, 128), x.dtype))(x)


def test_rows_that_a_loop_leaves_out() -> None:
    """From pytorch/xla#8671: 160 rows in steps of 64."""
    message = hinted(verified(column_sums, np.ones((160, 128), np.float32)), "unread input")
    assert "160 // 64" in message


def masked_softmax(x: jax.Array) -> jax.Array:
    def weigh(x_ref, out_ref):
        scores = x_ref[...]
        row = lax.broadcasted_iota(jnp.int32, scores.shape, 0)
        column = lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        masked = jnp.where(row >= column, scores, -1e30)  # noqa: F841 - the fault
        weights = jnp.exp(scores - scores.max(1, keepdims=True))
        out_ref[...] = weights / weights.sum(1, keepdims=True)

    return pl.pallas_call(weigh, out_shape=x)(x)


def test_a_mask_that_is_computed_and_not_used() -> None:
    """From jax-ml/jax#19237."""
    verdict = verified(masked_softmax, np.ones((128, 128), np.float32))
    hinted(verdict, "no effect")
    lines = {hint.source.line for hint in verdict.hints if hint.source is not None}
    assert line_of(masked_softmax, "masked =") in lines, str(verdict)


def fours(x: jax.Array) -> jax.Array:
    def add_one(x_ref, out_ref):
        start = pl.program_id(0) * 4
        out_ref[pl.ds(start, 4)] = x_ref[pl.ds(start, 4)] + 1

    return pl.pallas_call(add_one, out_shape=x, grid=(4,))(x)


def test_no_suggestion_would_be_a_false_hint() -> None:
    """From pallas-tpu-tutorial: starts are multiples of 4, and not of 128."""
    verdict = pallas_debug.verify(
        fours, np.ones(16, np.float32), targets="v5e", engines="static,compile"
    )
    assert verdict.findings, str(verdict)
    assert "multiple_of(start, 128)" not in str(verdict)


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

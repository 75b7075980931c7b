"""Kernels that do what they should not, which no rule can know: hints, and the line by a reference."""

from __future__ import annotations

import inspect

import jax
import numpy as np
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


def test_the_preload_is_named_with_a_reference() -> None:
    verdict = verified(
        preload_erases, TABLE, PARTS, reference=lambda t, p: t + p.reshape(16, 3, 128).sum(1)
    )
    (finding,) = [f for f in verdict.findings if f.kind == "ValueMismatch"]
    line = line_of(preload_erases, "out_ref[...] = table_ref")
    assert f"line {line}" in str(verdict) or f".py:{line}" in str(verdict), str(verdict)
    assert finding.counts

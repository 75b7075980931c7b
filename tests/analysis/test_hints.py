"""Hints of the static analysis: parts of inputs in no block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from analysis_runs import F32, Captures, S
from jax import lax
from jax.experimental import pallas as pl

from pallas_debug.analysis import analyze
from pallas_debug.findings.hints import HintKind
from pallas_debug.model import Hint


def hints(captures: Captures, function: Callable[..., Any], *args: Any) -> tuple[Hint, ...]:
    (captured,) = captures(function, args)
    analysis = analyze(captured)
    assert analysis.findings == ()
    assert all(hint.digest == captured.kernel.digest for hint in analysis.hints)
    return analysis.hints


def column_sums(block: int) -> Callable[..., Any]:
    """Sums of columns, a block of rows at a time; pytorch/xla#8671."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        def add(j: Any, total: Any) -> Any:
            rows = x_ref[pl.ds(pl.multiple_of(j * block, block), block)]
            return total + rows.sum(0, keepdims=True)

        o_ref[...] = lax.fori_loop(0, x_ref.shape[0] // block, add, jnp.zeros((1, 128), F32))

    return lambda x: pl.pallas_call(kernel, out_shape=S((1, 128), F32))(x)


def test_the_end_of_an_input_that_a_loop_rounded_down_leaves_out(captures: Captures) -> None:
    (hint,) = hints(captures, column_sums(64), S((160, 128), F32))
    assert (hint.kind, hint.operand) == (HintKind.UNREAD_INPUT, "x_ref")
    assert hint.message == "160 // 64 leaves the last 32 rows of x_ref unread"
    assert hint.source is not None
    assert (hint.source.text or "").startswith("rows = x_ref[")
    assert hints(captures, column_sums(32), S((160, 128), F32)) == ()


def over(grid: tuple[int, ...], in_map: Any, columns: int = 128) -> Callable[..., Any]:
    """Sum of the blocks of an input that a grid visits."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += x_ref[...]

    return lambda x: pl.pallas_call(
        kernel,
        out_shape=S((8, columns), F32),
        grid=grid,
        in_specs=[pl.BlockSpec((8, columns), in_map)],
        out_specs=pl.BlockSpec((8, columns), lambda *_: (0, 0)),
    )(x)


@pytest.mark.parametrize(
    "function, shape, message",
    [
        (over((2,), lambda i: (i, 0)), (20, 128), "20 // 8 leaves the last 4 rows of x_ref unread"),
        (
            over((2,), lambda i: (0, i)),
            (8, 300),
            "300 // 128 leaves the last 44 columns of x_ref unread",
        ),
        (
            over((2,), lambda i: (i + 1, 0)),
            (24, 128),
            "x_ref[0:8], along dimension 0, is in no block or slice",
        ),
    ],
)
def test_blocks_that_the_grid_leaves_out(
    captures: Captures, function: Callable[..., Any], shape: tuple[int, ...], message: str
) -> None:
    (hint,) = hints(captures, function, S(shape, F32))
    assert hint.message == message
    assert hint.source is not None
    assert hint.source.text == "grid=grid,"


def test_an_input_that_stays_where_it_is_may_be_read_in_part(captures: Captures) -> None:
    """One layer of stacked weights, say: along a dimension in which nothing moves."""
    assert hints(captures, over((3,), lambda i: (1, 0)), S((24, 128), F32)) == ()

    def first_rows(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[0:8] + x_ref[8:16]

    call = pl.pallas_call(first_rows, out_shape=S((8, 128), F32))
    assert hints(captures, call, S((32, 128), F32)) == ()


def test_reads_that_are_not_known_may_be_of_the_rest(captures: Captures) -> None:
    def rows(x_ref: Any, n_ref: Any, o_ref: Any) -> None:
        i = pl.program_id(0)
        o_ref[...] = x_ref[pl.ds(i * 8, 8)] + x_ref[pl.ds(n_ref[0, 0], 8)]

    call = pl.pallas_call(
        rows,
        out_shape=S((16, 128), F32),
        grid=(2,),
        in_specs=[pl.BlockSpec((32, 128), lambda i: (0, 0)), pl.BlockSpec()],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
    )
    assert hints(captures, call, S((32, 128), F32), S((8, 128), jnp.int32)) == ()

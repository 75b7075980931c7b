"""Lines that compute the indices of accesses, for the causes of what is out of bounds."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl

from pallas_debug.bridge.jaxprs.index_lines import IndexLines
from pallas_debug.model import SourceLine

X = jax.ShapeDtypeStruct((64, 128), jnp.float32)


def beside(x_ref: Any, o_ref: Any) -> None:
    start = pl.program_id(0) * 8 + 4  # computed
    o_ref[...] = x_ref[pl.ds(start, 8), :]  # access


def _twice(row: Any) -> Any:
    return row * 2  # computed


def in_a_loop(x_ref: Any, o_ref: Any) -> None:
    start = _twice(pl.program_id(0))

    def step(i: Any, total: Any) -> Any:
        return total + x_ref[pl.ds(start, 8), :] * i  # access

    o_ref[...] = lax.fori_loop(0, 3, step, jnp.zeros((8, 128)))


def on_the_line_itself(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[pl.ds(pl.program_id(0) * 8, 8), :]  # access


def of_two_lines(x_ref: Any, o_ref: Any) -> None:
    one = pl.program_id(0) * 8
    other = pl.program_id(0) * 8 + 8
    o_ref[...] = x_ref[pl.ds(one, 8), :] + x_ref[pl.ds(other, 8), :]  # access


def marked(function: Callable[..., None], comment: str) -> SourceLine | None:
    """The line that ends in a comment, of a kernel or else of a helper of it."""
    for one in (function, _twice):
        lines, first = inspect.getsourcelines(one)
        for number, text in enumerate(lines, first):
            if text.rstrip().endswith(f"# {comment}"):
                return SourceLine(file=__file__, line=number)
    return None


@pytest.mark.parametrize(
    "kernel, is_computed",
    [
        (beside, True),
        (in_a_loop, True),
        (on_the_line_itself, False),
        (of_two_lines, False),
    ],
)
def test_the_line_that_computes_an_index(kernel: Callable[..., None], is_computed: bool) -> None:
    block = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    call = pl.pallas_call(kernel, out_shape=block, grid=(2,))
    (eqn,) = jax.make_jaxpr(call)(X).eqns
    lines = IndexLines([eqn.params["jaxpr"]])
    access = marked(kernel, "access")
    wanted = marked(kernel, "computed") if is_computed else None
    found = lines.of(access, 0)
    assert (found and str(found)) == (wanted and str(wanted))
    assert lines.of(access, 1) is None
    assert lines.of(None, 0) is None

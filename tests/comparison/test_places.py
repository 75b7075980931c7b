"""Blocks, grid points and patterns of the elements that differ from the reference."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from compared import BF16, X, at_block, blocks, copy_twice, double, one

import pallas_debug


@pytest.mark.slow
def test_a_block_that_no_grid_point_visits() -> None:
    half = functools.partial(blocks, copy_twice, grid=(1, 2))
    finding = one(half, double, X)
    assert (finding.grid_point, finding.chain) == (None, ())
    assert finding.values["pattern"] == "in rows 8 to 15, none in 0 to 7, each is NaN"
    assert str(finding.cause).startswith("no step of the kernel writes [8, 0]: it holds whatever")
    assert str(finding.advice).startswith("let the grid (pl.cdiv) and the index map cover")


@pytest.mark.slow
def test_a_result_is_followed_through_what_moves_its_elements() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * jnp.where(at_block(1, 1), -2.0, 2.0)

    def moved(x: jax.Array, f: Any) -> Any:
        y = f(x)[::-1].T[:, :12].reshape(2, 128, 12)
        return {"a": (y.astype(BF16), jnp.pad(jnp.exp(y / 8), ((0, 0), (0, 0), (1, 1))))}

    report = pallas_debug.compare(
        functools.partial(moved, f=lambda x: blocks(kernel, x)),
        functools.partial(moved, f=double),
        X,
        interpret="hlo",
    )
    assert report.kernels == ("kernel",)
    for finding, path in zip(report.findings, ("['a'][0]", "['a'][1]"), strict=True):
        assert finding.message.startswith(f"output {path} (o_ref): ")
        assert finding.grid_point == (1, 1)
        assert "is in block [8:16, 128:256] of grid point (1, 1)" in finding.message
        assert finding.values["element"].startswith("[1, 0, ")


@pytest.mark.slow
def test_a_result_that_is_computed_from_a_kernels_has_no_grid_point() -> None:
    finding = one(lambda x: blocks(copy_twice, x).sum(axis=0), lambda x: x.sum(axis=0), X)
    assert (finding.kernel, finding.grid_point) == ("<lambda>", None)
    assert (
        "its writers are unknown: it is computed by `reduce_sum` from a result of kernel "
        "`copy_twice`"
    ) in finding.message
    assert finding.values["pattern"] == ""

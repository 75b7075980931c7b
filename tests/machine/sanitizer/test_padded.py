"""Copies that take the padding of an array's last tiles along: does a result depend on it?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import found, passed

from pallas_debug.machine import run
from pallas_debug.machine.sanitizer import areas
from pallas_debug.model import Finding
from pallas_debug.session import Options, Session

F32, I32 = jnp.float32, jnp.int32
ANY = pl.BlockSpec(memory_space=pltpu.HBM)
X = np.random.default_rng(0).standard_normal((8, 200)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((200, 128)).astype(np.float32)


def product(x: jax.Array, y: jax.Array, *, masks_both: bool = False) -> jax.Array:
    """A product over 200 columns, in a pipeline whose last block has 56 columns of padding."""
    (m, k), n = x.shape, y.shape[1]

    def step(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        i = pl.program_id(0)
        left, right = x_ref[...], y_ref[...]  # the read
        inside = k - i * 128
        right = jnp.where(lax.broadcasted_iota(I32, right.shape, 0) < inside, right, 0)
        if masks_both:
            left = jnp.where(lax.broadcasted_iota(I32, left.shape, 1) < inside, left, 0)
        partial = jnp.dot(left, right, preferred_element_type=F32)
        o_ref[...] = jnp.where(i == 0, partial, o_ref[...] + partial)

    def padded_product(x_hbm: Any, y_hbm: Any, o_hbm: Any) -> None:
        pltpu.emit_pipeline(
            step,
            grid=(pl.cdiv(k, 128),),
            in_specs=[
                pl.BlockSpec((m, 128), lambda i: (0, i)),
                pl.BlockSpec((128, n), lambda i: (i, 0)),
            ],
            out_specs=pl.BlockSpec((m, n), lambda i: (0, 0)),
        )(x_hbm, y_hbm, o_hbm)

    out = jax.ShapeDtypeStruct((m, n), F32)
    return pl.pallas_call(padded_product, out, in_specs=[ANY, ANY], out_specs=ANY)(x, y)


masked_product = functools.partial(product, masks_both=True)


def require_padding_of_x(finding: Finding) -> None:
    assert (finding.kind, finding.kernel) == ("PaddingRead", "padded_product")
    assert finding.source.text == "left, right = x_ref[...], y_ref[...]  # the read"
    assert finding.witness.loop == (1,)
    assert finding.message == (
        "padding of x_hbm.window_ref is read and reaches an output: 448 of 1,024 elements, "
        "starting with x_hbm.window_ref[1, 0, 72]\ncopied from x_hbm, float32[8, 200] in HBM"
    )
    assert "the copy reaches past the end of the array" in finding.cause


@pytest.mark.slow
def test_padding_in_one_factor_of_a_product() -> None:
    (finding,) = found(product, X, Y)
    require_padding_of_x(finding)
    assert found(masked_product, X, Y) == ()


@pytest.mark.slow
def test_a_run_that_is_not_checked_is_explained_if_padding_makes_its_results_nan() -> None:
    for function, args, count in ((product, (X, Y), 1), (masked_product, (X, Y), 0)):
        call, arrays = passed(function, args)
        done = run.run(call, arrays)
        assert np.isnan(done.results[0][0]).any() == bool(count)
        findings = areas.padding_read(call, arrays, done.results)
        assert len(findings) == count
        for finding in findings:
            require_padding_of_x(finding)
    # A NaN that the call passes in is not ours to explain.
    call, arrays = passed(product, (np.where(X > 2, np.nan, X), Y))
    assert areas.padding_read(call, arrays, run.run(call, arrays).results) == []


@pytest.mark.slow
def test_auto_reports_it() -> None:
    for function, count in ((product, 1), (masked_product, 0)):
        with Session(Options(interpret="auto", chip="v5e")) as session:
            result = jax.block_until_ready(jax.jit(function)(X, Y))
            session.wait_for_runs()
        assert len(session.observer.findings) == count
        if count:
            require_padding_of_x(session.observer.findings[0])
        else:
            np.testing.assert_allclose(result, X @ Y, rtol=1e-4, atol=1e-4)


def copying(kernel: Callable[..., None], shape: tuple[int, int]) -> Callable[..., Any]:
    """A call whose kernel copies into a tile of scratch, from a column that is passed in."""
    return pl.pallas_call(
        kernel,
        jax.ShapeDtypeStruct(shape, F32),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), ANY],
        scratch_shapes=[pltpu.VMEM((8, 128), F32), pltpu.SemaphoreType.DMA],
    )


@pytest.mark.parametrize("sums", [False, True])
def test_padding_of_a_result_is_no_result(sums: bool) -> None:
    """Of an array of 100 columns that is returned in whole tiles."""

    def kernel(n_ref: Any, x_hbm: Any, o_ref: Any, tile: Any, sem: Any) -> None:
        pltpu.async_copy(x_hbm.at[:, pl.ds(n_ref[0], 128)], tile, sem).wait()
        o_ref[...] = tile[...] * 2
        if sums:
            o_ref[...] += jnp.sum(tile[...])

    findings = found(
        copying(kernel, (8, 128)), np.zeros(1, np.int32), np.ones((8, 100), np.float32)
    )
    assert [finding.kind for finding in findings] == ["PaddingRead"] * sums


@pytest.mark.parametrize("view", ["indexed", "reshaped"])
def test_copies_of_whole_tiles(view: str) -> None:
    """Into part of a buffer, whose other rows are written by others."""

    def kernel(n_ref: Any, x_hbm: Any, o_ref: Any, tile: Any, sem: Any) -> None:
        tile[...] = jnp.zeros_like(tile)
        rows = tile.at[pl.ds(4, 2)]
        if view == "reshaped":
            rows = tile.reshape(4, 2, 128).at[2]
        pltpu.async_copy(x_hbm.at[:, pl.ds(n_ref[0], 128)], rows, sem).wait()
        o_ref[...] = tile[...].sum(axis=1, keepdims=True)

    findings = found(copying(kernel, (8, 1)), np.zeros(1, np.int32), np.ones((2, 100), np.float32))
    assert [finding.kind for finding in findings] == ["PaddingRead"]
    assert f"{2 * 28} of 1,024 elements, starting with tile[4, 100]" in findings[0].message

"""Kernels for Triton, from programs of others: masks, in-place updates, equal stores, algorithms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

import pallas_debug
from pallas_debug.verdict import Verdict

PARAMS = plt.CompilerParams(num_warps=4)


def counting(verdict: Verdict) -> list[object]:
    return [finding for finding in verdict.findings if finding.counts]


def masked_rows(x: jax.Array, **params: object) -> jax.Array:
    def double(x_ref, out_ref):
        row, column = pl.program_id(0) * 16 + jnp.arange(16), jnp.arange(32)
        mask = (row < 20)[:, None]
        rows = plt.load(x_ref.at[row[:, None], column[None, :]], mask=mask, other=0.0)
        plt.store(out_ref.at[row[:, None], column[None, :]], rows * 2, mask=mask)

    return pl.pallas_call(double, grid=(2,), out_shape=x, **params)(x)


def masked_slices(x: jax.Array, **params: object) -> jax.Array:
    def double(x_ref, out_ref):
        start = pl.program_id(0) * 16
        rows = pl.ds(start, 16)
        mask = (start + jnp.arange(16) < 20)[:, None]
        x = plt.load(x_ref.at[rows, :], mask=mask, other=0.0)
        plt.store(out_ref.at[rows, :], x * 2, mask=mask)

    return pl.pallas_call(double, grid=(2,), out_shape=x, **params)(x)


@pytest.mark.parametrize("function", [masked_rows, masked_slices])
@pytest.mark.parametrize("params", [{}, {"compiler_params": PARAMS}], ids=["plain", "params"])
def test_masks_of_triton_hold_without_compiler_parameters(function, params) -> None:
    """From pallas-moe-kernel: an operation that only Triton has makes it a kernel for Triton."""
    verdict = pallas_debug.verify(
        lambda x: function(x, **params),
        np.ones((20, 32), np.float32),
        reference=lambda x: x * 2,
    )
    assert not verdict.findings, str(verdict)
    assert verdict.ok, str(verdict)


@called(grid=(1,), input_output_aliases={0: 0}, compiler_params=PARAMS)
def update_in_place(x_ref, _):
    start = 32 + pl.program_id(0) * 64
    columns = pl.ds(start, 64)
    mask = (start + jnp.arange(64) < 64)[None, :]
    tail = plt.load(x_ref.at[:, columns], mask=mask, other=0.0)
    plt.store(x_ref.at[:, columns], tail * 2, mask=mask)


def test_a_masked_store_through_the_input_of_an_aliased_pair() -> None:
    """From fermix."""
    verdict = pallas_debug.verify(update_in_place, np.ones((16, 64), np.float32))
    assert not verdict.findings, str(verdict)


def total(x: jax.Array) -> jax.Array:
    def add_all(x_ref, out_ref):
        out_ref[0] = jnp.sum(x_ref[...])

    out = jax.ShapeDtypeStruct((1,), x.dtype)
    return pl.pallas_call(add_all, grid=(4,), out_shape=out, compiler_params=PARAMS)(x)


def test_grid_points_that_store_equal_values_do_not_race() -> None:
    """From Pallas-Puzzles, `sum` and `softmax`: no order changes the result."""
    verdict = pallas_debug.verify(total, np.ones(16, np.float32), reference=lambda x: x.sum()[None])
    assert not counting(verdict), str(verdict)


@pytest.mark.slow
def test_a_clean_kernel_for_triton_passes(command, tmp_path) -> None:
    """From twelve projects: a target that does not apply is not asked, and costs no exit code."""
    (tmp_path / "double.py").write_text(
        "import jax.numpy as jnp\n"
        "from jax.experimental import pallas as pl\n"
        "from jax.experimental.pallas import triton as plt\n"
        "def double(x):\n"
        "    def kernel(x_ref, o_ref):\n"
        "        o_ref[...] = x_ref[...] * 2\n"
        "    return pl.pallas_call(\n"
        "        kernel, out_shape=x, compiler_params=plt.CompilerParams(num_warps=4))(x)\n"
    )
    done = command("verify", "double:double", "--arg=f32[16,64]")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not asked" in done.stdout


@called(like=0, compiler_params=PARAMS)
def product(x_ref, y_ref, out_ref):
    preset = jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3
    out_ref[...] = jax.lax.dot(x_ref[...], y_ref[...], precision=preset)


def test_a_product_by_an_algorithm_that_a_cpu_does_not_have() -> None:
    """From fermix: it runs at a higher precision, with a note."""
    x = np.ones((16, 16), np.float32)
    verdict = pallas_debug.verify(product, x, x, reference=lambda x, y: x @ y)
    assert not verdict.findings, str(verdict)
    judged = {outcome.engine: outcome.status for outcome in verdict.outcomes}
    assert (judged["machine"], judged["values"]) == ("ok", "ok"), str(verdict)
    assert "TF32" in str(verdict), str(verdict)

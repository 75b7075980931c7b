"""Small kernels after those of other projects, for which the analysis once gave a wrong answer."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from analysis_runs import F32, Captures, S
from jax.experimental import pallas as pl

from pallas_debug.analysis import analyze
from pallas_debug.compiler.targets import BUILTIN


@pytest.mark.parametrize("by_slice", [False, True])
def test_a_kernel_with_a_load_that_only_triton_has_is_for_triton(
    captures: Captures, by_slice: bool
) -> None:
    """Without compiler parameters, as in pallas-moe-kernel."""
    triton = pytest.importorskip("jax.experimental.pallas.triton")

    def rows(x_ref: Any, o_ref: Any) -> None:
        row = pl.program_id(0) * 16 + jnp.arange(16)
        part: Any = (row[:, None], jnp.arange(32)[None, :])
        if by_slice:
            part = (pl.ds(pl.program_id(0) * 16, 16), slice(None))
        mask = (row < 20)[:, None]
        x = triton.load(x_ref.at[part], mask=mask, other=0.0)
        triton.store(o_ref.at[part], x * 2, mask=mask)

    (captured,) = captures(
        lambda x: pl.pallas_call(rows, grid=(2,), out_shape=x)(x), (S((20, 32), F32),)
    )
    analysis = analyze(captured, BUILTIN)
    assert analysis.findings == ()
    assert [gap.reason for gap in analysis.gaps] == ["it is a kernel for a GPU (Triton)"]

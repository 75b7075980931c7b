"""Small kernels after those of other projects, for which the analysis once gave a wrong answer."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from analysis_runs import F32, Captures, S, look
from invented import invented_p
from jax.experimental import pallas as pl

from pallas_debug.analysis import analyze
from pallas_debug.bridge.jaxcompat import lowering, tpu_core
from pallas_debug.compiler.targets import BUILTIN
from pallas_debug.verdict import verify


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


@pytest.mark.parametrize("engines", ["static", "static,machine"])
def test_the_axis_of_the_grid_that_was_rounded_down(engines: str) -> None:
    """Both axes have one step here, as in JAXBench."""

    def copy(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    def tail(x: Any) -> Any:
        grid_rows = x.shape[0] // 16
        grid_columns = x.shape[1] // 512
        grid = (grid_rows, grid_columns)
        spec = pl.BlockSpec((16, 512), lambda i, j: (i, j))
        return pl.pallas_call(copy, out_shape=x, grid=grid, in_specs=[spec], out_specs=spec)(x)

    (finding,) = verify(tail, S((16, 700), F32), targets="v5e", engines=engines).findings
    assert finding.kind == "OutputNotWritten"
    assert finding.source is not None
    assert finding.source.text == "grid_columns = x.shape[1] // 512"


@pytest.mark.parametrize("is_lowered", [True, False])
def test_a_primitive_without_a_row_is_a_gap_with_its_line(
    captures: Captures, monkeypatch: pytest.MonkeyPatch, is_lowered: bool
) -> None:
    """If jax has no rule for it either, that is the finding."""
    if is_lowered:
        rules = lowering.lowering_rules[tpu_core.CoreType.TC]
        monkeypatch.setitem(rules, invented_p, lambda _, x: x)

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = invented_p.bind(x_ref[...])  # invented

    analysis = look(captures, kernel)
    refused = [finding.source for finding in analysis.findings]
    reasons = [gap.reason for gap in analysis.gaps]
    (message,) = reasons if is_lowered else refused
    assert len(refused) == (not is_lowered)
    assert f"{__file__}:" in str(message)
    if is_lowered:
        assert str(message).startswith("`invented` at ")

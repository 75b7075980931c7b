"""An overflow and the NaN that it causes are one fault, whichever engines saw which of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.render import finding_text
from pallas_debug.verdict import verify

X = jnp.zeros((16, 128)).at[3, 5].set(100.0)
BLOCK = pl.BlockSpec((8, 128), lambda i: (i, 0))


def over_steps(x: jax.Array) -> jax.Array:
    """Overflows at the first grid point; the NaN comes at the last."""

    def weights(x_ref: Any, o_ref: Any, sum_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += jnp.exp(x_ref[...])
        o_ref[...] = sum_ref[...] / sum_ref[...].sum(axis=1, keepdims=True)

    return pl.pallas_call(
        weights,
        grid=(2,),
        in_specs=[BLOCK],
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype),
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
    )(x)


def masked_row_and_overflow(x: jax.Array) -> jax.Array:
    """An overflow, and a NaN of minus infinities that has nothing to do with it."""

    def scores(x_ref: Any, o_ref: Any) -> None:
        o_ref[0:8] = jnp.exp(x_ref[0:8])
        masked = jnp.where(x_ref[8:16] == 0, -jnp.inf, x_ref[8:16])
        o_ref[8:16] = masked - masked.max(axis=1, keepdims=True)

    return pl.pallas_call(scores, out_shape=x)(x)


def by_zero(x: jax.Array) -> jax.Array:
    def quotient(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] / x_ref[...]

    return pl.pallas_call(quotient, out_shape=x)(x)


@pytest.mark.slow
@pytest.mark.parametrize("engines", ["checks", "machine", "checks,machine"])
def test_the_nan_is_a_consequence_of_an_earlier_overflow(engines: str) -> None:
    (finding,) = verify(over_steps, X, engines=engines, targets="v5e").findings
    assert (finding.kind, finding.grid_point) == ("InfinityProduced", (0,))
    assert finding.source is not None
    assert "jnp.exp" in (finding.source.text or "")
    assert set(finding.engines) == set(engines.split(","))
    if "checks" in engines:
        (nan,) = finding.consequences
        assert (nan.kind, nan.comes_of) == ("NanProduced", ("InfinityProduced",))
        assert "followed by: `div` produced a NaN from inf and inf at [3, 5]" in str(
            finding_text(finding)
        )


@pytest.mark.slow
def test_a_nan_of_minus_infinities_is_a_fault_of_its_own() -> None:
    found = verify(masked_row_and_overflow, X, engines="checks,machine", targets="v5e").findings
    assert {f.kind for f in found} == {"InfinityProduced", "NanProduced"}
    assert [f.consequences for f in found] == [(), ()]
    report, _ = pallas_debug.check(masked_row_and_overflow, "all")(X)
    assert {f.kind for f in report.findings} == {"InfinityProduced", "NanProduced"}


def test_what_a_division_by_zero_makes_is_its_consequence() -> None:
    report, _ = pallas_debug.check(by_zero, "all")(X)
    (finding,) = report.findings
    assert finding.kind == "DivisionByZero"
    assert [nan.kind for nan in finding.consequences] == ["NanProduced"]

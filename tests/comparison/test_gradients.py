"""Comparison of gradients: with a reference's, and with finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from backward_kernels import CASES, Case, parallel
from jax.experimental import pallas as pl

import pallas_debug
from pallas_debug.errors import InvalidReference, UsageError
from pallas_debug.findings.faults import Fault


def lines_of(report: pallas_debug.ComparisonReport) -> set[int]:
    """Lines that the findings name, of values and of their writers."""
    return {
        source.line
        for finding in report.findings
        for source in (finding.source, *(link.source for link in finding.chain))
        if source is not None
    }


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_slips_in_backward_kernels_are_found_at_their_lines(make: Callable[[bool], Case]) -> None:
    case = make(True)
    report = pallas_debug.compare(case.function, case.reference, *case.args, grad=True)
    assert report.findings
    assert case.line() in lines_of(report)
    assert {finding.kernel for finding in report.findings} == {"backward"}


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_finite_differences_find_the_slips_without_a_reference(
    make: Callable[[bool], Case],
) -> None:
    case = make(True)
    report = pallas_debug.compare(case.function, None, *case.args, grad=True)
    assert report.findings
    assert "finite differences of function" in str(report)


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_correct_backward_kernels_agree_with_both(make: Callable[[bool], Case]) -> None:
    case = make(False)
    assert pallas_debug.compare(case.function, case.reference, *case.args, grad=True).ok
    assert pallas_debug.compare(case.function, None, *case.args, grad=True).ok


def test_a_sum_over_a_parallel_axis_is_a_race_in_the_backward_kernel() -> None:
    """One step after the other, as here, it is right: the sanitizer decides, not the values."""
    wrong, right = parallel(True), parallel(False)
    how = {"grad": True, "engines": "machine"}
    verdict = pallas_debug.verify(wrong.function, *wrong.args, reference=wrong.reference, **how)
    (finding,) = verdict.findings
    assert (finding.kind, finding.kernel) == (Fault.DATA_RACE, "backward")
    assert finding.witness.other is not None
    assert finding.witness.other.text == "dw_ref[...] = jnp.zeros_like(dw_ref)"
    assert pallas_debug.verify(right.function, *right.args, reference=right.reference, **how).ok


def test_integers_have_no_gradient() -> None:
    with pytest.raises(UsageError, match="none of them is an array of floats"):
        pallas_debug.compare(lambda x: x, lambda x: x, jnp.arange(8), grad=True)


def test_only_a_gradient_needs_no_reference() -> None:
    with pytest.raises(UsageError, match="None"):
        pallas_debug.compare(lambda x: x, None, jnp.ones(8))


def test_a_reference_that_cannot_be_differentiated() -> None:
    def refused(x: Any) -> Any:
        return jax.pure_callback(lambda x: x, x, x)

    with pytest.raises(InvalidReference, match="the reference gradient of refused raised"):
        pallas_debug.compare(lambda x: x, refused, jnp.ones(8), grad=True)


def _row(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + pl.program_id(0).astype(x_ref.dtype)


def _plain(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = 2 * x_ref[...]


@pytest.mark.parametrize("kernel", [_row, _plain])
def test_a_kernel_without_a_derivative_is_named_with_its_call(kernel: Any) -> None:
    def function(x: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=x, grid=(1,))(x)

    with pytest.raises(UsageError, match=r"test_gradients.py:\d+: .*jax.custom_vjp"):
        pallas_debug.compare(function, lambda x: x, jnp.ones((8, 128)), grad=True)


def test_bfloat16_is_too_coarse_for_finite_differences() -> None:
    case = CASES["factor"](False)
    x = case.args[0].astype(jnp.bfloat16)
    report = pallas_debug.compare(case.function, None, x, grad=True)
    assert not report.findings
    assert not report.ok
    assert "were not judged" in str(report)
    assert pallas_debug.compare(case.function, case.reference, x, grad=True).ok


def test_arguments_that_are_no_floats_have_no_gradient_but_are_passed() -> None:
    def scaled(x: Any, *rest: Any, by: Any, of: dict[str, Any]) -> Any:
        return x * by + rest[0] * of["w"], jnp.argmax(x)

    given = jnp.ones(4), jnp.arange(4.0), jnp.arange(3)
    report = pallas_debug.compare(
        scaled, scaled, *given, grad=True, by=3, of={"w": jnp.ones(4), "n": jnp.arange(2)}
    )
    assert report.ok
    assert {output.name for output in report.outputs} == {
        "output [\"of['w']\"]",
        "output ['argument 2']",
        "output ['x']",
    }


def test_the_verdict_on_a_gradient_judges_the_backward_kernel() -> None:
    case = CASES["mask"](True)
    verdict = pallas_debug.verify(
        case.function, *case.args, targets="v5e", reference=case.reference, grad=True
    )
    (finding,) = verdict.findings
    assert finding.kind is Fault.VALUE_MISMATCH
    assert finding.kernel == "backward"
    assert finding.source.line == case.line()
    assert set(verdict.kernels) == {"backward", "forward"}
    judged = {(o.kernel, o.column) for o in verdict.outcomes if o.status == "ok"}
    assert {("forward", "v5e"), ("backward", "machine")} <= judged


@pytest.mark.slow
def test_jax_flash_attention_has_the_gradient_of_its_reference() -> None:
    from jax.experimental.pallas.ops.tpu import flash_attention as jax_flash

    q, k, v = (jax.random.normal(jax.random.key(i), (1, 2, 256, 128)) for i in range(3))
    report = pallas_debug.compare(
        jax_flash.flash_attention,
        jax_flash.mha_reference_no_custom_vjp,
        q,
        k,
        v,
        None,
        None,
        grad=True,
    )
    assert report.ok, report


@pytest.mark.slow
def test_jax_splash_attention_has_the_gradient_of_its_reference() -> None:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    mask = masks.MultiHeadMask([masks.CausalMask((256, 256))] * 2)
    function = splash.make_splash_mha_single_device(mask)

    def reference(q: Any, k: Any, v: Any) -> Any:
        logits = jnp.einsum("hqd,hkd->hqk", q, k, precision="highest")
        logits = jnp.where(jnp.tril(jnp.ones((256, 256), bool)), logits, -jnp.inf)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(logits), v, precision="highest")

    q, k, v = (jax.random.normal(jax.random.key(i), (2, 256, 128)) for i in range(3))
    assert pallas_debug.compare(function, reference, q / 16, k, v, grad=True).ok

"""Results with float32 products as a TPU computes them, of operands rounded to bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.bridge.jaxprs import bfloat16_products
from pallas_debug.model import Finding
from pallas_debug.session import Options, Session

N = 128
COUNTS = jnp.asarray(np.random.default_rng(0).integers(0, 2000, (N, N), np.int32))
NORMAL = jnp.asarray(np.random.default_rng(1).standard_normal((N, N), np.float32))
ABOVE_ONE = jnp.full((N, N), 1.003)
DEFAULT, HIGHEST = None, lax.Precision.HIGHEST


def lower_triangle() -> jax.Array:
    row, column = (lax.broadcasted_iota(jnp.int32, (N, N), d) for d in (0, 1))
    return jnp.where(row >= column, 1.0, 0.0)


def on_whole(kernel: Callable[..., None], out: Any, *args: Any) -> Any:
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(out.shape, out.dtype))(*args)


def offsets_with(precision: Any) -> Callable[[Any], Any]:
    """Prefix sums of integers by a matrix of ones."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        counts = x_ref[...].astype(jnp.float32)
        sums = jnp.dot(lower_triangle(), counts, precision=precision)
        o_ref[...] = sums.astype(jnp.int32)

    def offsets(x: Any) -> Any:
        return on_whole(kernel, x, x)

    return offsets


def offsets_reference(x: Any) -> Any:
    return jnp.cumsum(x, axis=0)


def compared(function: Any, reference: Any, *args: Any, **options: Any) -> tuple[Finding, ...]:
    return pallas_debug.compare(function, reference, *args, **options).findings


def test_prefix_sums_of_integers_by_a_product() -> None:
    report = pallas_debug.compare(offsets_with(DEFAULT), offsets_reference, COUNTS)
    (finding,) = report.findings
    assert finding.kind == "LowPrecisionProduct"
    assert finding.kernel == "kernel"
    assert finding.witness.source is not None
    assert "sums = jnp.dot(" in str(finding.witness.source.text)
    first, second, third = finding.message.split("; ", 2)
    assert first.startswith("output, int32[128, 128]: ")
    assert first.endswith(
        " of 16,384 elements differ from `offsets_reference` if the float32 operands of this "
        "product are rounded to bfloat16, as on a TPU"
    )
    rounded = np.cumsum(np.asarray(COUNTS, jnp.bfloat16).astype(np.float32), 0).astype(np.int32)
    exact = np.cumsum(np.asarray(COUNTS), 0)
    at = np.unravel_index(int(np.argmax(rounded != exact)), exact.shape)
    element = [int(i) for i in at]
    assert second == (
        f"first, {element} is {rounded[at]} with rounding, {exact[at]} without, "
        f"expected {exact[at]}"
    )
    worst = int(np.abs(rounded - exact).max())
    assert third.startswith(f"largest error {worst} at [")
    assert third.endswith(", allowed none, since these are not floats")
    assert f"{int((rounded != exact).sum()):,} of" in first
    assert finding.cause == (
        "at default precision, the MXU multiplies float32 in one pass, rounded to bfloat16, which "
        "keeps 8 bits; on a CPU the same product is exact to float32"
    )
    assert finding.advice == (
        "pass precision=jax.lax.Precision.HIGHEST to it (six passes instead of one): the result "
        "then agrees"
    )
    assert not report.ok
    assert repr(report) == (
        "<Comparison failed: offsets and offsets_reference agree in 16,384 elements of 1 output, "
        "and not with float32 products as a TPU computes them>"
    )


def test_the_advice_is_right() -> None:
    assert not compared(offsets_with(HIGHEST), offsets_reference, COUNTS)


def test_small_integers_are_exact_in_bfloat16() -> None:
    assert not compared(offsets_with(DEFAULT), offsets_reference, COUNTS % 256)


def matmul(x: Any, y: Any) -> Any:
    def kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.dot(x_ref[...], y_ref[...])

    return on_whole(kernel, x, x, y)


def test_a_product_whose_error_bfloat16_explains_is_no_fault() -> None:
    assert not compared(matmul, jnp.dot, NORMAL, NORMAL)


def decay(x: Any) -> Any:
    """exp of a product of numbers that bfloat16 rounds to 1, all downwards."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.exp(jnp.dot(x_ref[...], x_ref[...]) - N)

    return on_whole(kernel, x, x)


@pytest.mark.slow
@pytest.mark.parametrize(
    "reference",
    [
        lambda x: jnp.exp(jnp.dot(x, x) - N),
        lambda x: np.exp(np.dot(np.asarray(x), np.asarray(x)) - N),
    ],
    ids=["jax", "numpy"],
)
def test_nothing_is_said_where_the_reference_is_as_far_off(reference: Any) -> None:
    rounded = pallas_debug.interpret(bfloat16_products.rounded(decay))(ABOVE_ONE)
    assert (rounded == 1).all()
    assert (decay_of(ABOVE_ONE) > 2).all()
    # numpy sums in another order.
    assert not compared(decay, reference, ABOVE_ONE, rtol=1e-3)


def decay_of(x: Any) -> Any:
    return jnp.exp((x[:, :, None] * x[None]).sum(1) - N)


def test_a_reference_without_the_product_shows_it() -> None:
    (finding,) = compared(decay, decay_of, ABOVE_ONE)
    assert finding.kind == "LowPrecisionProduct"
    assert "first, [0, 0] is 1 with rounding, 2.1" in finding.message
    assert ", allowed 0.033" in finding.message


def both_products(x: Any, y: Any) -> Any:
    def kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        first = jnp.dot(lower_triangle(), x_ref[...].astype(jnp.float32))
        second = jnp.dot(lower_triangle(), y_ref[...].astype(jnp.float32))
        o_ref[...] = first.astype(jnp.int32) - second.astype(jnp.int32)

    return on_whole(kernel, x, x, y)


@pytest.mark.slow
def test_two_products_are_both_named() -> None:
    def reference(x: Any, y: Any) -> Any:
        return offsets_reference(x) - offsets_reference(y)

    (finding,) = compared(both_products, reference, COUNTS, COUNTS.T)
    lines = finding.witness.source, finding.witness.other
    assert lines[0] is not None
    assert lines[1] is not None
    assert ["first = " in str(lines[0].text), "second = " in str(lines[1].text)] == [True, True]
    both = f"lines {lines[0].line} and {lines[1].line}"
    assert f"the float32 operands of the products at {both} are rounded" in finding.message
    assert f"HIGHEST to those at {both} (six passes" in str(finding.advice)


def test_a_function_that_jax_cannot_trace_is_not_judged() -> None:
    def offsets(x: Any) -> Any:
        return offsets_with(DEFAULT)(x) if int(x.sum()) else x

    report = pallas_debug.compare(offsets, offsets_reference, COUNTS)
    assert report.ok
    (note,) = report.notes
    assert note.startswith(
        "not judged: its float32 products as a TPU computes them, with operands rounded to "
        "bfloat16: with those, the function stops: ConcretizationTypeError: "
    )


@pytest.mark.slow
def test_kernels_for_the_kernel_machine_and_loops() -> None:
    """HLO mode has no copies of a size known at run time; products in a loop and a scope."""

    def kernel(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        def scoped(scratch: Any, sem: Any) -> None:
            scratch[...] = jnp.zeros_like(scratch)
            rows = pl.ds(0, n_ref[0] * 8)
            pltpu.make_async_copy(x_ref.at[rows], scratch.at[rows], sem).start()
            pltpu.make_async_copy(x_ref.at[rows], scratch.at[rows], sem).wait()
            o_ref[...] = jnp.zeros_like(o_ref)

            @pl.loop(0, 2)
            def _(i: Any) -> None:
                half = pl.ds(pl.multiple_of(i * 64, 64), 64)
                sums = jnp.dot(lower_triangle()[:64, :64], scratch[half].astype(jnp.float32))
                o_ref[half] = sums.astype(jnp.int32)

        pl.run_scoped(scoped, pltpu.VMEM((N, N), jnp.int32), pltpu.SemaphoreType.DMA)

    def halves(n: Any, x: Any) -> Any:
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(1,),
                in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
                out_specs=pl.BlockSpec((N, N), lambda i, n: (0, 0)),
            ),
        )(n, x)

    def reference(n: Any, x: Any) -> Any:
        return jnp.cumsum(x.reshape(2, N // 2, N), axis=1).reshape(x.shape)

    (finding,) = compared(halves, reference, jnp.array([16], jnp.int32), COUNTS)
    assert finding.kind == "LowPrecisionProduct"
    assert finding.witness.source is not None
    assert "sums = jnp.dot(" in str(finding.witness.source.text)


@pytest.mark.slow
def test_results_that_differ_without_rounding_too() -> None:
    """As those of copies that race: they change from run to run."""
    runs = []

    def offsets(x: Any) -> Any:
        runs.append(x)
        return offsets_with(DEFAULT)(x) + 10000 * (len(runs) > 1)

    assert not compared(offsets, offsets_reference, COUNTS)


def test_a_session_around_it_sees_nothing_of_the_further_runs() -> None:
    with Session(Options(), runs=True) as session:
        (finding,) = compared(offsets_with(DEFAULT), offsets_reference, COUNTS)
    assert finding.kind == "LowPrecisionProduct"
    assert len(session.kernels) == 1


@pytest.mark.slow
def test_a_wide_tolerance_is_held_to_and_stated() -> None:
    assert not compared(decay, decay_of, ABOVE_ONE, atol=1.2)
    (finding,) = compared(decay, decay_of, ABOVE_ONE, atol=1.0)
    assert "allowed 1 plus 0.0156 of each element" in finding.message

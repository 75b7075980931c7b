"""`verify` with a reference: the column `values`, and what it does not say."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from pallas_debug.cli.exits import Exit
from pallas_debug.cli.verify import exit_code
from pallas_debug.errors import UsageError
from pallas_debug.verdict import Verdict, verify

X = jnp.arange(16.0 * 128).reshape(16, 128) + 1
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))


def scale(x: jax.Array, by: float, name: str) -> Any:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * by

    return pl.pallas_call(
        kernel, out_shape=x, grid=(2,), in_specs=[ROWS], out_specs=ROWS, name=name
    )(x)


def double(x: jax.Array) -> jax.Array:
    return x * 2


def judged(function: Any, reference: Any, engines: str = "machine", **more: Any) -> Verdict:
    return verify(function, X, targets="v5e", engines=engines, reference=reference, **more)


def cells(verdict: Verdict) -> dict[str, str]:
    return {o.kernel: o.status for o in verdict.outcomes if o.engine == "values"}


@pytest.mark.slow
def test_a_right_and_a_wrong_result() -> None:
    right = judged(lambda x: scale(x, 2.0, "right"), double)
    assert right.ok
    assert right.reference == "double"
    assert str(right).splitlines() == [
        "kernel  machine  values",
        "right   ok       ok",
        "",
        "<lambda>: nothing found in 1 kernel",
    ]
    wrong = judged(lambda x: scale(x, 3.0, "wrong"), double)
    (finding,) = wrong.counted
    assert (finding.kind, finding.kernel, finding.grid_point) == ("ValueMismatch", "wrong", (0,))
    assert cells(wrong) == {"wrong": "found"}
    assert exit_code(wrong) == Exit.FAILED
    assert judged(lambda x: scale(x, 3.0, "wrong"), double, rtol=0.5, atol=0.0).ok


@pytest.mark.slow
def test_a_result_that_does_not_come_straight_from_the_only_kernel_has_its_name() -> None:
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.PartitionSpec("x")

    def sharded(x: jax.Array) -> jax.Array:
        on_each = lambda x: scale(x, 3.0, "wrong")  # noqa: E731
        return jax.shard_map(on_each, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)(x)

    (finding,) = judged(sharded, double).counted
    assert (finding.kind, finding.kernel) == ("ValueMismatch", "wrong")
    assert "does not come straight from a kernel" in finding.message


@pytest.mark.slow
def test_of_two_kernels_the_one_that_wrote_the_result_is_found() -> None:
    def both(x: jax.Array) -> Any:
        return scale(scale(x, 2.0, "first"), 2.0, "second")

    wrong = judged(both, double)
    assert cells(wrong) == {"first": "unjudged", "second": "found"}  # as engines are named
    (gap,) = wrong.gaps
    assert gap.reason == (
        "the results differ from those of the reference, but whether this kernel is at fault is "
        "unknown"
    )
    assert [f.kernel for f in wrong.findings] == ["second"]

    summed = judged(lambda x: scale(x, 2.0, "a").sum() + scale(x, 2.0, "b").sum(), jnp.sum)
    assert cells(summed) == {"a": "unjudged", "b": "unjudged"}
    assert len(summed.findings) == 1
    assert exit_code(summed) == Exit.FAILED


@pytest.mark.slow
def test_a_reference_that_is_nan_leaves_values_unjudged() -> None:
    nan = judged(lambda x: scale(x, 2.0, "right"), lambda x: double(x).at[0, 3].set(jnp.nan))
    assert nan.findings == ()
    assert cells(nan) == {"right": "unjudged"}
    assert exit_code(nan) == Exit.CANNOT_RUN
    assert "is NaN at 1 of 2,048 elements, first at [0, 3], and the function is NaN at none" in (
        str(nan)
    )


@pytest.mark.slow
def test_a_reference_of_another_shape_leaves_values_unjudged() -> None:
    verdict = judged(lambda x: scale(x, 2.0, "right"), lambda x: double(x)[:8])
    assert cells(verdict) == {"right": "unjudged"}
    assert "both must have the same shape" in str(verdict)


@pytest.mark.slow
def test_a_function_that_does_not_return_leaves_values_unjudged() -> None:
    def fails(x: Any) -> Any:
        y = scale(x, 2.0, "right")
        if not isinstance(y, jax.core.Tracer):
            raise ZeroDivisionError("here")
        return y

    stopped = judged(fails, double)
    assert cells(stopped) == {"right": "unjudged"}
    (reason,) = (o.reason for o in stopped.outcomes if o.engine == "values")
    assert "ZeroDivisionError: here" in reason


def test_what_makes_no_sense() -> None:
    right = lambda x: scale(x, 2.0, "right")  # noqa: E731
    with pytest.raises(UsageError, match="verify needs a target to trace the function for: pass o"):
        verify(right, X, targets=())
    with pytest.raises(UsageError, match="the engine `values` compares results with those of a"):
        judged(right, None, engines="values")
    with pytest.raises(UsageError, match="rtol and atol apply to the comparison with a reference"):
        judged(right, None, rtol=1.0)
    with pytest.raises(UsageError, match=r"atol must be a number of at least 0, not -1\.0"):
        judged(right, double, atol=-1.0)
    with pytest.raises(UsageError, match=r"reference=…\) takes a function, not 3"):
        judged(right, 3)


@pytest.mark.slow
def test_a_function_that_donates_its_arguments_is_judged_by_every_engine() -> None:
    def double(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    def doubled(x: jax.Array) -> jax.Array:
        return pl.pallas_call(double, out_shape=x, input_output_aliases={0: 0})(x)

    x = jnp.ones((8, 128))
    verdict = verify(
        jax.jit(doubled, donate_argnums=0), x, targets="v5e", reference=lambda x: x * 2
    )
    assert not x.is_deleted()
    assert verdict.problems == ()
    assert {o.column: o.status for o in verdict.outcomes if o.kernel} == {
        "static": "ok",
        "v5e": "ok",
        "machine": "ok",
        "values": "ok",
    }

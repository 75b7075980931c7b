"""`pallas_debug.compare`: what it says of kernels that are wrong, and of what cannot be compared."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compared import BF16, F32, X, blocks, copy_twice, double, one
from jax.experimental import pallas as pl

import pallas_debug
from pallas_debug.errors import InvalidReference, KernelFault, UsageError, ValuesDiffer

# Dtypes and tolerances.


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype, small, large",
    [
        (F32, 5e-5, 3e-4),
        (BF16, 1 / 128, 1 / 16),
        (jnp.float16, 1 / 512, 1 / 64),
        ("f8", 1e-10, 1e-8),
    ],
)
def test_the_default_tolerance_is_that_of_the_dtype(dtype: Any, small: float, large: float) -> None:
    with jax.enable_x64(dtype == "f8"):
        x = jnp.ones((4, 4), dtype)
        assert pallas_debug.compare(lambda x: x * (1 + small), lambda x: x, x).ok
        assert not pallas_debug.compare(lambda x: x * (1 + large), lambda x: x, x).ok


def test_a_small_element_is_held_to_the_precision_of_the_largest() -> None:
    x = jnp.array([1000.0, 1e-3])
    off = jnp.array([0.0, 1e-2])
    report = pallas_debug.compare(lambda x: x + off, lambda x: x, x)
    assert report.ok
    assert report.outputs[0].allowed == (
        "0.1 (0.0001 of the largest element) plus 0.0001 of each element"
    )
    strict = pallas_debug.compare(lambda x: x + off, lambda x: x, x, atol=1e-6)
    assert (strict.ok, strict.outputs[0].allowed) == (False, "1e-06 plus 0.0001 of each element")
    assert pallas_debug.compare(lambda x: x + off, lambda x: x, x, atol=1e-6, rtol=100.0).ok


@pytest.mark.parametrize("mask, is_apart", [(1e9, True), (-1e30, True), (2e8, False)])
def test_masks_are_no_scale_for_the_error_of_other_elements(mask: float, is_apart: bool) -> None:
    x = jnp.array([mask, 300.0 if is_apart else 1e7, 1.0])
    off = jnp.array([0.0, 0.0, 2.0])
    report = pallas_debug.compare(lambda x: x + off, lambda x: x, x)
    assert report.ok != is_apart


@pytest.mark.slow
def test_two_precisions_are_compared_where_that_is_asked_for() -> None:
    def bf16(x: jax.Array) -> Any:
        return blocks(copy_twice, x.astype(BF16))

    report = pallas_debug.compare(bf16, double, X)
    assert report.ok
    assert report.notes == (
        "output is bfloat16[16, 256] from `bf16` and float32[16, 256] from `double`: compared to "
        "the precision of bfloat16",
    )
    with pytest.raises(InvalidReference, match="must have the same dtype or a wider one of its ki"):
        pallas_debug.compare(double, bf16, X)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.int8, jnp.uint8, jnp.bool_])
def test_integers_and_bools_are_equal(dtype: Any) -> None:
    x = jnp.arange(6).reshape(2, 3).astype(dtype)
    assert pallas_debug.compare(lambda x: x, lambda x: x, x).ok
    report = pallas_debug.compare(
        lambda x: x.at[1, 2].set(x[0, 0]), lambda x: x, x, atol=9.0, rtol=1.0
    )
    assert report.outputs[0].differing == 1
    assert report.outputs[0].allowed == ""


@pytest.mark.slow
def test_float8_complex_and_keys() -> None:
    x = jnp.arange(4)
    eight = one(
        lambda x: x.astype(jnp.float8_e4m3fn), lambda x: (x + 8).astype(jnp.float8_e4m3fn), x
    )
    assert (eight.values["value"], eight.values["expected"]) == ("0", "8")
    z = jnp.array([1 + 2j, 3 - 1j, 0.5j])
    assert pallas_debug.compare(lambda z: z * (1 + 1e-6), lambda z: z, z).ok
    assert one(lambda z: z * 1j, lambda z: z, z).values["value"] == "-2+1j"
    key = jax.random.key(3)
    assert pallas_debug.compare(lambda k: k, lambda k: k, key).ok
    assert not pallas_debug.compare(lambda k: jax.random.split(k)[0], lambda k: k, key).ok


@pytest.mark.slow
def test_empty_arrays_and_scalars() -> None:
    empty = pallas_debug.compare(lambda x: x[:0], lambda x: x[:0], X)
    assert empty.ok
    assert repr(empty).endswith("agree in 0 elements of 1 output>")
    assert pallas_debug.compare(lambda x: x.sum(), lambda x: x.sum(), X).ok
    finding = one(lambda x: (x.sum(), 3), lambda x: (jnp.float32(7.5), 3), jnp.ones(2))
    assert (finding.values["element"], finding.values["value"]) == ("the scalar", "2")
    assert "its writers are unknown: it does not come straight from a kernel" in finding.message


@pytest.mark.slow
def test_infinities_are_equal_to_themselves_and_to_nothing_else() -> None:
    x = jnp.array([jnp.inf, -jnp.inf, 1.0])
    assert pallas_debug.compare(lambda x: x, lambda x: x, x).ok
    assert pallas_debug.compare(lambda x: -x, lambda x: x, x).outputs[0].differing == 3
    finite = pallas_debug.compare(lambda x: jnp.clip(x, -9, 9), lambda x: x, x, rtol=9.0, atol=9.0)
    assert finite.outputs[0].differing == 2
    (finding,) = pallas_debug.compare(lambda x: x / 0, lambda x: x, jnp.ones(2)).findings
    assert "largest error infinite" in finding.message


def test_nan_of_the_reference_is_not_judged_and_never_ok() -> None:
    x = jnp.array([1.0, jnp.nan, jnp.nan, 4.0])
    report = pallas_debug.compare(lambda x: jnp.array([1.0, jnp.nan, 3.0, 4.0]), lambda x: x, x)
    assert (report.ok, report.findings) == (False, ())
    assert report.not_judged == (
        "output, float32[4]: `<lambda>` is NaN at 2 of 4 elements, first at [1], and the function "
        "is NaN at 1 of these: they were not judged. Is the reference correct and defined for "
        "these arguments?",
    )
    with pytest.raises(ValuesDiffer, match="they were not judged"):
        report.throw()
    both = pallas_debug.compare(lambda x: x + 1, lambda x: x, x)
    assert "2 of 4 elements differ" in str(both)
    assert "not compared: 2" in both.findings[0].message


def test_the_report() -> None:
    report = pallas_debug.compare(lambda x: blocks(copy_twice, x), double, X)
    assert report.ok
    report.throw()
    assert report.kernels == ("copy_twice",)
    assert str(report) == "<lambda> and double agree in 4,096 elements of 1 output"
    bad = pallas_debug.compare(lambda x: x, double, X)
    assert bad.kernels == ()
    assert bad.notes == ("<lambda> called no Pallas kernel: only values were compared",)
    assert repr(bad).endswith("differ in 4,096 of 4,096 elements of 1 output>")
    with pytest.raises(ValuesDiffer) as raised:
        bad.throw()
    assert (str(raised.value), raised.value.findings) == (str(bad), bad.findings)


def test_arguments_given_by_shape_are_made_up() -> None:
    shape = jax.ShapeDtypeStruct((8,), F32)
    report = pallas_debug.compare(lambda x: x * 2, double, shape)
    assert report.ok
    assert report.notes[-1] == "values were made up for x (float32[8], random normal)"


@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("value", [-1e-3, float("nan"), float("inf"), "1e-3", True, 1j])
def test_a_tolerance_is_a_number_from_0_on(name: str, value: Any) -> None:
    with pytest.raises(UsageError) as refused:
        pallas_debug.compare(double, double, X, **{name: value})
    assert str(refused.value) == (
        f"{name} must be a number of at least 0, not {value!r}; omit it for the default of each "
        "output's dtype"
    )


def test_a_reference_that_raises_is_named_with_its_line() -> None:
    def reference(x: jax.Array) -> Any:
        return x @ x  # mismatch

    with pytest.raises(InvalidReference) as refused:
        pallas_debug.compare(double, reference, X)
    message = str(refused.value)
    assert message.startswith("the reference reference raised TypeError at ")
    assert "test_compare.py:" in message
    assert " (return x @ x  # mismatch): dot_general requires contracting dimensions" in message
    assert message.endswith("It is called with the same arguments as the function")
    assert isinstance(refused.value.__cause__, TypeError)


@pytest.mark.parametrize(
    "reference, message",
    [
        (lambda x: x[:8], "output is float32[16, 256] from `double` and float32[8, 256] from `"),
        (
            lambda x: x.astype(jnp.int32),
            "must have the same dtype or a wider one of its kind; convert",
        ),
        (lambda x: (x, x), "`double` returns float32[16, 256], but `"),
        (lambda x: (x, x), "returns 2 arrays ([0] float32[16, 256], [1] float32[16, 256]): both"),
    ],
)
def test_a_reference_with_other_arrays_is_refused(reference: Any, message: str) -> None:
    with pytest.raises(InvalidReference) as refused:
        pallas_debug.compare(double, reference, X)
    assert message in str(refused.value)


def test_a_numpy_reference_in_float64_counts_as_float32() -> None:
    assert pallas_debug.compare(double, lambda x: 2 * np.asarray(x, np.float64), X).ok


@pytest.mark.parametrize(
    "function, reference, message",
    [
        (lambda x: None, double, r"<lambda> returns no arrays: there is nothing to compare"),
        (double, lambda x: (x, "text"), r"double2? returns|returns output \[1\] of type str: only"),
        (double, 3, "takes a function, not 3"),
        (jax.jit(lambda x: pallas_debug.compare(double, double, x)), double, r"compare\(jax\.jit"),
    ],
)
def test_what_cannot_be_compared_is_refused(function: Any, reference: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pallas_debug.compare(function, reference, X)


@pytest.mark.slow
def test_a_fault_that_an_interpreter_reports_comes_first() -> None:
    def beyond(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[pl.ds(pl.program_id(0) * 8 + 4, 8), :]

    def call(x: jax.Array) -> Any:
        return blocks(beyond, x, in_specs=[pl.BlockSpec((16, 128), lambda i, j: (0, j))])

    with pytest.raises(KernelFault, match="OutOfBoundsRead in kernel `beyond`"):
        pallas_debug.compare(call, double, X)

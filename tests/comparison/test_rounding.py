"""Precision is named as the cause of an error only if the error is the size of rounding."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.comparison import tolerances
from pallas_debug.findings import explain
from pallas_debug.findings.wording import diverging
from pallas_debug.model import Finding

F32, BF16 = jnp.float32, jnp.bfloat16
EPS = np.finfo(np.float32).eps
X, Y = (
    jnp.asarray(np.random.default_rng(i).standard_normal(shape, np.float32))
    for i, shape in enumerate([(8, 256), (256, 8)])
)


def matmul(
    x: jax.Array, y: jax.Array, *, dtype: Any = F32, gain: float = 1.0, chunk: int = 128
) -> Any:
    def matmul(x_ref: Any, y_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        a, b = x_ref[...].astype(dtype), y_ref[...].astype(dtype)
        part = jnp.dot(a, b, preferred_element_type=F32, precision="highest")
        acc_ref[...] += jnp.where(part > 0, gain * part, part)
        o_ref[...] = acc_ref[...]

    return pl.pallas_call(
        matmul,
        grid=(256 // chunk,),
        in_specs=[
            pl.BlockSpec((8, chunk), lambda k: (0, k)),
            pl.BlockSpec((chunk, 8), lambda k: (k, 0)),
        ],
        out_specs=pl.BlockSpec((8, 8), lambda k: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((8, 8), F32),
        scratch_shapes=[pltpu.VMEM((8, 8), F32)],
    )(x, y)


def reference(x: jax.Array, y: jax.Array) -> Any:
    return jnp.dot(x, y, precision="highest")


def mismatch(other: Any = reference, *, rtol: float | None = None, **options: Any) -> Finding:
    atol = None if rtol is None else 0.0
    report = pallas_debug.compare(
        lambda x, y: matmul(x, y, **options), other, X, Y, interpret="hlo", rtol=rtol, atol=atol
    )
    (finding,) = report.findings
    return finding


@pytest.mark.slow
def test_an_error_of_the_size_of_rounding_is_put_down_to_it() -> None:
    finding = mismatch(dtype=BF16)
    assert finding.cause is not None
    assert finding.cause.startswith(
        "rounding alone can explain it: the largest error is less than 1 unit of "
        "bfloat16 rounding (a unit is 0.0078 of the largest element, "
    )
    assert finding.cause.endswith("), and up to 4 may be due to rounding")
    assert finding.advice == (
        "pass an rtol and atol that bfloat16 can meet, or compute in a more precise dtype"
    )
    strict = mismatch(rtol=1e-8)
    assert " of float32 rounding (a unit is 1.2e-07 of the " in str(strict.cause)
    assert str(strict.cause).endswith("), and up to 16 may be due to rounding")
    # Where the lines of two kernels differ by no more than that, neither computes anything else.
    finding = mismatch(matmul, dtype=BF16)
    assert "the kernels first diverge at grid point (0,)" in finding.message
    assert str(finding.cause).startswith("rounding alone can explain it: ")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_larger_error_is_not(dtype: Any) -> None:
    finding = mismatch(dtype=dtype, gain=1.3)
    assert (finding.cause, finding.advice) == (
        "the kernel, or the code around it, computes something different",
        "start with the first grid point and the pattern",
    )
    entry = explain.entry("value-mismatch")
    assert "precision" not in entry.cause


@pytest.mark.slow
def test_a_small_error_with_a_pattern_has_the_cause_of_that() -> None:
    def scaled(x: jax.Array, y: jax.Array) -> Any:
        return reference(x, y) * 1.001

    finding = mismatch(scaled, dtype=F32)
    assert finding.cause is not None
    assert finding.cause.startswith("a missing or doubled scale")


def test_units_of_rounding() -> None:
    for dtype in (F32, BF16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2):
        assert tolerances.unit(jnp.dtype(dtype).name) == float(jnp.finfo(dtype).eps)
    assert tolerances.unit("complex64") == float(jnp.finfo(F32).eps)
    assert [tolerances.most_units(name) for name in ("float32", "bfloat16")] == [16, 4]


# In lock-step


def cancelling(x: jax.Array, *, order: int, wrong: float = 0.0) -> Any:
    """A sum that passes through large numbers; the order of its terms changes its rounding."""

    def cancelling(x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        x = x_ref[...]
        acc_ref[...] = x * 1e6
        acc_ref[...] += jnp.where(order == 0, 0.3 * x, 0.1 * x + 0.2 * x) + x
        acc_ref[...] -= x * 1e6
        o_ref[...] = acc_ref[...] + wrong

    return pl.pallas_call(
        cancelling, out_shape=x, scratch_shapes=[pltpu.VMEM((8, 128), F32)]
    )(x)  # fmt: skip


def lines(function: Any, other: Any, *args: Any) -> list[str]:
    report = pallas_debug.compare(function, other, *args, interpret="hlo")
    (finding,) = report.findings
    return finding.message.splitlines()


@pytest.mark.slow
def test_a_sum_that_cancels_may_differ_by_what_it_rounded_before() -> None:
    x = jax.random.normal(jax.random.key(0), (8, 128)) + 2

    def sound(x: jax.Array) -> Any:
        return cancelling(x, order=0)

    message = lines(lambda x: cancelling(x, order=1, wrong=5.0), sound, x)
    (line,) = [line for line in message if "diverge" in line]
    assert " to o_ref[0, 0]" in line
    assert "acc_ref" not in line


@pytest.mark.slow
def test_operands_that_are_not_compared_are_named() -> None:
    def kernel(x: jax.Array, rows: int, name: str) -> Any:
        def doubled(x_ref: Any, o_ref: Any, tmp_ref: Any) -> None:
            def step(k: Any, _: Any) -> None:
                tmp_ref[pl.ds(k * rows, rows)] = 2 * x_ref[pl.ds(k * rows, rows)]

            jax.lax.fori_loop(0, 8 // rows, step, None)
            o_ref[...] = tmp_ref[...]

        def renamed(x_ref: Any, o_ref: Any, other_ref: Any) -> None:
            other_ref[...] = 2 * x_ref[...]
            o_ref[...] = other_ref[...]

        body = doubled if name == "tmp_ref" else renamed
        scratch = [pltpu.VMEM((8, 128), F32 if name != "int_ref" else jnp.int32)]
        if name == "two":
            scratch = [*scratch, *scratch]

            def body(x_ref: Any, o_ref: Any, a_ref: Any, b_ref: Any) -> None:
                a_ref[...] = x_ref[...]
                b_ref[...] = a_ref[...] * 2
                o_ref[...] = b_ref[...]

        return pl.pallas_call(body, out_shape=x, scratch_shapes=scratch)(x)

    x = jnp.ones((8, 128))

    def whole(x: jax.Array) -> Any:
        return kernel(x, 8, "tmp_ref")

    message = lines(lambda x: kernel(x, 4, "tmp_ref") + 1, whole, x)
    assert diverging.AGREE_AS_FAR in message
    assert (
        "not compared: the stores to tmp_ref, whose shapes differ from those in `whole`" in message
    )
    assert diverging.AGREE not in message
    message = lines(lambda x: kernel(x, 8, "two") + 1, whole, x)
    assert (
        "not compared: the stores to a_ref and b_ref, which have no counterpart in `whole`; the "
        "stores to tmp_ref, which only `whole` has"
    ) in message
    message = lines(lambda x: kernel(x, 8, "tmp_ref") + 1, whole, x)
    assert diverging.AGREE in message
    assert not any("not compared" in line for line in message)


@pytest.mark.slow
def test_arguments_of_few_bits_round_nothing() -> None:
    """What the kernel reads is what its reference reads; what it computes in float32 is not."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        x = x_ref[...].astype(F32)
        o_ref[...] = x + jnp.sin(x * 37)

    def call(x: jax.Array) -> jax.Array:
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, F32))(x)

    x = jnp.arange(1024, dtype=F32).reshape(8, 128) % 16
    report = pallas_debug.compare(
        call, lambda x: x.astype(F32), x.astype(jnp.float8_e4m3fn), interpret="hlo"
    )
    (finding,) = report.findings
    assert "rounding" not in str(finding.cause)


FAR_APART = np.array([0.0, 1.0, -4096.0], np.float32)


@pytest.mark.parametrize(
    "actual,expected,what,allows",
    [
        (
            FAR_APART * (1 + 3 * EPS),
            FAR_APART,
            "3.6e-07 of the expected element: 3",
            {"rtol": 4e-7},
        ),
        (FAR_APART + 4e-4, FAR_APART, "1.2e-07 of the largest one, 4096: 1", {"atol": 5e-4}),
        (
            FAR_APART * (1 + 4 * EPS) + np.float32([1e-5, 0, 0]),
            FAR_APART,
            "4.8e-07 of the largest one, 4096: 4",
            {"rtol": 5e-7, "atol": 1e-5},
        ),
        (FAR_APART + 0.1, FAR_APART, None, {}),
        (FAR_APART, FAR_APART, None, {}),
        (np.float32([1, np.nan]), np.float32([1, 1]), None, {}),
        (np.float32([1 + EPS, np.nan]), np.float32([1, np.nan]), "element: 1", {"rtol": 2e-7}),
        (np.float32([1, np.inf]), np.float32([1, 1]), None, {}),
        ((FAR_APART * (1 + 2**-7)).astype(jnp.bfloat16), FAR_APART, "bfloat16", {"rtol": 8e-3}),
        (np.array([1, 2]), np.array([1, 3]), None, {}),
        (np.ones(2, np.float32), np.ones(3, np.float32), None, {}),
        (np.ones(2, np.float32), np.float32(1 + EPS), "element: 1 unit of", {"rtol": 2e-7}),
    ],
)
def test_arrays_that_differ_by_no_more_than_rounding(
    actual: Any, expected: Any, what: str | None, allows: dict[str, float]
) -> None:
    actual, expected = np.asarray(actual), np.asarray(expected)
    text = tolerances.no_more_than_rounding(actual, expected)
    if what is None:
        assert text is None
        return
    assert text is not None
    assert what in text
    assert re.search(r"; (rtol|rtol=\S+ with atol|atol)=\S+ allows that$", text)
    given = {name: float(number) for name, number in re.findall(r"(rtol|atol)=(\S+)", text)}
    assert given.keys() == allows.keys()
    assert all(number <= allows[name] * 1.25 for name, number in given.items())
    np.testing.assert_allclose(actual.astype(np.float64), expected, **{"rtol": 0.0, **given})

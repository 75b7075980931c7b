"""Products of whole numbers in float32 that become integers: a TPU rounds their operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

from pallas_debug.model import Finding
from pallas_debug.verdict import verify

F32, I32 = jnp.float32, jnp.int32
ONES = np.ones((8, 8), "int32")
COUNTS = np.where(np.arange(8 * 128).reshape(8, 128) == 130, 1001, 7).astype("int32")


def judged(
    body: Callable[[Any, Any], Any], counts: Any = COUNTS, dtype: Any = I32
) -> tuple[Finding, ...]:
    """Findings of the machine about a kernel that stores `body(ones, counts)`."""

    def kernel(ones_ref: Any, counts_ref: Any, o_ref: Any) -> None:
        o_ref[...] = body(ones_ref[...], counts_ref[...])

    def function(ones: Any, counts: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8, 128), dtype))(ones, counts)

    return verify(function, ONES, counts, targets="v5e", engines="machine").findings


def product(ones: Any, counts: Any, **options: Any) -> Any:
    return jnp.dot(ones.astype(F32), counts.astype(F32), **options)


def test_a_number_that_bfloat16_lacks() -> None:
    (finding,) = judged(lambda ones, counts: product(ones, counts).astype(I32))
    assert finding.kind == "LowPrecisionProduct"
    assert finding.witness.source is not None
    assert "return jnp.dot(" in str(finding.witness.source.text)
    assert finding.message == (
        "a product of float32[8, 8] and float32[8, 128] that is cast to an integer is 1049 at [0, "
        "2] instead of 1050 if its operands are rounded to bfloat16, as on a TPU: 8 elements are "
        "wrong"
    )
    assert finding.cause == (
        "at default precision, the MXU multiplies float32 in one pass, rounded to bfloat16, which "
        "keeps 8 bits and represents integers exactly up to 256; an operand ranges from 7 to 1001"
    )
    assert finding.advice == (
        "pass precision=jax.lax.Precision.HIGHEST to it (six passes instead of one); or split the "
        "integers into parts below 256"
    )


def in_parts(ones: Any, counts: Any) -> Any:
    """The advice: two products of numbers below 256."""
    high, low = counts // 256, counts % 256
    return product(ones, high).astype(I32) * 256 + product(ones, low).astype(I32)


def masked(ones: Any, counts: Any) -> Any:
    """The wrong elements are discarded."""
    column = lax.broadcasted_iota(I32, (8, 128), 1)
    return jnp.where(column == 2, 0, product(ones, counts).astype(I32))


def fraction(ones: Any, counts: Any) -> Any:
    """No whole numbers: quantisation, say, whose rounding is known to be lossy."""
    return jnp.round(product(ones, counts + 0.5)).astype(I32)


def highest(ones: Any, counts: Any) -> Any:
    return product(ones, counts, precision=lax.Precision.HIGHEST).astype(I32)


@pytest.mark.slow
@pytest.mark.parametrize("body", [in_parts, masked, fraction, highest])
def test_nothing_is_said_of(body: Callable[[Any, Any], Any]) -> None:
    assert judged(body) == ()


@pytest.mark.slow
def test_nothing_is_said_of_small_numbers_and_of_floats() -> None:
    assert judged(lambda o, c: product(o, c).astype(I32), COUNTS % 256) == ()
    assert judged(product, dtype=F32) == ()


# Integers in a float that is too narrow


def test_an_integer_that_a_cast_rounds() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        tokens = x_ref[...].astype(jnp.bfloat16)
        o_ref[...] = tokens.astype(I32)

    def function(x: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=x)(x)

    (finding,) = verify(function, COUNTS, targets="v5e", engines="machine").findings
    assert (finding.kind, finding.witness.values["operand 0"]) == ("NarrowingLoss", "1001")
    assert finding.message == "the cast from int32 to bfloat16 changes 1,001 at [1, 2] to 1,000"
    source, other = finding.witness.source, finding.witness.other
    assert source is not None
    assert other is not None
    assert (source.text, other.line) == (
        "tokens = x_ref[...].astype(jnp.bfloat16)", source.line + 1
    )  # fmt: skip
    assert not verify(function, COUNTS % 1000, targets="v5e", engines="machine").findings

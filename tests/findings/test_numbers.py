"""Wording of faults in arithmetic, sentence by sentence."""

from __future__ import annotations

from typing import Any

import pytest

from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import contents, numbers
from pallas_debug.model import SourceLine, Witness

SEEN = Sighting(
    kernel="rows",
    engine="machine",
    witness=Witness(
        source=SourceLine(file="rows.py", line=3), grid_point=(1, 2), loop=(4,), values={"k": "7"}
    ),
)


def overflow(**facts: Any) -> Any:
    given: dict[str, Any] = {"operation": "add", "dtype": "int32", "values": (2**31 - 8, 100)}
    given |= {"exact": 2**31 + 92, "result": -(2**31) + 92, "element": (3, 5)}
    return numbers.integer_overflow(SEEN, **{**given, **facts})


def test_overflow_of_int32_names_operands_and_results() -> None:
    found = overflow()
    assert found.kind is Fault.INTEGER_OVERFLOW
    assert found.message == (
        "`add` of 2,147,483,640 and 100 overflows int32 at [3, 5]: the exact result is "
        "2,147,483,740, the actual one -2,147,483,556"
    )
    assert found.cause == (
        "int32 holds -2,147,483,648 to 2,147,483,647, and values outside this range wrap around"
    )
    assert found.advice == (
        "keep the numbers small: index by row and column rather than by a flat offset; if "
        "wrapping is intended, as in a hash, compute in uint32"
    )
    assert found.witness.values == {
        "k": "7",
        "element": "[3, 5]",
        "operand 0": "2147483640",
        "operand 1": "100",
        "exact": "2147483740",
        "result": "-2147483556",
    }
    assert (found.grid_point, found.loop, found.engines) == ((1, 2), (4,), ("machine",))


@pytest.mark.parametrize(
    "operation, advice",
    [
        ("dot_general", "accumulate in int32: preferred_element_type=jnp.int32"),
        ("reduce_sum", "accumulate in int32: jnp.sum(x, dtype=jnp.int32)"),
        ("cumsum", "accumulate in int32: jnp.cumsum(x.astype(jnp.int32))"),
    ],
)
def test_a_narrow_sum_is_to_be_accumulated_in_int32(operation: str, advice: str) -> None:
    found = overflow(
        operation=operation, dtype="int8", values=(), exact=300, result=44, terms=1024, element=(2,)
    )
    assert found.message == (
        f"`{operation}` over 1,024 terms overflows int8 at [2]: the exact result is 300, the "
        "actual one 44"
    )
    assert found.cause == "the sum is accumulated in int8, which holds -128 to 127"
    assert found.advice == advice


def test_other_overflows() -> None:
    assert overflow(operation="reduce_sum", values=()).advice == (
        "sum in float32, or in parts that fit the dtype"
    )
    assert overflow(dtype="int8", exact=200, result=-56).advice == (
        "widen the operands first: x.astype(jnp.int32)"
    )
    found = overflow(operation="abs", dtype="int8", values=(-128,), exact=128, result=-128)
    assert found.message.startswith("`abs` of -128 overflows int8 at [3, 5]: the exact result is")
    assert found.cause == "int8 ranges from -128 to 127: -128 has no positive counterpart"
    assert found.advice == "exclude -128: clip to -127, or use a wider dtype"
    assert " at " not in overflow(element=()).message


CASTS = [
    (
        ("int32", "int8", 300, 44),
        "the cast from int32 to int8 changes 300 at [0, 1] to 44",
        "int8 holds -128 to 127, and the cast drops the upper bits",
        "clip before the cast: jnp.clip(x, -128, 127); if only the low bits are needed, select "
        "them with `x & mask`",
    ),
    (
        ("float32", "int32", 3e9, 2**31 - 1),
        "the cast from float32 to int32 changes 3e+09 at [0, 1] to 2,147,483,647",
        "int32 holds -2,147,483,648 to 2,147,483,647; the result of casting a float outside this "
        "range differs between chips",
        "clip before the cast, or stay in float32",
    ),
    (
        ("float32", "int8", float("nan"), 0),
        "the cast from float32 to int8 changes nan at [0, 1] to 0",
        "integers have no NaN",
        "find where the NaN comes from, or replace it",
    ),
    (
        ("float32", "float16", 7e4, float("inf")),
        "the cast from float32 to float16 changes 70000 at [0, 1] to inf",
        "the value is larger than the largest finite float16",
        "scale it first, or use bfloat16, which has the range of float32",
    ),
    (
        ("float32", "float8_e5m2", 7e4, float("inf")),
        "the cast from float32 to float8_e5m2 changes 70000 at [0, 1] to inf",
        "the value is larger than the largest finite float8_e5m2",
        "scale it first",
    ),
    (
        ("int32", "uint8", -1, 255),
        "the cast from int32 to uint8 changes -1 at [0, 1] to 255",
        "uint8 holds 0 to 255, and the cast drops the upper bits",
        "clip before the cast: jnp.clip(x, 0, 255); if only the low bits are needed, select them "
        "with `x & mask`",
    ),
]


@pytest.mark.parametrize("facts, message, cause, advice", CASTS)
def test_casts(facts: tuple[Any, ...], message: str, cause: str, advice: str) -> None:
    source, target, value, result = facts
    found = numbers.narrowing_loss(
        SEEN, source=source, target=target, value=value, result=result, element=(0, 1)
    )
    assert found.kind is Fault.NARROWING_LOSS
    assert (found.message, found.cause, found.advice) == (message, cause, advice)
    assert found.witness.values["element"] == "[0, 1]"
    assert {"operand 0", "result"} <= set(found.witness.values)


@pytest.mark.parametrize(
    "operation, dtype, advice",
    [
        ("mul", "float32", "scale the operands"),
        ("exp", "float32", "subtract the maximum before exp, or scale the operands"),
        ("add", "float16", "scale the operands, or use a wider dtype"),
    ],
)
def test_an_infinity(operation: str, dtype: str, advice: str) -> None:
    witness = Witness(operand="x_ref", shape=f"{dtype}[8, 128]")
    seen = Sighting(kernel="rows", engine="machine", witness=witness)
    found = contents.infinity_produced(seen, operation=operation, values=[100.0], operands=[dtype])
    assert (found.cause, found.advice) == ("the result is larger than its dtype can hold", advice)


def test_the_advice_on_a_zero_does_not_begin_with_what_hides_it() -> None:
    facts: dict[str, Any] = {"operation": "div", "operands": ("float32[8]",) * 2, "element": (0,)}
    advice = (
        "find out why it is zero; if zero is valid, as for a row without entries, guard against "
        "it: jnp.where(d == 0, 1, d)"
    )
    assert contents.infinity_produced(SEEN, values=(3.0, 0.0), **facts).advice == advice
    assert contents.nan_produced(SEEN, values=(0.0, 0.0), **facts).advice == advice

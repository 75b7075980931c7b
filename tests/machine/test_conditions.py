"""The grammar of conditions: what it accepts, what it computes, and what its errors say."""

from __future__ import annotations

import contextlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_debug.stepping.conditions import (
    ConditionError,
    ConditionFailed,
    parse,
    parse_part,
    positions,
)

VALUES: dict[str, Any] = {
    "x": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.array([1, -2, 3], ml_dtypes.bfloat16),
    "odd": np.array([1.0, np.nan, np.inf]),
    "n": np.int32(7),
    "i": np.int64(2),
    "program_id(0)": np.int64(2),
    "num_programs(1)": np.int64(4),
    "whole(x)": np.zeros((6, 4)),
}


def evaluate(text: str) -> Any:
    return parse(text).evaluate(VALUES.__getitem__)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("1 + 2 * 3 - 4 / 8", 6.5),
        ("-2 ** 2", -4.0),
        ("2 ** -1", 0.5),
        ("7 // 2 + 7 % 4", 6),
        ("(1 + 2) * n", 21),
        ("x[1, 2]", 6.0),
        ("x[-1][0]", 8.0),
        ("sum(x[0, 1:3])", 3.0),
        ("sum(x[:, ::2])", 30.0),
        ("sum(x[..., 0])", 12.0),
        ("x[i, n - 6]", 9.0),
        ("max(x) - min(x)", 11.0),
        ("max(n, 9)", 9),
        ("mean(x)", 5.5),
        ("abs(b)[1]", 2.0),
        ("shape(x)[1]", 4),
        ("program_id(0) == i and num_programs(1) == 4", True),
        ("0 <= i < 3", True),
        ("0 <= i < 2", False),
        ("not i == 2 or n > 6", True),
        ("not not True", True),
        ("any(isnan(odd)) and not all(isinf(odd))", True),
        ("n == 7 or nope > 1", True),  # what decides is evaluated, no more
        ("shape(whole(x)) == shape(x)", False),
        ("1e3 + .5", 1000.5),
    ],
)
def test_expressions(text: str, expected: Any) -> None:
    assert evaluate(text) == expected


@pytest.mark.parametrize(
    "text, column, expected, found",
    [
        ("", 1, "a value: a name, a number or `(`", "the end"),
        ("x[1, ", 6, "a value: a name, a number or `(`", "the end"),
        ("x[]", 3, "an index", "']'"),
        ("x[1", 4, "`:`, `,` or `]`", "the end"),
        ("x[1:2:3:4]", 8, "`,` or `]`", "':4]'"),
        ("x ==", 5, "a value: a name, a number or `(`", "the end"),
        ("(n + 1", 7, "`)`", "the end"),
        ("n 1", 3, "an operator or the end", "'1'"),
        ("n = 1", 3, "a name, a number or an operator", "'= 1'"),
        ("open(n)", 1, "a function (any, all, min, max, sum, mean, abs", "'open(n)'"),
        ("any(n, n)", 6, "`)`", "', n)'"),
        ("program_id(n)", 12, "the number of a grid axis", "'n)'"),
        ("whole(1)", 7, "the name of an operand", "'1)'"),
        ("n.__class__", 2, "a name, a number or an operator", "'.__class__'"),
        ("'text'", 1, "a name, a number or an operator", "\"'text'\""),
        ("(" * 60, 52, "at most 50 nested levels", "'((((((((('"),
        ("n" * 2001, 2001, "at most 2000 characters", "'n'"),
    ],
)
def test_errors_name_the_position(text: str, column: int, expected: str, found: str) -> None:
    with pytest.raises(ConditionError) as caught:
        parse(text)
    first, _, pointer = str(caught.value).split("\n")
    assert first.startswith(f"column {column} of the expression: expected {expected}")
    assert first.endswith(f"found {found}")
    assert pointer == " " * (column + 1) + "^"


@pytest.mark.parametrize(
    "text, message",
    [
        ("nope + 1", "`nope` has no value here"),
        ("x[3, 0]", "`x[3, 0]` cannot be evaluated: index 3 is out of bounds"),
        ("x[0.5]", "an index is 0.5, not an integer"),
        ("x + odd", "`x + odd` cannot be evaluated: operands could not be broadcast"),
        ("x and n", "an array of shape (3, 4) is neither true nor false: use any(…) or all(…)"),
        ("x > 1", "`x > 1` is an array of shape (3, 4), not a condition: use any(…) or all(…)"),
        ("max(x[:, :0])", "`max(x[:, :0])` cannot be evaluated: zero-size array"),
    ],
)
def test_what_fails_at_run_time_says_why(text: str, message: str) -> None:
    with pytest.raises(ConditionFailed) as caught:
        parse(text).holds(VALUES.__getitem__)
    assert str(caught.value).startswith(message)


def test_names_and_parts() -> None:
    assert parse("acc[i] > m_new or any(isnan(acc))").names == ("acc", "i", "m_new")
    name, part = parse_part("whole( x )[2:4, 1]")
    assert name == "whole(x)"
    assert positions(part, name, (6, 4), VALUES.__getitem__).tolist() == [9, 13]
    assert parse_part("x[i]")[0] == "x"
    with pytest.raises(ConditionError, match="expected a name, or one with an index"):
        parse_part("x[0] + 1")


def test_names_of_operands_that_are_no_identifiers() -> None:
    values = {"args[1]": np.arange(6).reshape(2, 3), "refs['x']": np.ones(2), "args": np.arange(3)}
    assert parse("args[1][0, 2] + sum(refs['x'])", values).evaluate(values.__getitem__) == 4
    assert parse("args[2]", values).evaluate(values.__getitem__) == 2
    assert parse_part("args[1][:, 1]", values)[0] == "args[1]"
    assert parse_part("whole(args[1])[0]", values)[0] == "whole(args[1])"
    assert parse_part("args[1]")[0] == "args"


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="xni01.,:()[]+-*/<>=!&| anyordtshpewl_'", max_size=40))
def test_any_text_is_evaluated_or_refused(text: str) -> None:
    with contextlib.suppress(ConditionError, ConditionFailed):
        parse(text).evaluate(VALUES.__getitem__)

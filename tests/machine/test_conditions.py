"""Expressions of the debugger: what is accepted and computed, and what refusals say."""

from __future__ import annotations

import contextlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_debug.stepping.conditions import ConditionError, ConditionFailed, parse, parse_part

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
        ("shape(x) == (3, 4)", True),
        ("shape(x) != shape(b)", True),
        ("True - False", 1),
        ("isinf(-inf) and isnan(nan)", True),
        ("1e3 + .5", 1000.5),
    ],
)
def test_expressions(text: str, expected: Any) -> None:
    assert evaluate(text) == expected


@pytest.mark.parametrize(
    "text, column, problem",
    [
        ("", 1, "this is not Python: invalid syntax, at the end"),
        ("x ==", 5, "this is not Python: invalid syntax, at the end"),
        ("x[]", 3, "this is not Python: invalid syntax"),
        ("x[1", 2, "this is not Python: '[' was never closed"),
        ("n = 1", 3, "this is not Python: invalid syntax, at '= 1'"),
        ("n && x", 4, "this is not Python: invalid syntax"),
        ("n\0", 3, ""),
        ("\ud800", 1, ""),
        ("n\nor n", 1, "it has several lines"),
        ("é == 1 and open(n)", 12, "`open(n)` is not accepted"),
        ("any(n, n)", 1, "`any(n, n)` is not accepted"),
        ("any(*x)", 5, "`*x` is not accepted"),
        ("any(x=n)", 1, "`any(x=n)` is not accepted"),
        ("program_id(n)", 1, "`program_id(n)` is not accepted"),
        ("num_programs(0, a=1)", 1, "`num_programs(0, a=1)` is not accepted"),
        ("whole(1)", 1, "`whole(1)` is not accepted"),
        ("n.__class__", 1, "`n.__class__` is not accepted"),
        ("'text'", 1, "`'text'` is not accepted"),
        ("n and (n & 1)", 8, "`n & 1` is not accepted"),
        ("n if n else i", 1, "`n if n else i` is not accepted"),
        ("[y for y in x]", 1, "`[y for y in x]` is not accepted"),
        ("(lambda: n)()", 1, "`(lambda: n)()` is not accepted"),
        ("x[None]", 3, "`None` is not accepted"),
        ("9" * 30, 1, f"`{'9' * 30}` is not accepted"),
        ("-" * 1999 + "1", 51, "it is nested more than 50 levels deep"),
        ("1**" * 600 + "1", 148, "it is nested more than 50 levels deep"),
        ("x" + "[0]" * 600, 1, "it is nested more than 50 levels deep"),
        ("x[" * 1000, 402, "this is not Python: too many nested parentheses"),
        ("n" * 2001, 1, "it has 2,001 characters, more than 2,000"),
    ],
)
def test_refusals_name_the_column(text: str, column: int, problem: str) -> None:
    with pytest.raises(ConditionError) as caught:
        parse(text)
    first, _, pointer, *_ = str(caught.value).split("\n")
    assert first.startswith(f"column {column} of the expression: {problem}")
    assert pointer == " " * (column + 1) + "^"


def test_refusals_say_what_is_accepted() -> None:
    with pytest.raises(ConditionError) as caught:
        parse("x & 1")
    assert str(caught.value) == (
        "column 1 of the expression: `x & 1` is not accepted\n  x & 1\n  ^\n"
        "use names, numbers below 2**64, indices, comparisons, arithmetic, `and`, `or`, `not`, any, "
        "all, min, max, sum, mean, abs, isnan, isinf, shape of one array (min and max: or two), "
        "whole(NAME), program_id(AXIS), num_programs(AXIS)"
    )


@pytest.mark.parametrize(
    "text, message",
    [
        ("nope + 1", "`nope` has no value here"),
        ("x[3, 0]", "`x[3, 0]` cannot be evaluated: index 3 is out of bounds"),
        ("x[0.5]", "`x[0.5]` cannot be evaluated: 'float' object cannot be interpreted as an int"),
        ("... == 1", "`... == 1` cannot be evaluated: `...` has no value outside an index"),
        ("9 ** 9 ** 9", "`9 ** 9 ** 9` cannot be evaluated: overflow encountered in power"),
        ("x + odd", "`x + odd` cannot be evaluated: operands could not be broadcast"),
        ("x and n", "`x and n` cannot be evaluated: an array of shape (3, 4) is neither true nor"),
        (
            "x > 1",
            "`x > 1` cannot be evaluated: an array of shape (3, 4) is neither true nor false",
        ),
        ("max(x[:, :0])", "`max(x[:, :0])` cannot be evaluated: zero-size array"),
    ],
)
def test_what_fails_at_run_time_says_why(text: str, message: str) -> None:
    with pytest.raises(ConditionFailed) as caught:
        parse(text).holds(VALUES.__getitem__)
    assert str(caught.value).startswith(message)


def test_parts() -> None:
    name, part = parse_part("whole( x )[2:4, 1]")
    assert name == "whole(x)"
    assert part.positions((6, 4), VALUES.__getitem__).tolist() == [9, 13]
    assert parse_part("x[i]")[0] == "x"
    _, part = parse_part("starts[starts[0]]")
    assert part.positions((3,), {"starts": np.array([2, 0, 1])}.__getitem__) == 2
    with pytest.raises(ConditionError, match="expected a name, or one with an index"):
        parse_part("x[0] + x[1]")


def test_names_of_operands_that_are_no_identifiers() -> None:
    values = {"args[1]": np.arange(6).reshape(2, 3), "refs['x']": np.ones(2), "args": np.arange(3)}
    assert parse("args[1][0, 2] + sum(refs['x'])", values).evaluate(values.__getitem__) == 4
    assert parse("grid.rows + 1", {"grid.rows": 2}).evaluate({"grid.rows": 2}.__getitem__) == 3
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

"""Cases: the first that holds is filled in, and facts become text there only."""

from __future__ import annotations

import pytest

from pallas_debug.findings.case import Case, cases, words
from pallas_debug.findings.faults import Fault

CASES = [
    Case(message="{name}{core: on core %} is {count}", cause="many: {names}", when="names, !few"),
    Case(message="{name} is negative", when="size?, count = -2 | -1"),
    Case(
        message="{name}{core: on core %} is {count}{nothing:, and %}",
        cause="few",
        advice="use {size:.1f}",
    ),
]


def test_the_first_case_that_holds_is_used() -> None:
    given = {"name": "sem", "count": 4096, "size": 0.5}
    assert words(CASES, {**given, "names": ["a", "b"]})[:3] == (
        *("sem is 4,096", "many: a and b", None),
    )
    assert words(CASES, {**given, "count": -1})[0] == "sem is negative"
    assert words(CASES, given)[:3] == ("sem is 4,096", "few", "use 0.5")


def test_an_unknown_fact_is_left_out_and_zero_is_known() -> None:
    assert words(CASES, {"name": "sem", "count": 0, "core": 0, "size": 1.0})[0] == (
        "sem on core 0 is 0"
    )


def test_no_case_is_an_error() -> None:
    with pytest.raises(LookupError, match="no case for \\['name'\\]"):
        words(CASES[:2], {"name": "sem"})


@pytest.mark.parametrize("kind", cases())
def test_the_last_case_of_each_kind_always_holds(kind: Fault) -> None:
    *others, last = cases()[kind]
    assert not last.when
    assert all(case.when for case in others)

"""Cases: the first that holds is filled in, and facts become text there only."""

from __future__ import annotations

import pytest

from pallas_debug.findings.case import Case, has, is_, words
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import TABLE

CASES = [
    Case("{name}{core: on core %} is {count}", "many: {names}", when=has("names")),
    Case("{name} is negative", when=is_("count", -1)),
    Case("{name}{core: on core %} is {count}{nothing:, and %}", "few", "use {size:.1f}"),
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


@pytest.mark.parametrize("kind", TABLE)
def test_the_last_case_of_each_kind_always_holds(kind: Fault) -> None:
    *others, last = TABLE[kind]
    assert last.when is None
    assert all(case.when is not None for case in others)

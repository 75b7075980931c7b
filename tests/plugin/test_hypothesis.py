"""Tests of hypothesis in real child runs: a finding fails the example, which hypothesis shrinks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pallas_debug_pytest import examples

pytest.importorskip("hypothesis")

Child = Callable[..., pytest.RunResult]


@pytest.fixture
def left_out() -> tuple[str, ...]:
    return ()


TESTS = """
import unittest
from hypothesis import Phase, given, settings, strategies as st

often = settings(deadline=None, max_examples=20, database=None, derandomize=True)
quick = settings(often, phases=[Phase.generate, Phase.shrink])  # without tracing each line

@often
@given(st.integers(0, 100))
def test_shrinks(start):
    rows(start)

@quick
@given(st.integers(0, 8))
def test_is_sound(start):
    rows(start)

@quick
@given(st.integers(0, 100))
def test_fails_by_itself(start):
    rows(start % 8)
    assert start < 50

class TestCase(unittest.TestCase):
    @quick
    @given(st.integers(0, 100))
    def test_shrinks_too(self, start):
        rows(start)

def test_in_a_helper():
    rows(8), rows(12)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--pallas-check"],
        pytest.param(["--pallas-check", "-n", "2"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_the_smallest_example_is_shown(child: Child, options: list[str]) -> None:
    result = child(TESTS, *options)
    result.assert_outcomes(passed=1, failed=4)
    text = result.stdout.str()
    # The first row that is out of bounds is 9, and each example is judged on its own.
    assert text.count("x_ref[9:17, 0:128] reaches 1 past the end of dimension 0") == 2
    assert "OutOfBoundsRead in kernel `rows`\n" in text
    assert text.count("    start=9,") == 2
    assert text.count("- pallas-debug: example -") == 2
    assert "    start=50,\n" in text
    lines = [line for line in result.outlines if line.startswith("  called from test_it.py:")]
    called = [line.partition("   ")[2] for line in lines]  # workers report in any order
    assert called.count("rows(start)") == 2
    result.stdout.fnmatch_lines(["3 findings in 3 tests: 3 OutOfBoundsRead"])


@pytest.mark.slow
def test_the_line_of_the_test_is_named(child: Child) -> None:
    """A fault that stops the run is shown by pytest's traceback; others by their finding."""
    tests = """
    def helper(start):
        return rows(start)

    def test_twice():
        log(BAD)
        helper(12)
    """
    result = child("\n".join(line[4:] for line in tests.splitlines()), "--pallas-check")
    text = result.stdout.str()
    assert text.count("x_ref[12:20, 0:128] reaches 4 past the end") == 1
    assert "CpuCallback" not in text
    result.stdout.fnmatch_lines(
        [
            ">       return rows(start)",
            "E   OutOfBoundsRead in kernel `rows`",
            "  called from test_it.py:*   log(BAD)",
        ]
    )


def test_lines_of_ours_are_no_explanation_of_an_example() -> None:
    own = examples.__file__
    head = "Failing test case: test_it(\n    n=-1,\n)"
    explanation = "Explanation:\n    These lines were always and only run by failing test cases:"
    error = ValueError("x")
    error.__notes__ = [head, f"{explanation}\n        {own}:7\n        (and 3 more with verbose)"]
    assert examples.notes_of(error) == head
    error.__notes__ = [f"{head}\n{explanation}\n        {own}:7\n        /mine/test_it.py:8"]
    assert examples.notes_of(error) == f"{head}\n{explanation}\n        /mine/test_it.py:8"
    error.__notes__ = [head, f"{explanation}\n        /mine/test_it.py:8\n        (and 3 more)"]
    assert examples.notes_of(error) == "\n".join(error.__notes__)

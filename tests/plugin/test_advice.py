"""A line below failures that an option cures, in real child runs without an option."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from marks import with_and_without_xdist

Child = Callable[..., pytest.RunResult]

OPTION = "with --pallas-interpret, pytest runs TPU kernels on the CPU"

TESTS = """
def test_no_tpu():
    rows(12)

@pytest.mark.xfail(reason="known")
def test_expected():
    rows(12)

def test_another_error():
    raise ValueError(1)
"""


@pytest.mark.slow
@with_and_without_xdist
def test_a_failure_names_the_option_that_cures_it(child: Child, workers: list[str]) -> None:
    result = child(TESTS, *workers)
    result.assert_outcomes(failed=2, xfailed=1)
    text = result.stdout.str()
    assert text.count(OPTION) == 1
    assert text.count("- pallas-debug -") == 1

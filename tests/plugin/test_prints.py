"""Prints of kernels in real child runs: in the test's standard output and the run's record."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pallas_debug.store import open_dumps

Child = Callable[..., pytest.RunResult]

TESTS = """
@pytest.mark.parametrize("n", [1, 3])
def test_prints(n):
    count(n)
    assert n == 3

def test_records(pallas):
    count(2)
    assert [p.text for p in pallas.prints] == ["i = 0", "i = 1"]
    assert [p.loop for p in pallas.prints] == [(0,), (1,)]
    count(1)
    assert len(pallas.prints) == 3
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["--pallas-interpret"], ["--pallas-dump", "-n", "2"]], ids=["auto", "xdist"]
)
def test_prints_are_on_standard_output_in_order(
    child: Child, pytester: pytest.Pytester, arguments: list[str]
) -> None:
    result = child(TESTS, "--tb=short", *arguments)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["*Captured stdout call*", "kernels.py:27, loop iteration (0,): i = 0"], consecutive=True
    )
    assert result.stdout.str().count("i = ") == 1
    if "--pallas-dump" in arguments:
        kept = {
            run.name.partition("::")[2]: [record.text for record in run.prints]
            for run in open_dumps(pytester.path / "dumps").runs()
        }
        assert kept == {
            "test_prints[1]": ["i = 0"],
            "test_prints[3]": ["i = 0", "i = 1", "i = 2"],
            "test_records": ["i = 0", "i = 1", "i = 0"],
        }

"""`--pallas-check` in real child runs: findings fail the test that they belong to."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from marks import with_and_without_xdist
from pallas_debug_pytest import options

from pallas_debug.store import open_dumps

Child = Callable[..., pytest.RunResult]

TESTS = """
import pytest

def test_good():
    assert rows(8)[0, 0] == 1

def test_beyond():
    rows(12)

def test_beyond_once_more():
    rows(12)

def test_fails_by_itself():
    log(BAD)
    assert 1 == 2

@pytest.mark.xfail(strict=True)
def test_expected_to_fail():
    log(BAD)

def test_skips_the_rest():
    log(BAD)
    pytest.skip("of the test")

@pytest.fixture
def checked_at_the_end():
    yield
    log(BAD)

def test_fails_at_teardown(checked_at_the_end):
    pass

import unittest
class TestCase(unittest.TestCase):
    def test_bad(self):
        log(BAD)

    def test_good_again(self):
        log(GOOD)
"""


def failure(result: pytest.RunResult, test: str) -> list[str]:
    """The lines below the headline of one failure."""
    text = result.stdout.str()
    match = re.search(
        rf"^_+ (?:ERROR at \w+ of )?{test} _+\n(.*?)^(?:[_=]{{4}}|-+ pallas-debug -+$)",
        text,
        re.M | re.S,
    )
    assert match is not None, text
    lines = [line for line in match[1].splitlines() if not line.startswith("[gw")]
    return [line.removeprefix("E   ") for line in lines]


BEYOND = [
    "OutOfBoundsRead in kernel `rows`",
    "  kernels.py:14   o_ref[...] = x_ref[pl.ds(start_ref[0], 8), :]",
    "  x_ref[12:20, 0:128] reaches 4 past the end of dimension 0 of float32[16, 128] in VMEM",
]


@pytest.mark.slow
@with_and_without_xdist
def test_what_is_found_fails_the_test_it_belongs_to(child: Child, workers: list[str]) -> None:
    result = child(TESTS, "--pallas-check", "--tb=short", *workers)
    result.assert_outcomes(passed=3, failed=5, xfailed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            f"pallas-debug *: *faults that fail the test: {options.DEFAULT_CHECKS.replace(',', ', ')}",
            "*- pallas-debug -*",
            "2 findings in 6 tests: 1 *, 1 *",
            "2 kernels used by 9 tests",
        ]
    )
    for test in ("test_beyond", "test_beyond_once_more"):  # jitted and checked before
        shown = failure(result, test)[2:5]  # below the line of the test
        assert shown == [f"Failed: {BEYOND[0]}", *BEYOND[1:]]
    itself = failure(result, "test_fails_by_itself")
    assert "assert 1 == 2" in itself
    result.stdout.fnmatch_lines(
        [
            "*assert 1 == 2*",
            "*- pallas-debug -*",
            "NanProduced in kernel `log`",
            "  called from test_it.py:14",
            "next: pallas-debug step -x -k log test_it.py::test_fails_by_itself",
        ]
    )
    for test in ("test_skips_the_rest", "TestCase.test_bad"):
        assert failure(result, test)[0] == "NanProduced in kernel `log`"
    assert failure(result, "test_fails_at_teardown")[0] == "NanProduced in kernel `log`"
    assert "FAILED test_it.py::test_beyond - Failed: OutOfBoundsRead in kernel `rows`" in (
        result.stdout.str()
    )


@pytest.mark.slow
def test_only_what_is_named_is_checked_and_every_finding_is_counted(
    child: Child, pytester: pytest.Pytester
) -> None:
    lines = "\n".join(
        f"                pl.debug_check(start_ref[0] < {i}, 'line {i}')" for i in range(8)
    )
    result = child(
        """
        @pytest.mark.parametrize("start", [8, 12])
        def test_rows(start):
            rows(start)

        def test_nan():
            log(BAD)

        def test_many():
            def many(x_ref, *o_refs):
                for i in range(7):
                    o_refs[i][...] = x_ref[pl.ds(x_ref[0, 0].astype(int) + 9 + i, 8), :]
            call(many, X, out_shape=[OUT] * 7)

        def test_at_many_lines():
            def many(start_ref, x_ref, o_ref):
LINES
                o_ref[...] = x_ref[:8]
            call(many, jnp.array([12]), X)
        """.replace("LINES", lines),
        "--pallas-check=index,user",
        "--pallas-dump",
        "--tb=short",
    )
    result.assert_outcomes(passed=2, failed=3)
    titles = ("test_many", "OutOfBoundsRead"), ("test_at_many_lines", "CheckFailed")
    for test, kind in titles:
        lines_of = failure(result, test)
        assert sum(line.removeprefix("Failed: ").startswith(kind) for line in lines_of) == 1
    first, second, third = result.stdout.str().split("- pallas-debug -")[1:4]
    for below in (first, second):
        kernels, following = below.splitlines()[1:3]
        assert kernels.startswith("1 kernel used by this test: dumps/")
        assert following.startswith("next: pallas-debug step -x -k ")
    assert third.splitlines()[1] == "CheckFailed in kernel `many` at test_it.py:18"
    assert third.splitlines()[6] == "… and 2 more"
    runs = {run.name.partition("::")[2]: run for run in open_dumps(pytester.path / "dumps").runs()}
    found = {name: [finding.kind for finding in run.findings] for name, run in runs.items()}
    assert found["test_rows[12]"] == ["OutOfBoundsRead"]
    assert found["test_rows[8]"] == found["test_nan"] == []
    for name in ("test_rows[12]", "test_rows[8]"):
        assert runs[name].judged == {runs[name].kernels[0]: ("checks",)}


UNCHECKED = """
@jax.jit
def asks_for_jax(x):
    def asks_for_jax(x_ref, o_ref):
        o_ref[...] = x_ref[...]
    return call(asks_for_jax, x, interpret=pltpu.InterpretParams())

@pytest.mark.parametrize("i", range(2))
def test_it(i):
    asks_for_jax(GOOD)
"""


@pytest.mark.slow
@with_and_without_xdist
def test_a_kernel_that_is_not_checked_is_said_once(child: Child, workers: list[str]) -> None:
    result = child(UNCHECKED, "--pallas-check", *workers)
    messages = [line for line in result.stdout.lines if line.startswith("NOT JUDGED: ")]
    assert len(messages) == 1, result.stdout.str()
    assert messages[0].startswith(
        "NOT JUDGED: asks_for_jax checks: it runs in one of jax's interpreters, "
    )


@pytest.mark.slow
def test_a_call_that_checks_for_itself_keeps_what_it_finds_and_one_outside_of_tests_is_said(
    child: Child,
) -> None:
    result = child(
        """
        log(BAD)

        import pallas_debug
        def test_nested():
            report, _ = pallas_debug.check(log)(BAD)
            assert [f.kind for f in report.findings] == ["NanProduced"]
        """,
        "--pallas-check",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["problem: found outside the tests: NanProduced in kernel `log`"])


NO_ROOM = """
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def test_large():
        def double(x_ref, o_ref):
            o_ref[...] = x_ref[...] * 2
        rows = pl.BlockSpec((1024, 4096), lambda i: (i, 0))
        x = jnp.zeros((2048, 4096))
        pl.pallas_call(double, out_shape=x, grid=(2,), in_specs=[rows], out_specs=rows)(x)
"""


@pytest.mark.slow
def test_a_kernel_without_room_fails_its_test(child: Child) -> None:
    result = child(NO_ROOM, "--pallas-verify=v5e,v6e")
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "VmemOverflow in kernel `double`" in text
    assert "1 finding in 1 test: 1 VmemOverflow" in text
    assert re.search(r"^double +FOUND +FOUND +FOUND +ok$", text, re.M)


UNWRITTEN = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl

x = jnp.ones((16, 128))

def pair(x):
    def pair(x_ref, sum_ref, best_ref):
        sum_ref[...] = x_ref[...]
    return pl.pallas_call(pair, out_shape=(x, x))(x)

def test_dropped_by_python():
    total, _ = pair(x)
    assert total[0, 0] == 1

def test_dropped_by_a_program():
    assert jax.jit(lambda x: pair(x)[0])(x)[0, 0] == 1

def test_used():
    jax.jit(lambda x: pair(x)[1] + 1)(x)

def test_expected(pallas):
    with pallas.expect("OutputNotWritten"):
        pair(x)
"""


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--pallas-check", "--pallas-verify=v5e"])
def test_an_unused_output_fails_only_tests_that_use_it(
    pytester: pytest.Pytester, run_pytest: Child, option: str
) -> None:
    pytester.makepyfile(test_unwritten=UNWRITTEN)
    result = run_pytest(option)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*_ test_used _*",
            "OutputNotWritten in kernel `pair`*",
            "test_unwritten.py::test_dropped_by_python: not counted: OutputNotWritten in kernel*",
            "*a fault only if the caller of the kernel uses result ?1? of 2, which is unknown*",
        ]
    )
    assert "dropped_by_a_program: not counted" not in result.stdout.str()
    assert "test_expected: not counted" not in result.stdout.str()

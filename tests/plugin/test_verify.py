"""`--pallas-verify` in real child runs: findings of any engine fail the test they belong to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tiers import with_and_without_xdist

Child = Callable[..., pytest.RunResult]

TESTS = """
@jax.jit
def summed(x):
    def summed(x_ref, o_ref):
        o_ref[...] = jnp.cumsum(x_ref[...], axis=0)
    return call(summed, x)

def test_good():
    log(GOOD)

def test_does_not_compile():
    summed(GOOD)

def test_does_not_compile_once_more():
    summed(GOOD)

def test_beyond():
    rows(12)
"""


@pytest.mark.slow
@with_and_without_xdist
def test_what_any_engine_finds_fails_its_tests(child: Child, workers: list[str]) -> None:
    result = child(TESTS, "--pallas-verify=v5e,v6e", *workers)
    result.assert_outcomes(passed=1, failed=3)
    text = result.stdout.str()
    result.stdout.fnmatch_lines(["pallas-debug *; kernels verified for v5e, v6e; checks: *"])
    assert text.count("UnsupportedPrimitive in kernel `summed`") >= 2
    assert "OutOfBoundsRead in kernel `rows`" in text
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if "FOUND" in line}
    header = next(line.split() for line in text.splitlines() if line.startswith("kernel "))
    assert header == ["kernel", "static", "v5e", "v6e", "checks"]
    assert rows["summed"][1:] == ["FOUND", "FOUND", "ok"]
    assert rows["rows"][1:] == ["ok", "ok", "FOUND"]
    result.stdout.fnmatch_lines(["log *ok *ok *ok *ok"])
    result.stdout.fnmatch_lines(
        ["3 findings in 3 tests: 2 UnsupportedPrimitive, 1 OutOfBoundsRead"]
    )


@pytest.mark.slow
def test_the_first_target_is_the_chip_that_kernels_see(child: Child) -> None:
    result = child(
        "def test_chip():\n    assert generation(GOOD)[0, 0] == 6", "--pallas-verify=v6e"
    )
    result.assert_outcomes(passed=1)


def test_an_unknown_target(child: Child) -> None:
    result = child("def test_it(): pass", "--pallas-verify=v9")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown target 'v9'*"])


REFUSED = """
import unittest

from pallas_debug.errors import InterpretModeError

@jax.jit
def random(x):
    def random(x_ref, o_ref):
        pltpu.prng_seed(0)
        o_ref[...] = pltpu.bitcast(pltpu.prng_random_bits((8, 128)), jnp.float32)
    return call(random, x)

@jax.jit
def maybe(x):
    def copies(x_ref, o_ref):
        o_ref[...] = x_ref[...]
    return jax.lax.cond(x[0, 0] > 5, lambda: call(copies, x), lambda: x)

def test_refused():
    with pytest.raises(InterpretModeError):
        random(GOOD)

class TestCase(unittest.TestCase):
    def test_refused(self):
        with self.assertRaises(InterpretModeError):
            random(GOOD)

    def test_not_taken(self):
        maybe(GOOD)

def test_good():
    log(GOOD)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "workers", [[], pytest.param(["-n", "2"], marks=pytest.mark.slow)], ids=str
)
def test_what_no_interpreter_ran_is_not_ok(child: Child, workers: list[str]) -> None:
    result = child(REFUSED, "--pallas-verify=v5e", "--pallas-interpret=hlo", *workers)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines_random(
        [
            "random *ok *ok *[?]",
            "copies *ok *ok *[?]",
            "log *ok *ok *ok",
            "not judged: * checks, * checks: no test ran it to its end with checks",
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "workers", [[], pytest.param(["-n", "2"], marks=pytest.mark.slow)], ids=str
)
def test_what_did_not_run_was_not_checked(child: Child, workers: list[str]) -> None:
    result = child(REFUSED, "--pallas-check", "--pallas-interpret=hlo", *workers)
    result.assert_outcomes(passed=4)
    (line,) = (n for n in result.outlines if n.startswith("not checked, as no test ran them to"))
    assert sorted(line.partition(": ")[2].split(", ")) == ["copies", "random"]
    result = child("def test_it(): pass", "--pallas-check", *workers)
    result.stdout.fnmatch_lines(["no test ran a Pallas kernel: nothing was checked"])


LOWERED = """
def test_lowered():
    jax.jit(log).lower(GOOD)

def test_not_taken():
    jax.jit(lambda taken, x: jax.lax.cond(taken, log, jnp.negative, x))(False, GOOD)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [
        "--pallas-check",
        pytest.param("--pallas-sanitize", marks=pytest.mark.slow),
        pytest.param("--pallas-races", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_runs_no_kernel_to_its_end_is_an_error(child: Child, option: str) -> None:
    result = child(LOWERED, option)
    result.assert_outcomes(passed=2, errors=1)
    assert result.ret == 3
    result.stdout.fnmatch_lines(
        ["NOT JUDGED: the whole run: no test ran a kernel to its end (log): they were only *"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--pallas-check", "--pallas-sanitize", "--pallas-races"])
def test_a_run_that_runs_some_names_the_others(child: Child, option: str) -> None:
    result = child(LOWERED + "def test_runs(): rows(4)", option)
    result.assert_outcomes(passed=3)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["not checked, as no test ran them to their end: log"])

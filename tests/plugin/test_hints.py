"""Lines below failures that an option or other code cures, in real child runs without an option."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tiers import with_and_without_xdist

Child = Callable[..., pytest.RunResult]

OPTION = "E   pallas-debug: with --pallas-interpret, pytest runs TPU kernels on the CPU"
CONDITION = (
    "E   pallas-debug: Python's `if` or `while` on a value that is known only when the kernel"
)
NUMBER = (
    "E   pallas-debug: Python needs a number that is known only when the kernel runs; loop with"
)

TESTS = """
import jax
from jax.experimental import pallas as pl

def call(kernel):
    x = jnp.ones((8, 128))
    return pl.pallas_call(kernel, out_shape=x, grid=(2,))(x)

def test_no_tpu():
    rows(12)

def test_if():
    def conditional(x_ref, o_ref):
        if x_ref[0, 0] > 0:  # the line at fault
            o_ref[...] = x_ref[...]
    call(conditional)

def test_range():
    def repeated(x_ref, o_ref):
        for _ in range(pl.program_id(0)):
            o_ref[...] = x_ref[...]
    call(repeated)

@pytest.mark.xfail(reason="known")
def test_expected():
    rows(12)

def test_not_of_a_kernel():
    jax.jit(lambda x: x if x > 0 else -x)(1.0)

def test_of_its_own():
    raise ValueError("something else")
"""


@pytest.mark.large
@with_and_without_xdist
def test_a_failure_names_the_option_or_the_code_that_cures_it(
    child: Child, workers: list[str]
) -> None:
    result = child(TESTS, *workers)
    result.assert_outcomes(failed=5, xfailed=1)
    text = result.stdout.str()
    for line in (OPTION, CONDITION, NUMBER):
        assert text.count(line) == 1, line
    assert text.count("pallas-debug: ") == 3
    condition = next(line for line in text.splitlines() if line.startswith(CONDITION))
    assert "@pl.when(condition)" in condition
    assert "jax.lax.cond" in condition
    at_fault = [line for line in text.splitlines() if line.endswith("# the line at fault")]
    assert at_fault[-1].startswith(">")


@pytest.mark.slow
@pytest.mark.parametrize("style", ["short", "native"])
def test_in_every_style(child: Child, style: str) -> None:
    text = child(TESTS, f"--tb={style}").stdout.str()
    for line in (OPTION, CONDITION, NUMBER):
        assert sum(found.startswith(line) for found in text.splitlines()) == 1


@pytest.mark.large
def test_what_was_switched_off_is_not_recommended(child: Child) -> None:
    tests = TESTS + '@pytest.mark.pallas(interpret="off")\ndef test_marked():\n    rows(12)\n'
    assert (
        "pytest runs TPU kernels"
        not in child(tests, "-k", "marked", "--pallas-interpret=off").stdout.str()
    )
    assert "pytest runs TPU kernels" not in child(tests, "-k", "marked").stdout.str()


@pytest.mark.slow
def test_an_exception_that_cannot_be_printed_ends_no_run(child: Child) -> None:
    tests = """
class Odd(ValueError):
    def __str__(self):
        raise RuntimeError("no text")

def test_odd():
    raise Odd
"""
    result = child(tests)
    result.assert_outcomes(failed=1, warnings=1)
    assert "pallas-debug: a failure was not explained: RuntimeError('no text')" in (
        result.stdout.str()
    )

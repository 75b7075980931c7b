"""Ctrl+c while an interpreted kernel runs ends the run, in which XLA would fail the test alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Child = Callable[..., pytest.RunResult]

TESTS = """
import os, signal
from pallas_debug.{module} import {owner} as owner

calls = 0
real = owner.{function}

def press(*args):
    global calls
    calls += 1
    if calls == 20:
        os.kill(os.getpid(), signal.SIGINT)
    return real(*args)

@jax.jit
def many(x):
    def many(x_ref, o_ref):
        o_ref[...] = x_ref[...]
    return call(many, x, grid=(300,), out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (0, i))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, i)))

@pytest.mark.parametrize("n", range(3))
def test_many(n, monkeypatch):
    monkeypatch.setattr(owner, "{function}", press)
    many(jnp.ones((8, 128 * 300))).block_until_ready()
"""

IN_THE_MACHINE = {"module": "machine.machine", "owner": "Machine", "function": "step"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "place, option",
    [
        (IN_THE_MACHINE, "--pallas-sanitize"),
        pytest.param(IN_THE_MACHINE, "--pallas-interpret=machine", marks=pytest.mark.slow),
    ],
)
def test_the_run_ends(child: Child, place: dict[str, str], option: str) -> None:
    tests = TESTS
    for name, value in place.items():
        tests = tests.replace("{" + name + "}", value)
    result = child(tests, option, "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*KeyboardInterrupt*"])
    result.assert_outcomes()
    result.stdout.no_fnmatch_line("*JaxRuntimeError*")


@pytest.mark.slow
def test_a_test_that_presses_the_key_itself_goes_on(child: Child) -> None:
    tests = """
import os, signal, time

def test_expects_it():
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    assert rows(8)[0, 0] == 1

def test_fails_afterwards():
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    assert rows(8)[0, 0] == 2
"""
    result = child(tests, "--pallas-interpret=tpu")
    result.assert_outcomes(passed=1, failed=1)

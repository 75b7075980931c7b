"""Ctrl+c while an interpreted kernel runs ends the run, in which XLA would fail the test alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Child = Callable[..., pytest.RunResult]

TESTS = """
import os, signal
from pallas_debug.machine.machine import Machine

calls = 0
real = Machine.step

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
    monkeypatch.setattr(Machine, "step", press)
    many(jnp.ones((8, 128 * 300))).block_until_ready()
"""


@pytest.mark.slow
def test_the_run_ends(child: Child) -> None:
    result = child(TESTS, "--pallas-sanitize", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*KeyboardInterrupt*"])
    result.assert_outcomes()
    result.stdout.no_fnmatch_line("*JaxRuntimeError*")

"""A module of small kernels, right and wrong, for the child runs of this room."""

from __future__ import annotations

from collections.abc import Callable

import pytest

KERNELS = """
import jax, jax.numpy as jnp, pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

X = jnp.ones((16, 128))
OUT = jax.ShapeDtypeStruct((8, 128), jnp.float32)

def call(body, *args, **kwargs):
    return pl.pallas_call(body, **{"out_shape": OUT, **kwargs})(*args)

@jax.jit
def rows(start):
    def rows(start_ref, x_ref, o_ref):
        o_ref[...] = x_ref[pl.ds(start_ref[0], 8), :]
    return call(rows, jnp.array([start]), X)

@jax.jit
def log(x):
    def log(x_ref, o_ref):
        o_ref[...] = jnp.log(x_ref[...])
    return call(log, x)

@jax.jit
def count(n):
    def count(n_ref, o_ref):
        def body(i, _):
            pl.debug_print("i = {}", i)
            return 0
        jax.lax.fori_loop(0, n_ref[0], body, 0)
        o_ref[...] = jnp.zeros_like(o_ref)
    return call(count, jnp.array([n]))

@jax.jit
def raced(x):
    def raced(x_ref, o_ref):
        o_ref[...] = x_ref[...]
    return call(
        raced, x, grid=(2,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )

@jax.jit
def generation(x):
    def generation(x_ref, o_ref):
        o_ref[...] = x_ref[...] * pltpu.get_tpu_info().generation
    return call(generation, x)

BAD = -X[:8]
GOOD = X[:8]
"""

Child = Callable[..., pytest.RunResult]


@pytest.fixture
def child(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Child:
    """Runs pytest in a child process on `kernels.py` and a test file of this text."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(kernels=KERNELS)

    def run(tests: str, *arguments: str) -> pytest.RunResult:
        path = pytester.makepyfile(test_it=tests)
        path.write_text("from kernels import *\n" + path.read_text())
        return pytester.runpytest_subprocess(*arguments, timeout=240)

    return run

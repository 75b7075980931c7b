"""Module of small kernels, correct and faulty, for the child runs of this room."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

KERNELS = """
import jax, jax.numpy as jnp, pytest; jax.config.update("jax_disable_most_optimizations", True)
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

Sessions = Callable[..., list[pytest.RunResult]]


@pytest.fixture
def sessions(run_pytest: Child, monkeypatch: pytest.MonkeyPatch) -> Sessions:
    """Runs pytest several times: each run is its arguments, and what its environment has beside ours."""

    def run(*wanted: tuple[Sequence[str], Mapping[str, str]]) -> list[pytest.RunResult]:
        results = []
        for arguments, environment in wanted:
            with monkeypatch.context() as patch:
                for name, value in environment.items():
                    patch.setenv(name, value)
                results.append(run_pytest(*arguments))
        return results

    return run


ChildFiles = Callable[[str], None]


@pytest.fixture
def child_files(pytester: pytest.Pytester) -> ChildFiles:
    """Writes `kernels.py`, and a test file of this text."""
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(kernels=KERNELS)

    def write(tests: str) -> None:
        path = pytester.makepyfile(test_it=tests)
        path.write_text("from kernels import *\n" + path.read_text())

    return write


@pytest.fixture
def child(run_pytest: Child, child_files: ChildFiles) -> Child:
    """Runs pytest in a child process on `kernels.py` and a test file of this text."""

    def run(tests: str, *arguments: str) -> pytest.RunResult:
        child_files(tests)
        return run_pytest(*arguments)

    return run

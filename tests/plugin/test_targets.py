"""Kernels whose code asks for its chip are judged for that chip only, in real child runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., pytest.RunResult]

KERNELS = """
import functools
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

OUT = jax.ShapeDtypeStruct((32, 128), jnp.float32)
X = jnp.ones((32, 128))
Y = jnp.ones((128, 128))

@functools.cache
def dtype():
    # v4 cannot multiply int8.
    return jnp.int8 if pltpu.get_tpu_info().generation >= 5 else jnp.bfloat16

def narrow(x_ref, y_ref, o_ref):
    o_ref[...] = jnp.dot(
        x_ref[...], y_ref[...],
        preferred_element_type=jnp.int32 if x_ref.dtype == jnp.int8 else jnp.float32,
    ).astype(jnp.float32)

@jax.jit
def multiply(x, y):
    return pl.pallas_call(narrow, out_shape=OUT)(x.astype(dtype()), y.astype(dtype()))

def double(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2

def plain(x):
    return pl.pallas_call(double, out_shape=OUT)(x)
"""

TESTS = """
from kernels import *

def test_multiply():
    assert multiply(X, Y)[0, 0] == 128

def test_multiply_again():  # does not ask
    assert multiply(X[:, ::-1], Y)[0, 0] == 128

def test_plain():
    plain(X)
"""

WHY = "the code queried its chip and got TPU v5 lite; for v4 it may call another kernel"


@pytest.fixture(autouse=True)
def files(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(kernels=KERNELS, test_kernels=TESTS)


def compiled(dumps: Path) -> set[tuple[str, str]]:
    """Kernel and target of everything in a dump directory."""
    found = dumps.glob("*/*/compilation.json")
    return {(path.parts[-3].partition("-")[0], path.parts[-2]) for path in found}


@pytest.mark.slow
def test_it_is_compiled_for_the_chip_it_was_traced_for(
    run_pytest: Run, pytester: pytest.Pytester
) -> None:
    result = run_pytest("--pallas-dump", "--pallas-target=v5e,v4")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [f"kernel `narrow` was not compiled for v4: {WHY}; with the fixture pallas_target *"]
    )
    assert result.ret == 0
    wanted = {("narrow", "v5e"), ("double", "v5e"), ("double", "v4")}
    assert compiled(pytester.path / "dumps") == wanted

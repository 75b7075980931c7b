"""`-o pallas_pretend` in real child runs: for tests, and modules that are collected."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from marks import with_and_without_xdist

Run = Callable[..., pytest.RunResult]

GATES = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl

IS_TPU = jax.default_backend() == "tpu"  # while pytest collects the tests

def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2

def double(x):
    if jax.devices()[0].platform != "tpu":
        raise RuntimeError("double needs a TPU")
    return pl.pallas_call(kernel, out_shape=x)(x)
"""

TESTS = """
import jax, jax.numpy as jnp, pytest, unittest
from gates import IS_TPU, double

@pytest.mark.skipif(not IS_TPU, reason="needs a TPU")
def test_gated():
    assert double(jnp.ones((8, 128)))[0, 0] == 2
    assert jax.local_devices()[0].device_kind == "TPU v6 lite"

class TestOld(unittest.TestCase):
    def setUp(self):
        if jax.default_backend() != "tpu":
            self.skipTest("needs a TPU")

    def test_old(self):
        self.assertEqual(jax.devices()[0].device_kind, "TPU v6 lite")
"""

EACH = """
import jax

def test_each(pallas_target):
    assert jax.devices()[0].device_kind == pallas_target.device_kind

def test_the_first():
    assert jax.devices()[0].device_kind == "TPU v6 lite"
"""

HEADER = "*; jax's devices answer as v6e"


@pytest.fixture(autouse=True)
def files(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    pytester.makepyfile(gates=GATES, test_gates=TESTS)


@pytest.mark.slow
@with_and_without_xdist
def test_gates_open_for_the_run(run_pytest: Run, workers: list[str]) -> None:
    result = run_pytest("--override-ini=pallas_pretend=v6e", *workers)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([HEADER])


def test_the_chip_of_a_test_is_its_target(run_pytest: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_gates=EACH)
    result = run_pytest("--override-ini=pallas_pretend=v6e", "--pallas-target=v6e,v4")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines([HEADER])

"""Lines below failures that an option or other code cures, in real child runs without an option."""

from __future__ import annotations

import re
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

DTYPE = (
    "E   pallas-debug: a value of another dtype is stored; store value.astype(ref.dtype), or give"
)
INDEX_MAP = (
    "E   pallas-debug: an index map takes too few or too many arguments; give the index map one "
    "parameter for each dimension of the grid and each scalar-prefetch operand"
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

def test_dtype():
    def rounded(x_ref, o_ref):
        o_ref[...] = x_ref[...].astype(jnp.int32)
    call(rounded)

def test_index_map():
    block = pl.BlockSpec((8, 128), lambda i, j: (0, 0))
    pl.pallas_call(lambda *_: None, out_shape=OUT, grid=(2,), out_specs=block)()

@pytest.mark.xfail(reason="known")
def test_expected():
    rows(12)

def test_not_of_a_kernel():
    jax.jit(lambda x: x if x > 0 else -x)(1.0)

def test_of_its_own():
    raise ValueError("Invalid dtype for `swap`")
"""

SEMAPHORE = """
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

def start(x):
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    semaphore = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)
    return pl.pallas_call(
        lambda x_ref, o_ref, sem: pltpu.make_async_copy(x_ref, o_ref, sem).start(),
        in_specs=[hbm],
        out_specs=(hbm, semaphore),
        out_shape=(OUT, pltpu.SemaphoreType.DMA(())),
    )(x)

def wait(x, sem):
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    semaphore = pl.BlockSpec(memory_space=pltpu.SEMAPHORE)
    return pl.pallas_call(
        lambda x_ref, sem, o_ref: pltpu.make_async_copy(x_ref, o_ref, sem).wait(),
        in_specs=[hbm, semaphore],
        out_specs=hbm,
        out_shape=OUT,
        input_output_aliases={0: 0},
    )(x, sem)

def copied(x):
    return wait(*start(x))

def test_outside():
    copied(jnp.ones((8, 128)))

def test_within():
    assert (jax.jit(copied)(jnp.ones((8, 128))) == 1).all()
"""

ROUNDED = """
import numpy as np, unittest
from numpy import array_equal
from jax_like.chex._src.asserts_internal import assert_trees
from jax_like.jax._src.test_util import JaxTestCase

ERRORS = pytest.mark.parametrize("error", [2e-7, 2e-5])
NARROW = np.linspace(1, 2, 8 * 128).reshape(8, 128).astype(jnp.bfloat16)

def pair(error):
    y = np.array(log(3 * GOOD))
    return y, y * np.float32(1 + error)

@jax.jit
def doubled(x):
    def doubles(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2
    return call(doubles, x, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))

def narrow(error=0.0):
    return np.asarray(doubled(NARROW)), (NARROW * (2 + error)).astype(jnp.bfloat16)

def test_equal():
    y, z = pair(2e-7)
    assert array_equal(y, z)

@ERRORS
def test_assert(error):
    y, z = pair(error)
    assert jnp.allclose(y, z.astype(np.float32), rtol=1e-8, atol=0), "differ"

def test_in_a_part():
    y, z = pair(2e-7)
    assert y.shape == z.shape and (y > 0).all() and np.allclose(
        pair(2e-7)[0], b=z, rtol=1e-8, atol=0
    )

def test_distance():
    y, z = pair(2e-7)
    assert np.max(np.abs(y - pair(2e-7)[1])) <= 1e-9

def test_each_distance():
    y, z = pair(2e-7)
    assert (1e-9 > np.abs(y - z)).all()

def test_not():
    y, z = pair(0.0)
    assert not np.allclose(y, z) or (np.abs(y - z) > 1e-9).all()

def test_exact_integers():
    y, _ = narrow()
    assert np.allclose(np.round(y * 64).astype(np.float32), np.round(y * 64 + 1).astype(np.float32), rtol=1e-8)

class TestInUnittest(unittest.TestCase):
    def test_true(self):
        y, z = pair(2e-7)
        self.assertTrue(jnp.allclose(y, z, rtol=1e-8, atol=0))

    def test_less(self):
        y, z = pair(2e-7)
        self.assertLess(np.abs(y - z).max(), 1e-9)

    def test_unknown_values(self):
        self.assertTrue(jnp.allclose(pair(2e-7)[0], pair(2e-7)[1], rtol=1e-8, atol=0))

def test_trees():
    assert_trees(*narrow(0.01))

class TestLikeJax(JaxTestCase):
    def test_narrow(self):
        y, z = narrow(0.01)
        self.assertAllClose((y, z), (z, y))

def test_cast():
    y, z = (np.float32(array) for array in narrow(0.01))
    np.testing.assert_allclose(y, z, rtol=1e-5)

def test_one_is_cast():
    y, _ = narrow()
    assert np.allclose(y.astype(np.float32), y.astype(np.float32) * 1.004, rtol=1e-5)

def test_cast_but_far_apart():
    y, z = (np.float32(array) for array in narrow(0.2))
    np.testing.assert_allclose(y, z, rtol=1e-5)

def test_single_precision():
    y, z = (np.float32(array) for array in narrow(0.01))
    np.testing.assert_allclose(y + np.float32(1e-6), z + np.float32(1e-6), rtol=1e-5)

@ERRORS
def test_values(error):
    np.testing.assert_allclose(*pair(error))

def test_shapes():
    np.testing.assert_allclose(log(GOOD), np.zeros((8, 127)))

def test_without_kernels():
    np.testing.assert_allclose(np.float32(1), np.float32(1 + 2e-7))
"""


@pytest.mark.slow
@with_and_without_xdist
def test_a_failure_names_the_option_or_the_code_that_cures_it(
    child: Child, workers: list[str]
) -> None:
    result = child(TESTS, *workers)
    result.assert_outcomes(failed=7, xfailed=1)
    text = result.stdout.str()
    for line in (OPTION, CONDITION, NUMBER, DTYPE, INDEX_MAP):
        assert text.count(line) == 1, line
    assert text.count("pallas-debug: ") == 5
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


@pytest.mark.slow
def test_a_semaphore_that_leaves_its_program(child: Child) -> None:
    result = child(SEMAPHORE, "--pallas-interpret")
    result.assert_outcomes(failed=1, passed=1)
    line = "E   pallas-debug: a semaphore is a result of a program; call the kernels that share"
    assert result.stdout.str().count(line) == 1


JAX_LIKE = """
import unittest
import numpy as np

class JaxTestCase(unittest.TestCase):
    def assertAllClose(self, actual, desired):
        if isinstance(actual, tuple):
            for one, other in zip(actual, desired):
                self.assertAllClose(one, other)
        else:
            np.testing.assert_allclose(np.float32(actual), np.float32(desired), rtol=1e-5)
"""
"""Like jax's own, which its wheel leaves out."""

CHEX_LIKE = """
def chex_assert_fn(*args, name):
    raise AssertionError("[Chex] values not approximately equal")

def assert_trees(*args):
    chex_assert_fn(*args, name="assert_trees_all_close")
"""
"""Like chex, which raises an exception of its own."""


@pytest.mark.slow
def test_what_rounding_may_cause(child: Child, pytester: pytest.Pytester) -> None:
    """Values that NumPy compares, or an assertion; those of intermediate results, too."""
    for file, code in (("jax/_src/test_util", JAX_LIKE), ("chex/_src/asserts_internal", CHEX_LIKE)):
        path = pytester.path / "jax_like" / f"{file}.py"
        path.parent.mkdir(parents=True)
        path.write_text(code)
    result = child(ROUNDED, "--pallas-interpret", "--tb=short")
    text = result.stdout.str()
    single = (
        "E   pallas-debug: no element differs by more than 2.2e-07 of the expected element: 2 "
        "units of rounding of float32, which another order of operations may cause; rtol=3e-07 "
        "allows that"
    )
    unit = r"no element differs by more than \S+ of the expected element: 1 unit of rounding of "
    narrow = unit + "bfloat16, which another"
    start = "E   pallas-debug: "
    expected = {
        **dict.fromkeys(("values[2e-07]", "assert[2e-07]", "in_a_part", "distance"), single),
        **dict.fromkeys(("equal", "each_distance", "true", "less"), single),
        **dict.fromkeys(("narrow", "trees"), start + narrow),
        "cast": f"{start}both arrays have values of bfloat16 as float32, and {narrow}",
        "one_is_cast": f"{start}one of the arrays has values of bfloat16 as float32, and {narrow}",
    }
    found = {
        name.rpartition("test_")[2]: line
        for name, line in re.findall(
            r"^_+ (\S+) _+$(?:(?!^_+ ).)*?^(E   pallas-debug: .*?)$", text, re.MULTILINE | re.DOTALL
        )
    }
    assert found.keys() == expected.keys()
    for name, line in expected.items():
        assert re.match(line, found[name]), name
    assert text.count(start) == len(expected)
    assert "not explained" not in text


@pytest.mark.slow
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

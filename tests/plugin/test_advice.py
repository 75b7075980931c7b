"""Lines below failures that an option or other code cures, in real child runs without an option."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from marks import with_and_without_xdist

Child = Callable[..., pytest.RunResult]

OPTION = "with --pallas-interpret, pytest runs TPU kernels on the CPU"
CONDITION = "Python's `if` or `while` on a value that is known only when the kernel"
NUMBER = "Python needs a number that is known only when the kernel runs; loop with"

DTYPE = "a value of another dtype is stored; store value.astype(ref.dtype); or give"
INDEX_MAP = (
    "an index map takes too few or too many arguments; give it a parameter for each "
    "dimension of the grid and each scalar-prefetch operand"
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

@pytest.mark.pallas(interpret="off")  # switched off on purpose
def test_marked():
    rows(12)

def test_not_of_a_kernel():
    jax.jit(lambda x: x if x > 0 else -x)(1.0)

def test_of_its_own():
    raise ValueError("Invalid dtype for `swap`")
"""


@pytest.mark.slow
@with_and_without_xdist
def test_a_failure_names_the_option_or_the_code_that_cures_it(
    child: Child, workers: list[str]
) -> None:
    result = child(TESTS, *workers)
    result.assert_outcomes(failed=8, xfailed=1)
    text = result.stdout.str()
    for line in (OPTION, CONDITION, NUMBER, DTYPE, INDEX_MAP):
        assert text.count(line) == 1, line
    assert text.count("- pallas-debug -") == 5
    condition = next(line for line in text.splitlines() if line.startswith(CONDITION))
    assert "@pl.when(condition)" in condition
    assert "jax.lax.cond" in condition
    at_fault = [line for line in text.splitlines() if line.endswith("# the line at fault")]
    assert at_fault[-1].startswith(">")

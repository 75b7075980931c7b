"""`--pallas-coverage` in real child runs, and definitions found in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pallas_debug_pytest import coverage
from tiers import with_and_without_xdist

Child = Callable[..., pytest.RunResult]

OTHERS = """
import functools
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import pallas_call as make

def copy_kernel(x_ref, o_ref, *, factor):
    o_ref[...] = x_ref[...] * factor

@jax.custom_vjp
def launched(x):
    kernel = functools.partial(copy_kernel, factor=2)
    return pl.pallas_call(
        kernel,
        out_shape=x,
        name="named",
    )(x)
launched.defvjp(lambda x: (launched(x), None), lambda _, g: (g,))

def never(x):
    def inner(x_ref, o_ref):
        o_ref[...] = x_ref[...]
    return make(inner, out_shape=x)(x)

never_either = lambda x: pl.pallas_call(lambda x_ref, o_ref: None, out_shape=x)(x)

def handed_in(body, x):
    return pl.pallas_call(body, out_shape=x)(x)

def handed_in_and_never(body, x):
    return pl.pallas_call(body, out_shape=x)(x)
"""

TESTS = """
import others
def test_a():
    jax.grad(lambda x: others.launched(x).sum())(GOOD)
def test_b():
    others.handed_in(lambda x_ref, o_ref: None, GOOD)
    log(GOOD)
"""


@pytest.mark.slow
@with_and_without_xdist
def test_kernels_that_never_launched_are_listed(
    child: Child, pytester: pytest.Pytester, workers: list[str]
) -> None:
    pytester.makepyfile(others=OTHERS)
    result = child(TESTS, "--pallas-coverage", *workers)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "pallas-debug *: *; kernels that never launch are listed",
            "*- pallas-debug -*",
            "never launched: others.py:22 inner",
            "never launched: others.py:24 <lambda>",
            "never launched: others.py:30 handed_in_and_never",
            "3 of 6 kernels launched",
        ]
    )
    assert result.stdout.str().count("never launched") == 3


@pytest.mark.slow
def test_a_run_without_kernels_says_so(child: Child, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_plain="def test_nothing(): pass")
    result = pytester.runpytest_subprocess("test_plain.py", "--pallas-coverage")
    result.stdout.fnmatch_lines(["no kernel is defined by the files of this run"])


def names(file: Path) -> list[str]:
    return [f"{d.line} {d.name} {len(d.kernels)}" for d in coverage.definitions(file)]


def test_every_way_to_make_a_kernel(tmp_path: Path) -> None:
    file = tmp_path / "kernels.py"
    file.write_text(
        """
import functools
from jax.experimental import pallas as pl
from jax.experimental.pallas import kernel as pl_kernel

@pl.kernel(out_type=1, mesh=2)
def decorated(x_ref): ...

@functools.partial(pl_kernel, 1)
def partially(x_ref): ...

def f(mesh, flag, kernel):
    @pl.core_map(mesh)
    def _(): ...
    a = lambda ref: None
    def b(ref): ...
    body = a if flag else functools.partial(b, 1)
    pl.pallas_call(body, out_shape=1)
    pl.pallas_call(kernel=b, out_shape=1)
    pl.kernel(b, out_type=1)
    kernel(b)
    self.kernel(b)
    x = functools.partial(x)
    pl.pallas_call(x)
    pl.pallas_call()
"""
    )
    assert names(file) == [
        "7 decorated 1",
        "10 partially 1",
        "14 _ 1",
        "18 body 2",
        "19 b 1",
        "20 b 1",
        "24 f 0",
    ]


@pytest.mark.parametrize("content", [b"pallas_call(", b"pallas_call \xff", b"", b"pallas_call\0"])
def test_a_file_that_is_no_python_defines_nothing(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "kernels.py"
    file.write_bytes(content)
    assert names(file) == []


def test_a_long_list_is_cut() -> None:
    result = {f"a.py:{i} kernel": False for i in range(60)}
    lines = coverage.lines([result, {"a.py:7 kernel": True}])
    assert lines[:2] == ["never launched: a.py:0 kernel", "never launched: a.py:1 kernel"]
    assert lines[-2:] == ["… and 9 more", "1 of 60 kernels launched"]

"""`pallas_debug.check`: its report, and what it rejects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from checked_calls import MODES, X, _log_less_one, call, checked, logs
from jax import lax
from jax.experimental import checkify
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.errors import ChecksFailed, UsageError


@pytest.mark.slow
def test_only_what_is_asked_for_is_checked() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        checkify.check(x_ref[0, 0] > 0, "not positive")
        o_ref[...] = jnp.sqrt(x_ref[...] - 1)

    kinds = {
        errors: [f.kind for f in checked(lambda x: call(kernel, x), X, errors=errors)[0]]
        for errors in ("user", "nan", "index", "user,nan", "all")
    }
    assert kinds == {
        "user": ["CheckFailed"],
        "nan": ["NanProduced"],
        "index": [],
        "user,nan": ["CheckFailed", "NanProduced"],
        "all": ["CheckFailed", "NanProduced"],
    }
    assert [f.kind for f in checked(lambda x: call(kernel, x), X, errors=["nan"])[0]] == [
        "NanProduced"
    ]


def test_the_report() -> None:
    report, _ = pallas_debug.check(logs)(X)
    assert not report.ok
    with pytest.raises(ChecksFailed) as error:
        report.throw()
    assert str(error.value) == str(report)
    assert error.value.findings == report.findings
    assert str(report).startswith("NanProduced in kernel `logs`, grid point (0,)")
    sound, _ = pallas_debug.check(logs)(X + 1e6)
    assert sound.ok
    assert sound.throw() is None
    assert str(sound) == "no check failed"


@pytest.mark.parametrize("function", [jnp.sin, jax.jit(lambda x: x + 1)])
def test_a_function_without_kernels_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="called no Pallas kernel with these arguments: nothing"):
        pallas_debug.check(function)(X)


@pytest.mark.parametrize("mode", MODES)
def test_a_kernel_that_did_not_run_is_not_checked(mode: str) -> None:
    def copies(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]  # nothing that a check could find

    def maybe(x: jax.Array) -> jax.Array:
        return lax.cond(x[0, 0] > 5, lambda: call(copies, x), lambda: x)

    check = pallas_debug.check(jax.jit(maybe), interpret=mode)
    for _ in range(2):
        report, _ = check(X)
        assert report.not_checked == (
            "kernel `copies` was not checked: it did not run to its end. Is it in a branch that was "
            "not taken? The absence of findings in it proves nothing.",
        )
    report, _ = check(X + 6)
    assert report.ok
    for dtype in ("int4", "bool", "float8_e4m3fn"):  # what ran is known for any dtype
        whole = jnp.ones((16, 128), dtype)
        out = jax.ShapeDtypeStruct(whole.shape, whole.dtype)
        report, _ = pallas_debug.check(
            lambda x, out=out: call(copies, x, shape=out), interpret=mode
        )(whole)
        assert report.ok, report


def test_prints_are_in_the_report() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        pl.debug_print("x = {}", x_ref[0, 1])
        o_ref[...] = x_ref[...]

    report, _ = pallas_debug.check(lambda x: call(kernel, x, grid=(2,)))(X)
    assert report.ok
    assert [(p.text, p.grid_point) for p in report.prints] == [("x = 1.0", (0,)), ("x = 1.0", (1,))]


def test_unknown_checks_are_refused() -> None:
    with pytest.raises(
        UsageError,
        match=r"unknown check 'nans' \(did you mean 'nan'\?\); there are user, nan, inf, index, ",
    ):
        pallas_debug.check(logs, "user,nans")
    with pytest.raises(UsageError, match=r"checks are named by strings.* check\(function\)\(x\)"):
        pallas_debug.check(jnp.sin, jnp.ones(3))  # type: ignore[arg-type]
    for nothing in ("", " , ", []):
        with pytest.raises(UsageError, match="no check is named; there are user"):
            pallas_debug.check(logs, nothing)


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.make_jaxpr])
def test_within_a_transformation_it_is_refused(transform: Callable[..., Any]) -> None:
    with pytest.raises(
        UsageError, match=r"pallas_debug.check\(logs\) runs its function and cannot"
    ):
        transform(pallas_debug.check(logs))(X)


def _dynamic_and_parallel(x: jax.Array) -> jax.Array:
    params = pltpu.CompilerParams(dimension_semantics=("parallel",))
    copies = jax.jit(lambda n, x: call(_log_less_one, x, grid=(n,), compiler_params=params))
    return copies(2, x)


def test_what_cannot_be_checked_is_reported_once(capfd: pytest.CaptureFixture[str]) -> None:
    def twice(x: jax.Array) -> jax.Array:
        return _dynamic_and_parallel(x) + _dynamic_and_parallel(x + 1)

    check = pallas_debug.check(jax.jit(twice), interpret="off")
    report, _ = check(X)
    again, _ = check(X)  # jax keeps the program
    assert again == report
    (gap,), (sentence,) = report.gaps, report.not_checked
    assert (gap.kernel, gap.engine, gap.is_limit) == ("_log_less_one", "checks", True)
    assert gap.digest
    assert sentence == (
        "kernel `_log_less_one` was not checked: a parallel dimension of its grid has a size that "
        "is known only at run time. The absence of findings in it proves nothing."
    )
    assert report.findings == ()
    assert sentence in str(report)
    with pytest.raises(ChecksFailed, match="was not checked"):
        report.throw()
    assert capfd.readouterr().err.count(sentence) <= 1


def test_a_kernel_in_an_interpreter_of_jax_is_not_checked() -> None:
    with pytest.raises(UsageError, match="checking runs kernels on the kernel machine, and inter"):
        pallas_debug.check(logs, interpret="hlo")

    def in_tpu_mode(x: jax.Array) -> jax.Array:
        return call(_log_less_one, x, interpret=pltpu.InterpretParams())

    report, _ = pallas_debug.check(in_tpu_mode)(X + 2)
    (sentence,) = report.not_checked
    assert sentence.startswith(
        "kernel `_log_less_one` was not checked: it runs in one of jax's interpreters"
    )

"""`pallas_debug.check`: its report, and what it rejects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from checked_calls import F32, MODES, X, _log_less_one, call, checked, logs, one
from jax import lax
from jax.experimental import checkify
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from meshes import tensorcore_mesh

import pallas_debug
from pallas_debug.errors import ChecksFailed, UsageError
from pallas_debug.model import Gap


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


@pytest.mark.slow
def test_a_check_without_debug_needs_no_checkify() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        checkify.check(jnp.all(x_ref[...] >= 0), "negative")
        o_ref[...] = x_ref[...]

    assert checked(lambda x: call(kernel, x), X)[0] == ()
    assert one(lambda x: call(kernel, x), X - 1).message == "negative"


@pytest.mark.slow
def test_the_report() -> None:
    report, _ = pallas_debug.check(logs, interpret="hlo")(X)
    assert not report.ok
    with pytest.raises(ChecksFailed) as error:
        report.throw()
    assert str(error.value) == str(report)
    assert error.value.findings == report.findings
    assert str(report).startswith("NanProduced in kernel `logs`, grid point (0,), 2 times\n  ")
    sound, _ = pallas_debug.check(logs, interpret="hlo")(X + 1e6)
    assert sound.ok
    assert sound.throw() is None
    assert str(sound) == "no check failed"


@pytest.mark.parametrize("function", [jnp.sin, jax.jit(lambda x: x + 1)])
def test_a_function_without_kernels_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="called no Pallas kernel with these arguments: nothing"):
        pallas_debug.check(function)(X)


@pytest.mark.slow
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

    report, _ = pallas_debug.check(lambda x: call(kernel, x, grid=(2,)), interpret="hlo")(X)
    assert report.ok
    assert [(p.text, p.grid_point) for p in report.prints] == [("x = 1.0", (0,)), ("x = 1.0", (1,))]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hlo", "tpu"])
def test_a_printed_reference_is_read(mode: str) -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]
        jax.debug.print("x = {}", o_ref)

    x = X[:1, :2]
    report, _ = pallas_debug.check(lambda: call(kernel, x, shape=x.shape), interpret=mode)()
    assert [p.text for p in report.prints] == ["x = [[0. 1.]]"]


def test_unknown_checks_are_refused() -> None:
    with pytest.raises(
        UsageError,
        match=r"unknown check 'nans' \(did you mean 'nan'\?\); there are user, nan, inf, index, ",
    ):
        pallas_debug.check(logs, "user,nans")
    for nothing in ("", " , ", []):
        with pytest.raises(UsageError, match="no check is named; there are user"):
            pallas_debug.check(logs, nothing)


def test_arguments_in_place_of_check_names_are_explained() -> None:
    with pytest.raises(UsageError, match=r"checks are named by strings.* check\(function\)\(x\)"):
        pallas_debug.check(jnp.sin, jnp.ones(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.make_jaxpr])
def test_within_a_transformation_it_is_refused(transform: Callable[..., Any]) -> None:
    with pytest.raises(
        UsageError, match=r"pallas_debug.check\(logs\) runs its function and cannot"
    ):
        transform(pallas_debug.check(logs))(X)


def _over_a_mesh(x: jax.Array) -> jax.Array:
    def copies(x_ref: Any, o_ref: Any) -> None:
        pltpu.sync_copy(x_ref, o_ref)

    kernel: Any = pl.kernel
    out = jax.ShapeDtypeStruct((16, 128), F32)
    return kernel(copies, out, mesh=tensorcore_mesh(), name="copies")(x)


def _dynamic_and_parallel(x: jax.Array) -> jax.Array:
    params = pltpu.CompilerParams(dimension_semantics=("parallel",))
    copies = jax.jit(lambda n, x: call(_log_less_one, x, grid=(n,), compiler_params=params))
    return copies(2, x)


@pytest.mark.parametrize(
    "function, kernel, reason",
    [
        (
            _over_a_mesh,
            "copies",
            "it is a kernel over a mesh (`pl.kernel`, `core_map`), which these checks do not "
            "support",
        ),
        (
            _dynamic_and_parallel,
            "_log_less_one",
            "a parallel dimension of its grid has a size that is known only at run time",
        ),
    ],
)
def test_what_cannot_be_checked_is_said_once(
    function: Callable[..., Any], kernel: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def twice(x: jax.Array) -> jax.Array:
        return function(x) + function(x + 1)

    check = pallas_debug.check(jax.jit(twice), interpret="hlo")
    report, _ = check(X)
    again, _ = check(X)  # jax keeps the program
    assert again == report
    (gap,), (sentence,) = report.gaps, report.not_checked
    assert gap == Gap(kernel=kernel, engine="checks", reason=reason, is_limit=True)
    assert sentence == (
        f"kernel `{kernel}` was not checked: {reason}. "
        "The absence of findings in it proves nothing."
    )
    assert report.findings == ()
    assert not report.ok
    assert sentence in str(report)
    with pytest.raises(ChecksFailed, match="was not checked"):
        report.throw()
    assert capfd.readouterr().err.count(sentence) <= 1


def without_masked_rows(x: jax.Array, valid: int) -> jax.Array:
    """Subtract the maximum of each row, of 12 copied as 16; rows from `valid` on are masked."""

    def kernel(n_ref: Any, x_ref: Any, o_ref: Any, in_ref: Any, out_ref: Any, sem: Any) -> None:
        rows = pl.ds(0, pl.multiple_of((n_ref[0] + 7) // 8 * 8, 8))
        pltpu.make_async_copy(x_ref.at[rows, :], in_ref.at[rows, :], sem).start()
        pltpu.make_async_copy(x_ref.at[rows, :], in_ref.at[rows, :], sem).wait()
        is_valid = lax.broadcasted_iota(jnp.int32, (16, 128), 0) < valid
        masked = jnp.where(is_valid, in_ref[...], -jnp.inf)
        out_ref[...] = masked - jnp.max(masked, axis=1, keepdims=True)
        pltpu.make_async_copy(out_ref.at[rows, :], o_ref.at[rows, :], sem).start()
        pltpu.make_async_copy(out_ref.at[rows, :], o_ref.at[rows, :], sem).wait()

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(1,),
        in_specs=[anywhere],
        out_specs=anywhere,
        scratch_shapes=[*[pltpu.VMEM((16, 128), F32)] * 2, pltpu.SemaphoreType.DMA],
    )
    return call(kernel, jnp.array([12]), x[:12], shape=(12, 128), grid_spec=spec)


def test_a_nan_that_reaches_no_output_on_the_machine() -> None:
    """Where copies include the padding of an array's tiles, `auto` runs kernels there."""
    for mode in ("auto", "machine"):
        assert not checked(lambda x: without_masked_rows(x, 12), X, errors="all", mode=mode)[0]
    finding = one(lambda x: without_masked_rows(x, 9), X, mode="auto")
    assert (finding.kind, finding.kernel) == ("NanProduced", "kernel")
    assert finding.witness.source is not None
    assert finding.witness.source.text.startswith("out_ref[...] = masked - jnp.max(masked")

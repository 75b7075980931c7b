"""`pallas_debug.interpret` as decorator and context manager, and a session's modes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import flash_attention, vector_add

import pallas_debug
from pallas_debug._api import debug as api
from pallas_debug._api import doctor
from pallas_debug.bridge import platform
from pallas_debug.bridge.interpret.params import Mode
from pallas_debug.errors import UnknownTargetError, UsageError
from pallas_debug.session import Options, Session

BEYOND = "Out-of-bounds read"

X = jnp.arange(16 * 128, dtype=jnp.float32).reshape(16, 128)

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def unsaid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(api, "_printed", set())
    monkeypatch.chdir(tmp_path)


def call(body: Callable[..., None], *args: Any, **kwargs: Any) -> Any:
    out = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    return pl.pallas_call(body, out_shape=out, **kwargs)(*args)


@jax.jit
def rows(start: Any) -> Any:
    """Eight rows of sixteen; out of bounds from a start above 8."""

    def body(start_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[pl.ds(start_ref[0], 8), :]

    return call(body, jnp.array([start]), X)


@jax.jit
def branching(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        @pl.when(x_ref[0, 0] == 0)
        def _() -> None:
            o_ref[...] = x_ref[...] + pl.program_id(0).astype(jnp.float32)

    return call(body, x, grid=(1,), name="branching")


class Recorder:
    """Of the grid points that TPU interpret mode visits."""

    def __init__(self) -> None:
        self.points = 0

    def __call__(self, token: Any, *_: Any) -> Any:
        self.points += 1
        return token


@pytest.mark.slow
def test_a_bare_decorator_chooses_for_each_kernel(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    @pallas_debug.interpret
    def both(x: Any) -> Any:
        """Adds."""
        return vector_add(x[0], x[0]), branching(x)

    assert both.__doc__ == "Adds."
    for _ in range(2):
        doubled, same = both(X[:8])
        np.testing.assert_array_equal(doubled, 2 * X[0])
        np.testing.assert_array_equal(same, X[:8])
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err == ""
    assert list(tmp_path.iterdir()) == []  # nothing is dumped


@pytest.mark.slow
def test_a_decorator_with_a_mode_and_its_parameters() -> None:
    record = Recorder()

    @pallas_debug.interpret("tpu", grid_point_recorder=record, detect_races=True)
    def added(x: Any) -> Any:
        return vector_add(x, x)

    np.testing.assert_array_equal(added(X[0]), 2 * X[0])
    assert record.points > 0


@pytest.mark.slow
def test_a_block() -> None:
    with pallas_debug.interpret("tpu,detect_races", num_cores=2) as session:
        np.testing.assert_array_equal(rows(8), X[8:])
    assert str(session.interpret_mode) == "tpu,detect_races=true,num_cores_or_threads=2"
    assert [kernel.name for kernel in session.kernels] == ["body"]
    assert session.dumps[0].compilations == ()


def test_blocks_of_one_object_within_one_another() -> None:
    again = pallas_debug.interpret("hlo")
    with again as outer, again as inner:
        assert outer is not inner
        rows(8)
    with pytest.raises(ValueError, match="Only interpret mode"):
        call(lambda x_ref, o_ref: None, X)


def test_a_function_that_is_called_again_is_not_traced_again() -> None:
    traced = []

    @jax.jit
    def inner(x: Any) -> Any:
        traced.append(1)
        return vector_add(x, x)

    added = pallas_debug.interpret("hlo")(inner)
    for _ in range(3):
        added(X[0])
    assert len(traced) == 1


@pytest.mark.parametrize(
    "arguments,params,message",
    [
        (("fast",), {}, "'fast' is not an interpret mode"),
        (("hlo",), {"detect_races": True}, "the interpret mode 'hlo' takes no parameters"),
        (("tpu",), {"detect_race": True}, "did you mean detect_races?"),
        (("tpu",), {"detect_races": 1}, "detect_races must be true or false, not 1"),
        (("tpu,detect_races",), {"detect_races": True}, "detect_races is given twice"),
        ((), {"detect_races": True}, "the interpret mode 'auto' takes no parameters"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(
    arguments: tuple[str, ...], params: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        pallas_debug.interpret(*arguments, **params)
    assert message in str(caught.value)


@pytest.mark.slow
def test_debug_takes_the_same(tmp_path: Path) -> None:
    for mode in ("tpu,dma_execution_mode=eager", Mode("tpu", {"dma_execution_mode": "eager"})):
        with pallas_debug.debug(interpret=mode, targets="", to=tmp_path, quiet=True) as session:
            rows(0)
        assert str(session.interpret_mode) == "tpu,dma_execution_mode=eager"
    with (
        pytest.raises(UsageError, match="two interpret modes"),
        pallas_debug.debug(interpret="hlo,tpu"),
    ):
        pass


# Sessions


def test_a_session_says_nothing_of_the_mode_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Session(Options()).interpret_mode == Mode("auto")
    monkeypatch.setattr(platform, "has_accelerator", lambda: True)
    assert Session(Options()).interpret_mode == Mode("off")
    assert Session(Options(interpret="auto")).interpret_mode == Mode("auto")


@pytest.mark.slow
def test_another_mode_within_a_session() -> None:
    record = Recorder()
    with Session(Options(interpret="hlo")) as session:
        rows(8)
        with session.interpreting(Mode("tpu", {"grid_point_recorder": record})):
            rows(8)
        assert record.points == 1
        with session.interpreting("off"), pytest.raises(ValueError, match="Only interpret mode"):
            rows(8)
        rows(8)
    assert record.points == 1


@pytest.mark.slow
def test_auto_goes_through_vmap_and_grad() -> None:
    @jax.custom_vjp
    def function(x: Any) -> Any:
        return branching(x)

    function.defvjp(lambda x: (branching(x), None), lambda _, g: (branching(g - g[0, 0]),))
    with pallas_debug.interpret(quiet=True):
        grad = jax.grad(lambda x: (function(x) * X[:8]).sum())(X[:8])
        mapped = jax.jit(jax.vmap(function))(jnp.stack([X[:8], X[:8]]))
    np.testing.assert_array_equal(grad, X[:8])
    np.testing.assert_array_equal(mapped, jnp.stack([X[:8]] * 2))


# Errors


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tpu", "tpu,detect_races", "tpu,num_cores=2"])
def test_after_an_error_the_next_kernel_works(mode: str) -> None:
    decorated = pallas_debug.interpret(mode)(rows)
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match=BEYOND):
            decorated(12)
        np.testing.assert_array_equal(decorated(8), X[8:])
    for _ in range(2):
        with (
            pytest.raises(jax.errors.JaxRuntimeError, match=BEYOND),
            pallas_debug.interpret(mode),
        ):
            rows(12)
        with pallas_debug.interpret("tpu"):
            np.testing.assert_array_equal(rows(8), X[8:])


@pytest.mark.slow
def test_an_error_of_the_program_itself_resets_too() -> None:
    @pallas_debug.interpret("tpu")
    def failing() -> None:
        rows(8)
        raise KeyError("of the program")

    with pytest.raises(KeyError):
        failing()
    with pallas_debug.interpret("tpu"):
        np.testing.assert_array_equal(rows(8), X[8:])


@pytest.mark.slow
def test_a_session_ends_in_order_after_an_error_in_a_kernel(tmp_path: Path) -> None:
    session = Session(Options(dumps=tmp_path, targets=("v5e",), interpret="tpu"))
    with pytest.raises(jax.errors.JaxRuntimeError, match=BEYOND), session:
        rows(12)
    assert session.dumps[0].compilation("v5e").ok
    assert session.queue.worker_pids() == []


# The chip


def asks(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * pltpu.get_tpu_info().generation

    return call(body, x)


def divides(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = (x_ref[...].astype(jnp.int32) // 3).astype(jnp.float32)

    return call(body, x)


def of_rank_one(x: Any) -> Any:
    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    block = pl.BlockSpec((1024,), lambda i: (i,))
    out = jax.ShapeDtypeStruct((2048,), jnp.float32)
    call = pl.pallas_call(body, out_shape=out, grid=(2,), in_specs=[block], out_specs=block)
    return call(x.reshape(2048))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hlo", "tpu", "auto"])
def test_a_kernel_that_asks_for_its_chip_gets_one(mode: str) -> None:
    with pallas_debug.interpret(mode):
        np.testing.assert_array_equal(jax.jit(asks)(X[:8]), X[:8] * 5)
        np.testing.assert_array_equal(jax.jit(divides)(X[:8]), X[:8] // 3)
        np.testing.assert_array_equal(jax.jit(of_rank_one)(X), X.reshape(2048))
    with pallas_debug.interpret(mode, chip="v6e"):
        np.testing.assert_array_equal(jax.jit(asks)(X[:8]), X[:8] * 6)
    with Session(Options(interpret=mode, chip="v4")):
        np.testing.assert_array_equal(jax.jit(asks)(X[:8]), X[:8] * 4)


def test_an_unknown_chip() -> None:
    with pytest.raises(UnknownTargetError), pallas_debug.interpret("hlo", chip="v99"):
        pass


# What else there is


@pytest.mark.slow
def test_a_bundled_kernel_in_both_modes() -> None:
    q, k, v = (jax.random.normal(jax.random.key(i), (1, 2, 128, 128)) for i in range(3))
    with pallas_debug.interpret("hlo"):
        hlo = flash_attention(q, k, v)
    tpu = pallas_debug.interpret("tpu")(flash_attention)(q, k, v)
    np.testing.assert_allclose(hlo, tpu, rtol=1e-5, atol=1e-5)


def test_the_name_is_there_without_jax(run_python: Run) -> None:
    code = "import sys, pallas_debug; print('interpret' in dir(pallas_debug), 'jax' in sys.modules)"
    assert run_python("-c", code).stdout.split() == ["True", "False"]


def test_the_doctor_knows_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_compiles", lambda: iter(()))
    found = {check.name: check for check in doctor.examine()}
    assert all(check.state != "failed" for check in found.values() if "interpret" in check.name)
    assert "detect_races" in found["TPU interpret mode's parameters"].detail
    assert "GPU interpret mode" in found

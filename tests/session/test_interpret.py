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
from pallas_debug_kernels import vector_add

import pallas_debug
from pallas_debug._api import debug as api
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


class Recorder:
    """Of the grid points that TPU interpret mode visits."""

    def __init__(self) -> None:
        self.points = 0

    def __call__(self, token: Any, *_: Any) -> Any:
        self.points += 1
        return token


@pytest.mark.slow
def test_a_decorator_with_a_mode_and_its_parameters() -> None:
    record = Recorder()

    @pallas_debug.interpret("tpu", grid_point_recorder=record, detect_races=True)
    def added(x: Any) -> Any:
        return vector_add(x, x)

    np.testing.assert_array_equal(added(X[0]), 2 * X[0])
    assert record.points > 0


def test_a_parameter_given_twice() -> None:
    with pytest.raises(UsageError, match="detect_races is given twice"):
        pallas_debug.interpret("tpu,detect_races", detect_races=True)


def test_blocks_of_one_object_within_one_another() -> None:
    again = pallas_debug.interpret("hlo")
    with again as outer, again as inner:
        assert outer is not inner
        rows(8)
    with pytest.raises(ValueError, match="Only interpret mode"):
        call(lambda x_ref, o_ref: None, X)


@pytest.mark.slow
def test_debug_takes_the_same(tmp_path: Path) -> None:
    for mode in ("tpu,dma_execution_mode=eager", Mode("tpu", {"dma_execution_mode": "eager"})):
        with pallas_debug.debug(interpret=mode, targets="", to=tmp_path, quiet=True) as session:
            rows(0)
        assert str(session.interpret_mode) == "tpu,dma_execution_mode=eager"
    with (
        pytest.raises(UsageError, match="has no parameter"),
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


# Errors


@pytest.mark.slow
def test_a_session_ends_in_order_after_an_error_in_a_kernel(tmp_path: Path) -> None:
    session = Session(Options(dumps=tmp_path, targets=("v5e",), interpret="tpu"))
    with pytest.raises(jax.errors.JaxRuntimeError, match=BEYOND), session:
        rows(12)
    assert session.dumps[0].compilation("v5e").ok
    assert session.queue._pool.pids(at_work=True) == []


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

"""Gaps of a session, and the run records that hold them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge.capture import capture
from pallas_debug.errors import CannotRunError
from pallas_debug.model import Gap, Kernel
from pallas_debug.session import Options, Session
from pallas_debug.store import Store, open_dumps

X = jnp.ones((8, 128))


def copy(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]


def copied(x: jax.Array) -> jax.Array:
    return pl.pallas_call(copy, out_shape=x, name="plain")(x)


def in_tpu_mode(x: jax.Array) -> jax.Array:
    def unobserved(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    return pl.pallas_call(unobserved, out_shape=x, interpret=pltpu.InterpretParams())(x)


def test_kernels_are_written_even_if_the_session_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()
    put_kernel = Store.put_kernel

    def put_late(*args: Any, **kwargs: Any) -> Path:
        assert may_write.wait(60)
        return put_kernel(*args, **kwargs)

    monkeypatch.setattr(Store, "put_kernel", put_late)
    options = Options(dumps=tmp_path, interpret="hlo", chip="v5e")
    session = Session(options)
    with contextlib.suppress(KeyboardInterrupt), session:
        copied(X)  # does not wait for the disk
        assert not list(tmp_path.glob("plain-*"))
        may_write.set()
        raise KeyboardInterrupt
    assert session.problems == []
    (stored,) = open_dumps(tmp_path)
    assert stored.kernel == session.kernels[0]
    assert (stored.folder / "program.py").exists()


@pytest.mark.slow
def test_a_compilation_is_written_after_its_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    put_kernel, put_compilation = Store.put_kernel, Store.put_compilation

    def put_late(*args: Any, **kwargs: Any) -> Path:
        while not session.queue.made:
            time.sleep(0.01)
        folder = put_kernel(*args, **kwargs)
        written.append("kernel")
        return folder

    def put_and_note(*args: Any) -> Path:
        written.append("compilation")
        return put_compilation(*args)

    monkeypatch.setattr(Store, "put_kernel", put_late)
    monkeypatch.setattr(Store, "put_compilation", put_and_note)
    with Session(Options(dumps=tmp_path, targets=("v5e",), interpret="hlo")) as session:
        copied(X)
    assert written == ["kernel", "compilation"]


def test_kernels_of_a_forked_process_are_written(tmp_path: Path) -> None:
    with Session(Options(dumps=tmp_path, interpret="hlo", chip="v5e")) as session:
        copied(X)
        session.wait()
        (captured,) = session.captures
        other = replace(captured, kernel=replace(captured.kernel, name="forked", digest="f" * 64))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jax and Python warn of forks with threads
            child = os.fork()
        if child == 0:  # without the thread that writes
            try:
                session.stored.put_kernel(other)
                session.stored.wait(other.kernel)
                session.stored.close()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert {"plain", "forked"} == {s.kernel.name for s in open_dumps(tmp_path) if s.kernel}


@pytest.mark.slow
def test_a_kernel_that_runs_in_an_interpreter_of_jax(tmp_path: Path) -> None:
    options = Options(dumps=tmp_path, checks=("nan",), chip="v5e")
    with Session(options, runs=True) as session:
        np.testing.assert_array_equal(jax.jit(in_tpu_mode)(copied(X)), X)
        plain = [kernel for kernel in session.kernels if kernel.name == "plain"]
        session.record_run("whole")
        session.record_run("plain", plain, gaps=session.gaps(plain))
    whole, alone = sorted(open_dumps(tmp_path).runs(), key=lambda run: run.name, reverse=True)
    (gap,) = whole.gaps
    assert (gap.kernel, gap.engine) == ("unobserved", "checks")
    assert (gap.is_limit, gap.is_partial) == (True, False)
    assert gap.reason.startswith("it runs in one of jax's interpreters")
    assert alone.gaps == ()


def test_a_kernel_that_was_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(capture, "capture", fail)
    with Session(Options(interpret="hlo", chip="v5e"), runs=True) as session:
        copied(X)
    (gap,) = session.gaps()
    assert (gap.kernel, gap.engine, gap.is_limit) == ("plain", "capture", False)
    assert "a bug" in gap.reason
    assert list(session.gaps(since=1)) == []


def test_compilations_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Options(interpret="off", chip="v5e"))
    one, other = (Kernel(name=name, digest=name, primitive="pallas_call") for name in ("a", "b"))
    requested = {(k.digest, target): k for k in (one, other) for target in ("v5e", "v6e")}
    monkeypatch.setattr(session.queue, "_requested", requested)
    session.queue.lost["a", "v5e"] = CannotRunError("the disk is full")
    failed = Gap(kernel="a", engine="v5e", reason="the disk is full")
    ended = "the session ended before it was compiled"
    assert list(session.gaps([one], has_ended=False)) == [failed]
    assert list(session.gaps([one])) == [failed, Gap(kernel="a", engine="v6e", reason=ended)]
    assert list(session.gaps([other], has_ended=False)) == []

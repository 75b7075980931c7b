"""Gaps of a session, and the run records that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from meshes import tensorcore_mesh

from pallas_debug.bridge.capture import capture
from pallas_debug.errors import CannotRunError
from pallas_debug.model import Gap, Kernel
from pallas_debug.session import Options, Session
from pallas_debug.store import open_dumps

X = jnp.ones((8, 128))


def copy(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]


def copied(x: jax.Array) -> jax.Array:
    return pl.pallas_call(copy, out_shape=x, name="plain")(x)


def over_a_mesh(x: jax.Array) -> jax.Array:
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.kernel(pltpu.sync_copy, out, mesh=tensorcore_mesh(), name="over_a_mesh")(x)


@pytest.mark.slow
def test_a_kernel_that_the_checks_do_not_support(tmp_path: Path) -> None:
    options = Options(dumps=tmp_path, checks=("nan",), interpret="tpu", chip="v5e")
    with Session(options, runs=True) as session:
        np.testing.assert_array_equal(jax.jit(over_a_mesh)(copied(X)), X)
        plain = [kernel for kernel in session.kernels if kernel.name == "plain"]
        session.record_run("whole")
        session.record_run("plain", plain, gaps=session.gaps(plain))
    whole, alone = sorted(open_dumps(tmp_path).runs(), key=lambda run: run.name, reverse=True)
    (gap,) = whole.gaps
    assert (gap.kernel, gap.engine) == ("over_a_mesh", "checks")
    assert (gap.is_limit, gap.is_partial) == (True, False)
    assert gap.reason.startswith("it is a kernel over a mesh")
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

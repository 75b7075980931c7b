"""Decorators and `with` blocks: what they refuse to wrap, and the tracebacks that users see."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import pallas_debug
from pallas_debug import tracebacks
from pallas_debug.errors import UsageError

X = jnp.ones((8, 128))


def broken_kernel(x_ref: Any, o_ref: Any) -> None:
    raise RuntimeError("mine")


def broken(x: Any) -> Any:
    return pl.pallas_call(broken_kernel, out_shape=x)(x)


DECORATORS: dict[str, Callable[..., Any]] = {
    "debug": pallas_debug.debug(targets=""),
    "interpret": pallas_debug.interpret("hlo"),
    "check": pallas_debug.check,
    "compile": pallas_debug.compile,
    "dump": pallas_debug.dump,
    "verify": pallas_debug.verify,
}


def test_anything_but_a_function_is_refused_at_once() -> None:
    for name in ("debug", "check", "compile"):
        with pytest.raises(UsageError, match=f"pallas_debug.{name} takes a function, not 5"):
            DECORATORS[name](5)
    with pytest.raises(UsageError, match=r"an array of float32\[512,256\], such as its result"):
        DECORATORS["compile"](np.ones((512, 256), np.float32))


def within_debug(x: Any) -> Any:
    with pallas_debug.debug(targets=""):
        return broken(x)


CALLS: dict[str, Callable[[Any], Any]] = {
    "debug": pallas_debug.debug(targets="")(broken),
    "interpret": pallas_debug.interpret("hlo")(broken),
    "check": pallas_debug.check(broken),
    "with": within_debug,
    "dump": functools.partial(pallas_debug.dump, broken),
    "jit": pallas_debug.debug(targets="")(jax.jit(broken)),
}


@pytest.mark.parametrize("name", CALLS)
def test_tracebacks_have_no_frames_of_ours(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="mine") as raised:
        CALLS[name](X)
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert not [f for f in frames if "/pallas_debug/" in f.filename]
    ours = [f.name for f in frames if f.filename == __file__]
    assert ours[0] == "test_tracebacks_have_no_frames_of_ours"
    assert ours[-2:] == ["broken", "broken_kernel"]


def test_all_frames_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("JAX_TRACEBACK_FILTERING", "off"), (tracebacks.KEEP, "1")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(RuntimeError, match="mine") as raised:
                CALLS["interpret"](X)
        frames = traceback.extract_tb(raised.value.__traceback__)
        assert [f for f in frames if f.filename.endswith("pallas_debug/_api/debug.py")]


def test_a_mistake_of_ours_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    from pallas_debug import render

    error: Exception
    try:
        with tracebacks.WithoutOurFrames():
            render.finding_text(None)  # type: ignore[arg-type]
    except AttributeError as raised:
        error = raised
    assert traceback.extract_tb(error.__traceback__)[-1].filename == render.__file__


def test_causes_are_cut_as_well() -> None:
    @pallas_debug.interpret("hlo")
    def wrapped(x: Any) -> Any:
        try:
            return broken(x)
        except RuntimeError as error:
            raise KeyError("outer") from error

    with pytest.raises(KeyError) as raised:
        wrapped(X)
    text = "".join(traceback.format_exception(raised.value))
    assert "RuntimeError: mine" in text
    assert "/pallas_debug/" not in text

"""A function to sweep over, which misbehaves on request."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCALE = """
import os, time
import jax
from jax.experimental import pallas as pl


def scale(x, *, block=8, mode="ok"):
    if mode == "die":
        os._exit(7)
    if mode == "slow":
        time.sleep(3)
    if mode == "raise":
        raise ValueError("the [block] must be even\\nand more")

    def double(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2.0

    spec = pl.BlockSpec((block, 128), lambda i: (i, 0))
    grid = (x.shape[0] // block,)
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(double, grid=grid, in_specs=[spec], out_specs=spec, out_shape=out)(x)


def nothing(x, *, block=8):
    return x
"""


@pytest.fixture(scope="session")
def swept_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The module, importable from here and from worker processes."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "swept_module.py").write_text(SCALE)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("swept_module")
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def scale_file(swept_module: Any) -> Path:
    return Path(swept_module.__file__)

"""Calls of small kernels, and the one finding that a verdict has about them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pallas_debug.model import Finding
from pallas_debug.verdict import verify

X = jax.ShapeDtypeStruct((16, 128), jnp.float32)
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))


def copy(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]


def called(kernel: Any = copy, **more: Any) -> Any:
    def call(*args: Any) -> Any:
        return pl.pallas_call(kernel, **{"out_shape": args[0], **more})(*args)

    return call


def one(function: Any, *args: Any, engines: str) -> Finding:
    (finding,) = verify(function, *args, targets="v5e", engines=engines).findings
    assert finding.source is not None
    assert finding.source.text
    return finding

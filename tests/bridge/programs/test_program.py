"""Programs of the machine: which step sets a register."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from machine_runs import decoded

from pallas_debug.bridge.programs import program as ir

X = np.ones((8, 128), np.float32)


def test_the_step_that_sets_a_register() -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = jnp.exp(x_ref[...])

    body = decoded(lambda x: pl.pallas_call(kernel, out_shape=x)(x), [X]).body
    (store,) = (step for step in body.steps if isinstance(step, ir.StoreStep))
    computes = body.maker(store.value.number)
    assert isinstance(computes, ir.Compute)
    assert isinstance(body.maker(computes.inputs[0].number), ir.LoadStep)
    assert body.maker(body.inputs[0].number) is None

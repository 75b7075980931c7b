"""Programs that are lowered for a TPU while kernels are interpreted: theirs are not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import pallas_debug

X = jnp.ones((8, 128))


def _double(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def _doubled(interpret: object = False) -> Any:
    def function(x: Any) -> Any:
        return pl.pallas_call(_double, out_shape=x, interpret=interpret)(x)

    return jax.jit(function)


@pytest.mark.parametrize("mode", ["auto", "hlo", "tpu"])
def test_an_exported_kernel_is_compiled(mode: str) -> None:
    function = _doubled()
    with pallas_debug.interpret(mode):
        exported = jax.export.export(function, platforms=["tpu"])(X)
        lowered = function.trace(X).lower(lowering_platforms=("tpu",))
        np.testing.assert_array_equal(function(X), 2 * X)  # on the CPU it is interpreted
    assert "tpu_custom_call" in exported.mlir_module()
    assert "tpu_custom_call" in lowered.as_text()


@pytest.mark.parametrize("mode", ["auto", "tpu"])
def test_the_mode_in_the_code_is_exported(mode: str) -> None:
    with pallas_debug.interpret(mode):
        exported = jax.export.export(_doubled(interpret=True), platforms=["tpu"])(X)
    is_tpu_mode = mode == "tpu"  # jax lets it take precedence over the code
    assert ("tpu_custom_call" in exported.mlir_module()) == is_tpu_mode


def test_an_exported_kernel_has_no_checks() -> None:
    def export_and_run(x: Any) -> Any:
        exported = jax.export.export(_doubled(), platforms=["tpu"])(x)
        return exported.mlir_module(), _doubled()(x)

    report, (module, out) = pallas_debug.check(export_and_run)(X)
    assert report.ok
    assert "tpu_custom_call" in module
    assert "callback" not in module
    np.testing.assert_array_equal(out, 2 * X)

"""Keywords and names that a release of jax renamed, as in published programs of other releases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as plt

import pallas_debug

S = jax.ShapeDtypeStruct
IS_NEWER = hasattr(pltpu, "TensorCoreMesh")


def double(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * 2


def dictionary_for_a_tpu(x):
    return pl.pallas_call(
        double, out_shape=x, compiler_params={"mosaic": {"dimension_semantics": ()}}
    )(x)


def dictionary_for_triton(x):
    return pl.pallas_call(double, out_shape=x, compiler_params={"triton": {"num_warps": 4}})(x)


def class_for_triton(x):
    return pl.pallas_call(
        double, out_shape=x, compiler_params=plt.TritonCompilerParams(num_warps=4)
    )(x)


def mesh() -> Any:
    if IS_NEWER:
        return pltpu.TensorCoreMesh(axis_name="core", num_cores=1)
    return pltpu.create_tensorcore_mesh("core")


def shape_of_a_kernel_on_a_mesh(x):
    def copy(x_ref, out_ref):
        pltpu.sync_copy(x_ref, out_ref)

    return pl.kernel(copy, out_shape=S(x.shape, x.dtype), mesh=mesh())(x)


def newer_name(x):
    def copy(x_ref, out_ref):
        pltpu.sync_copy(x_ref, out_ref)

    return pl.kernel(copy, out_type=x, mesh=pltpu.TensorCoreMesh(axis_name="core", num_cores=1))(x)


@called(compiler_params=plt.CompilerParams(num_warps=4))
def masked_load(x_ref, out_ref):
    index = jnp.arange(16)
    out_ref[...] = pl.load(x_ref, (index,), mask=index < 10, other=0.0)


@pytest.mark.parametrize(
    "function, replacement",
    [
        # Projects: ring-attention, linearnexus, mamba2, pallas_attn, tutorials.
        (dictionary_for_a_tpu, "pltpu.CompilerParams"),
        (dictionary_for_triton, "jax.experimental.pallas.triton"),
        (class_for_triton, "CompilerParams"),
        (shape_of_a_kernel_on_a_mesh, "out_type"),
        pytest.param(
            newer_name, "0.11", marks=pytest.mark.skipif(IS_NEWER, reason="this jax has the name")
        ),
        (masked_load, "jax.experimental.pallas.triton"),
    ],
)
def test_the_replacement_is_named(function: Callable[..., Any], replacement: str) -> None:
    shape = (16,) if function is masked_load else (16, 128)
    verdict = pallas_debug.verify(
        function, S(shape, jnp.float32), targets="v5e", engines="static,machine"
    )
    (finding,) = verdict.findings
    advice = f"{finding.cause} {finding.advice}"
    assert replacement in advice, str(verdict)
    assert "fix this line" not in advice

"""Precision is named as the cause of an error only if the error is the size of rounding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.comparison import tolerances
from pallas_debug.model import Finding

F32, BF16 = jnp.float32, jnp.bfloat16
X, Y = (
    jnp.asarray(np.random.default_rng(i).standard_normal(shape, np.float32))
    for i, shape in enumerate([(8, 256), (256, 8)])
)


def matmul(
    x: jax.Array, y: jax.Array, *, dtype: Any = F32, gain: float = 1.0, chunk: int = 128
) -> Any:
    def matmul(x_ref: Any, y_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        a, b = x_ref[...].astype(dtype), y_ref[...].astype(dtype)
        part = jnp.dot(a, b, preferred_element_type=F32, precision="highest")
        acc_ref[...] += jnp.where(part > 0, gain * part, part)
        o_ref[...] = acc_ref[...]

    return pl.pallas_call(
        matmul,
        grid=(256 // chunk,),
        in_specs=[
            pl.BlockSpec((8, chunk), lambda k: (0, k)),
            pl.BlockSpec((chunk, 8), lambda k: (k, 0)),
        ],
        out_specs=pl.BlockSpec((8, 8), lambda k: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((8, 8), F32),
        scratch_shapes=[pltpu.VMEM((8, 8), F32)],
    )(x, y)


def reference(x: jax.Array, y: jax.Array) -> Any:
    return jnp.dot(x, y, precision="highest")


def mismatch(other: Any = reference, *, rtol: float | None = None, **options: Any) -> Finding:
    atol = None if rtol is None else 0.0
    report = pallas_debug.compare(
        lambda x, y: matmul(x, y, **options), other, X, Y, interpret="hlo", rtol=rtol, atol=atol
    )
    (finding,) = report.findings
    return finding


@pytest.mark.slow
def test_an_error_of_the_size_of_rounding_is_put_down_to_it_and_no_larger_one() -> None:
    cause = "rounding alone can explain it: the largest error is 0.44 units of bfloat16 round"
    assert str(mismatch(dtype=BF16).cause).startswith(cause)
    assert " units of float32 rounding, of at most 16" in str(mismatch(rtol=1e-8).cause)
    for dtype in (F32, BF16):
        assert "rounding" not in str(mismatch(dtype=dtype, gain=1.3).cause)


def test_units_of_rounding() -> None:
    for dtype in (F32, BF16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2):
        assert tolerances.unit(jnp.dtype(dtype).name) == float(jnp.finfo(dtype).eps)
    assert tolerances.unit("complex64") == float(jnp.finfo(F32).eps)

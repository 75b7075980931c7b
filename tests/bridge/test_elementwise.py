"""Packing and stochastic rounding on the machine, against numpy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug

SHAPE = (8, 128)
PAIRS = [
    (np.float32, ml_dtypes.bfloat16, np.uint32, 16),
    (np.int32, np.int16, np.uint32, 16),
    (np.int32, np.int8, np.uint32, 8),
    (np.int32, np.uint8, np.uint32, 8),
    (np.int32, ml_dtypes.int4, np.uint32, 4),
    (np.int16, np.int8, np.uint16, 8),
    (np.int8, ml_dtypes.int4, np.uint8, 4),
]


@pytest.mark.slow
def test_what_is_packed_is_unpacked_again() -> None:
    generator = np.random.default_rng(0)
    sources, expected = [], []
    for wide, narrow, word, bits in PAIRS:
        count = np.dtype(word).itemsize * 8 // bits
        xs = (generator.normal(size=(count, *SHAPE)) * 300).astype(wide)
        raw = xs.astype(narrow).view(np.uint16 if bits == 16 else np.uint8)
        words = [(x.astype(np.uint64) & (2**bits - 1)) << (bits * i) for i, x in enumerate(raw)]
        sources.append(xs)
        expected += [sum(words).astype(word), xs.astype(narrow).astype(wide)[-1]]

    def kernel(*refs: Any) -> None:
        inputs, outputs = refs[: len(PAIRS)], refs[len(PAIRS) :]
        for i, (wide, narrow, _, _) in enumerate(PAIRS):
            xs = [inputs[i][n] for n in range(inputs[i].shape[0])]
            packed = pltpu.pack_elementwise(xs, packed_dtype=narrow)
            last = pltpu.unpack_elementwise(
                packed, index=len(xs) - 1, packed_dtype=narrow, unpacked_dtype=wide
            )
            outputs[2 * i][...], outputs[2 * i + 1][...] = packed, last

    call = pl.pallas_call(
        kernel, out_shape=[jax.ShapeDtypeStruct(SHAPE, e.dtype) for e in expected]
    )
    with pallas_debug.interpret():
        results = jax.jit(call)(*sources)
    for result, reference in zip(results, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(result), reference)


@pytest.mark.parametrize("target", [jnp.bfloat16, jnp.float8_e5m2, jnp.float8_e4m3fn])
def test_stochastic_rounding_takes_a_neighbour_and_keeps_the_mean(target: Any) -> None:
    def kernel(x_ref: Any, bits_ref: Any, out_ref: Any) -> None:
        out_ref[...] = pltpu.stochastic_round(x_ref[...], bits_ref[...], target_dtype=target)

    step = float(jnp.finfo(target).eps)
    x = np.full((64, 128), -(1 + 0.25 * step), np.float32)
    x[0, :3] = np.nan, np.inf, 1.0
    bits = jax.random.bits(jax.random.key(0), x.shape, jnp.uint32)
    with pallas_debug.interpret():
        call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, target))
        rounded = np.asarray(jax.jit(call)(x, bits)).astype(np.float32)
    assert np.isnan(rounded[0, 0])
    assert not np.isfinite(rounded[0, 1])
    assert rounded[0, 2] == 1.0
    assert set(rounded[1:].ravel()) == {-1.0, np.float32(-(1 + step))}
    is_away = rounded[1:] < -1
    assert 0.22 < is_away.mean() < 0.28

"""Indices of references to references, composed into one index of the buffer."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.memory import Indexed, MemoryBuffer, OutOfBounds, Ref, resolve


def buffer(shape: tuple[int, ...]) -> MemoryBuffer:
    content = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    type_ = ir.RefType(shape, content.dtype, "vmem")
    return MemoryBuffer(0, content, "x", "scratch", type_, 0, 0, ())


def entry(rng: random.Random, size: int) -> Any:
    """An index or a slice of a dimension; rarely one that leaves it."""
    if size and rng.random() < 0.3:
        return rng.randrange(size)
    start = rng.randint(0, size)
    step = rng.choice([1, 1, 1, 2])
    count = rng.randint(0, -(-(size - start) // step)) + (rng.random() < 0.05)
    return slice(start, start + count * step, step)


@pytest.mark.parametrize("seed", range(3))
def test_chains_of_indexers_select_what_numpy_selects(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        found = buffer(tuple(rng.choice([0, 1, 2, 5, 8]) for _ in range(rng.randint(0, 3))))
        wanted: Any = found.content
        parts, leaves = [], False
        for _ in range(rng.randint(1, 3)):
            entries = tuple(entry(rng, size) for size in wanted.shape)
            parts.append(Indexed(entries))
            leaves = any(
                isinstance(e, slice) and e.start + (len(range(e.start, e.stop, e.step)) - 1) * e.step
                >= n and e.stop > e.start
                for e, n in zip(entries, wanted.shape, strict=True)
            )  # fmt: skip
            if leaves:
                break
            wanted = np.asarray(wanted[entries])
        ref = Ref(found, tuple(parts))
        if leaves:
            with pytest.raises(OutOfBounds) as caught:
                resolve(ref, (), [])
            assert caught.value.shape == wanted.shape
            continue
        region = resolve(ref, (), [])
        np.testing.assert_array_equal(region.read(), wanted)
        assert region.shape == wanted.shape


@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16, "int8"])
def test_xla_reads_a_large_array_without_copying_it(dtype: Any) -> None:
    content = np.arange(1024 * 256).reshape(1024, 256).astype(dtype)
    found = dataclasses.replace(buffer((1024, 256)), content=content)
    value = resolve(Ref(found, (Indexed((slice(8, 1024, 1), slice(0, 256, 1))),)), (), []).read()
    np.testing.assert_array_equal(value, content[8:])
    assert jax.device_put(value, may_alias=True).unsafe_buffer_pointer() == value.ctypes.data
    value[:] = 0
    assert content.any()

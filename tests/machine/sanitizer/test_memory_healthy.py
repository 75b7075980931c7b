"""Nothing is found by shadow memory in kernels without faults: the bundled ones and jax's own."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu import matmul
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from machine_runs import arrays_of, called, decoded
from pallas_debug_kernels import BundledOperation, Spec, operation, operations
from tiers import slow_but_first

from pallas_debug.machine import run
from pallas_debug.machine.sanitizer.memory import MemorySanitizer

DISTRIBUTED = ("right_permute", "all_gather")

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32


def check(function: Callable[..., Any], args: Sequence[Any]) -> None:
    for call, arrays in called(function, args):
        sanitizer = MemorySanitizer(call, arrays)
        assert not run.run(call, arrays, observers=[sanitizer]).findings
        assert sanitizer.has_ended


@pytest.mark.parametrize(
    "op, spec",
    slow_but_first(
        [
            pytest.param(op, spec, id=f"{op.name}-{spec.name}")
            for op in operations()
            if op.name not in DISTRIBUTED
            for spec in op.tagged("small", "edge")
        ],
        lambda op, spec: op.name,
    ),
)
def test_bundled_kernels(op: BundledOperation, spec: Spec, quick_to_compile: None) -> None:
    check(functools.partial(op.function, **spec.kwargs), spec.make_args())


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_bundled_kernels_on_several_devices(name: str) -> None:
    op = operation(name)
    for spec in op.tagged("small", "edge"):
        args = spec.make_args()
        call = decoded(functools.partial(op.function, **spec.kwargs), args)
        arrays = arrays_of(call, args)
        sanitizer = MemorySanitizer(call, arrays)
        assert not run.run(call, arrays, observers=[sanitizer]).findings
        last = len(arrays) - 1
        (written, *_) = sanitizer.writers_of_output(0, device=last)
        assert written.copy is not None


def normal(*shape: int, dtype: Any = F32) -> jax.Array:
    values: jax.Array = jnp.asarray(np.random.default_rng(sum(shape)).standard_normal(shape), dtype)
    return values


def flash_attention() -> tuple[Any, ...]:
    sizes = flash.BlockSizes(
        block_q=128, block_k_major=128, block_k=128, block_b=1, block_q_major_dkv=128,
        block_k_major_dkv=128, block_k_dkv=128, block_q_dkv=128, block_k_major_dq=128,
        block_k_dq=128, block_q_dq=128,
    )  # fmt: skip

    def function(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        return flash.flash_attention(q, k, v, causal=True, block_sizes=sizes).sum()

    return (jax.grad(function, (0, 1, 2)), *[normal(1, 1, 256, 128)] * 3)


def splash_attention() -> tuple[Any, ...]:
    sizes = splash.BlockSizes(
        block_q=128, block_kv=128, block_kv_compute=128, block_q_dkv=128, block_kv_dkv=128,
        block_kv_dkv_compute=128, block_q_dq=128, block_kv_dq=128,
    )  # fmt: skip

    def function(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        mask = masks.MultiHeadMask([masks.CausalMask((256, 256)) for _ in range(2)])
        kernel = splash.make_splash_mha(mask=mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)
        return kernel(q, k, v).sum()

    return (jax.grad(function, (0, 1, 2)), *[normal(2, 256, 128)] * 3)


def matrix_product() -> tuple[Any, ...]:
    function = functools.partial(matmul.matmul, block_shape=(128, 128), block_k=128)
    return function, normal(256, 256), normal(256, 256)


def groups_of_rows() -> tuple[Any, ...]:
    gmm = importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")
    function = functools.partial(gmm.gmm, tiling=(128, 128, 128))
    sizes = jnp.array([100, 0, 56, 100], I32)
    return function, normal(256, 128), normal(4, 128, 128), sizes


def pages() -> tuple[Any, ...]:
    table = np.random.default_rng(0).permutation(16)[:8].reshape(2, 4)
    cache = normal(4, 16, 16, 128)
    return (
        functools.partial(paged_attention, pages_per_compute_block=2),
        normal(2, 8, 128), cache, cache, jnp.array([37, 64], I32), jnp.asarray(table, I32),
    )  # fmt: skip


def ragged_pages() -> tuple[Any, ...]:
    table = np.random.default_rng(0).permutation(16).reshape(4, 4)
    return (
        functools.partial(
            ragged_paged_attention, num_kv_pages_per_block=2, num_queries_per_block=8
        ),
        normal(32, 8, 128, dtype=BF16), normal(16, 16, 4, 128, dtype=BF16),
        jnp.array([40, 30, 0, 0], I32), jnp.asarray(table, I32),
        jnp.array([0, 20, 32, 32, 32], I32), jnp.array([2], I32),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [flash_attention, splash_attention, matrix_product, groups_of_rows, pages, ragged_pages],
    ids=lambda make: make.__name__,
)
def test_kernels_of_jax(make: Callable[[], tuple[Any, ...]], quick_to_compile: None) -> None:
    function, *args = make()
    check(function, args)

"""Nothing is found in correct kernels: the bundled ones and jax's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu.all_gather import all_gather
from jax.experimental.pallas.ops.tpu.matmul import matmul
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel as ragged
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash,
)
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import AxisType
from marks import mark_all_but_first
from pallas_debug_kernels import BundledOperation, Spec, operations

import pallas_debug
from pallas_debug.machine import run as machine_run
from pallas_debug.machine.numbers import NumbersObserver
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.order.findings import OrderSanitizer
from pallas_debug.machine.shadow.memory import MemorySanitizer
from pallas_debug.model import Finding

F32, BF16, INT = jnp.float32, jnp.bfloat16, jnp.int32
S = jax.ShapeDtypeStruct


@dataclass(frozen=True)
class JudgedRun:
    """A run of the machine, with the sanitizer's observers."""

    observers: Sequence[MachineObserver]
    findings: Sequence[Finding]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[JudgedRun]:
    """The runs of the machine."""
    found: list[JudgedRun] = []
    run = machine_run.run

    def observed(*args: Any, observers: Sequence[MachineObserver], **kwargs: Any) -> Any:
        ran = run(*args, observers=observers, **kwargs)
        found.append(JudgedRun(observers, ran.findings))
        return ran

    monkeypatch.setattr(machine_run, "run", observed)
    return found


def check(function: Callable[..., Any], args: Sequence[Any], runs: list[JudgedRun]) -> None:
    with pallas_debug.interpret("machine,sanitize"):
        jax.block_until_ready(jax.jit(function)(*args))
    assert runs
    for run in runs:
        assert list(run.findings) == []
        (order,) = [one for one in run.observers if isinstance(one, OrderSanitizer)]
        assert order.has_ended
        assert not order.undecided
        (memory,) = [one for one in run.observers if isinstance(one, MemorySanitizer)]
        assert memory.has_ended
        assert any(isinstance(one, NumbersObserver) for one in run.observers)


SPECS = [(op, spec) for op in operations() for spec in op.tagged("small", "edge")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "op, spec",
    mark_all_but_first(
        [pytest.param(op, spec, id=f"{op.name}-{spec.name}") for op, spec in SPECS],
        lambda op, spec: op.name,
    ),
)
def test_bundled(op: BundledOperation, spec: Spec, runs: list[JudgedRun]) -> None:
    check(lambda *a: op.function(*a, **spec.kwargs), spec.make_args(), runs)


def splash_gradient(q: Any, k: Any, v: Any) -> Any:
    kernel = splash.make_splash_mha(
        masks.MultiHeadMask([masks.CausalMask((256, 256)) for _ in range(2)]),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=splash.BlockSizes(
            block_q=128, block_kv=128, block_kv_compute=128, block_q_dkv=128, block_kv_dkv=128,
            block_kv_dkv_compute=128, block_q_dq=128, block_kv_dq=128,
        ),
    )  # fmt: skip
    return jax.grad(lambda *a: kernel(*a).sum(), argnums=(0, 1, 2))(q, k, v)


def splash_of_many_blocks(q: Any, k: Any, v: Any) -> Any:
    """As many blocks as at production sizes, of few elements: rows of them follow each other."""
    length = q.shape[0]
    mask = masks.LocalMask((length, length), (300, 0), 0)
    kernel = splash.make_splash_mqa(
        masks.MultiHeadMask([mask]),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=splash.BlockSizes(block_q=128, block_kv=256, block_kv_compute=128),
    )
    return kernel(q[None], k, v)


def flash_gradient(q: Any, k: Any, v: Any) -> Any:
    def loss(*args: Any) -> Any:
        return flash.flash_attention(*args, causal=True).astype(F32).sum()

    return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)


def gathered(x: Any) -> Any:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    return all_gather(x, mesh=mesh, axis_name="x")


PAGES = S((2, 16, 16, 128), F32)
OF_JAX: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "all_gather": (gathered, (S((32, 128), F32),)),
    "matmul": (
        lambda x, y: matmul(x, y, block_shape=(128, 128), block_k=128),
        (S((256, 256), F32), S((256, 256), F32)),
    ),
    "splash": (splash_gradient, (S((2, 256, 128), F32),) * 3),
    "splash of many blocks": (splash_of_many_blocks, (S((1024, 128), F32),) * 3),
    "flash": (flash_gradient, (S((1, 2, 256, 128), BF16),) * 3),
    "gmm": (
        lambda x, y: gmm(x, y, jnp.array([100, 0, 56, 100], INT), tiling=(128, 128, 128)),
        (S((256, 128), F32), S((4, 128, 128), F32)),
    ),
    "paged": (
        lambda q, k, v: paged_attention(
            q, k, v, jnp.array([37, 64], INT), jnp.arange(16, dtype=INT).reshape(2, 8),
            pages_per_compute_block=4,
        ),
        (S((2, 8, 128), F32), PAGES, PAGES),
    ),
    "ragged paged": (
        lambda q, pages: ragged.ragged_paged_attention(
            q, pages, jnp.array([20, 33, 0, 0], INT), jnp.arange(32, dtype=INT).reshape(4, 8),
            jnp.array([0, 12, 16, 16, 16], INT), jnp.array([2], INT),
            num_kv_pages_per_block=2, num_queries_per_block=8,
        ),
        (S((16, 4, 128), F32), S((32, 16, 4, 128), F32)),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("all_gather", "splash of many blocks")
        else pytest.param(name, marks=pytest.mark.slow)
        for name in OF_JAX
    ],
)
def test_of_jax(name: str, runs: list[JudgedRun]) -> None:
    function, shapes = OF_JAX[name]
    generator = np.random.default_rng(0)
    args = [generator.standard_normal(s.shape).astype(s.dtype) for s in shapes]
    check(function, args, runs)

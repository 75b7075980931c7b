"""No findings in correct kernels: the bundled ones and jax's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu.matmul import matmul
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm, tgmm
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jax.experimental.pallas.ops.tpu.random import threefry
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash,
)
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from pallas_debug_kernels import BundledOperation, operation, operations

from pallas_debug.analysis import analyze
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.compiler.targets import BUILTIN
from pallas_debug.model import Finding

F32, BF16, INT = jnp.float32, jnp.bfloat16, jnp.int32
S = jax.ShapeDtypeStruct


def with_gradient(function: Callable[..., Any], argnums: tuple[int, ...]) -> Callable[..., Any]:
    def loss(*args: Any) -> Any:
        return sum(leaf.astype(F32).sum() for leaf in jax.tree.leaves(function(*args)))

    return jax.grad(loss, argnums=argnums)


def found(kernels: list[Capture], not_on: tuple[str, ...] = ()) -> Iterator[Finding]:
    assert kernels
    for captured in kernels:
        targets = [target for target in BUILTIN if target.name not in not_on]
        yield from (finding for finding in analyze(captured, targets).findings if finding.counts)


def of_many_kernels(op: BundledOperation) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if op.name in ("flash_attention", "splash_attention") else []


@pytest.mark.slow
@pytest.mark.parametrize(
    "op", [pytest.param(op, id=op.name, marks=of_many_kernels(op)) for op in operations()]
)
def test_nothing_is_found_in_the_bundled_kernels(
    captures: Callable[..., list[Capture]], op: BundledOperation
) -> None:
    for spec in op.specs:
        kernels = captures(lambda *a, s=spec: op.function(*a, **s.kwargs), spec.args)
        assert list(found(kernels, spec.not_on)) == [], spec.name


@pytest.mark.slow
@pytest.mark.parametrize(
    "op", [op for op in operations() if op.differentiable], ids=lambda op: op.name
)
def test_nothing_is_found_in_their_gradients(
    captures: Callable[..., list[Capture]], op: BundledOperation
) -> None:
    for spec in op.specs[::3]:
        function = with_gradient(lambda *a, s=spec: op.function(*a, **s.kwargs), op.differentiable)
        assert list(found(captures(function, spec.args), spec.not_on)) == [], spec.name


@pytest.mark.slow
def test_paged_attention_with_its_tables_is_judged_as_a_whole(
    captures: Callable[..., list[Capture]],
) -> None:
    op = operation("paged_attention")
    for spec in op.tagged("small"):
        args = spec.make_args()
        (captured,) = captures(lambda *a, s=spec: op.function(*a, **s.kwargs), args)
        wanted = captured.kernel.of_kind("scalar_prefetch")
        given = [np.asarray(x) for x in args if x.dtype == INT]
        tables = [x.reshape(table.shape) for x, table in zip(given, wanted, strict=True)]
        analysis = analyze(captured, BUILTIN, prefetch=tables)
        assert (analysis.findings, analysis.gaps) == ((), ())


def jax_flash(*extra: str) -> Callable[..., Any]:
    def attend(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        given = {}
        if "segments" in extra:
            given["segment_ids"] = flash.SegmentIds(rest[0], rest[0])
        if "bias" in extra:
            given["ab"] = rest[0]
        return flash.flash_attention(q, k, v, causal="causal" in extra, **given)

    return with_gradient(attend, (0, 1, 2))


def jax_splash(mask: Callable[[tuple[int, int]], Any]) -> Callable[..., Any]:
    kernel = splash.make_splash_mha(
        masks.MultiHeadMask([mask((512, 512)) for _ in range(2)]),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=splash.BlockSizes(
            block_q=256, block_kv=256, block_kv_compute=128, block_q_dkv=256, block_kv_dkv=256,
            block_kv_dkv_compute=128, block_q_dq=256, block_kv_dq=256,
        ),
    )  # fmt: skip
    return with_gradient(kernel, (0, 1, 2))


def grouped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y, sizes: function(
        x, y, sizes, preferred_element_type=F32, tiling=(128, 128, 128)
    )


QKV = (S((1, 2, 512, 128), BF16),) * 3
HEADS = (S((2, 512, 128), F32),) * 3
SIZES = S((4,), INT)
PAGES = S((2, 64, 16, 128), F32)

OF_JAX: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "flash": (jax_flash(), QKV, 3),
    "flash causal": (jax_flash("causal"), QKV, 3),
    "flash segments": (jax_flash("causal", "segments"), (*QKV, S((1, 512), INT)), 3),
    "flash bias": (jax_flash("bias"), (*QKV, S((1, 2, 512, 512), BF16)), 3),
    "splash causal": (jax_splash(masks.CausalMask), HEADS, 3),
    "splash local": (jax_splash(lambda s: masks.LocalMask(s, (128, 128), 0)), HEADS, 3),
    "gmm": (grouped(gmm), (S((512, 256), BF16), S((4, 256, 256), BF16), SIZES), 1),
    "tgmm": (grouped(tgmm), (S((256, 512), BF16), S((512, 256), BF16), SIZES), 1),
    "matmul": (
        lambda x, y: matmul(x, y, block_shape=(256, 256), block_k=256),
        (S((512, 1024), F32), S((1024, 512), F32)),
        1,
    ),
    "paged": (
        lambda *a: paged_attention(*a, pages_per_compute_block=4),
        (S((4, 8, 128), F32), PAGES, PAGES, S((4,), INT), S((4, 8), INT)),
        1,
    ),
    "threefry": (
        lambda key: threefry.plthreefry_random_bits(key, 32, (512, 512)),
        (S((2,), jnp.uint32),),
        1,
    ),
}
"""Functions over jax's own kernels, their arguments, and how many kernels they call."""


@pytest.mark.parametrize("name", OF_JAX)
def test_nothing_is_found_in_jaxs_own_kernels(
    captures: Callable[..., list[Capture]], name: str
) -> None:
    function, args, count = OF_JAX[name]
    kernels = captures(function, args)
    assert len(kernels) == count
    assert list(found(kernels)) == []

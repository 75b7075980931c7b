"""Other blocks, simulated and compiled."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention, matmul

import pallas_debug
from pallas_debug.errors import UsageError
from pallas_debug.profile.stats import Profile
from pallas_debug.profile.whatif import parse_sizes, with_blocks
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile

SQUARE = jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)
HEADS = jax.ShapeDtypeStruct((1, 4, 2048, 128), jnp.bfloat16)
ROWS = jax.ShapeDtypeStruct((4096, 512), jnp.float32)


def doubled(x: jax.Array, *, block: int) -> jax.Array:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2.0

    spec = pl.BlockSpec((block, 512), lambda i: (i, 0))
    return pl.pallas_call(
        kernel, out_shape=x, grid=(x.shape[0] // block,), in_specs=[spec], out_specs=spec
    )(x)


def product(x: jax.Array, y: jax.Array, *, block: int) -> Any:
    return matmul.matmul(x, y, block_shape=(block, block), block_k=512)


def attention(q: jax.Array, k: jax.Array, v: jax.Array, *, block: int) -> Any:
    sizes = flash_attention.BlockSizes(block_q=block, block_k_major=block, block_k=block, block_b=1)
    return flash_attention.flash_attention(q, k, v, block_sizes=sizes)


def compiled(function: Any, args: Any, target: str, to: Path) -> Profile:
    (dump,) = pallas_debug.dump(function, *args, targets=target, to=to, stages="bundles")
    stored = open_dumps(to).find(dump.name)
    found = read_profile(stored, stored.target(target))
    assert found is not None
    return found.profile


@pytest.mark.parametrize(
    "function, args, small, large, least, most",
    [
        (doubled, (ROWS,), 8, 128, 0.9, 1.25),
        pytest.param(product, (SQUARE, SQUARE), 256, 512, 0.9, 1.25, marks=pytest.mark.slow),
        # A step of 16 times the work overlaps better than the busiest unit's share tells.
        pytest.param(attention, (HEADS,) * 3, 128, 512, 1.0, 1.5, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("target", ["v5e", "v6e"])
def test_compiled_kernels_take_what_is_promised(
    function: Any,
    args: Any,
    small: int,
    large: int,
    least: float,
    most: float,
    target: str,
    tmp_path: Path,
) -> None:
    before, after = (
        compiled(functools.partial(function, block=block), args, target, tmp_path / str(block))
        for block in (small, large)
    )
    assert before.blocks is not None
    assert after.blocks is not None
    sizes = {
        (old.name, n): new.dimensions[n].size
        for old, new in zip(before.blocks.pipelined, after.blocks.pipelined, strict=True)
        for n in range(len(new.dimensions))
        if new.dimensions[n].size != old.dimensions[n].size
    }
    promised = with_blocks(before, sizes)
    assert promised.cycles.value is not None
    assert after.cycles.total.value is not None
    assert least <= promised.cycles.value / after.cycles.total.value <= most
    assert promised.steps == after.blocks.points


def decoded(lengths: jax.Array, q: jax.Array, k: jax.Array, *, block: int) -> jax.Array:
    """Attention of a few rows to keys whose number is in a table, as MaxText's `ragged_mqa`."""

    def kernel(lengths_ref: Any, q_ref: Any, k_ref: Any, o_ref: Any) -> None:
        b, i = pl.program_id(0), pl.program_id(1)

        @pl.when(i == 0)
        def _start() -> None:
            o_ref[...] = jnp.zeros_like(o_ref)

        @pl.when(i * block < lengths_ref[b])
        def _add() -> None:
            scores = jnp.dot(q_ref[0], k_ref[0].T, preferred_element_type=jnp.float32)
            p = jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True)).astype(k_ref.dtype)
            o_ref[0] += jnp.dot(p, k_ref[0], preferred_element_type=jnp.float32)

    def index(b: Any, i: Any, lengths_ref: Any) -> Any:
        return b, jnp.minimum(i, (lengths_ref[b] - 1) // block), 0

    rows = pl.BlockSpec((1, 8, 128), lambda b, i, _: (b, 0, 0))
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(k.shape[0], k.shape[1] // block),
        in_specs=[rows, pl.BlockSpec((1, block, 128), index)],
        out_specs=rows,
    )
    shape = jax.ShapeDtypeStruct(q.shape, jnp.float32)
    return pl.pallas_call(kernel, grid_spec=spec, out_shape=shape)(lengths, q, k)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e", "v6e"])
def test_larger_blocks_are_advised_where_a_table_selects_them(target: str, tmp_path: Path) -> None:
    shapes = ((8,), jnp.int32), ((8, 8, 128), jnp.bfloat16), ((8, 2048, 128), jnp.bfloat16)
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    before = compiled(functools.partial(decoded, block=128), args, target, tmp_path / "small")
    (advice,) = before.advice
    assert (advice.kind, advice.operand) == ("small-blocks", "k_ref")
    assert "if the block of k_ref changes at every step" in advice.remedy
    block = int(advice.remedy.partition("k_ref[1]=")[2].partition(":")[0])
    after = compiled(functools.partial(decoded, block=block), args, target, tmp_path / "large")
    (promised,) = (e for e in advice.evidence if e.name == "estimated cycles with larger blocks")
    assert promised.figure.value == pytest.approx(after.cycles.total.value, rel=0.25)
    assert after.advice == ()


def test_bad_sizes_are_refused(tmp_path: Path) -> None:
    profile = compiled(functools.partial(doubled, block=8), (ROWS,), "v5e", tmp_path)
    for text, message in (
        ("x_ref=8", "no size of a block"),
        ("y_ref[0]=8", r"y_ref\[0\] is no block of this kernel, which has x_ref\[0..1\], o_ref"),
        ("x_ref[2]=8", "is no block"),
        ("x_ref[1]=8", "no axis of the grid"),
        ("x_ref[0]=24", "do not divide dimension 0 of x_ref, which has 4,096 elements"),
        ("x_ref[0]=4096", "need 32.0 MiB of VMEM, of the 16.0 MiB that the kernel may use"),
    ):
        with pytest.raises(UsageError, match=message):
            with_blocks(profile, parse_sizes([text]))

"""Kernels that are right for the inputs that one would try, and wrong for others.

Each has a twin without the fault. Where a public report is named, the fault is in its style.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

F32 = jnp.float32
ROWS = pl.BlockSpec((8, 128), lambda i, *_: (i, 0))
SMEM = pl.BlockSpec(memory_space=pltpu.SMEM)


class Case(NamedTuple):
    """A function, its reference, and the inputs to search.

    Attributes:
      smallest: the values of the variables, and of drawn arguments, of the smallest failing input.
    """

    function: Callable[..., Any]
    reference: Callable[..., Any]
    texts: tuple[str, ...]
    let: Mapping[str, str]
    smallest: tuple[str, ...]


def row_sum(slip: bool) -> Case:
    """The rows after the last whole block are left out (pytorch/xla#8671)."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += jnp.sum(x_ref[...], axis=0, keepdims=True)

    def function(x: Any) -> Any:
        rows = x.shape[0]
        x = jnp.pad(x, ((0, -rows % 8), (0, 0)))
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((1, 128), F32),
            grid=(rows // 8 if slip else x.shape[0] // 8,),
            in_specs=[ROWS],
            out_specs=pl.BlockSpec((1, 128), lambda i: (0, 0)),
        )(x)

    def reference(x: Any) -> Any:
        return jnp.sum(x, axis=0, keepdims=True)

    return Case(function, reference, ("f32[n,128]",), {"n": "8..512"}, ("n=9",))


def kv_length(slip: bool) -> Case:
    """The last block of keys counts only if it is whole."""

    @called(jax.ShapeDtypeStruct((1, 128), F32), in_specs=[SMEM, pl.BlockSpec((512, 128))])
    def kernel(length_ref: Any, x_ref: Any, o_ref: Any) -> None:
        length = length_ref[0]

        def add(i: Any, total: Any) -> Any:
            block = x_ref[pl.ds(i * 64, 64), :]
            row = i * 64 + lax.broadcasted_iota(jnp.int32, block.shape, 0)
            return total + jnp.sum(jnp.where(row < length, block, 0), axis=0, keepdims=True)

        blocks = jnp.maximum(length // 64, 1) if slip else pl.cdiv(length, 64)
        o_ref[...] = lax.fori_loop(0, blocks, add, jnp.zeros((1, 128), F32))

    def reference(length: Any, x: Any) -> Any:
        return jnp.sum(jnp.where(jnp.arange(512)[:, None] < length[0], x, 0), 0, keepdims=True)

    texts = ("i32[1] in 1..512", "f32[512,128]")
    return Case(kernel, reference, texts, {}, ("i32[1]=[65]",))


def page_table(slip: bool) -> Case:
    """Pages are read two at a time, past the end of a table of an odd width (vllm#14597)."""

    @called(jax.ShapeDtypeStruct((8, 128), F32), in_specs=[SMEM, pl.BlockSpec((8, 8, 128))])
    def kernel(table_ref: Any, pages_ref: Any, o_ref: Any) -> None:
        width = table_ref.shape[0]
        o_ref[...] = jnp.zeros_like(o_ref)

        def add(i: Any, _: Any) -> Any:
            o_ref[...] += pages_ref[table_ref[i]]
            return _

        def step(i: Any, _: Any) -> Any:
            add(2 * i, 0)
            if slip:
                return add(2 * i + 1, 0)
            return lax.cond(2 * i + 1 < width, lambda: add(2 * i + 1, 0), lambda: 0)

        lax.fori_loop(0, pl.cdiv(width, 2), step, 0)

    def reference(table: Any, pages: Any) -> Any:
        return pages[table].sum(0)

    texts = ("i32[w] in 0..7", "f32[8,8,128]")
    return Case(kernel, reference, texts, {"w": "2..16"}, ("w=3",))


def padded_slots(slip: bool) -> Case:
    """A padding entry of -1 is taken for slot 0, and overwrites it (vllm#22394)."""

    @called(
        jax.ShapeDtypeStruct((8, 128), F32),
        in_specs=[SMEM, pl.BlockSpec((4, 128)), pl.BlockSpec((8, 128))],
    )
    def kernel(slots_ref: Any, new_ref: Any, cache_ref: Any, o_ref: Any) -> None:
        o_ref[...] = cache_ref[...]
        for i in range(4):
            slot = slots_ref[i]
            if slip:
                o_ref[pl.ds(jnp.maximum(slot, 0), 1), :] = new_ref[i : i + 1, :]
            else:

                @pl.when(slot >= 0)
                def _(slot: Any = slot, i: int = i) -> None:
                    o_ref[pl.ds(slot, 1), :] = new_ref[i : i + 1, :]

    def reference(slots: Any, new: Any, cache: Any) -> Any:
        found = np.array(cache)
        for slot, row in zip(np.asarray(slots), np.asarray(new), strict=True):
            if slot >= 0:
                found[slot] = row
        return found

    texts = ("i32[4] in -1..7", "f32[4,128]", "f32[8,128]")
    return Case(kernel, reference, texts, {}, ())


def causal_blocks(slip: bool) -> Case:
    """The last block of keys that a block of queries sees is computed for equal blocks
    (jax#17314)."""

    def function(x: Any, *, block_q: int, block_k: int) -> Any:
        def kernel(x_ref: Any, o_ref: Any) -> None:
            first = pl.program_id(0) * block_q
            row = first + lax.broadcasted_iota(jnp.int32, (block_q, 1), 0)

            def add(j: Any, total: Any) -> Any:
                keys = x_ref[pl.ds(j * block_k, block_k), :]
                column = j * block_k + lax.broadcasted_iota(jnp.int32, (1, block_k), 1)
                seen = (column <= row).astype(F32)
                return total + jnp.dot(seen, keys, precision="highest")

            blocks = first // block_k + 1 if slip else pl.cdiv(first + block_q, block_k)
            o_ref[...] = lax.fori_loop(0, blocks, add, jnp.zeros((block_q, 128), F32))

        return pl.pallas_call(
            kernel,
            out_shape=x,
            grid=(x.shape[0] // block_q,),
            in_specs=[pl.BlockSpec((x.shape[0], 128), lambda i: (0, 0))],
            out_specs=pl.BlockSpec((block_q, 128), lambda i: (i, 0)),
        )(x)

    def reference(x: Any, *, block_q: int, block_k: int) -> Any:
        return jnp.cumsum(x, axis=0)

    texts = ("f32[128,128]", "block_q=bq", "block_k=bk")
    let = {"bq": "16,32,64", "bk": "16,32,64"}
    return Case(function, reference, texts, let, ("bq=32, bk=16",))


def histogram(slip: bool) -> Case:
    """Each value is counted once, however often it occurs."""

    @called(jax.ShapeDtypeStruct((8, 128), jnp.int32), in_specs=[SMEM])
    def kernel(x_ref: Any, o_ref: Any) -> None:
        bins = lax.broadcasted_iota(jnp.int32, (8, 128), 0)

        def count(i: Any, found: Any) -> Any:
            hit = (bins == x_ref[i]).astype(jnp.int32)
            return jnp.maximum(found, hit) if slip else found + hit

        o_ref[...] = lax.fori_loop(0, x_ref.shape[0], count, jnp.zeros((8, 128), jnp.int32))

    def reference(x: Any) -> Any:
        return jnp.broadcast_to(jnp.bincount(x, length=8)[:, None], (8, 128)).astype(jnp.int32)

    return Case(kernel, reference, ("i32[n] in 0..7",), {"n": "1..16"}, ("n=2", "i32[2]=[0,0]"))


def groups(slip: bool) -> Case:
    """A group of rows begins where the one before it ends, unless that one is empty."""

    @called(jax.ShapeDtypeStruct((4, 128), F32), in_specs=[SMEM, pl.BlockSpec((16, 128))])
    def kernel(sizes_ref: Any, x_ref: Any, o_ref: Any) -> None:
        start = jnp.int32(0)
        row = lax.broadcasted_iota(jnp.int32, (16, 128), 0)
        for group in range(4):
            size = sizes_ref[group]
            inside = (row >= start) & (row < start + size)
            total = jnp.sum(jnp.where(inside, x_ref[...], 0), axis=0, keepdims=True)
            o_ref[group : group + 1, :] = total
            start += jnp.maximum(size, 1) if slip else size

    def reference(sizes: Any, x: Any) -> Any:
        ends = np.cumsum(sizes)
        parts = [x[end - size : end].sum(0) for size, end in zip(sizes, ends, strict=True)]
        return jnp.stack(parts)

    texts = ("i32[4] in 0..16 sum 16", "f32[16,128]")
    return Case(kernel, reference, texts, {}, ())


def ragged_mean(slip: bool) -> Case:
    """The mean of no rows is NaN instead of zero."""

    def kernel(lengths_ref: Any, x_ref: Any, o_ref: Any) -> None:
        length = lengths_ref[pl.program_id(0)]
        row = lax.broadcasted_iota(jnp.int32, (8, 128), 0)
        total = jnp.sum(jnp.where(row < length, x_ref[0], 0), axis=0, keepdims=True)
        o_ref[0] = total / (length if slip else jnp.maximum(length, 1)).astype(F32)

    def function(lengths: Any, x: Any) -> Any:
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((x.shape[0], 1, 128), F32),
            grid=(x.shape[0],),
            in_specs=[SMEM, pl.BlockSpec((1, 8, 128), lambda i: (i, 0, 0))],
            out_specs=pl.BlockSpec((1, 1, 128), lambda i: (i, 0, 0)),
        )(lengths, x)

    def reference(lengths: Any, x: Any) -> Any:
        inside = jnp.arange(8)[None, :, None] < lengths[:, None, None]
        total = jnp.sum(jnp.where(inside, x, 0), axis=1, keepdims=True)
        return total / jnp.maximum(lengths, 1)[:, None, None]

    texts = ("i32[b] in 0..8", "f32[b,8,128]")
    return Case(function, reference, texts, {"b": "1..4"}, ("b=1", "i32[1]=[0]"))


def grouped_heads(slip: bool) -> Case:
    """The head of the keys is that of the queries modulo their number."""

    def kernel(q_ref: Any, k_ref: Any, o_ref: Any) -> None:
        o_ref[...] = q_ref[...] * k_ref[...]

    def function(q: Any, k: Any) -> Any:
        heads, shared = q.shape[0], k.shape[0]

        def head(i: Any) -> Any:
            return (i % shared if slip else i // (heads // shared), 0, 0)

        return pl.pallas_call(
            kernel,
            out_shape=q,
            grid=(heads,),
            in_specs=[
                pl.BlockSpec((1, 8, 128), lambda i: (i, 0, 0)),
                pl.BlockSpec((1, 8, 128), head),
            ],
            out_specs=pl.BlockSpec((1, 8, 128), lambda i: (i, 0, 0)),
        )(q, k)

    def reference(q: Any, k: Any) -> Any:
        return q * jnp.repeat(k, q.shape[0] // k.shape[0], axis=0)

    texts = ("f32[group*shared,8,128]", "f32[shared,8,128]")
    let = {"shared": "1..4", "group": "1..4"}
    return Case(function, reference, texts, let, ("shared=2, group=2",))


CASES: dict[str, Callable[[bool], Case]] = {
    make.__name__: make
    for make in (
        row_sum,
        kv_length,
        page_table,
        padded_slots,
        causal_blocks,
        histogram,
        groups,
        ragged_mean,
        grouped_heads,
    )
}

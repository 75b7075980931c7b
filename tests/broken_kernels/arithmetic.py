"""Arithmetic that leaves the range of its type, or loses too much of a sum."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import (
    BrokenKernel,
    MachineFinding,
    Refusal,
)

F32, BF16, I8, I32 = jnp.float32, jnp.bfloat16, jnp.int8, jnp.int32


def votes_counted_in_int8(votes: jax.Array) -> jax.Array:
    def count(votes_ref: jax.Ref, out_ref: jax.Ref, count_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            count_ref[...] = jnp.zeros_like(count_ref)

        # The third block takes the count from 100 to 150, which int8 does not hold.
        count_ref[...] = count_ref[...] + votes_ref[...]  # FAULT

        @pl.when(pl.program_id(0) == 3)
        def _end() -> None:
            out_ref[...] = count_ref[...].astype(F32)

    return _count(count, votes, I8)


def votes_counted_in_int8_repaired(votes: jax.Array) -> jax.Array:
    def count(votes_ref: jax.Ref, out_ref: jax.Ref, count_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            count_ref[...] = jnp.zeros_like(count_ref)

        count_ref[...] = count_ref[...] + votes_ref[...].astype(I32)

        @pl.when(pl.program_id(0) == 3)
        def _end() -> None:
            out_ref[...] = count_ref[...].astype(F32)

    return _count(count, votes, I32)


def _count(kernel: object, votes: jax.Array, dtype: object) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((32, 128), F32),
        grid=(4,),
        in_specs=[pl.BlockSpec((32, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((32, 128), lambda i: (0, 0)),
        scratch_shapes=[pltpu.VMEM((32, 128), dtype)],
    )(votes)


PAGE_BYTES = 1 << 16


def bytes_of_a_late_page(pages: jax.Array, limit: jax.Array, x: jax.Array) -> jax.Array:
    def masked(pages_ref: jax.Ref, limit_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # Page 40,000 begins at byte 2,621,440,000, and int32 ends at 2,147,483,647.
        start = pages_ref[pl.program_id(0)] * PAGE_BYTES  # FAULT
        out_ref[...] = jnp.where(start < limit_ref[0], x_ref[...], 0.0)

    return _masked(masked, pages, limit, x)


def bytes_of_a_late_page_repaired(pages: jax.Array, limit: jax.Array, x: jax.Array) -> jax.Array:
    def masked(pages_ref: jax.Ref, limit_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        is_inside = pages_ref[pl.program_id(0)] < pl.cdiv(limit_ref[0], PAGE_BYTES)
        out_ref[...] = jnp.where(is_inside, x_ref[...], 0.0)

    return _masked(masked, pages, limit, x)


def _masked(kernel: object, pages: jax.Array, limit: jax.Array, x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((24, 128), F32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(3,),
            in_specs=[pl.BlockSpec((8, 128), lambda i, *_: (i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i, *_: (i, 0)),
        ),
    )(pages, limit, x)


def masked_reference(pages: jax.Array, limit: jax.Array, x: jax.Array) -> jax.Array:
    is_inside = jnp.repeat(pages < limit[0] // PAGE_BYTES, 8)
    return jnp.where(is_inside[:, None], x, 0.0)


def requantized_without_clip(x: jax.Array) -> jax.Array:
    def requantize(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        scaled = x_ref[...].astype(I32) * 3
        # 3 * 100 is 300, and its low eight bits are 44.
        out_ref[...] = scaled.astype(I8)  # FAULT

    return pl.pallas_call(requantize, out_shape=x)(x)


def requantized_without_clip_repaired(x: jax.Array) -> jax.Array:
    def requantize(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        scaled = x_ref[...].astype(I32) * 3
        out_ref[...] = jnp.clip(scaled, -128, 127).astype(I8)

    return pl.pallas_call(requantize, out_shape=x)(x)


def chunks_summed_in_bfloat16(lengths: jax.Array, x: jax.Array) -> jax.Array:
    def sum_chunks(
        lengths_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref, acc_ref: jax.Ref
    ) -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

        def add(i: jax.Array, _: None) -> None:
            # Eight bits of mantissa: of 101 + 0.25, nothing of the quarter is left.
            acc_ref[...] += x_ref[i]  # FAULT

        lax.fori_loop(0, lengths_ref[0], add, None)
        out_ref[...] = acc_ref[...].astype(F32)

    return _sum_chunks(sum_chunks, lengths, x, BF16)


def chunks_summed_in_bfloat16_repaired(lengths: jax.Array, x: jax.Array) -> jax.Array:
    def sum_chunks(
        lengths_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref, acc_ref: jax.Ref
    ) -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

        def add(i: jax.Array, _: None) -> None:
            acc_ref[...] += x_ref[i].astype(F32)

        lax.fori_loop(0, lengths_ref[0], add, None)
        out_ref[...] = acc_ref[...].astype(F32)

    return _sum_chunks(sum_chunks, lengths, x, F32)


def _sum_chunks(kernel: object, lengths: jax.Array, x: jax.Array, dtype: object) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((16, 128), F32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(1,),
            in_specs=[pl.BlockSpec((24, 16, 128), lambda i, *_: (0, 0, 0))],
            out_specs=pl.BlockSpec((16, 128), lambda i, *_: (0, 0)),
            scratch_shapes=[pltpu.VMEM((16, 128), dtype)],
        ),
    )(lengths, x)


def chunks_reference(lengths: jax.Array, x: jax.Array) -> jax.Array:
    is_used = jnp.arange(24)[:, None, None] < lengths[0]
    return jnp.where(is_used, x.astype(F32), 0.0).sum(axis=0)


def running_maximum_of_a_masked_block(s: jax.Array) -> jax.Array:
    def softmax_sum(s_ref: jax.Ref, out_ref: jax.Ref, m_ref: jax.Ref, l_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            m_ref[...] = jnp.full_like(m_ref, -jnp.inf)
            l_ref[...] = jnp.zeros_like(l_ref)

        m = jnp.maximum(m_ref[...], s_ref[...].max(axis=1, keepdims=True))
        # Of a row whose first block is masked as a whole both maxima are -inf.
        scale = jnp.exp(m_ref[...] - m)  # FAULT
        p = jnp.exp(s_ref[...] - jnp.where(m == -jnp.inf, 0.0, m))
        l_ref[...] = l_ref[...] * scale + p.sum(axis=1, keepdims=True)
        m_ref[...] = m

        @pl.when(pl.program_id(0) == 1)
        def _end() -> None:
            out_ref[...] = l_ref[...]

    return _softmax_sum(softmax_sum, s)


def running_maximum_of_a_masked_block_repaired(s: jax.Array) -> jax.Array:
    def softmax_sum(s_ref: jax.Ref, out_ref: jax.Ref, m_ref: jax.Ref, l_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            m_ref[...] = jnp.full_like(m_ref, -jnp.inf)
            l_ref[...] = jnp.zeros_like(l_ref)

        m = jnp.maximum(m_ref[...], s_ref[...].max(axis=1, keepdims=True))
        shift = jnp.where(m == -jnp.inf, 0.0, m)
        scale = jnp.exp(m_ref[...] - shift)
        p = jnp.exp(s_ref[...] - shift)
        l_ref[...] = l_ref[...] * scale + p.sum(axis=1, keepdims=True)
        m_ref[...] = m

        @pl.when(pl.program_id(0) == 1)
        def _end() -> None:
            out_ref[...] = l_ref[...]

    return _softmax_sum(softmax_sum, s)


def _softmax_sum(kernel: object, s: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((8, 1), F32),
        grid=(2,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (0, i))],
        out_specs=pl.BlockSpec((8, 1), lambda i: (0, 0)),
        scratch_shapes=[pltpu.VMEM((8, 1), F32), pltpu.VMEM((8, 1), F32)],
    )(s)


def tokens_over_an_empty_group(sizes: jax.Array, x: jax.Array) -> jax.Array:
    def share(sizes_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        # The second group has no rows to share the 128 tokens.
        each = lax.div(128, sizes_ref[pl.program_id(0)])  # FAULT
        out_ref[...] = x_ref[...] * each.astype(F32)

    return _share(share, sizes, x)


def tokens_over_an_empty_group_repaired(sizes: jax.Array, x: jax.Array) -> jax.Array:
    def share(sizes_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        size = sizes_ref[pl.program_id(0)]
        each = jnp.where(size == 0, 0, lax.div(128, jnp.maximum(size, 1)))
        out_ref[...] = x_ref[...] * each.astype(F32)

    return _share(share, sizes, x)


def _share(kernel: object, sizes: jax.Array, x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((24, 128), F32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(3,),
            in_specs=[pl.BlockSpec((8, 128), lambda i, *_: (i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i, *_: (i, 0)),
        ),
    )(sizes, x)


def share_reference(sizes: jax.Array, x: jax.Array) -> jax.Array:
    each = jnp.where(sizes == 0, 0, 128 // jnp.maximum(sizes, 1))
    return x * jnp.repeat(each, 8)[:, None].astype(F32)


def search_that_does_not_narrow(ends: jax.Array, x: jax.Array) -> jax.Array:
    def search(ends_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        row = pl.program_id(0) * 8

        def step(between: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = between
            middle = (low + high) // 2
            is_after = ends_ref[middle] <= row
            # With high = low + 1 the middle is low, and low stays as it is.
            return jnp.where(is_after, middle, low), jnp.where(is_after, high, middle)

        start = (jnp.int32(0), jnp.int32(4))
        group, _ = lax.while_loop(lambda b: b[0] < b[1], step, start)  # FAULT
        out_ref[...] = x_ref[...] * group.astype(F32)

    return _share(search, ends, x)


def search_that_does_not_narrow_repaired(ends: jax.Array, x: jax.Array) -> jax.Array:
    def search(ends_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        row = pl.program_id(0) * 8

        def step(between: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = between
            middle = (low + high) // 2
            is_after = ends_ref[middle] <= row
            return jnp.where(is_after, middle + 1, low), jnp.where(is_after, high, middle)

        start = (jnp.int32(0), jnp.int32(4))
        group, _ = lax.while_loop(lambda b: b[0] < b[1], step, start)
        out_ref[...] = x_ref[...] * group.astype(F32)

    return _share(search, ends, x)


def search_reference(ends: jax.Array, x: jax.Array) -> jax.Array:
    groups = jnp.searchsorted(ends, jnp.arange(3) * 8, side="right")
    return x * jnp.repeat(groups, 8)[:, None].astype(F32)


X = jax.ShapeDtypeStruct((24, 128), F32)
MASKED = [[float("-inf")] * 128 + [1.0] * 128] * 2 + [[0.5] * 256] * 6
"""Of the first two rows, the first block is masked as a whole."""

KERNELS = (
    BrokenKernel(
        fault="ValueMismatch",
        summary="Votes are counted in int8, which ends at 127.",
        function=votes_counted_in_int8,
        repaired=votes_counted_in_int8_repaired,
        reference=lambda v: v.astype(F32).reshape(4, 32, 128).sum(axis=0),
        args=(jax.ShapeDtypeStruct((128, 128), I8),),
        values={0: 50},
        refused=(Refusal("compile", "Only vector<i16> and vector<i32> are supported"),),
        hint="wrapped integer",
    ),
    BrokenKernel(
        fault="ValueMismatch",
        summary="The first byte of a late page of a table is beyond int32.",
        function=bytes_of_a_late_page,
        repaired=bytes_of_a_late_page_repaired,
        reference=masked_reference,
        args=(jax.ShapeDtypeStruct((3,), I32), jax.ShapeDtypeStruct((1,), I32), X),
        values={0: [3, 40_000, 900], 1: [1000 * PAGE_BYTES]},
        hint="wrapped integer",
    ),
    BrokenKernel(
        fault="ValueMismatch",
        summary="Numbers beyond 127 are cast to int8.",
        function=requantized_without_clip,
        repaired=requantized_without_clip_repaired,
        reference=lambda x: jnp.clip(x.astype(I32) * 3, -128, 127).astype(I8),
        args=(jax.ShapeDtypeStruct((32, 128), I8),),
        values={0: [[1]] * 30 + [[100]] * 2},
        hint="wrapped integer",
    ),
    BrokenKernel(
        fault="ValueMismatch",
        summary="As many chunks as a table says are summed in bfloat16.",
        function=chunks_summed_in_bfloat16,
        repaired=chunks_summed_in_bfloat16_repaired,
        reference=chunks_reference,
        args=(jax.ShapeDtypeStruct((1,), I32), jax.ShapeDtypeStruct((24, 16, 128), BF16)),
        values={0: [20], 1: [[[101.0]]] + [[[0.25]]] * 23},
        hint="low-precision sum",
    ),
    BrokenKernel(
        fault="NanProduced",
        summary="A running maximum is still -inf after a block that is masked as a whole.",
        function=running_maximum_of_a_masked_block,
        repaired=running_maximum_of_a_masked_block_repaired,
        reference=lambda s: jnp.exp(s - s.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True),
        args=(jax.ShapeDtypeStruct((8, 256), F32),),
        values={0: MASKED},
        machine=MachineFinding(
            operand=None,
            grid_point=(0,),
            values={"element": "[0, 0]", "operand 0": "-inf", "operand 1": "-inf"},
        ),
    ),
    BrokenKernel(
        fault="DivisionByZero",
        summary="Tokens are divided among the rows of a group, and a table says it has none.",
        function=tokens_over_an_empty_group,
        repaired=tokens_over_an_empty_group_repaired,
        reference=share_reference,
        args=(jax.ShapeDtypeStruct((3,), I32), X),
        values={0: [4, 0, 2]},
        machine=MachineFinding(
            operand=None, grid_point=(1,), values={"operand 0": "128", "operand 1": "0"}
        ),
    ),
    BrokenKernel(
        fault="EndlessLoop",
        summary="A binary search keeps its lower end, for some entries of the table.",
        function=search_that_does_not_narrow,
        repaired=search_that_does_not_narrow_repaired,
        reference=search_reference,
        args=(jax.ShapeDtypeStruct((5,), I32), X),
        values={0: [4, 8, 16, 24, 32]},
        machine=MachineFinding(
            operand=None, grid_point=(1,), loop=(5,), values={"b[0]": "1", "b[1]": "2"}
        ),
    ),
)

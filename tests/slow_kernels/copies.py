"""Copies by hand: data that goes to HBM and back, rows fetched one after another."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .slow import SlowKernel

F32 = jnp.float32


def summed_in_hbm(x: jax.Array) -> jax.Array:
    """Each step fetches the sum so far, and writes it back: the next fetch has to wait for it."""

    def kernel(x_ref: jax.Ref, out_hbm: jax.Ref, total: jax.Ref, done: jax.Ref) -> None:
        def copy(source: jax.Ref, target: jax.Ref) -> None:
            moved = pltpu.make_async_copy(source, target, done)
            moved.start()
            moved.wait()

        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            total[...] = jnp.zeros_like(total)
            copy(total, out_hbm)

        fetched = pltpu.make_async_copy(out_hbm, total, done)
        fetched.start()  # SLOW
        fetched.wait()
        total[...] += x_ref[...] * x_ref[...]
        copy(total, out_hbm)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((256, x.shape[1]), F32),
        grid=(x.shape[0] // 256,),
        in_specs=[pl.BlockSpec((256, x.shape[1]), lambda i: (i, 0))],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[pltpu.VMEM((256, x.shape[1]), F32), pltpu.SemaphoreType.DMA],
    )(x)


def summed_in_hbm_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...] * x_ref[...]

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((256, x.shape[1]), F32),
        grid=(x.shape[0] // 256,),
        in_specs=[pl.BlockSpec((256, x.shape[1]), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((256, x.shape[1]), lambda i: (0, 0)),
    )(x)


def _gathered(kernel: Any, ids: jax.Array, table: jax.Array) -> jax.Array:
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(ids.shape[0] // 64,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((64, table.shape[1]), lambda i, _: (i, 0)),
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((ids.shape[0], table.shape[1]), F32),
        grid_spec=grid_spec,
    )(ids % table.shape[0], table)


def rows_one_after_another(ids: jax.Array, table: jax.Array) -> jax.Array:
    """Each row is fetched when the one before has arrived."""

    def kernel(ids_ref: jax.Ref, table_hbm: jax.Ref, out_ref: jax.Ref, done: jax.Ref) -> None:
        first = pl.program_id(0) * 64

        def fetch(n: jax.Array, _: None) -> None:
            row = table_hbm.at[pl.ds(ids_ref[first + n], 1)]
            copy = pltpu.make_async_copy(row, out_ref.at[pl.ds(n, 1)], done)
            copy.start()  # SLOW
            copy.wait()

        lax.fori_loop(0, 64, fetch, None)

    return _gathered(kernel, ids, table)


def rows_one_after_another_remedied(ids: jax.Array, table: jax.Array) -> jax.Array:
    def kernel(ids_ref: jax.Ref, table_hbm: jax.Ref, out_ref: jax.Ref, done: jax.Ref) -> None:
        first = pl.program_id(0) * 64

        def copy(n: jax.Array) -> Any:
            row = table_hbm.at[pl.ds(ids_ref[first + n], 1)]
            return pltpu.make_async_copy(row, out_ref.at[pl.ds(n, 1)], done)

        def start(n: jax.Array, _: None) -> None:
            copy(n).start()

        def wait(n: jax.Array, _: None) -> None:
            copy(n).wait()

        lax.fori_loop(0, 64, start, None)
        lax.fori_loop(0, 64, wait, None)

    return _gathered(kernel, ids, table)


def _pipelined(x: jax.Array, rows: int) -> jax.Array:
    """A pipeline by hand: two buffers for what is fetched, and two for what is written back."""

    def kernel(
        x_hbm: jax.Ref, out_hbm: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref, *done: jax.Ref
    ) -> None:
        last = x_hbm.shape[0] // rows - 1
        fetched, written = done

        def fetch(i: jax.Array) -> Any:
            at = pl.ds(pl.multiple_of(i * rows, rows), rows)
            return pltpu.make_async_copy(x_hbm.at[at], x_ref.at[i % 2], fetched.at[i % 2])

        def write(i: jax.Array) -> Any:
            at = pl.ds(pl.multiple_of(i * rows, rows), rows)
            return pltpu.make_async_copy(out_ref.at[i % 2], out_hbm.at[at], written.at[i % 2])

        def step(i: jax.Array, _: None) -> None:
            pl.when(i < last)(lambda: fetch(i + 1).start())
            fetch(i).wait()
            pl.when(i >= 2)(lambda: write(i - 2).wait())
            out_ref[i % 2] = x_ref[i % 2] * 2.0 + 1.0
            write(i).start()

        fetch(0).start()
        lax.fori_loop(0, last + 1, step, None)
        write(last - 1).wait()
        write(last).wait()

    buffers = pltpu.VMEM((2, rows, x.shape[1]), F32)
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        out_shape=x,
        in_specs=[anywhere],
        out_specs=anywhere,
        scratch_shapes=[buffers, buffers, *[pltpu.SemaphoreType.DMA((2,))] * 2],
    )(x)


def pipeline_of_small_blocks(x: jax.Array) -> jax.Array:
    """A pipeline within the kernel, whose copies take longer to arrive than to run."""
    return _pipelined(x, 8)


def pipeline_of_small_blocks_remedied(x: jax.Array) -> jax.Array:
    return _pipelined(x, 256)


def _updated(kernel: Any, at: jax.Array, cache: jax.Array, new: jax.Array, rows: int) -> jax.Array:
    """A cache of which one row of each sequence is another one, in blocks of so many rows."""
    block = pl.BlockSpec((None, rows, cache.shape[2]), lambda i, at: (i, at[i] // rows, 0))
    whole = pl.BlockSpec((None, rows, cache.shape[2]), lambda i, at: (i, 0, 0))  # SLOW
    block = whole if rows == cache.shape[1] else block
    return pl.pallas_call(
        kernel,
        out_shape=cache,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(cache.shape[0],),
            in_specs=[block, pl.BlockSpec((None, 1, cache.shape[2]), lambda i, at: (i, 0, 0))],
            out_specs=block,
        ),
        input_output_aliases={1: 0},
    )(at % cache.shape[1], cache, new)


def cache_copied(at: jax.Array, cache: jax.Array, new: jax.Array) -> jax.Array:
    """A row is chosen by a mask, and all others are copied."""

    def kernel(at_ref: jax.Ref, cache_ref: jax.Ref, new_ref: jax.Ref, out_ref: jax.Ref) -> None:
        row = lax.broadcasted_iota(jnp.int32, cache_ref.shape, 0)
        is_new = row == at_ref[pl.program_id(0)]
        out_ref[...] = jnp.where(is_new, new_ref[...], cache_ref[...])

    return _updated(kernel, at, cache, new, cache.shape[1])


def cache_copied_first(at: jax.Array, cache: jax.Array, new: jax.Array) -> jax.Array:
    """A row is stored to a copy of the cache."""

    def kernel(at_ref: jax.Ref, cache_ref: jax.Ref, new_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = cache_ref[...]
        out_ref[pl.ds(at_ref[pl.program_id(0)], 1), :] = new_ref[...]

    return _updated(kernel, at, cache, new, cache.shape[1])


def cache_copied_remedied(at: jax.Array, cache: jax.Array, new: jax.Array) -> jax.Array:
    def kernel(at_ref: jax.Ref, cache_ref: jax.Ref, new_ref: jax.Ref, out_ref: jax.Ref) -> None:
        row = lax.broadcasted_iota(jnp.int32, cache_ref.shape, 0)
        is_new = row == at_ref[pl.program_id(0)] % 8
        out_ref[...] = jnp.where(is_new, new_ref[...], cache_ref[...])

    return _updated(kernel, at, cache, new, 8)


def _paged(pages: jax.Array, q: jax.Array, cache: jax.Array, *, ahead: bool) -> jax.Array:
    """Attention, without its maximum, to pages of a cache that a table lists for each sequence."""

    def kernel(
        pages_ref: jax.Ref, q_ref: jax.Ref, hbm: jax.Ref, out_ref: jax.Ref, *scratch: Any
    ) -> None:
        buffers, done, total = scratch
        sequence = pl.program_id(0)
        total[...] = jnp.zeros_like(total)

        def copy(n: jax.Array, at: jax.Array) -> Any:
            page = pages_ref[sequence, n]
            return pltpu.make_async_copy(hbm.at[page], buffers.at[at], done.at[at])

        def add(n: jax.Array, _: None) -> None:
            at = lax.rem(n, 2) if ahead else 0
            if ahead:

                @pl.when(n + 1 < pages.shape[1])
                def _next() -> None:
                    copy(n + 1, 1 - at).start()

            else:
                copy(n, at).start()  # SLOW
            copy(n, at).wait()
            page = buffers[at]
            scores = lax.dot_general(
                q_ref[...], page, (((1,), (1,)), ((), ())), preferred_element_type=F32
            )
            weights = jnp.exp(0.01 * scores).astype(page.dtype)
            total[...] += jnp.dot(weights, page, preferred_element_type=F32)

        if ahead:
            copy(0, 0).start()
        lax.fori_loop(0, pages.shape[1], add, None)
        out_ref[...] = 0.001 * total[...]

    block = pl.BlockSpec((None, *q.shape[1:]), lambda i, _: (i, 0, 0))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(q.shape, F32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(q.shape[0],),
            in_specs=[block, pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=block,
            scratch_shapes=[
                pltpu.VMEM((2, *cache.shape[1:]), cache.dtype),
                pltpu.SemaphoreType.DMA((2,)),
                pltpu.VMEM(q.shape[1:], F32),
            ],
        ),
    )(pages % cache.shape[0], q, cache)


def pages_waited_for(pages: jax.Array, q: jax.Array, cache: jax.Array) -> jax.Array:
    """Each page is fetched after the work on the one before."""
    return _paged(pages, q, cache, ahead=False)


def pages_waited_for_remedied(pages: jax.Array, q: jax.Array, cache: jax.Array) -> jax.Array:
    return _paged(pages, q, cache, ahead=True)


def _taken_in_turn(x: jax.Array, waits_at_once: bool) -> jax.Array:
    """A sum over blocks of rows in two buffers, of which one is filled ahead."""
    rows, count = 256, x.shape[0] // 256

    def kernel(x_hbm: jax.Ref, out_ref: jax.Ref, slots: jax.Ref, done: jax.Ref) -> None:
        def copy(i: jax.Array, slot: jax.Array) -> Any:
            at = pl.ds(pl.multiple_of(i * rows, rows), rows)
            return pltpu.make_async_copy(x_hbm.at[at], slots.at[slot], done.at[slot])

        def step(i: jax.Array, total: jax.Array) -> jax.Array:
            slot = lax.rem(i, 2)

            @pl.when(i + 1 < count)
            def _() -> None:
                copy(i + 1, 1 - slot).start()  # SLOW
                if waits_at_once:
                    copy(i + 1, 1 - slot).wait()

            if not waits_at_once:
                copy(i, slot).wait()
            x = slots[slot]
            return total + jnp.sum((jnp.exp(x) * jnp.tanh(x)).reshape(-1, 8, x.shape[1]), axis=0)

        copy(0, 0).start()
        if waits_at_once:
            copy(0, 0).wait()
        out_ref[...] = lax.fori_loop(0, count, step, jnp.zeros(out_ref.shape, F32))

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((8, x.shape[1]), F32),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[
            pltpu.VMEM((2, rows, x.shape[1]), F32),
            pltpu.SemaphoreType.DMA((2,)),
        ],
    )(x)


def next_waited_for(x: jax.Array) -> jax.Array:
    """The copy for the next iteration is waited for before the work on this one."""
    return _taken_in_turn(x, waits_at_once=True)


def next_waited_for_remedied(x: jax.Array) -> jax.Array:
    return _taken_in_turn(x, waits_at_once=False)


_CACHE = (
    jax.ShapeDtypeStruct((16,), jnp.int32),
    jax.ShapeDtypeStruct((16, 1024, 128), F32),
    jax.ShapeDtypeStruct((16, 1, 128), F32),
)


KERNELS = (
    SlowKernel(
        advice="unchanged-rows",
        summary="A cache that is copied to change one row of each sequence.",
        function=cache_copied,
        remedied=cache_copied_remedied,
        helper=_updated,
        args=_CACHE,
        parts=(
            "except for one of its 1,024 rows in dimension 1",
            "(8, 128), with the number in at_ref // 8",
        ),
    ),
    SlowKernel(
        advice="unchanged-rows",
        summary="A cache that is copied before a row of each sequence is stored.",
        function=cache_copied_first,
        remedied=cache_copied_remedied,
        helper=_updated,
        args=_CACHE,
        parts=("input_output_aliases={1: 0}",),
        targets=("v5e",),
    ),
    SlowKernel(
        advice="copy-wait",
        summary="Attention to pages, each fetched after the work on the one before.",
        function=pages_waited_for,
        remedied=pages_waited_for_remedied,
        helper=_paged,
        args=(
            jax.ShapeDtypeStruct((2, 32), jnp.int32),
            jax.ShapeDtypeStruct((2, 16, 128), jnp.bfloat16),
            jax.ShapeDtypeStruct((64, 128, 128), jnp.bfloat16),
        ),
        parts=("64 times", "into a second buffer with its own semaphore"),
    ),
    SlowKernel(
        advice="copy-wait",
        summary="Two buffers of which the next is waited for before the work on this one.",
        function=next_waited_for,
        remedied=next_waited_for_remedied,
        helper=_taken_in_turn,
        args=(jax.ShapeDtypeStruct((4096, 512), F32),),
        parts=("wait for the copy in the next iteration", "another slot of slots"),
    ),
    SlowKernel(
        advice="copy-latency",
        summary="A pipeline of blocks of 8 rows within a kernel.",
        function=pipeline_of_small_blocks,
        remedied=pipeline_of_small_blocks_remedied,
        helper=_pipelined,
        args=(jax.ShapeDtypeStruct((2048, 512), F32),),
        parts=("each of the 256 iterations of a pipeline moves 32.0 KiB", "times as large"),
    ),
    SlowKernel(
        advice="round-trip",
        summary="A sum that is fetched from HBM and written back in each step.",
        function=summed_in_hbm,
        remedied=summed_in_hbm_remedied,
        args=(jax.ShapeDtypeStruct((2048, 512), F32),),
        parts=("each grid step fetches the same 512.0 KiB of out_hbm", "keep them in VMEM"),
    ),
    SlowKernel(
        advice="copy-wait",
        summary="Rows of a table in HBM, each fetched after the one before.",
        function=rows_one_after_another,
        remedied=rows_one_after_another_remedied,
        args=(jax.ShapeDtypeStruct((128,), jnp.int32), jax.ShapeDtypeStruct((1024, 512), F32)),
        parts=("start the copies of all 64 iterations in a separate loop", "in out_ref"),
    ),
)

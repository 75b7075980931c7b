"""Work and copies that are done one after another, and could be done together."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .slow import SlowKernel

F32, BF16 = jnp.float32, jnp.bfloat16


def _decoded(q: jax.Array, k: jax.Array, v: jax.Array, rows: int) -> jax.Array:
    """Attention of one query of each head, of which so many heads at once."""

    def kernel(q_ref: jax.Ref, k_ref: jax.Ref, v_ref: jax.Ref, out_ref: jax.Ref) -> None:
        for head in range(0, q_ref.shape[0], rows):
            at = slice(head, head + rows)
            q, k = q_ref[at], k_ref[...]
            scores = jnp.einsum("qd,kd->qk", q, k, preferred_element_type=F32)  # SLOW
            p = jnp.exp(scores - jnp.max(scores, axis=1, keepdims=True))
            total = jnp.sum(p, axis=1, keepdims=True)
            out = jnp.dot(p.astype(BF16), v_ref[...], preferred_element_type=F32)
            out_ref[at] = out / total

    def block(x: jax.Array) -> pl.BlockSpec:
        return pl.BlockSpec((None, *x.shape[1:]), lambda i: (i, 0, 0))

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(q.shape, F32),
        grid=(q.shape[0],),
        in_specs=[block(q), block(k), block(v)],
        out_specs=block(q),
    )(q, k, v)


def heads_one_by_one(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Each of the heads that share keys is multiplied by them on its own."""
    return _decoded(q, k, v, 1)


def heads_one_by_one_remedied(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return _decoded(q, k, v, 8)


def _adapted(kernel: object, x: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], b.shape[1]), F32),
        grid=(x.shape[0] // 128,),
        in_specs=[
            pl.BlockSpec((128, x.shape[1]), lambda i: (i, 0)),
            pl.BlockSpec(a.shape, lambda i: (0, 0)),
            pl.BlockSpec(b.shape, lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((128, b.shape[1]), lambda i: (i, 0)),
    )(x, a, b)


def adapters_multiplied_first(x: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    """Two narrow matrices make a large one in each step, which a block of rows is multiplied by."""

    def kernel(x_ref: jax.Ref, a_ref: jax.Ref, b_ref: jax.Ref, out_ref: jax.Ref) -> None:
        w = jnp.dot(a_ref[...], b_ref[...])  # SLOW
        out_ref[...] = jnp.dot(x_ref[...], w)

    return _adapted(kernel, x, a, b)


def adapters_multiplied_first_remedied(x: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, a_ref: jax.Ref, b_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = jnp.dot(jnp.dot(x_ref[...], a_ref[...]), b_ref[...])

    return _adapted(kernel, x, a, b)


def _places(ids: jax.Array, table: jax.Array) -> jax.Array:
    """Places in a table of which no two are the same."""
    return (ids % 4 + 4 * jnp.arange(ids.shape[0], dtype=ids.dtype)) % table.shape[0]


def scattered_by_index_map(ids: jax.Array, x: jax.Array, table: jax.Array) -> jax.Array:
    """Each grid step writes one row back, to a place that a table lists."""

    def kernel(_: jax.Ref, x_ref: jax.Ref, __: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = 2.0 * x_ref[...]

    row = (None, 1, x.shape[2])
    return pl.pallas_call(
        kernel,
        out_shape=table,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(x.shape[0],),
            in_specs=[
                pl.BlockSpec(row, lambda i, ids: (i, 0, 0)),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec(row, lambda i, ids: (ids[i], 0, 0)),  # SLOW
        ),
        input_output_aliases={2: 0},
    )(_places(ids, table), x, table)


def _scattered(ids: jax.Array, x: jax.Array, table: jax.Array, *, is_waited_for: bool) -> jax.Array:
    """Rows in scratch are copied to the places that a table lists."""

    def kernel(
        ids_ref: jax.Ref, x_ref: jax.Ref, _: jax.Ref, out_hbm: jax.Ref, rows: jax.Ref, *done: Any
    ) -> None:
        rows[...] = 2.0 * x_ref[...]
        first = pl.program_id(0) * 32

        def copy(n: jax.Array) -> Any:
            place = out_hbm.at[ids_ref[first + n]]
            return pltpu.make_async_copy(rows.at[n], place, done[0])

        def start(n: jax.Array, _: None) -> None:
            moved = copy(n)
            moved.start()  # SLOW
            if is_waited_for:
                moved.wait()

        def wait(n: jax.Array, _: None) -> None:
            copy(n).wait()

        lax.fori_loop(0, 32, start, None)
        if not is_waited_for:
            lax.fori_loop(0, 32, wait, None)

    block = (32, 1, x.shape[2])
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        kernel,
        out_shape=table,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(x.shape[0] // 32,),
            in_specs=[pl.BlockSpec(block, lambda i, ids: (i, 0, 0)), anywhere],
            out_specs=anywhere,
            scratch_shapes=[pltpu.VMEM(block, F32), pltpu.SemaphoreType.DMA],
        ),
        input_output_aliases={2: 0},
    )(_places(ids, table), x, table)


def scattered_one_after_another(ids: jax.Array, x: jax.Array, table: jax.Array) -> jax.Array:
    """Each row is waited for before the next one is started."""
    return _scattered(ids, x, table, is_waited_for=True)


def scattered_together(ids: jax.Array, x: jax.Array, table: jax.Array) -> jax.Array:
    return _scattered(ids, x, table, is_waited_for=False)


def _placed(ids: jax.Array, x: jax.Array, unroll: int) -> jax.Array:
    """Rows are stored in VMEM, at places that a table lists."""

    def kernel(ids_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = jnp.zeros_like(out_ref)

        def place(i: jax.Array, _: None) -> None:
            out_ref[pl.ds(ids_ref[i], 1), :] = x_ref[pl.ds(i, 1), :]  # SLOW

        lax.fori_loop(0, x_ref.shape[0], place, None, unroll=unroll)

    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(1,),
            in_specs=[pl.BlockSpec(x.shape, lambda i, ids: (0, 0))],
            out_specs=pl.BlockSpec(x.shape, lambda i, ids: (0, 0)),
        ),
    )(ids % x.shape[0], x)


def rows_placed_one_by_one(ids: jax.Array, x: jax.Array) -> jax.Array:
    """Each iteration stores one row."""
    return _placed(ids, x, 1)


def rows_placed_one_by_one_remedied(ids: jax.Array, x: jax.Array) -> jax.Array:
    return _placed(ids, x, 8)


def _summed(kernel: object, ids: jax.Array, x: jax.Array, tables: int) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((64, x.shape[1]), F32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=tables,
            grid=(1,),
            in_specs=[pl.BlockSpec(a.shape, lambda i, *_: (0, 0)) for a in (ids, x)[tables:]],
            out_specs=pl.BlockSpec((64, x.shape[1]), lambda i, *_: (0, 0)),
        ),
    )(ids % 64, x)


def summed_row_by_row(ids: jax.Array, x: jax.Array) -> jax.Array:
    """The sum of the rows of each segment: each iteration adds a row to the sum of its segment."""

    def kernel(ids_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = jnp.zeros_like(out_ref)

        @pl.loop(0, x_ref.shape[0])
        def _(i: jax.Array) -> None:
            out_ref[pl.ds(ids_ref[i], 1), :] += x_ref[pl.ds(i, 1), :]  # SLOW

    return _summed(kernel, ids, x, 1)


def summed_row_by_row_remedied(ids: jax.Array, x: jax.Array) -> jax.Array:
    def kernel(ids_ref: jax.Ref, x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        segment = lax.broadcasted_iota(jnp.int32, (64, ids_ref.shape[1]), 0)
        is_of = (segment == ids_ref[...]).astype(F32)
        out_ref[...] = jnp.dot(
            is_of, x_ref[...], preferred_element_type=F32, precision=lax.Precision.HIGHEST
        )

    return _summed(kernel, ids[None], x, 0)


def counted_one_by_one(ids: jax.Array) -> jax.Array:
    """A histogram: each iteration adds 1 to the count of its value."""

    def kernel(ids_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.loop(0, out_ref.shape[0])
        def _(i: jax.Array) -> None:
            out_ref[i] = 0

        @pl.loop(0, ids_ref.shape[0])
        def _(i: jax.Array) -> None:
            out_ref[ids_ref[i]] += 1  # SLOW

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((128,), jnp.int32),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM)],
        out_specs=pl.BlockSpec(memory_space=pltpu.SMEM),
    )(ids % 128)


def counted_one_by_one_remedied(ids: jax.Array) -> jax.Array:
    def kernel(ids_ref: jax.Ref, out_ref: jax.Ref) -> None:
        places = lax.broadcasted_iota(jnp.int32, (128, ids_ref.shape[1]), 0)
        out_ref[...] = jnp.sum(jnp.where(places == ids_ref[...], 1, 0), axis=1, keepdims=True)

    counts = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((128, 1), jnp.int32))(
        ids[None] % 128
    )
    return counts[:, 0]


def _summed_pages(ids: jax.Array, pages: jax.Array, *, at_once: bool) -> jax.Array:
    """Sums over pages that a table lists."""
    count, (rows, width) = 8, pages.shape[1:]

    def kernel(
        ids_ref: jax.Ref, pages_hbm: jax.Ref, out_ref: jax.Ref, buffer: jax.Ref, done: Any
    ) -> None:
        first = pl.program_id(0) * count

        def copy(n: jax.Array) -> Any:
            page = pages_hbm.at[ids_ref[first + n]]
            return pltpu.make_async_copy(page, buffer.at[n], done.at[n])

        def start(n: jax.Array, _: None) -> None:
            copy(n).start()

        def wait(n: jax.Array, _: None) -> None:
            copy(n).wait()  # SLOW

        def add(n: jax.Array, total: jax.Array) -> jax.Array:
            if not at_once:
                copy(n).wait()
            x = jnp.exp(buffer[n])
            x = x * jnp.tanh(x) + jnp.log1p(x)
            return total + x.reshape(rows // 8, 8, width).sum(axis=0)

        lax.fori_loop(0, count, start, None)
        if at_once:
            lax.fori_loop(0, count, wait, None)
        out_ref[...] = lax.fori_loop(0, count, add, jnp.zeros((8, width), F32))

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((ids.shape[0] // count, 8, width), F32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(ids.shape[0] // count,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((None, 8, width), lambda i, ids: (i, 0, 0)),
            scratch_shapes=[
                pltpu.VMEM((count, rows, width), F32),
                pltpu.SemaphoreType.DMA((count,)),
            ],
        ),
    )(ids % pages.shape[0], pages)


def pages_waited_for_at_once(ids: jax.Array, pages: jax.Array) -> jax.Array:
    """All pages are waited for before the work on the first."""
    return _summed_pages(ids, pages, at_once=True)


def pages_waited_for_at_once_remedied(ids: jax.Array, pages: jax.Array) -> jax.Array:
    return _summed_pages(ids, pages, at_once=False)


def _chunks(x: jax.Array, y: jax.Array, count: int) -> jax.Array:
    """Products of chunks of a sequence, of which so many in each step."""
    rows, width = x.shape[1:]

    def one(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.einsum("id,jd->ij", jnp.exp(x), jnp.exp(-y), preferred_element_type=F32)

    def kernel(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        if count == 1:
            out_ref[...] = one(x_ref[...], y_ref[...])
        else:
            for n in range(count):
                out_ref[n] = one(x_ref[n], y_ref[n])

    def block(*sizes: int) -> pl.BlockSpec:
        return pl.BlockSpec((count if count > 1 else None, *sizes), lambda i: (i, 0, 0))

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], rows, rows), F32),
        grid=(x.shape[0] // count,),
        in_specs=[block(rows, width), block(rows, width)],
        out_specs=block(rows, rows),
    )(x, y)


def one_chunk_in_each_step(x: jax.Array, y: jax.Array) -> jax.Array:
    """A step works on one chunk, and waits for the next one longer than that."""
    return _chunks(x, y, 1)


def one_chunk_in_each_step_remedied(x: jax.Array, y: jax.Array) -> jax.Array:
    return _chunks(x, y, 8)


_KEYS = jax.ShapeDtypeStruct((8, 1024, 128), BF16)
_TABLE = (
    jax.ShapeDtypeStruct((256,), jnp.int32),
    jax.ShapeDtypeStruct((256, 1, 512), F32),
    jax.ShapeDtypeStruct((1024, 1, 512), F32),
)


def _summed_rows(ids: jax.Array, table: jax.Array, *, at_once: bool) -> jax.Array:
    """Sums of 8 rows of a table in HBM each."""

    def kernel(
        ids_ref: jax.Ref, table_hbm: jax.Ref, out_ref: jax.Ref, buffer: jax.Ref, done: jax.Ref
    ) -> None:
        def copy(n: int) -> Any:
            row = table_hbm.at[pl.ds(ids_ref[pl.program_id(0) * 8 + n], 1)]
            return pltpu.make_async_copy(row, buffer.at[pl.ds(n, 1)], done)

        total = jnp.zeros((1, 512))
        for n in range(8):
            copy(n).start()  # SLOW
            if not at_once:
                copy(n).wait()
                total += buffer[n : n + 1]
        if at_once:
            for n in range(8):
                copy(n).wait()
            total = buffer[...].sum(0, keepdims=True)
        out_ref[0] = total

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(ids.size // 8,),
            in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
            out_specs=pl.BlockSpec((1, 1, 512), lambda i, ids: (i, 0, 0)),
            scratch_shapes=[pltpu.VMEM((8, 512), F32), pltpu.SemaphoreType.DMA],
        ),
        out_shape=jax.ShapeDtypeStruct((ids.size // 8, 1, 512), F32),
    )(ids % table.shape[0], table)


def summed_rows_one_after_another(ids: jax.Array, table: jax.Array) -> jax.Array:
    """Each of 8 unrolled copies is waited for before the next one starts."""
    return _summed_rows(ids, table, at_once=False)


def summed_rows_one_after_another_remedied(ids: jax.Array, table: jax.Array) -> jax.Array:
    return _summed_rows(ids, table, at_once=True)


KERNELS = (
    SlowKernel(
        advice="segment-sum",
        summary="A histogram, counted one by one in SMEM.",
        function=counted_one_by_one,
        remedied=counted_one_by_one_remedied,
        args=(jax.ShapeDtypeStruct((1024,), jnp.int32),),
        parts=(
            "1,024 numbers are added one by one to the 128 numbers of out_ref in SMEM",
            "lax.broadcasted_iota(jnp.int32, (128, 1024), 0) == table",
            "1 for a histogram",
        ),
    ),
    SlowKernel(
        advice="repeated-product",
        summary="Query heads that are multiplied by the same keys one by one.",
        function=heads_one_by_one,
        remedied=heads_one_by_one_remedied,
        helper=_decoded,
        args=(jax.ShapeDtypeStruct((8, 8, 128), BF16), _KEYS, _KEYS),
        parts=("8 products, each of 1 row", "of k_ref and v_ref", "multiply all 8 rows at once"),
    ),
    SlowKernel(
        advice="product-order",
        summary="Two narrow matrices that are multiplied by each other first.",
        function=adapters_multiplied_first,
        remedied=adapters_multiplied_first_remedied,
        args=(
            jax.ShapeDtypeStruct((512, 1024), F32),
            jax.ShapeDtypeStruct((1024, 64), F32),
            jax.ShapeDtypeStruct((64, 1024), F32),
        ),
        parts=("a matrix of 1024 by 1024", "x @ (a @ b) as (x @ a) @ b"),
    ),
    SlowKernel(
        advice="gathered-blocks",
        summary="A scatter of one row in each grid step, by its index map.",
        function=scattered_by_index_map,
        remedied=scattered_together,
        args=_TABLE,
        parts=("each step writes back 2.0 KiB", "give x_ref blocks 32 times as large"),
    ),
    SlowKernel(
        advice="copy-wait",
        summary="Rows that are copied to a table in HBM one after another.",
        function=scattered_one_after_another,
        remedied=scattered_together,
        helper=_scattered,
        args=_TABLE,
        parts=("256 times", "all 32 iterations in a loop of its own after this one", "in rows"),
    ),
    SlowKernel(
        advice="row-loop",
        summary="A scatter of one row in each iteration.",
        function=rows_placed_one_by_one,
        remedied=rows_placed_one_by_one_remedied,
        helper=_placed,
        args=(jax.ShapeDtypeStruct((512,), jnp.int32), jax.ShapeDtypeStruct((512, 256), F32)),
        parts=("with unroll=8",),
    ),
    SlowKernel(
        advice="segment-sum",
        summary="Sums of the rows of each segment, one row after another.",
        function=summed_row_by_row,
        remedied=summed_row_by_row_remedied,
        args=(jax.ShapeDtypeStruct((512,), jnp.int32), jax.ShapeDtypeStruct((512, 256), F32)),
        parts=("512 rows of 256 columns", "the 64 rows of out_ref", "(64, 512), 0) == table"),
    ),
    SlowKernel(
        advice="wait-for-all",
        summary="Pages that are all waited for before the work on the first.",
        function=pages_waited_for_at_once,
        remedied=pages_waited_for_at_once_remedied,
        helper=_summed_pages,
        args=(jax.ShapeDtypeStruct((64,), jnp.int32), jax.ShapeDtypeStruct((64, 64, 512), F32)),
        parts=("all 8 copies of 128.0 KiB to buffer", "right before its data are loaded"),
    ),
    SlowKernel(
        advice="small-blocks",
        summary="One chunk of a sequence in each grid step.",
        function=one_chunk_in_each_step,
        remedied=one_chunk_in_each_step_remedied,
        args=(jax.ShapeDtypeStruct((64, 64, 128), F32),) * 2,
        parts=("make 64 grid steps", "parts are computed side by side, by an unrolled loop"),
    ),
    SlowKernel(
        advice="copy-wait",
        summary="Rows of a table in HBM that are summed, each fetched after the one before, unrolled.",
        function=summed_rows_one_after_another,
        remedied=summed_rows_one_after_another_remedied,
        helper=_summed_rows,
        args=(jax.ShapeDtypeStruct((128,), jnp.int32), jax.ShapeDtypeStruct((1024, 512), F32)),
        parts=("128 times", "start all 8 copies first", "its own place in buffer"),
    ),
)

"""Blocks that fill few lanes, are copied again, or are gathered from by a product."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .slow import SlowKernel

F32, BF16 = jnp.float32, jnp.bfloat16


def _activated(x: jax.Array, block: tuple[int, ...]) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        x = x_ref[...]  # SLOW
        out_ref[...] = x * jnp.tanh(x) * (0.5 + 0.5 * jnp.tanh(0.5 * x)) * jnp.exp(-x * x)

    axis = next(n for n, size in enumerate(block) if size < x.shape[n])
    spec = pl.BlockSpec(block, lambda i: tuple(i if n == axis else 0 for n in range(len(block))))
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(x.shape[axis] // block[axis],),
        in_specs=[spec],
        out_specs=spec,
    )(x)


def narrow_lanes(x: jax.Array) -> jax.Array:
    """The last dimension has 8 elements, so that registers use 8 of 128 lanes."""
    return _activated(x, (512, 8))


def narrow_lanes_remedied(x: jax.Array) -> jax.Array:
    return _activated(x, (8, 4096)).T


def single_rows(x: jax.Array) -> jax.Array:
    """The dimension before the last one has one element: registers use 1 of 8 sublanes."""
    return _activated(x, (512, 1, 128))


def single_rows_remedied(x: jax.Array) -> jax.Array:
    return _activated(x, (512, 128)).reshape(-1, 1, 128)


def _summed(x: jax.Array, is_batch_inner: bool) -> jax.Array:
    batches, rows, width = x.shape

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref, sums: jax.Ref) -> None:
        b, i = pl.program_id(0), pl.program_id(1)
        part = pl.ds(pl.multiple_of(i * 512, 512), 512)

        @pl.when(b == 0)
        def _start() -> None:
            sums[part, :] = jnp.zeros((512, width), F32)

        sums[part, :] += x_ref[...]
        out_ref[...] = sums[part, :]

    def inner_kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...]

    if is_batch_inner:
        return pl.pallas_call(
            inner_kernel,
            out_shape=jax.ShapeDtypeStruct((rows, width), F32),
            grid=(rows // 512, batches),
            in_specs=[pl.BlockSpec((None, 512, width), lambda i, b: (b, i, 0))],
            out_specs=pl.BlockSpec((512, width), lambda i, b: (i, 0)),
        )(x)
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((rows, width), F32),
        grid=(batches, rows // 512),
        in_specs=[pl.BlockSpec((None, 512, width), lambda b, i: (b, i, 0))],
        out_specs=pl.BlockSpec((512, width), lambda b, i: (i, 0)),  # SLOW
        scratch_shapes=[pltpu.VMEM((rows, width), F32)],
    )(x)


def sums_written_again(x: jax.Array) -> jax.Array:
    """Sums over the batch, the outer axis of the grid: each is written back 8 times."""
    return _summed(x, is_batch_inner=False)


def sums_written_again_remedied(x: jax.Array) -> jax.Array:
    return _summed(x, is_batch_inner=True)


def _best_match(x: jax.Array, codes: jax.Array, is_whole: bool) -> jax.Array:
    def kernel(x_ref: jax.Ref, codes_ref: jax.Ref, out_ref: jax.Ref) -> None:
        part = pl.program_id(1)

        @pl.when(part == 0)
        def _start() -> None:
            out_ref[...] = jnp.full_like(out_ref, -jnp.inf)

        block = codes_ref[part] if is_whole else codes_ref[...]
        scores = jnp.dot(x_ref[...], block, preferred_element_type=F32)
        out_ref[...] = jnp.maximum(out_ref[...], scores)

    parts, depth, width = codes.shape
    block = pl.BlockSpec((None, depth, width), lambda b, i: (i, 0, 0))  # SLOW
    whole = pl.BlockSpec(codes.shape, lambda b, i: (0, 0, 0), pipeline_mode=pl.Buffered(1))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((*x.shape[:2], width), F32),
        grid=(x.shape[0], parts),
        in_specs=[
            pl.BlockSpec((None, *x.shape[1:]), lambda b, i: (b, 0, 0)),
            whole if is_whole else block,
        ],
        out_specs=pl.BlockSpec((None, x.shape[1], width), lambda b, i: (b, 0, 0)),
    )(x, codes)


def codes_fetched_again(x: jax.Array, codes: jax.Array) -> jax.Array:
    """All codes are fetched for every batch, though they fit in VMEM."""
    return _best_match(x, codes, is_whole=False)


def codes_fetched_again_remedied(x: jax.Array, codes: jax.Array) -> jax.Array:
    return _best_match(x, codes, is_whole=True)


TOKENS = 128
"""Tokens of a block."""


def _by_unpacked(x: jax.Array, w: jax.Array, scale: jax.Array, rows: int) -> jax.Array:
    """A product with weights of which a byte holds two, of 4 bits each."""

    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, scale_ref: jax.Ref, out_ref: jax.Ref) -> None:
        packed, depth = w_ref[...].astype(jnp.int32), w_ref.shape[0]
        lower = ((packed << 28) >> 28).astype(F32) * scale_ref[...]
        upper = ((packed << 24) >> 28).astype(F32) * scale_ref[...]
        out_ref[...] = jnp.dot(
            x_ref[:, :depth], lower.astype(jnp.bfloat16), preferred_element_type=F32
        ) + jnp.dot(x_ref[:, depth:], upper.astype(jnp.bfloat16), preferred_element_type=F32)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), F32),
        grid=(x.shape[0] // rows,),
        in_specs=[
            pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0)),  # SLOW
            pl.BlockSpec(w.shape, lambda i: (0, 0)),
            pl.BlockSpec(scale.shape, lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((rows, w.shape[1]), lambda i: (i, 0)),
    )(x, w, scale)


def weights_unpacked_for_few_rows(x: jax.Array, w: jax.Array, scale: jax.Array) -> jax.Array:
    """Each step unpacks all weights again, for 32 rows."""
    return _by_unpacked(x, w, scale, 32)


def weights_unpacked_for_few_rows_remedied(
    x: jax.Array, w: jax.Array, scale: jax.Array
) -> jax.Array:
    return _by_unpacked(x, w, scale, 256)


def gather_by_product(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Rows of a table are taken by a product with ones and zeros."""

    def kernel(table_ref: jax.Ref, ids_ref: jax.Ref, out_ref: jax.Ref) -> None:
        rows = lax.broadcasted_iota(jnp.int32, (TOKENS, table_ref.shape[0]), 1)
        ones = (rows == ids_ref[...]).astype(F32)
        out_ref[...] = jnp.dot(ones, table_ref[...])  # SLOW

    tokens = ids.shape[0]
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((tokens, table.shape[1]), F32),
        grid=(tokens // TOKENS,),
        in_specs=[
            pl.BlockSpec(table.shape, lambda i: (0, 0)),
            pl.BlockSpec((TOKENS, 1), lambda i: (i, 0)),
        ],
        out_specs=pl.BlockSpec((TOKENS, table.shape[1]), lambda i: (i, 0)),
    )(table, ids)


def gather_by_product_remedied(table: jax.Array, ids: jax.Array) -> jax.Array:
    def kernel(ids_ref: jax.Ref, table_ref: jax.Ref, out_ref: jax.Ref) -> None:
        first = pl.program_id(0) * TOKENS
        for n in range(TOKENS):
            out_ref[n : n + 1, :] = table_ref[pl.ds(ids_ref[first + n], 1), :]

    tokens = ids.shape[0]
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((tokens, table.shape[1]), F32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(tokens // TOKENS,),
            in_specs=[pl.BlockSpec(table.shape, lambda i, ids: (0, 0))],
            out_specs=pl.BlockSpec((TOKENS, table.shape[1]), lambda i, ids: (i, 0)),
        ),
    )(ids.reshape(-1), table)


def rows_by_index_map(ids: jax.Array, table: jax.Array) -> jax.Array:
    """A gather of which each grid step fetches one row."""

    def kernel(_: jax.Ref, table_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = 2.0 * table_ref[...]

    row = (None, 1, table.shape[2])
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((ids.shape[0], 1, table.shape[2]), F32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(ids.shape[0],),
            in_specs=[pl.BlockSpec(row, lambda i, ids: (ids[i], 0, 0))],  # SLOW
            out_specs=pl.BlockSpec(row, lambda i, ids: (i, 0, 0)),
        ),
    )(ids % table.shape[0], table)


def rows_by_index_map_remedied(ids: jax.Array, table: jax.Array) -> jax.Array:
    def kernel(
        ids_ref: jax.Ref, table_hbm: jax.Ref, out_ref: jax.Ref, rows: jax.Ref, done: jax.Ref
    ) -> None:
        first = pl.program_id(0) * 32
        copies = [
            pltpu.make_async_copy(table_hbm.at[ids_ref[first + n]], rows.at[n], done)
            for n in range(32)
        ]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()
        out_ref[...] = 2.0 * rows[...]

    block = (32, 1, table.shape[2])
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((ids.shape[0], 1, table.shape[2]), F32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(ids.shape[0] // 32,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(block, lambda i, ids: (i, 0, 0)),
            scratch_shapes=[pltpu.VMEM(block, F32), pltpu.SemaphoreType.DMA],
        ),
    )(ids % table.shape[0], table)


def _small_products(x: jax.Array, y: jax.Array, count: int) -> jax.Array:
    def kernel(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        for i in range(count):
            out_ref[i] = jnp.dot(x_ref[i], y_ref[i], preferred_element_type=F32)

    block = pl.BlockSpec((count, *x.shape[1:]), lambda i: (i, 0, 0))  # SLOW
    return pl.pallas_call(
        kernel, out_shape=x, grid=(x.shape[0] // count,), in_specs=[block] * 2, out_specs=block
    )(x, y)


def small_product_per_step(x: jax.Array, y: jax.Array) -> jax.Array:
    """XLA places all arrays in VMEM, of which the compiler then allocates none to the kernel."""
    return _small_products(x, y, 1)


def small_product_per_step_remedied(x: jax.Array, y: jax.Array) -> jax.Array:
    return _small_products(x, y, 16)


KERNELS = (
    SlowKernel(
        advice="small-blocks",
        summary="A small product in each step.",
        function=small_product_per_step,
        remedied=small_product_per_step_remedied,
        helper=_small_products,
        args=(jax.ShapeDtypeStruct((64, 32, 32), F32),) * 2,
        parts=("whose 16 parts are computed side by side", "which copy nothing"),
    ),
    SlowKernel(
        advice="gathered-blocks",
        summary="A gather of one row in each grid step, by its index map.",
        function=rows_by_index_map,
        remedied=rows_by_index_map_remedied,
        args=(jax.ShapeDtypeStruct((256,), jnp.int32), jax.ShapeDtypeStruct((1024, 1, 512), F32)),
        parts=("the index map of table_ref reads", "start the 32 copies of a step"),
        targets=("v5e", "v6e", "tpu7x"),
    ),
    SlowKernel(
        advice="small-blocks",
        summary="Weights of 4 bits that are unpacked for 32 rows at a time.",
        function=weights_unpacked_for_few_rows,
        remedied=weights_unpacked_for_few_rows_remedied,
        helper=_by_unpacked,
        args=(
            jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16),
            jax.ShapeDtypeStruct((512, 512), jnp.int8),
            jax.ShapeDtypeStruct((1, 512), F32),
        ),
        parts=("are work that would not grow with the blocks",),
    ),
    SlowKernel(
        advice="narrow-block",
        summary="Blocks whose last dimension has 8 elements.",
        function=narrow_lanes,
        helper=_activated,
        remedied=narrow_lanes_remedied,
        rearrange=lambda x: (x.T,),
        args=(jax.ShapeDtypeStruct((8192, 8), F32),),
    ),
    SlowKernel(
        advice="narrow-block",
        summary="Blocks whose dimension before the last one has 1 element.",
        function=single_rows,
        helper=_activated,
        remedied=single_rows_remedied,
        rearrange=lambda x: (x.reshape(-1, 128),),
        args=(jax.ShapeDtypeStruct((4096, 1, 128), F32),),
    ),
    SlowKernel(
        advice="rewritten-output",
        summary="Blocks of the output that are written back in every pass.",
        function=sums_written_again,
        helper=_summed,
        remedied=sums_written_again_remedied,
        args=(jax.ShapeDtypeStruct((8, 4096, 256), F32),),
    ),
    SlowKernel(
        advice="whole-operand",
        summary="An operand that is fetched again for each batch, and fits in VMEM as a whole.",
        function=codes_fetched_again,
        helper=_best_match,
        remedied=codes_fetched_again_remedied,
        args=(
            jax.ShapeDtypeStruct((16, 64, 512), BF16),
            jax.ShapeDtypeStruct((4, 512, 1024), BF16),
        ),
    ),
    SlowKernel(
        advice="one-hot-gather",
        summary="A gather by a product with a one-hot matrix.",
        function=gather_by_product,
        remedied=gather_by_product_remedied,
        args=(
            jax.ShapeDtypeStruct((8192, 128), F32),
            jax.ShapeDtypeStruct((1024, 1), jnp.int32),
        ),
    ),
)

"""Pipelines that wait for their DMAs: small blocks, single buffers, strides, data read twice."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import flash_attention

from .slow import SlowKernel

F32, BF16 = jnp.float32, jnp.bfloat16


def _tiled_matmul(x: jax.Array, y: jax.Array, block: int, depth: int) -> jax.Array:
    def kernel(x_ref: jax.Ref, y_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=F32)

    m, k, n = x.shape[0], x.shape[1], y.shape[1]
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), F32),
        grid=(m // block, n // block, k // depth),
        in_specs=[
            pl.BlockSpec((block, depth), lambda i, j, k: (i, k)),  # SLOW
            pl.BlockSpec((depth, block), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
    )(x, y)


def tiny_blocks(x: jax.Array, y: jax.Array) -> jax.Array:
    """Blocks of 128 fetch both operands 8 times."""
    return _tiled_matmul(x, y, 128, 128)


def tiny_blocks_remedied(x: jax.Array, y: jax.Array) -> jax.Array:
    return _tiled_matmul(x, y, 512, 512)


def _row_softmax(x: jax.Array, rows: int) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        p = jnp.exp(x_ref[...] - jnp.max(x_ref[...], axis=1, keepdims=True))
        out_ref[...] = p / jnp.sum(p, axis=1, keepdims=True)

    block = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))  # SLOW
    return pl.pallas_call(
        kernel, out_shape=x, grid=(x.shape[0] // rows,), in_specs=[block], out_specs=block
    )(x)


def short_steps(x: jax.Array) -> jax.Array:
    """Steps of 8 rows: each waits for its maximum, its exponentials and its sum."""
    return _row_softmax(x, 8)


def short_steps_remedied(x: jax.Array) -> jax.Array:
    return _row_softmax(x, 128)


def _attention(q: jax.Array, k: jax.Array, v: jax.Array, block: int) -> jax.Array:
    sizes = flash_attention.BlockSizes(block_q=block, block_k_major=block, block_k=block, block_b=1)
    return flash_attention.flash_attention(q, k, v, causal=True, block_sizes=sizes)


def small_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """jax's flash attention with its default blocks; its index maps skip masked blocks."""
    return _attention(q, k, v, 128)


def small_attention_remedied(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return _attention(q, k, v, 512)


def _scale(x: jax.Array, mode: pl.Buffered | None) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = jnp.tanh(x_ref[...]) * 2.0

    rows = pl.BlockSpec((256, 1024), lambda i: (i, 0))
    source = pl.BlockSpec((256, 1024), lambda i: (i, 0), pipeline_mode=mode)  # SLOW
    return pl.pallas_call(
        kernel, out_shape=x, grid=(x.shape[0] // 256,), in_specs=[source], out_specs=rows
    )(x)


def single_buffer(x: jax.Array) -> jax.Array:
    """Each step waits for its own fetch: there is no second buffer to prefetch into."""
    return _scale(x, pl.Buffered(1))


def single_buffer_remedied(x: jax.Array) -> jax.Array:
    return _scale(x, None)


def strided_copies(x: jax.Array) -> jax.Array:
    """One row of every eight is gathered, by a copy of 512 bytes each."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref, rows: jax.Ref, done: jax.Ref) -> None:
        i = pl.program_id(0)

        def copy(r: jax.Array) -> Any:
            row = x_ref.at[pl.ds(r, 1), i]
            return pltpu.make_async_copy(row, rows.at[pl.ds(r, 1)], done)

        def start(r: jax.Array, _: None) -> None:
            copy(r).start()  # SLOW

        def wait(r: jax.Array, _: None) -> None:
            copy(r).wait()

        lax.fori_loop(0, 256, start, None)
        lax.fori_loop(0, 256, wait, None)
        out_ref[...] = rows[...] * 2.0

    return _by_hand(kernel, x)


def strided_copies_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2.0

    block = pl.BlockSpec((None, 256, 128), lambda i: (i, 0, 0))
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((8, 256, 128), F32),
        grid=(8,),
        in_specs=[block],
        out_specs=block,
    )(x)


def _by_hand(kernel: object, x: jax.Array) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((8, 256, 128), F32),
        grid=(8,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((None, 256, 128), lambda i: (i, 0, 0)),
        scratch_shapes=[pltpu.VMEM((256, 128), F32), pltpu.SemaphoreType.DMA],
    )(x)


def _experts(x: jax.Array, w: jax.Array, kernel: object) -> jax.Array:
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((w.shape[0], x.shape[0], w.shape[2]), F32),
        grid=(w.shape[0],),
        in_specs=[pl.BlockSpec(x.shape, lambda i: (0, 0)), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((None, x.shape[0], w.shape[2]), lambda i: (i, 0, 0)),
        scratch_shapes=[pltpu.VMEM((2, *w.shape[1:]), w.dtype), pltpu.SemaphoreType.DMA((2,))],
    )(x, w)


def weights_waited_for(x: jax.Array, w: jax.Array) -> jax.Array:
    """Each step starts the copy of its weights, and waits for it at once."""

    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref, w: jax.Ref, done: jax.Ref) -> None:
        copy = pltpu.make_async_copy(w_ref.at[pl.program_id(0)], w.at[0], done.at[0])
        copy.start()  # SLOW
        copy.wait()
        out_ref[...] = jnp.dot(x_ref[...], w[0], preferred_element_type=F32)

    return _experts(x, w, kernel)


def weights_waited_for_remedied(x: jax.Array, w: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, w_ref: jax.Ref, out_ref: jax.Ref, w: jax.Ref, done: jax.Ref) -> None:
        step = pl.program_id(0)

        def copy(n: jax.Array, slot: jax.Array) -> Any:
            return pltpu.make_async_copy(w_ref.at[n], w.at[slot], done.at[slot])

        @pl.when(step == 0)
        def _first() -> None:
            copy(step, step).start()

        slot = lax.rem(step, 2)

        @pl.when(step + 1 < pl.num_programs(0))
        def _next() -> None:
            copy(step + 1, 1 - slot).start()

        copy(step, slot).wait()
        out_ref[...] = jnp.dot(x_ref[...], w[slot], preferred_element_type=F32)

    return _experts(x, w, kernel)


def _biased(x: jax.Array, bias: jax.Array, is_batch_inner: bool) -> jax.Array:
    def kernel(x_ref: jax.Ref, bias_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = x_ref[...] + bias_ref[...]

    batches, parts = x.shape[0], x.shape[1] // 1024
    grid, rows, of_bias = (batches, parts), lambda b, i: (b, i, 0), lambda b, i: (i, 0)  # SLOW
    if is_batch_inner:
        grid, rows, of_bias = (parts, batches), lambda i, b: (b, i, 0), lambda i, b: (i, 0)
    block = pl.BlockSpec((None, 1024, x.shape[2]), rows)
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=grid,
        in_specs=[block, pl.BlockSpec((1024, x.shape[2]), of_bias)],
        out_specs=block,
    )(x, bias)


def bias_fetched_again(x: jax.Array, bias: jax.Array) -> jax.Array:
    """The batch is the outer axis, so that the bias is fetched again for each of it."""
    return _biased(x, bias, is_batch_inner=False)


def bias_fetched_again_remedied(x: jax.Array, bias: jax.Array) -> jax.Array:
    return _biased(x, bias, is_batch_inner=True)


def _biased_gelu(x: jax.Array, bias: jax.Array, rows: int, columns: int) -> jax.Array:
    def kernel(x_ref: jax.Ref, bias_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = jax.nn.gelu(x_ref[...] + bias_ref[...])

    block = pl.BlockSpec((rows, columns), lambda i, j: (i, j))  # SLOW
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(x.shape[0] // rows, x.shape[1] // columns),
        in_specs=[block, pl.BlockSpec((1, columns), lambda i, j: (0, j))],
        out_specs=block,
    )(x, bias)


def one_register_at_a_time(x: jax.Array, bias: jax.Array) -> jax.Array:
    return _biased_gelu(x, bias, 8, 128)


def one_register_at_a_time_remedied(x: jax.Array, bias: jax.Array) -> jax.Array:
    return _biased_gelu(x, bias, 128, 1024)


def two_passes(x: jax.Array) -> jax.Array:
    """A first pass finds the mean of each column, a second one subtracts it."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref, sums: jax.Ref) -> None:
        sweep, i = pl.program_id(1), pl.program_id(2)

        @pl.when((sweep == 0) & (i == 0))
        def _start() -> None:
            sums[...] = jnp.zeros_like(sums)

        @pl.when(sweep == 0)
        def _add() -> None:
            sums[...] += jnp.sum(x_ref[...], axis=0, keepdims=True)

        @pl.when(sweep == 1)
        def _subtract() -> None:
            out_ref[...] = x_ref[...] - sums[...] / 4096.0

    block = (512, 256)
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(x.shape[1] // 256, 2, x.shape[0] // 512),
        in_specs=[pl.BlockSpec(block, lambda c, sweep, i: (i, c))],  # SLOW
        out_specs=pl.BlockSpec(block, lambda c, sweep, i: (i * sweep, c)),
        scratch_shapes=[pltpu.VMEM((1, 256), F32)],
    )(x)


def three_passes(x: jax.Array) -> jax.Array:
    """Passes along rows find their maxima, the sums, and the result."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref, m_ref: jax.Ref, l_ref: jax.Ref) -> None:
        sweep, j = pl.program_id(1), pl.program_id(2)

        @pl.when((sweep == 0) & (j == 0))
        def _start() -> None:
            m_ref[...] = jnp.full_like(m_ref, -jnp.inf)
            l_ref[...] = jnp.zeros_like(l_ref)

        @pl.when(sweep == 0)
        def _maxima() -> None:
            m_ref[...] = jnp.maximum(m_ref[...], jnp.max(x_ref[...], axis=1, keepdims=True))

        @pl.when(sweep == 1)
        def _sums() -> None:
            l_ref[...] += jnp.sum(jnp.exp(x_ref[...] - m_ref[:, :1]), axis=1, keepdims=True)

        @pl.when(sweep == 2)
        def _divide() -> None:
            out_ref[...] = jnp.exp(x_ref[...] - m_ref[:, :1]) / l_ref[:, :1]

    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(x.shape[0] // 256, 3, x.shape[1] // 1024),
        in_specs=[pl.BlockSpec((256, 1024), lambda i, sweep, j: (i, j))],  # SLOW
        out_specs=pl.BlockSpec((256, 1024), lambda i, sweep, j: (i, jnp.where(sweep == 2, j, 0))),
        scratch_shapes=[pltpu.VMEM((256, 128), F32)] * 2,
    )(x)


def three_passes_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        e = jnp.exp(x_ref[...] - jnp.max(x_ref[...], axis=1, keepdims=True))
        out_ref[...] = e / jnp.sum(e, axis=1, keepdims=True)

    block = pl.BlockSpec((64, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        kernel, out_shape=x, grid=(x.shape[0] // 64,), in_specs=[block], out_specs=block
    )(x)


def two_passes_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            rows = x_ref[pl.ds(pl.multiple_of(i * 64, 64), 64), :]
            return total + jnp.sum(rows, axis=0, keepdims=True)

        n = x_ref.shape[0] // 64
        mean = lax.fori_loop(0, n, add, jnp.zeros((1, x_ref.shape[1]), F32)) / 4096.0

        def subtract(i: jax.Array, _: None) -> None:
            rows = pl.ds(pl.multiple_of(i * 64, 64), 64)
            out_ref[rows, :] = x_ref[rows, :] - mean

        lax.fori_loop(0, n, subtract, None)

    block = pl.BlockSpec((4096, 128), lambda c: (0, c))
    return pl.pallas_call(
        kernel, out_shape=x, grid=(x.shape[1] // 128,), in_specs=[block], out_specs=block
    )(x)


def iterated(x: jax.Array, outer: str, *, times: int = 16) -> jax.Array:
    """A recurrence along the inner axis, in scratch, for each part of the outer one."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref, state: jax.Ref) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            state[...] = jnp.zeros_like(state)

        value = x_ref[...] + state[...]
        for _ in range(times):
            value = jnp.tanh(value)
        state[...] = out_ref[...] = value

    block = pl.BlockSpec((None, 128, x.shape[2]), lambda b, t: (b, t, 0))
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(x.shape[0], x.shape[1] // 128),
        in_specs=[block],
        out_specs=block,
        scratch_shapes=[pltpu.VMEM((128, x.shape[2]), F32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=(outer, "arbitrary")),
    )(x)


def on_one_core(x: jax.Array) -> jax.Array:
    """Both axes are declared arbitrary, so that the second core of v5p does nothing."""
    return iterated(x, "arbitrary")


def on_one_core_remedied(x: jax.Array) -> jax.Array:
    return iterated(x, "parallel")


MATRICES = (jax.ShapeDtypeStruct((1024, 1024), BF16),) * 2
KERNELS = (
    SlowKernel(
        advice="small-blocks",
        summary="Blocks so small that the operands are fetched 8 times.",
        function=tiny_blocks,
        helper=_tiled_matmul,
        remedied=tiny_blocks_remedied,
        args=MATRICES,
    ),
    SlowKernel(
        advice="small-blocks",
        summary="Steps too short for their work to overlap.",
        function=short_steps,
        helper=_row_softmax,
        remedied=short_steps_remedied,
        args=(jax.ShapeDtypeStruct((2048, 512), F32),),
        parts=("make 256 grid steps: ", "such as (128, 512) for x_ref"),
    ),
    SlowKernel(
        advice="small-blocks",
        summary="Blocks of one vector register, whose steps wait for the latency of copies.",
        function=one_register_at_a_time,
        helper=_biased_gelu,
        remedied=one_register_at_a_time_remedied,
        args=(jax.ShapeDtypeStruct((256, 1024), F32), jax.ShapeDtypeStruct((1, 1024), F32)),
        parts=("blocks of (8, 128) make 256 grid steps: each step waits ",),
    ),
    SlowKernel(
        advice="small-blocks",
        summary="A flash attention with blocks of 128.",
        function=small_attention,
        remedied=small_attention_remedied,
        args=(jax.ShapeDtypeStruct((1, 1, 1024, 128), BF16),) * 3,
        parts=("blocks of (1, 1, 128, 128) make 64 grid steps", "VALU, the busiest vector unit"),
    ),
    SlowKernel(
        advice="single-buffer",
        summary="A streamed operand with one buffer.",
        function=single_buffer,
        helper=_scale,
        remedied=single_buffer_remedied,
        args=(jax.ShapeDtypeStruct((4096, 1024), F32),),
    ),
    SlowKernel(
        advice="small-copies",
        summary="A strided copy, row by row.",
        function=strided_copies,
        remedied=strided_copies_remedied,
        rearrange=lambda x: (x.transpose(1, 0, 2),),
        args=(jax.ShapeDtypeStruct((256, 8, 128), F32),),
    ),
    SlowKernel(
        advice="two-passes",
        summary="The whole array is fetched twice, once for the means and once for the result.",
        function=two_passes,
        remedied=two_passes_remedied,
        args=(jax.ShapeDtypeStruct((4096, 1024), F32),),
    ),
    SlowKernel(
        advice="two-passes",
        summary="A softmax of long rows that fetches them three times.",
        function=three_passes,
        remedied=three_passes_remedied,
        args=(jax.ShapeDtypeStruct((512, 8192), F32),),
        parts=("goes over x_ref 3 times", ", 8192): "),
    ),
    SlowKernel(
        advice="copy-wait",
        summary="A copy by hand that is waited for as soon as it is started.",
        function=weights_waited_for,
        remedied=weights_waited_for_remedied,
        args=(
            jax.ShapeDtypeStruct((256, 512), BF16),
            jax.ShapeDtypeStruct((16, 512, 256), BF16),
        ),
        parts=("nothing overlaps with this copy of 256.0 KiB",),
    ),
    SlowKernel(
        advice="grid-order",
        summary="A grid in the order that fetches one operand for each batch.",
        function=bias_fetched_again,
        helper=_biased,
        remedied=bias_fetched_again_remedied,
        args=(
            jax.ShapeDtypeStruct((8, 2048, 512), F32),
            jax.ShapeDtypeStruct((2048, 512), F32),
        ),
        parts=(
            "bias_ref are fetched 16 times, although there are only 2",
            "axes of the grid to 1, 0",
        ),
    ),
    SlowKernel(
        advice="one-core",
        summary="A grid that one core runs alone, though no step along its first axis needs another.",
        function=on_one_core,
        remedied=on_one_core_remedied,
        args=(jax.ShapeDtypeStruct((4, 512, 256), F32),),
        parts=(
            "all 16 steps of the grid run on one core, but v5p has 2",
            "declare axis 0 parallel, since no step along it depends on another one: "
            'compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", '
            '"arbitrary"))',
        ),
        targets=("v5p",),
    ),
)

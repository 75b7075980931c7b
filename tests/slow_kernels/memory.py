"""Data that stays in VMEM, and is moved there again and again."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .slow import SlowKernel

F32 = jnp.float32


def _again(
    kernel: object, x: jax.Array, out: tuple[int, ...], scratch: tuple[object, ...] = ()
) -> jax.Array:
    """Every step works on the same blocks, so that computation decides."""
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(out, F32),
        grid=(16,),
        in_specs=[pl.BlockSpec(x.shape, lambda i: (0, 0))],
        out_specs=pl.BlockSpec(out, lambda i: (0, 0)),
        scratch_shapes=scratch,
    )(x)


def _rows(i: jax.Array, count: int) -> object:
    return pl.ds(pl.multiple_of(i * count, count), count)


def squares_summed_in_memory(x: jax.Array) -> jax.Array:
    """Each iteration loads the sum so far, and stores it."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[...] = jnp.zeros_like(out_ref)

        @pl.loop(0, x_ref.shape[0] // 32)
        def _(i: jax.Array) -> None:
            part = x_ref[_rows(i, 32), :]
            out_ref[...] += part * part  # SLOW

    return _again(kernel, x, (32, x.shape[1]))


def squares_summed_in_memory_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            part = x_ref[_rows(i, 32), :]
            return total + part * part

        zero = jnp.zeros(out_ref.shape, F32)
        out_ref[...] = lax.fori_loop(0, x_ref.shape[0] // 32, add, zero, unroll=8)

    return _again(kernel, x, (32, x.shape[1]))


def state_kept_in_memory(x: jax.Array) -> jax.Array:
    """Each iteration loads the state of a recurrence that the one before has stored."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref, state: jax.Ref) -> None:
        state[...] = jnp.zeros_like(state)

        @pl.loop(0, x_ref.shape[0] // 8)
        def _(i: jax.Array) -> None:
            state[...] = state[...] * 0.9 + x_ref[_rows(i, 8), :]  # SLOW
            out_ref[_rows(i, 8), :] = state[...]

    return _again(kernel, x, x.shape, (pltpu.VMEM((8, x.shape[1]), F32),))


def state_kept_in_memory_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def step(i: jax.Array, state: jax.Array) -> jax.Array:
            state = state * 0.9 + x_ref[_rows(i, 8), :]
            out_ref[_rows(i, 8), :] = state
            return state

        zero = jnp.zeros((8, x_ref.shape[1]), F32)
        lax.fori_loop(0, x_ref.shape[0] // 8, step, zero, unroll=8)

    return _again(kernel, x, x.shape)


def returns_kept_in_memory(x: jax.Array) -> jax.Array:
    """Discounted sums, from the last row to the first, with the sum in scratch."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref, total: jax.Ref) -> None:
        total[...] = jnp.zeros_like(total)

        @pl.loop(0, x_ref.shape[0])
        def _(i: jax.Array) -> None:
            row = pl.ds(x_ref.shape[0] - 1 - i, 1)
            total[...] = x_ref[row, :] + 0.99 * total[...]  # SLOW
            out_ref[row, :] = total[...]

    return _again(kernel, x, x.shape, (pltpu.VMEM((1, x.shape[1]), F32),))


def _returns(x: jax.Array, unroll: int) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def step(i: jax.Array, total: jax.Array) -> jax.Array:
            row = pl.ds(x_ref.shape[0] - 1 - i, 1)
            total = x_ref[row, :] + 0.99 * total
            out_ref[row, :] = total
            return total

        zero = jnp.zeros((1, x_ref.shape[1]), F32)
        lax.fori_loop(0, x_ref.shape[0], step, zero, unroll=unroll)  # SLOW

    return _again(kernel, x, x.shape)


def returns_row_by_row(x: jax.Array) -> jax.Array:
    """Each iteration takes longer for its addresses and its branch than for one row."""
    return _returns(x, 1)


def returns_unrolled(x: jax.Array) -> jax.Array:
    return _returns(x, 8)


def _largest(x: jax.Array, unroll: int, *, is_in_place: bool) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        values = out_ref if is_in_place else x_ref
        if is_in_place:
            out_ref[...] = x_ref[: out_ref.shape[0], :]

        def step(i: jax.Array, largest: jax.Array) -> jax.Array:
            value = values[pl.ds(i, 1), :]
            is_new = x_ref[pl.ds(out_ref.shape[0] + i, 1), :] > 0.0
            largest = jnp.where(is_new, value, jnp.maximum(largest, value))
            out_ref[pl.ds(i, 1), :] = largest
            return largest

        zero = jnp.zeros((1, x_ref.shape[1]), F32)
        lax.fori_loop(0, out_ref.shape[0], step, zero, unroll=unroll)  # SLOW

    return _again(kernel, x, (x.shape[0] // 2, x.shape[1]))


def largest_row_by_row(x: jax.Array) -> jax.Array:
    """The addresses of rows take longer than the maximum."""
    return _largest(x, 1, is_in_place=False)


def largest_unrolled(x: jax.Array) -> jax.Array:
    return _largest(x, 8, is_in_place=False)


def largest_in_place(x: jax.Array) -> jax.Array:
    """Each iteration updates a row of its own."""
    return _largest(x, 1, is_in_place=True)


def largest_in_place_unrolled(x: jax.Array) -> jax.Array:
    return _largest(x, 8, is_in_place=True)


def input_copied_to_scratch(x: jax.Array) -> jax.Array:
    """The whole block is copied before a loop works on it."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref, copy: jax.Ref) -> None:
        copy[...] = x_ref[...]  # SLOW

        @pl.loop(0, x_ref.shape[0] // 32)
        def _(i: jax.Array) -> None:
            out_ref[_rows(i, 32), :] = copy[_rows(i, 32), :] * 2.0 + 1.0

    return _again(kernel, x, x.shape, (pltpu.VMEM(x.shape, F32),))


def input_copied_to_scratch_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.loop(0, x_ref.shape[0] // 32)
        def _(i: jax.Array) -> None:
            out_ref[_rows(i, 32), :] = x_ref[_rows(i, 32), :] * 2.0 + 1.0

    return _again(kernel, x, x.shape)


def output_copied_from_scratch(x: jax.Array) -> jax.Array:
    """A loop stores to scratch, which is then copied to the output."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref, copy: jax.Ref) -> None:
        @pl.loop(0, x_ref.shape[0] // 32)
        def _(i: jax.Array) -> None:
            copy[_rows(i, 32), :] = x_ref[_rows(i, 32), :] * 2.0 + 1.0

        out_ref[...] = copy[...]  # SLOW

    return _again(kernel, x, x.shape, (pltpu.VMEM(x.shape, F32),))


def chunks_copied_one_by_one(x: jax.Array) -> jax.Array:
    """Each iteration starts a copy within VMEM, and waits for it."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref, chunk: jax.Ref, done: jax.Ref) -> None:
        @pl.loop(0, x_ref.shape[0] // 32)
        def _(i: jax.Array) -> None:
            copy = pltpu.make_async_copy(x_ref.at[_rows(i, 32), :], chunk, done)
            copy.start()  # SLOW
            copy.wait()
            out_ref[_rows(i, 32), :] = chunk[...] * 2.0 + 1.0

    scratch = pltpu.VMEM((32, x.shape[1]), F32), pltpu.SemaphoreType.DMA
    return _again(kernel, x, x.shape, scratch)


KERNELS = (
    SlowKernel(
        advice="kept-in-memory",
        summary="A sum of blocks that is kept in the output.",
        function=squares_summed_in_memory,
        remedied=squares_summed_in_memory_remedied,
        args=(jax.ShapeDtypeStruct((1024, 512), F32),),
        parts=("loads and stores 16 registers of out_ref", "carry the value through lax.fori_loop"),
        targets=("v5e",),
    ),
    SlowKernel(
        advice="kept-in-memory",
        summary="A recurrence whose state is kept in scratch.",
        function=state_kept_in_memory,
        remedied=state_kept_in_memory_remedied,
        args=(jax.ShapeDtypeStruct((512, 512), F32),),
        parts=("loads and stores 4 registers of state",),
        targets=("v5e",),
    ),
    SlowKernel(
        advice="kept-in-memory",
        summary="Discounted sums that wait for what they have stored.",
        function=returns_kept_in_memory,
        remedied=returns_unrolled,
        args=(jax.ShapeDtypeStruct((256, 512), F32),),
        parts=("loads and stores 1 register of total", "it takes 20 cycles, but only about 1"),
        targets=("v5e",),
    ),
    SlowKernel(
        advice="rolled-loop",
        summary="Discounted sums of one row in each iteration.",
        function=returns_row_by_row,
        remedied=returns_unrolled,
        helper=_returns,
        args=(jax.ShapeDtypeStruct((256, 512), F32),),
        parts=(
            "although the next one could begin after about 4",
            "pass unroll=8 to the loop, or 8 times its present unroll",
        ),
    ),
    SlowKernel(
        advice="rolled-loop",
        summary="A maximum since the last reset, which waits for addresses of rows.",
        function=largest_row_by_row,
        remedied=largest_unrolled,
        helper=_largest,
        args=(jax.ShapeDtypeStruct((512, 512), F32),),
        parts=("it waits for addresses, its other results and the branch",),
        targets=("v6e",),
    ),
    SlowKernel(
        advice="rolled-loop",
        summary="A maximum since the last reset, in place, in rows of one register.",
        function=largest_in_place,
        remedied=largest_in_place_unrolled,
        helper=_largest,
        args=(jax.ShapeDtypeStruct((512, 128), F32),),
        targets=("v5e",),
    ),
    SlowKernel(
        advice="vmem-copy",
        summary="An input that is copied to scratch.",
        function=input_copied_to_scratch,
        remedied=input_copied_to_scratch_remedied,
        args=(jax.ShapeDtypeStruct((512, 512), F32),),
        parts=("x_ref is copied to copy", "remove copy, and read x_ref"),
    ),
    SlowKernel(
        advice="vmem-copy",
        summary="An output that is copied from scratch.",
        function=output_copied_from_scratch,
        remedied=input_copied_to_scratch_remedied,
        args=(jax.ShapeDtypeStruct((512, 512), F32),),
        parts=("copy is copied to out_ref", "remove copy, and store to out_ref"),
    ),
    SlowKernel(
        advice="vmem-copy",
        summary="Chunks that are copied within VMEM before they are used.",
        function=chunks_copied_one_by_one,
        remedied=input_copied_to_scratch_remedied,
        args=(jax.ShapeDtypeStruct((512, 512), F32),),
        parts=("x_ref is copied to chunk",),
    ),
)

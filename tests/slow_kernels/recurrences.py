"""Loops whose iterations go on with the result of the one before."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .slow import SlowKernel

F32 = jnp.float32


def _columns(kernel: object, x: jax.Array) -> jax.Array:
    block = pl.BlockSpec((x.shape[0], 256), lambda i: (0, i))
    return pl.pallas_call(
        kernel, out_shape=x, grid=(x.shape[1] // 256,), in_specs=[block], out_specs=block
    )(x)


def running_sum(x: jax.Array) -> jax.Array:
    """Each iteration adds a row to the sum that it carries."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            total = total + x_ref[i, :]  # SLOW
            out_ref[i, :] = total
            return total

        lax.fori_loop(0, x_ref.shape[0], add, jnp.zeros(x_ref.shape[1:], F32))

    return _columns(kernel, x)


def running_sum_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            at = pl.ds(pl.multiple_of(i * 32, 32), 32)
            s = x_ref[at, :]
            row = lax.broadcasted_iota(jnp.int32, s.shape, 0)
            for k in (1, 2, 4, 8, 16):
                s = s + jnp.where(row >= k, jnp.roll(s, k, 0), 0)
            s = s + total
            out_ref[at, :] = s
            return s[31:, :]

        lax.fori_loop(0, x_ref.shape[0] // 32, add, jnp.zeros((1, x_ref.shape[1]), F32))

    return _columns(kernel, x)


def sum_kept_in_scratch(x: jax.Array) -> jax.Array:
    """Each iteration adds a row to the sum in a ref, and stores what it reads there."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref, total: jax.Ref) -> None:
        total[...] = jnp.zeros_like(total)

        @pl.loop(0, x_ref.shape[0])
        def _(i: jax.Array) -> None:
            total[0, :] = total[0, :] + x_ref[i, :]  # SLOW
            out_ref[i, :] = total[0, :]

    block = pl.BlockSpec((x.shape[0], 256), lambda i: (0, i))
    return pl.pallas_call(
        kernel,
        out_shape=x,
        grid=(x.shape[1] // 256,),
        in_specs=[block],
        out_specs=block,
        scratch_shapes=[pltpu.VMEM((1, 256), F32)],
    )(x)


def unrolled_sum(x: jax.Array) -> jax.Array:
    """Each iteration adds 8 rows, and each of these waits for the one before."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            total = total + x_ref[pl.ds(i, 1), :]  # SLOW
            out_ref[pl.ds(i, 1), :] = total
            return total

        lax.fori_loop(0, x_ref.shape[0], add, jnp.zeros((1, x_ref.shape[1]), F32), unroll=8)

    return _columns(kernel, x)


def sum_of_those_before(x: jax.Array) -> jax.Array:
    """Each row gets the sum of the rows before it."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            out_ref[i, :] = total
            return total + x_ref[i, :]  # SLOW

        lax.fori_loop(0, x_ref.shape[0], add, jnp.zeros(x_ref.shape[1:], F32))

    return _columns(kernel, x)


def sum_of_those_before_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            at = pl.ds(pl.multiple_of(i * 32, 32), 32)
            s = x_ref[at, :]
            row = lax.broadcasted_iota(jnp.int32, s.shape, 0)
            for k in (1, 2, 4, 8, 16):
                s = s + jnp.where(row >= k, jnp.roll(s, k, 0), 0)
            s = s + total
            out_ref[at, :] = jnp.where(row >= 1, jnp.roll(s, 1, 0), total)
            return s[31:, :]

        lax.fori_loop(0, x_ref.shape[0] // 32, add, jnp.zeros((1, x_ref.shape[1]), F32))

    return _columns(kernel, x)


def running_maximum(x: jax.Array) -> jax.Array:
    """Each iteration reads the row that the one before has stored."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        out_ref[0, :] = x_ref[0, :]

        @pl.loop(1, x_ref.shape[0])
        def _(i: jax.Array) -> None:
            out_ref[i, :] = jnp.maximum(out_ref[i - 1, :], x_ref[i, :])  # SLOW

    return _columns(kernel, x)


def running_maximum_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def compare(i: jax.Array, highest: jax.Array) -> jax.Array:
            at = pl.ds(pl.multiple_of(i * 32, 32), 32)
            s = x_ref[at, :]
            row = lax.broadcasted_iota(jnp.int32, s.shape, 0)
            for k in (1, 2, 4, 8, 16):
                s = jnp.maximum(s, jnp.where(row >= k, jnp.roll(s, k, 0), -jnp.inf))
            s = jnp.maximum(s, highest)
            out_ref[at, :] = s
            return s[31:, :]

        lowest = jnp.full((1, x_ref.shape[1]), -jnp.inf, F32)
        lax.fori_loop(0, x_ref.shape[0] // 32, compare, lowest)

    return _columns(kernel, x)


def sum_from_the_end(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        last = x_ref.shape[0] - 1

        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            total = total + x_ref[last - i, :]  # SLOW
            out_ref[last - i, :] = total
            return total

        lax.fori_loop(0, x_ref.shape[0], add, jnp.zeros(x_ref.shape[1:], F32))

    return _columns(kernel, x)


def sum_from_the_end_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        count = x_ref.shape[0] // 32

        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            at = pl.ds(pl.multiple_of((count - 1 - i) * 32, 32), 32)
            s = x_ref[at, :]
            row = lax.broadcasted_iota(jnp.int32, s.shape, 0)
            for k in (1, 2, 4, 8, 16):
                s = s + jnp.where(row < 32 - k, jnp.roll(s, 32 - k, 0), 0)
            s = s + total
            out_ref[at, :] = s
            return s[:1, :]

        lax.fori_loop(0, count, add, jnp.zeros((1, x_ref.shape[1]), F32))

    return _columns(kernel, x)


def _blended(kernel: object, w: jax.Array, d: jax.Array) -> jax.Array:
    block = pl.BlockSpec((32, d.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        out_shape=d,
        grid=(d.shape[0] // 32,),
        in_specs=[pl.BlockSpec(w.shape, lambda i: (0, 0)), block],
        out_specs=block,
    )(w, d)


def divided_by_the_same(w: jax.Array, d: jax.Array) -> jax.Array:
    """Each iteration divides by the same block."""

    def kernel(w_ref: jax.Ref, d_ref: jax.Ref, out_ref: jax.Ref) -> None:
        def step(i: jax.Array, total: jax.Array) -> jax.Array:
            return total + jnp.abs(total - w_ref[pl.ds(i, 1), :]) / d_ref[...]  # SLOW

        out_ref[...] = lax.fori_loop(0, w_ref.shape[0], step, jnp.ones(out_ref.shape, F32))

    return _blended(kernel, w, 4.0 + jnp.abs(d))


def divided_by_the_same_remedied(w: jax.Array, d: jax.Array) -> jax.Array:
    def kernel(w_ref: jax.Ref, d_ref: jax.Ref, out_ref: jax.Ref) -> None:
        reciprocal = 1.0 / d_ref[...]

        def step(i: jax.Array, total: jax.Array) -> jax.Array:
            return total + jnp.abs(total - w_ref[pl.ds(i, 1), :]) * reciprocal

        out_ref[...] = lax.fori_loop(0, w_ref.shape[0], step, jnp.ones(out_ref.shape, F32))

    return _blended(kernel, w, 4.0 + jnp.abs(d))


def _whole(kernel: object, x: jax.Array) -> jax.Array:
    """Every step works on the same block, so that computation decides."""
    block = pl.BlockSpec(x.shape, lambda i: (0, 0))
    return pl.pallas_call(kernel, out_shape=x, grid=(16,), in_specs=[block], out_specs=block)(x)


def sum_of_single_rolls(x: jax.Array) -> jax.Array:
    """Each row of 32 adds all those before it, each by a rotation of its own."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.loop(0, x_ref.shape[0] // 32)
        def _(i: jax.Array) -> None:
            part = x_ref[pl.ds(pl.multiple_of(i * 32, 32), 32), :]
            row = lax.broadcasted_iota(jnp.int32, part.shape, 0)
            total = part
            for k in range(1, 32):
                total = total + jnp.where(row >= k, pltpu.roll(part, k, 0), 0)  # SLOW
            out_ref[pl.ds(pl.multiple_of(i * 32, 32), 32), :] = total

    return _whole(kernel, x)


def sum_of_single_rolls_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        @pl.loop(0, x_ref.shape[0] // 32)
        def _(i: jax.Array) -> None:
            total = x_ref[pl.ds(pl.multiple_of(i * 32, 32), 32), :]
            row = lax.broadcasted_iota(jnp.int32, total.shape, 0)
            for k in (1, 2, 4, 8, 16):
                total = total + jnp.where(row >= k, pltpu.roll(total, k, 0), 0)
            out_ref[pl.ds(pl.multiple_of(i * 32, 32), 32), :] = total

    return _whole(kernel, x)


def sum_of_repeated_rolls(x: jax.Array) -> jax.Array:
    """Each iteration rotates by one lane, and adds."""

    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        column = lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)

        def add(_: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            total, rolled = carry
            rolled = jnp.where(column >= 1, pltpu.roll(rolled, 1, 1), 0)  # SLOW
            return total + rolled, rolled

        out_ref[...], _ = lax.fori_loop(0, x_ref.shape[1] - 1, add, (x_ref[...], x_ref[...]))

    return _whole(kernel, x)


def sum_of_repeated_rolls_remedied(x: jax.Array) -> jax.Array:
    def kernel(x_ref: jax.Ref, out_ref: jax.Ref) -> None:
        column = lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)
        total = x_ref[...]
        for k in (1, 2, 4, 8, 16, 32, 64):
            total = total + jnp.where(column >= k, pltpu.roll(total, k, 1), 0)
        out_ref[...] = total

    return _whole(kernel, x)


KERNELS = (
    SlowKernel(
        advice="running-sum",
        summary="A prefix sum that adds one row at a time.",
        function=running_sum,
        remedied=running_sum_remedied,
        args=(jax.ShapeDtypeStruct((256, 512), F32),),
        parts=("adds one row to the sum of those before it", "s = s + jnp.where(row >= k, "),
    ),
    SlowKernel(
        advice="running-sum",
        summary="A prefix sum that is kept in a scratch buffer.",
        function=sum_kept_in_scratch,
        remedied=running_sum_remedied,
        args=(jax.ShapeDtypeStruct((256, 512), F32),),
        parts=("adds one row to the sum of those before it",),
        targets=("v5e",),
    ),
    SlowKernel(
        advice="running-sum",
        summary="A prefix sum in a loop that was unrolled.",
        function=unrolled_sum,
        remedied=running_sum_remedied,
        args=(jax.ShapeDtypeStruct((256, 512), F32),),
        parts=("to the sum of those before it",),
        targets=("v5e",),
    ),
    SlowKernel(
        advice="running-sum",
        summary="A sum of the rows before each one.",
        function=sum_of_those_before,
        remedied=sum_of_those_before_remedied,
        args=(jax.ShapeDtypeStruct((256, 512), F32),),
        parts=("store pltpu.roll(s, 1, 0) with that row as its first one",),
        targets=("v5e",),
    ),
    SlowKernel(
        advice="running-sum",
        summary="A running maximum that reads each row of the output again.",
        function=running_maximum,
        remedied=running_maximum_remedied,
        args=(jax.ShapeDtypeStruct((256, 512), F32),),
        parts=("with the maximum of those before it", "0), -jnp.inf))"),
    ),
    SlowKernel(
        advice="running-sum",
        summary="A sum from the last row to the first.",
        function=sum_from_the_end,
        remedied=sum_from_the_end_remedied,
        args=(jax.ShapeDtypeStruct((256, 512), F32),),
        parts=("jnp.where(row < 32 - k, pltpu.roll(s, 32 - k, 0), 0)",),
    ),
    SlowKernel(
        advice="invariant",
        summary="A division by the same block in each iteration.",
        function=divided_by_the_same,
        remedied=divided_by_the_same_remedied,
        args=(jax.ShapeDtypeStruct((16, 256), F32), jax.ShapeDtypeStruct((128, 256), F32)),
        parts=("divides by values that no iteration changes", "multiply by it in the loop"),
        targets=("v5e",),  # on v6e, the remedy saves only 6 to 11 % of the cycles
    ),
    SlowKernel(
        advice="single-rolls",
        summary="A prefix sum of 32 rows by 31 rotations.",
        function=sum_of_single_rolls,
        remedied=sum_of_single_rolls_remedied,
        args=(jax.ShapeDtypeStruct((512, 256), F32),),
        parts=("combined with 31 rotations of itself", "5 give the same"),
    ),
    SlowKernel(
        advice="single-rolls",
        summary="A prefix sum along lanes by 127 rotations by one.",
        function=sum_of_repeated_rolls,
        remedied=sum_of_repeated_rolls_remedied,
        args=(jax.ShapeDtypeStruct((64, 128), F32),),
        parts=("combined with 127 rotations of itself", "7 give the same"),
    ),
)

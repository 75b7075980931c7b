"""Kernels that the tests of the debugger step through; comments name lines."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug


@jax.jit
def doubled(x: Any) -> Any:
    twice = x * 2
    return jnp.where(twice > 100, twice, twice)


def scaled(x: Any) -> Any:
    inner = doubled(x)
    return inner + 1


def sums_kernel(x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)  # reset

    def body(j: Any, carry: Any) -> Any:
        total, _ = carry
        total = total + x_ref[j]  # add
        return total, x_ref[j]

    total, last = jax.lax.fori_loop(0, 4, body, (acc_ref[0], acc_ref[0]))
    acc_ref[0] = total  # keep
    result = scaled(total + 0 * last)  # scale
    o_ref[...] = result[None]  # out


def sums(x: Any) -> Any:
    return pl.pallas_call(
        sums_kernel,
        grid=(2, 3),
        in_specs=[pl.BlockSpec((4, 128), lambda i, k: (i * 3 + k, 0))],
        out_specs=pl.BlockSpec((1, 128), lambda i, k: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((2, 128), x.dtype),
        scratch_shapes=[pltpu.VMEM((1, 128), x.dtype)],
    )(x)


def copies_kernel(x_ref: Any, o_ref: Any, buffer: Any, done: Any) -> None:
    copy = pltpu.make_async_copy(x_ref.at[pl.ds(1, 1)], buffer, done)
    copy.start()  # start
    value = jnp.float32(1)
    copy.wait()  # wait
    o_ref[...] = buffer[...] + value  # out of the buffer


def copies(x: Any) -> Any:
    return pl.pallas_call(
        copies_kernel,
        out_shape=jax.ShapeDtypeStruct((1, 128), x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM((1, 128), x.dtype), pltpu.SemaphoreType.DMA],
    )(x)


def waits_kernel(x_ref: Any, o_ref: Any, never: Any) -> None:
    o_ref[...] = x_ref[...]
    pl.semaphore_wait(never, 2)  # deadlock


def waits(x: Any) -> Any:
    never = pltpu.SemaphoreType.REGULAR
    return pl.pallas_call(waits_kernel, out_shape=x, scratch_shapes=[never])(x)


def endless_kernel(x_ref: Any, o_ref: Any) -> None:
    def body(n: Any) -> Any:
        return n + 1

    n = jax.lax.while_loop(lambda n: n < 200, body, jnp.int32(0))  # endless
    o_ref[...] = x_ref[...] + n


def endless(x: Any) -> Any:
    return pl.pallas_call(endless_kernel, out_shape=x)(x)


def marked_kernel(x_ref: Any, o_ref: Any) -> None:
    total = x_ref[...] * 2

    @pl.when(pl.program_id(0) == 1)
    def _() -> None:
        pallas_debug.breakpoint()  # marked
        o_ref[...] = total

    @pl.when(pl.program_id(0) != 1)
    def _() -> None:
        o_ref[...] = x_ref[...]


def marked(x: Any) -> Any:
    pallas_debug.breakpoint()
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    call = pl.pallas_call(marked_kernel, x, grid=(3,), in_specs=[block], out_specs=block)
    return call(x)


def stale_kernel(x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
    @pl.when(pl.program_id(0) + pl.program_id(1) == 0)
    def _() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += x_ref[0:1]  # stale
    o_ref[...] = acc_ref[...]


def stale(x: Any) -> Any:
    return pl.pallas_call(
        stale_kernel,
        grid=(2, 3),
        in_specs=[pl.BlockSpec((4, 128), lambda i, k: (i * 3 + k, 0))],
        out_specs=pl.BlockSpec((1, 128), lambda i, k: (0, i)),
        out_shape=jax.ShapeDtypeStruct((1, 256), x.dtype),
        scratch_shapes=[pltpu.VMEM((1, 128), x.dtype)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        name="stale",
    )(x)


def divided_kernel(x_ref: Any, o_ref: Any) -> None:
    x = x_ref[...].astype(jnp.int32)
    o_ref[...] = jax.lax.div(x, x - x)  # divided


def divided(x: Any) -> Any:
    return pl.pallas_call(divided_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, jnp.int32))(x)


def helper(x_ref: Any, o_ref: Any) -> None:
    @pl.when(pl.program_id(0) == 1)
    def _() -> None:
        def row(j: Any, _: Any) -> Any:
            value = x_ref[j] * 2
            o_ref[j] = value  # in a helper's loop

        jax.lax.fori_loop(0, 8, row, None)


def helped_kernel(*refs: Any) -> None:
    helper(*refs)  # call of the helper


def helped(x: Any) -> Any:
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    call = pl.pallas_call(helped_kernel, x, grid=(3,), in_specs=[block], out_specs=block)
    return call(x)


def both(x: Any) -> Any:
    y = sums(x)
    return copies(y + 1), sums(x * 2)

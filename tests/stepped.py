"""Kernels that the tests of the debugger step through; comments name lines."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

F32 = jnp.float32
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))


@jax.jit
def doubled(x: Any) -> Any:
    twice = x * 2
    return jnp.where(twice > 100, twice, twice)


def scaled(x: Any) -> Any:
    inner = doubled(x)
    return inner + 1


@called(
    jax.ShapeDtypeStruct((2, 128), F32),
    grid=(2, 3),
    in_specs=[pl.BlockSpec((4, 128), lambda i, k: (i * 3 + k, 0))],
    out_specs=pl.BlockSpec((1, 128), lambda i, k: (i, 0)),
    scratch_shapes=[pltpu.VMEM((1, 128), F32)],
)
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


@called(
    jax.ShapeDtypeStruct((1, 128), F32),
    in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
    scratch_shapes=[pltpu.VMEM((1, 128), F32), pltpu.SemaphoreType.DMA],
)
def copies_kernel(x_ref: Any, o_ref: Any, buffer: Any, done: Any) -> None:
    copy = pltpu.make_async_copy(x_ref.at[pl.ds(1, 1)], buffer, done)
    copy.start()  # start
    value = jnp.float32(1)
    copy.wait()  # wait
    o_ref[...] = buffer[...] + value  # out of the buffer


@called(scratch_shapes=[pltpu.SemaphoreType.REGULAR])
def waits_kernel(x_ref: Any, o_ref: Any, never: Any) -> None:
    o_ref[...] = x_ref[...]
    pl.semaphore_wait(never, 2)  # deadlock


@called()
def endless_kernel(x_ref: Any, o_ref: Any) -> None:
    def body(n: Any) -> Any:
        return n + 1

    n = jax.lax.while_loop(lambda n: n < 200, body, jnp.int32(0))  # endless
    o_ref[...] = x_ref[...] + n


@called(
    jax.ShapeDtypeStruct((1, 256), F32),
    grid=(2, 3),
    in_specs=[pl.BlockSpec((4, 128), lambda i, k: (i * 3 + k, 0))],
    out_specs=pl.BlockSpec((1, 128), lambda i, k: (0, i)),
    scratch_shapes=[pltpu.VMEM((1, 128), F32)],
    compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
)
def stale(x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
    @pl.when(pl.program_id(0) + pl.program_id(1) == 0)
    def _() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += x_ref[0:1]  # stale
    o_ref[...] = acc_ref[...]


@called(jax.ShapeDtypeStruct((24, 128), jnp.int32))
def divided_kernel(x_ref: Any, o_ref: Any) -> None:
    x = x_ref[...].astype(jnp.int32)
    o_ref[...] = jax.lax.div(x, x - x)  # divided


def helper(x_ref: Any, o_ref: Any) -> None:
    @pl.when(pl.program_id(0) == 1)
    def _() -> None:
        def row(j: Any, _: Any) -> Any:
            value = x_ref[j] * 2
            o_ref[j] = value  # in a helper's loop

        jax.lax.fori_loop(0, 8, row, None)


@called(grid=(3,), block=ROWS)
def helped_kernel(*refs: Any) -> None:
    helper(*refs)  # call of the helper


def both(x: Any) -> Any:
    y = sums_kernel(x)
    return copies_kernel(y + 1), sums_kernel(x * 2)

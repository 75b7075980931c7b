"""Semaphores with unbalanced signals and waits."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels.broken import BrokenKernel

REGULAR = pltpu.SemaphoreType.REGULAR


def signal_left_over(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, sem: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2
        # Nothing waits: the next kernel that is given this semaphore starts with a count of 1.
        pl.semaphore_signal(sem, 1)  # FAULT

    return pl.pallas_call(double, out_shape=x, scratch_shapes=[REGULAR])(x)


def signal_left_over_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, sem: jax.Ref) -> None:
        out_ref[...] = x_ref[...] * 2
        pl.semaphore_signal(sem, 1)
        pl.semaphore_wait(sem, 1)

    return pl.pallas_call(double, out_shape=x, scratch_shapes=[REGULAR])(x)


def signal_of_two_wait_for_one(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, sem: jax.Ref) -> None:
        pl.semaphore_signal(sem, 2)
        out_ref[...] = x_ref[...] * 2
        # One of the two counts stays, at every grid point.
        pl.semaphore_wait(sem, 1)  # FAULT

    return _double_blocks(double, x)


def signal_of_two_wait_for_one_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, sem: jax.Ref) -> None:
        pl.semaphore_signal(sem, 2)
        out_ref[...] = x_ref[...] * 2
        pl.semaphore_wait(sem, 2)

    return _double_blocks(double, x)


def signalled_once_too_few(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, sem: jax.Ref) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            pl.semaphore_signal(sem, 1)

        # The first grid point signals, and all of them wait.
        pl.semaphore_wait(sem, 1)  # FAULT
        out_ref[...] = x_ref[...] * 2

    return _double_blocks(double, x)


def signalled_once_too_few_repaired(x: jax.Array) -> jax.Array:
    def double(x_ref: jax.Ref, out_ref: jax.Ref, sem: jax.Ref) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _start() -> None:
            pl.semaphore_signal(sem, pl.num_programs(0))

        pl.semaphore_wait(sem, 1)
        out_ref[...] = x_ref[...] * 2

    return _double_blocks(double, x)


def _double_blocks(kernel: object, x: jax.Array) -> jax.Array:
    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        kernel, out_shape=x, grid=(2,), in_specs=[rows], out_specs=rows, scratch_shapes=[REGULAR]
    )(x)


X = (jax.ShapeDtypeStruct((16, 128), jnp.float32),)

KERNELS = (
    BrokenKernel(
        fault="SemaphoreLeftOver",
        summary="A semaphore is signalled and never waited for.",
        function=signal_left_over,
        repaired=signal_left_over_repaired,
        reference=lambda x: x * 2,
        args=X,
    ),
    BrokenKernel(
        fault="SemaphoreLeftOver",
        summary="A semaphore is raised by two and lowered by one, at every grid point.",
        function=signal_of_two_wait_for_one,
        repaired=signal_of_two_wait_for_one_repaired,
        reference=lambda x: x * 2,
        args=X,
    ),
    BrokenKernel(
        fault="Deadlock",
        summary="Every grid point waits for a semaphore that the first one alone signals.",
        function=signalled_once_too_few,
        repaired=signalled_once_too_few_repaired,
        reference=lambda x: x * 2,
        args=X,
    ),
)

"""Semaphores with unbalanced signals and waits."""

import jax
import jax.numpy as jnp
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from .record import fault

X = jax.ShapeDtypeStruct((16, 128), jnp.float32)
ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
REGULAR = pltpu.SemaphoreType.REGULAR


@fault(
    "SemaphoreLeftOver", "A semaphore is signalled and never waited for.", lambda x: x * 2, X
)  # fmt: skip
@called(scratch_shapes=[REGULAR])
def signal_left_over(x_ref, out_ref, sem, repaired=False):
    out_ref[...] = x_ref[...] * 2
    # Nothing waits: the next kernel that is given this semaphore starts with a count of 1.
    pl.semaphore_signal(sem, 1)  # FAULT
    if repaired:
        pl.semaphore_wait(sem, 1)


@fault(
    "Deadlock",
    "Every grid point waits for a semaphore that the first one alone signals.",
    lambda x: x * 2,
    X,
)
@called(grid=(2,), block=ROWS, scratch_shapes=[REGULAR])
def signalled_once_too_few(x_ref, out_ref, sem, repaired=False):
    @pl.when(pl.program_id(0) == 0)
    def _start():
        pl.semaphore_signal(sem, pl.num_programs(0) if repaired else 1)

    # The first grid point signals, and all of them wait.
    pl.semaphore_wait(sem, 1)  # FAULT
    out_ref[...] = x_ref[...] * 2

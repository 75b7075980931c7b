"""Sums over the iterations of a loop, in scratch whose total the kernel copies to its output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import found

ROWS, BLOCKS = 3, 4
TILE = (8, 128)
X = np.random.default_rng(0).standard_normal((ROWS * 8, BLOCKS * 128)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((BLOCKS * 8, 128)).astype(np.float32)
FLAGS = np.array([0, 0, 0, 1], np.int32)


def weighted(reset: str, *, by: str = "block", output: str = "after") -> Callable[..., Any]:
    """Sum the blocks of each row, each times a block of weights.

    Args:
      reset: where the sum is reset.
      by: whether the weights are those of the block, or of block and row.
      output: when the sum goes to the output.
    """

    def kernel(
        flags_ref: Any, x_hbm: Any, w_hbm: Any, o_hbm: Any, x_buf: Any, w_buf: Any, acc: Any
    ) -> None:
        row = pl.program_id(0)

        def start() -> None:
            acc[...] = jnp.zeros_like(acc)

        def store() -> None:
            pltpu.sync_copy(acc, o_hbm.at[pl.ds(row * 8, 8)])

        pl.when((row == 0) | (reset == "before"))(start)

        @pl.loop(0, BLOCKS)
        def _block(k: Any) -> None:
            if reset == "within":
                start()
            at = k if by == "block" else row
            pltpu.sync_copy(x_hbm.at[pl.ds(row * 8, 8), pl.ds(k * 128, 128)], x_buf)
            pltpu.sync_copy(w_hbm.at[pl.ds(at * 8, 8)], w_buf)
            acc[...] += x_buf[...] * w_buf[...]
            if output == "flagged":
                pl.when(flags_ref[k] > 0)(store)
            elif output == "each":
                store()

        if output == "after":
            store()

    any_ = pl.BlockSpec(memory_space=pl.ANY)
    call = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(ROWS,),
            in_specs=[any_, any_],
            out_specs=any_,
            scratch_shapes=[pltpu.VMEM(TILE, jnp.float32)] * 3,
        ),
        out_shape=jax.ShapeDtypeStruct((ROWS * 8, 128), jnp.float32),
    )
    return lambda x, w: call(jnp.asarray(FLAGS), x, w)


def test_a_sum_that_is_not_reset_for_the_next_row() -> None:
    (finding,) = found(weighted("first"), X, W)
    assert (finding.kind, finding.operand) == ("StaleRead", "acc")
    assert (finding.grid_point, finding.loop) == ((1,), (0,))
    assert "reads what grid point (0,), loop iteration (3,) left in acc" in finding.message
    assert finding.cause is not None
    assert finding.cause.startswith("it is reset only at grid point (0,), in line ")
    assert finding.advice == "reset it before this line whenever another part of o_hbm begins"


def test_a_sum_that_each_iteration_resets() -> None:
    (finding,) = found(weighted("within"), X, W)
    assert (finding.kind, finding.operand) == ("LostWrite", "acc")
    assert (finding.grid_point, finding.loop) == ((0,), (1,))
    assert finding.cause == (
        "this line runs in each iteration of the loop, and resets what the one before added"
    )
    assert finding.advice == "reset it before the loop"


@pytest.mark.parametrize(
    "function",
    [
        weighted("before"),
        # A running total: nothing that was added for one row is added again for the next.
        weighted("first", by="row"),
        weighted("first", output="each"),
        # Data decide which iteration's product is the result.
        weighted("within", output="flagged"),
        weighted("within", output="each"),
    ],
)
def test_healthy_sums(function: Callable[..., Any]) -> None:
    assert not found(function, X, W)

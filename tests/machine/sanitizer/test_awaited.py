"""Waits that name data that no copy brings: prefetches of the wrong block, and legal descriptors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import found

ROWS, BLOCKS = 3, 4
X = np.random.default_rng(0).standard_normal((ROWS * BLOCKS * 8, 128)).astype(np.float32)
TABLE = np.array([0, 5, 5, 7, 8, 3, 2, 9, 1, 4, 10, 6], np.int32)

Indices = Callable[[Any, Any], tuple[Any, Any]]
"""Row and block of a copy, from those of the current step."""


def after(row: Any, block: Any) -> tuple[Any, Any]:
    step = row * BLOCKS + block + 1
    return step // BLOCKS, step % BLOCKS


def summed(
    next_one: Indices = after,
    awaited: Indices = lambda row, block: (row, block),
    *,
    place: Callable[[Any], Any] = lambda number: number,
    awaited_place: Callable[[Any], Any] | None = None,
    reads_table: tuple[bool, bool] = (False, False),
    size: int = 8,
) -> Callable[..., Any]:
    """Sum the blocks of each row, double-buffered over all rows.

    Args:
      next_one: the block to prefetch.
      awaited: the block that the descriptor of the wait names.
      place, awaited_place: the number of the copied and of the named block.
      reads_table: whether these numbers are looked up in the table.
      size: rows of a copy; those from the ninth on are its halo.
    """

    def kernel(table_ref: Any, x_hbm: Any, o_ref: Any, buf: Any, sem: Any) -> None:
        def copy(number: Any, slot: Any, *, looks_up: bool) -> Any:
            at = table_ref[number] if looks_up else number
            return pltpu.make_async_copy(x_hbm.at[pl.ds(at * 8, size)], buf.at[slot], sem.at[slot])

        def fetch(row: Any, block: Any, slot: Any) -> None:
            number = place(row * BLOCKS + block)
            copy(number, slot, looks_up=reads_table[0]).start()

        row = pl.program_id(0)

        @pl.when(row == 0)
        def _first() -> None:
            fetch(0, 0, 0)

        o_ref[...] = jnp.zeros_like(o_ref)

        @pl.loop(0, BLOCKS)
        def _block(block: Any) -> None:
            step = row * BLOCKS + block

            @pl.when(step + 1 < ROWS * BLOCKS)
            def _next() -> None:
                fetch(*next_one(row, block), (step + 1) % 2)

            named = awaited(row, block)
            number = (awaited_place or place)(named[0] * BLOCKS + named[1])
            copy(number, step % 2, looks_up=reads_table[1]).wait()
            o_ref[...] += buf[step % 2, 0:8] + buf[step % 2, size - 8 : size]

    call = pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(ROWS,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((8, 128), lambda row, table: (row, 0)),
            scratch_shapes=[pltpu.VMEM((2, size, 128), jnp.float32), pltpu.SemaphoreType.DMA((2,))],
        ),
        out_shape=jax.ShapeDtypeStruct((ROWS * 8, 128), jnp.float32),
    )
    return lambda x: call(jnp.asarray(TABLE), x)


SLIPS: dict[str, tuple[Indices, tuple[bool, bool], tuple[int, int], int, int]] = {
    "the current block": (
        lambda row, block: (row, block), (False, False), (2, 3), 11, 11,
    ),
    "the current row": (
        lambda row, block: (row, (block + 1) % BLOCKS), (False, False), (2, 0), 8, 2,
    ),
    "the next block but one of the next row": (
        lambda row, block: (row + (block + 1) // BLOCKS, (block + 1) % BLOCKS + block // 3),
        *((False, False), (1, 0), 4, 2),
    ),
    "the current row of a table": (
        lambda row, block: (row, (block + 1) % BLOCKS), (True, True), (2, 0), 1, 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS)
def test_a_prefetch_of_another_block(slip: str) -> None:
    next_one, reads_table, step, named, count = SLIPS[slip]
    findings = found(summed(next_one, reads_table=reads_table), X)
    assert [finding.kind for finding in findings] == ["WaitSourceMismatch"]
    (finding,) = findings
    assert (finding.grid_point, finding.loop) == ((step[0],), (step[1],))
    rows = f"x_hbm[{8 * named}:{8 * named + 8}, 0:128]"
    assert (finding.index, finding.count) == (rows, count)
    assert finding.operand == "x_hbm"
    assert finding.source is not None
    assert finding.other is not None
    assert ".wait()" in (finding.source.text or "")
    assert ".start()" in (finding.other.text or "")


@pytest.mark.parametrize("is_right", [True, False])
def test_a_prefetch_of_blocks_with_a_halo(is_right: bool) -> None:
    """The last block begins with what the one before it has as its halo."""
    next_one = after if is_right else (lambda row, block: (row, block))
    findings = found(summed(next_one, size=16), np.concatenate([X, X[:8]]))
    kinds = [(finding.kind, finding.index) for finding in findings]
    assert kinds == ([] if is_right else [("WaitSourceMismatch", "x_hbm[88:104, 0:128]")])


def test_what_a_finding_says() -> None:
    (finding,) = found(summed(lambda row, block: (row, block)), X)
    assert finding.other is not None
    assert finding.message == (
        "the wait names a copy of x_hbm[88:96, 0:128] to buf[1, 0:8, 0:128], but ends one of "
        "x_hbm[80:88, 0:128], started at grid point (2,), in loop iteration (2,); nothing in the "
        "whole run copies x_hbm[88:96, 0:128]"
    )
    assert finding.cause == (
        f"the copy that line {finding.other.line} starts takes its source from the wrong indices; "
        "a wait only counts bytes"
    )
    assert finding.advice == (
        "start the copy of x_hbm[88:96, 0:128] there: give the start the indices that the wait "
        "will have"
    )


def one_too_many(x: jax.Array, *, adds: bool) -> jax.Array:
    """Sum all blocks but the last, and prefetch once more past the end, where nothing is new."""
    last = ROWS * BLOCKS - 2

    def kernel(x_hbm: Any, o_ref: Any, buf: Any, sem: Any) -> None:
        def copy(block: Any, slot: Any) -> Any:
            rows = x_hbm.at[pl.ds(block * 8, 8)]
            return pltpu.make_async_copy(rows, buf.at[slot], sem.at[slot])

        copy(0, 0).start()
        o_ref[...] = jnp.zeros_like(o_ref)

        @pl.loop(0, last + 2)
        def _block(block: Any) -> None:
            copy(block, block % 2).wait()

            @pl.when(block <= last)
            def _next() -> None:
                copy(jnp.minimum(block + 1, last), (block + 1) % 2).start()

            @pl.when((block <= last) | adds)
            def _add() -> None:
                o_ref[...] += buf[block % 2]

    return pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        scratch_shapes=[pltpu.VMEM((2, 8, 128), jnp.float32), pltpu.SemaphoreType.DMA((2,))],
    )(x)


@pytest.mark.parametrize("adds", [True, False])
def test_a_copy_whose_data_are_not_used_may_be_of_any_block(adds: bool) -> None:
    kinds = [finding.kind for finding in found(partial(one_too_many, adds=adds), X)]
    assert kinds == (["WaitSourceMismatch"] if adds else [])


@pytest.mark.parametrize(
    "function",
    [
        summed(),
        summed(reads_table=(True, True)),
        # Any descriptor of the right size ends a wait.
        summed(awaited=lambda row, block: (0, 0)),
        summed(awaited=lambda row, block: (row, 0)),
        summed(awaited=lambda row, block: (0, block)),
        summed(reads_table=(True, False)),
        summed(place=lambda number: number % 3, reads_table=(True, False)),
        # Each block is needed twice.
        summed(place=lambda number: number // 2),
        summed(place=lambda number: number // 2, awaited_place=lambda number: 11 - number // 2),
    ],
)
def test_legal_descriptors(function: Callable[..., Any]) -> None:
    assert not found(function, X)

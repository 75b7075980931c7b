"""Sums whose output is stored before the last addition, or not at all."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import call_with_table, found

X = np.random.default_rng(0).standard_normal((16, 384)).astype(np.float32)


def listed_rows(x: jax.Array, *, stored_at: int) -> jax.Array:
    """Sums of the rows of blocks that a table lists; zeros for the others."""

    def kernel(listed_ref, x_ref, out_ref, acc_ref):
        i, k = pl.program_id(0), pl.program_id(1)

        @pl.when(k == 0)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)
            acc_ref[...] = jnp.zeros_like(acc_ref)

        @pl.when(listed_ref[i] == 1)
        def _add() -> None:
            acc_ref[...] += x_ref[...]

            @pl.when(k == stored_at)
            def _() -> None:
                out_ref[...] = acc_ref[...]

    return call_with_table(kernel, jnp.array([1, 0, 1, 0]), x)


@pytest.mark.parametrize("stored_at", [1, 2, 3], ids=["early", "last", "never"])
def test_sum_that_is_not_stored_in_the_rows_that_have_one(stored_at: int) -> None:
    lost = found(partial(listed_rows, stored_at=stored_at), np.concatenate([X, X]))
    if stored_at == 2:
        assert lost == ()
        return
    (finding,) = lost
    at = (0, 1 if stored_at == 1 else 0)  # where it last stored the sum, or zeros
    assert (finding.kind, finding.operand, finding.grid_point) == ("LostWrite", "acc_ref", at)
    assert finding.source is not None
    assert finding.source.text is not None
    assert finding.source.text.startswith("out_ref[...] = ")
    reset = finding.source.line + (1 if stored_at == 3 else -8)
    assert finding.message.startswith(
        "what grid point (0, 2) added to acc_ref is lost: block (0, 0) of out_ref was stored at grid "
        f"point {at}, and line {reset} discards it at grid point (1, 0) before anything reads it: "
        "acc_ref[0, 0] was "
    )
    assert finding.message.endswith(" and is now 0")
    assert finding.cause == (
        "block (0, 0) of out_ref was stored before that addition but not after it"
    )


def test_sums_of_blocks_that_no_step_stores_are_not_said_to_be_stored_early() -> None:
    def kernel(x_ref, out_ref, acc_ref):
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]

        @pl.when(pl.program_id(0) == pl.num_programs(0) - 1)  # should be axis 1
        def _store() -> None:
            out_ref[...] = acc_ref[...]

    def summed(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            grid=(2, 3),
            in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k))],
            out_specs=pl.BlockSpec((8, 128), lambda i, k: (i, 0)),
            out_shape=jax.ShapeDtypeStruct((16, 128), jnp.float32),
            scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
        )(x)

    (finding,) = found(summed, X)
    assert (finding.kind, finding.operand) == ("OutputNotWritten", "out_ref")


@pytest.mark.parametrize("restarts", ["stored", "chosen", "never"])
def test_sums_of_a_padded_grid(restarts: str) -> None:
    """Nothing needs the sum of the last row of steps, unless it belongs to the row before."""

    def kernel(x_ref, out_ref, acc_ref):
        i, k = pl.program_id(0), pl.program_id(1)

        @pl.when((k == 0) & ((i < 2) | (restarts == "stored")))
        def _start() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        before = jnp.where(k == 0, 0, acc_ref[...]) if restarts == "chosen" else acc_ref[...]
        acc_ref[...] = before + x_ref[...]

        @pl.when((k == 2) & (i < 2))
        def _store() -> None:
            out_ref[...] = acc_ref[...]

    def summed(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            grid=(3, 3),
            in_specs=[pl.BlockSpec((8, 128), lambda i, k: (jnp.minimum(i, 1), k))],
            out_specs=pl.BlockSpec((8, 128), lambda i, k: (jnp.minimum(i, 1), 0)),
            out_shape=jax.ShapeDtypeStruct((16, 128), jnp.float32),
            scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
        )(x)

    findings = found(summed, X)
    assert [f.kind for f in findings] == (["LostWrite"] if restarts == "never" else [])


def only_block(x: jax.Array, *, stored_at: int, adds_until: int = 2) -> jax.Array:
    """A sum of all blocks, which is reset once."""

    def kernel(x_ref, out_ref, acc_ref):
        k = pl.program_id(0)

        @pl.when(k == 0)
        def _start() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.where(k <= adds_until, x_ref[...], 0)

        @pl.when(k == stored_at)
        def _finish() -> None:
            out_ref[...] = acc_ref[...]

    return pl.pallas_call(
        kernel,
        grid=(3,),
        in_specs=[pl.BlockSpec((8, 128), lambda k: (0, k))],
        out_specs=pl.BlockSpec((8, 128), lambda k: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
    )(x)


def test_sum_of_the_only_block_that_is_stored_too_early() -> None:
    (lost,) = found(partial(only_block, stored_at=1), X[:8])
    assert (lost.kind, lost.operand, lost.grid_point) == ("LostWrite", "acc_ref", (1,))
    assert lost.source is not None
    assert lost.source.text == "out_ref[...] = acc_ref[...]"
    assert lost.message == (
        "what grid point (2,) added to acc_ref is lost: block (0, 0) of out_ref was stored at "
        "grid point (1,), and nothing reads acc_ref after that addition; acc_ref[0, 0] is "
        f"{X[0, 0] + X[0, 128] + X[0, 256]:g} at the end"
    )
    assert lost.cause == "block (0, 0) of out_ref was stored before that addition but not after it"
    assert lost.advice == "store it at the last step of each block, after the last addition"


@pytest.mark.parametrize("adds_until", [1, 2])
def test_sum_of_the_only_block_that_is_stored_last(adds_until: int) -> None:
    """Or after which only zeros are added, as of blocks that are masked."""
    assert not found(partial(only_block, stored_at=adds_until, adds_until=adds_until), X[:8])


def sum_beside(x: jax.Array, *, stored_at: int, how: str) -> jax.Array:
    """Sums of rows of blocks, beside another output to which each step stores."""

    def kernel(x_ref, out_ref, other_ref, acc_ref):
        i, k = pl.program_id(0), pl.program_id(1)

        @pl.when(k == 0 if how != "once" else (i == 0) & (k == 0))
        def _start() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        if how == "prefix":  # what comes before each block
            other_ref[...] = acc_ref[...]
            acc_ref[...] += x_ref[...]
        elif how == "running":
            acc_ref[...] += x_ref[...]
            other_ref[...] = acc_ref[...] * 2
        else:
            acc_ref[...] += x_ref[...]
            other_ref[...] = x_ref[...] * 2

        @pl.when(k == stored_at if how != "once" else (i == 1) & (k == stored_at))
        def _finish() -> None:
            out_ref[...] = acc_ref[...]

    block = pl.BlockSpec((8, 128), lambda i, k: (i, k))
    return pl.pallas_call(
        kernel,
        grid=(2, 3),
        in_specs=[block],
        out_specs=[
            pl.BlockSpec((8, 128), lambda i, k: (0 if how == "once" else i, 0)),
            block,
        ],
        out_shape=[
            jax.ShapeDtypeStruct((8 if how == "once" else 16, 128), jnp.float32),
            jax.ShapeDtypeStruct((16, 384), jnp.float32),
        ],
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
    )(x)


@pytest.mark.parametrize("how", ["apart", "once", "prefix", "running"])
@pytest.mark.parametrize("stored_at", [1, 2])
def test_stores_to_an_output_that_does_not_receive_the_sum(how: str, stored_at: int) -> None:
    findings = found(partial(sum_beside, stored_at=stored_at, how=how), X)
    if stored_at == 2 or how in ("prefix", "running"):
        assert not findings
        return
    (lost,) = findings
    assert (lost.kind, lost.operand) == ("LostWrite", "acc_ref")
    assert lost.grid_point == ((1, 1) if how == "once" else (0, 1))
    assert lost.cause == (
        "block (0, 0) of out_ref was stored before that addition but not after it"
    )


@pytest.mark.parametrize("how", ["each", "some", "rows", "once"])
def test_the_first_values_of_a_running_sum(how: str) -> None:
    """What is added later is not needed; a sum that is put out once is different."""

    def kernel(x_ref, out_ref, other_ref, acc_ref):
        k = pl.program_id(1)

        @pl.when(k == 0)
        def _start() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]
        other_ref[...] = x_ref[...] * 2
        if how == "rows":

            @pl.when(k < 2)
            def _row() -> None:
                out_ref[pl.ds(k, 1), :] = acc_ref[0:1, :]

            return

        @pl.when(k < 2 if how == "each" else k == 1)
        def _first() -> None:
            out_ref[...] = acc_ref[...]

        if how != "once":

            @pl.when(k == 2 if how == "each" else k != 1)
            def _last() -> None:
                out_ref[...] = x_ref[...]

    rows = 2 if how == "rows" else 8

    def summed(x: jax.Array) -> list[jax.Array]:
        block = pl.BlockSpec((8, 128), lambda i, k: (i, k))
        stays = pl.BlockSpec((None, rows, 128), lambda i, k: (i, 0, 0))
        by_row = jax.ShapeDtypeStruct((2, rows, 128), jnp.float32)
        is_by_row = how in ("rows", "once")
        return pl.pallas_call(
            kernel,
            grid=(2, 3),
            in_specs=[block],
            out_specs=[stays if is_by_row else block, block],
            out_shape=[by_row if is_by_row else x, x],
            scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
        )(x)

    assert [f.kind for f in found(summed, X)] == ["LostWrite"] * (how == "once")

"""Sums over one block, over all blocks, and pages that are filled in part: which reads are stale."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import found

F32, I32 = jnp.float32, jnp.int32
ROWS = pl.BlockSpec((8, 128), lambda i, k: (i, 0))
HBM = pl.BlockSpec(memory_space=pltpu.HBM)
TILE = pltpu.VMEM((8, 128), F32)


def _numbers() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((16, 256)).astype(np.float32)


def rows_beside_a_total(x: jax.Array, *, resets: bool) -> list[jax.Array]:
    """Sums of rows, with an output for each block, and a sum of all, with an output for all."""

    def kernel(x_ref, rows_ref, total_ref, acc_ref):
        i, k = pl.program_id(0), pl.program_id(1)

        @pl.when(i + k == 0)
        def _start() -> None:
            total_ref[...] = jnp.zeros_like(total_ref)

        @pl.when(k == 0 if resets else i + k == 0)
        def _start_block() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]
        total_ref[...] += x_ref[...]

        @pl.when(k == pl.num_programs(1) - 1)
        def _finish() -> None:
            rows_ref[...] = acc_ref[...]

    return pl.pallas_call(
        kernel,
        grid=(2, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k))],
        out_specs=[ROWS, pl.BlockSpec((8, 128), lambda i, k: (0, 0))],
        out_shape=[jax.ShapeDtypeStruct((16, 128), F32), jax.ShapeDtypeStruct((8, 128), F32)],
        scratch_shapes=[TILE],
    )(x)


def total_copied_out(x: jax.Array, *, to_rows: bool) -> list[jax.Array]:
    """A sum of all blocks, updated at each step of a block, and copied out by the last one."""

    def kernel(x_ref, rows_ref, all_ref, acc_ref, total_ref, sem):
        i, k = pl.program_id(0), pl.program_id(1)
        is_last = k == pl.num_programs(1) - 1

        @pl.when(i + k == 0)
        def _start() -> None:
            total_ref[...] = jnp.zeros_like(total_ref)

        @pl.when(k == 0)
        def _start_block() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]
        total_ref[...] += x_ref[...]

        @pl.when(is_last)
        def _finish_block() -> None:
            rows_ref[...] = total_ref[...] if to_rows else acc_ref[...]

        @pl.when(is_last & (i == pl.num_programs(0) - 1))
        def _finish() -> None:
            copy = pltpu.make_async_copy(total_ref, all_ref, sem)
            copy.start()
            copy.wait()

    return pl.pallas_call(
        kernel,
        grid=(2, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k))],
        out_specs=[ROWS, HBM],
        out_shape=[jax.ShapeDtypeStruct((16, 128), F32), jax.ShapeDtypeStruct((8, 128), F32)],
        scratch_shapes=[TILE, TILE, pltpu.SemaphoreType.DMA],
    )(x)


def page_filled_in_part(x: jax.Array, *, masks: bool) -> jax.Array:
    """The sum of a page of which a copy fills the first rows."""

    def kernel(x_ref, out_ref, page_ref, sem):
        size = 8 - 5 * pl.program_id(0)
        rows = x_ref.at[pl.ds(pl.program_id(0) * 8, size)]
        copy = pltpu.make_async_copy(rows, page_ref.at[pl.ds(0, size)], sem)
        copy.start()
        copy.wait()
        page = page_ref[...]
        if masks:
            page = jnp.where(lax.broadcasted_iota(I32, (8, 128), 0) < size, page, 0.0)
        out_ref[...] = jnp.broadcast_to(page.sum(axis=0, keepdims=True), (8, 128))

    return pl.pallas_call(
        kernel,
        grid=(2, 1),
        in_specs=[HBM],
        out_specs=ROWS,
        out_shape=jax.ShapeDtypeStruct((16, 128), F32),
        scratch_shapes=[TILE, pltpu.SemaphoreType.DMA],
    )(x)


def sum_in_a_window(x: jax.Array, *, resets: bool) -> jax.Array:
    """A sum over the last two blocks of a row; the first step is outside of the later windows."""

    def kernel(x_ref, out_ref, acc_ref):
        i, k = pl.program_id(0), pl.program_id(1)

        def start() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        if resets:
            pl.when(k == 0)(start)

        @pl.when((k <= i) & (k >= i - 1))
        def _add() -> None:
            if not resets:
                pl.when(k == 0)(start)
            acc_ref[...] += x_ref[...]

        @pl.when(k == pl.num_programs(1) - 1)
        def _finish() -> None:
            out_ref[...] = acc_ref[...]

    return pl.pallas_call(
        kernel,
        grid=(3, 3),
        in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k))],
        out_specs=ROWS,
        out_shape=jax.ShapeDtypeStruct((24, 128), F32),
        scratch_shapes=[TILE],
    )(x)


@pytest.mark.parametrize("resets", [False, True])
def test_reset_that_a_window_leaves_out(resets: bool) -> None:
    x = np.random.default_rng(0).standard_normal((24, 384)).astype(np.float32)
    findings = found(lambda x: sum_in_a_window(x, resets=resets), x)
    assert [(f.kind, f.operand, f.grid_point) for f in findings] == (
        [] if resets else [("StaleRead", "acc_ref", (2, 1))]
    )


def test_sum_of_rows_beside_a_total_of_all() -> None:
    x = _numbers()
    (finding,) = found(lambda x: rows_beside_a_total(x, resets=False), x)
    assert (finding.kind, finding.operand, finding.grid_point) == ("StaleRead", "acc_ref", (1, 0))
    assert "for block (1, 0) of rows_ref" in finding.message
    assert not found(lambda x: rows_beside_a_total(x, resets=True), x)


def test_total_is_no_sum_that_was_not_reset() -> None:
    x = _numbers()
    assert not found(lambda x: total_copied_out(x, to_rows=False), x)
    (finding,) = found(lambda x: total_copied_out(x, to_rows=True), x)
    assert (finding.kind, finding.operand) == ("StaleRead", "total_ref")


def flushed_by_the_next(x: jax.Array, *, resets: bool, copies: bool) -> jax.Array:
    """Sums of three blocks, each of which the first step of the next row puts out."""

    def kernel(x_ref, out_ref, acc_ref):
        i, k = pl.program_id(0), pl.program_id(1)

        @pl.when((i > 0) & (k == 0))
        def _flush() -> None:
            if copies:
                pltpu.sync_copy(acc_ref, out_ref.at[pl.ds((i - 1) * 8, 8)])
            else:
                out_ref[...] = acc_ref[...]

        @pl.when((k == 0) if resets else (i + k == 0))
        def _reset() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        @pl.when(i < 2)
        def _add() -> None:
            acc_ref[...] += x_ref[...]

    def block_before(i: int, k: int) -> tuple[jax.Array, int]:
        return jnp.maximum(i * 3 + k - 1, 0) // 3, 0

    return pl.pallas_call(
        kernel,
        grid=(3, 3),
        in_specs=[pl.BlockSpec((8, 128), lambda i, k: (jnp.minimum(i, 1), k))],
        out_specs=HBM if copies else pl.BlockSpec((8, 128), block_before),
        out_shape=jax.ShapeDtypeStruct((16 if copies else 24, 128), F32),
        scratch_shapes=[TILE],
    )(x)


@pytest.mark.parametrize("copies", [True, False])
def test_a_sum_that_the_first_step_of_the_next_row_puts_out(copies: bool) -> None:
    x = np.random.default_rng(0).standard_normal((16, 384)).astype(np.float32)
    for resets in (True, False):
        findings = found(functools.partial(flushed_by_the_next, resets=resets, copies=copies), x)
        kinds = [f.kind for f in findings if f.operand == "acc_ref"]
        assert kinds == ([] if resets else ["StaleRead"])


@pytest.mark.parametrize("masks", [False, True])
def test_page_that_a_copy_fills_in_part(masks: bool) -> None:
    findings = found(lambda x: page_filled_in_part(x, masks=masks), _numbers()[:, :128])
    assert [(f.kind, f.operand, f.grid_point) for f in findings] == (
        [] if masks else [("StaleRead", "page_ref", (1, 0))]
    )


def sum_for_the_next_block(x: jax.Array, *, inverts: bool, phases: int) -> jax.Array:
    """Rows divided by their sums, which the output block before, or the one before that, sums up.

    Args:
      inverts: whether the block that makes use of a sum replaces it by its inverse.
      phases: over how many blocks the numbers are summed up; one, if it is right.
    """

    def kernel(x_ref, out_ref, sum_ref):
        phase, k = pl.program_id(1), pl.program_id(2)

        @pl.when((phase == 0) & (k == 0))
        def _start() -> None:
            sum_ref[...] = jnp.zeros_like(sum_ref)

        @pl.when(phase < phases)
        def _add() -> None:
            sum_ref[...] += x_ref[...]
            out_ref[...] = sum_ref[...]

        @pl.when((phase == 1) & (k == 0))
        def _use() -> None:
            if inverts:
                sum_ref[...] = 1.0 / sum_ref[...]
            out_ref[...] = jnp.zeros_like(out_ref)

        @pl.when(phase == 1)
        def _scale() -> None:
            out_ref[...] += x_ref[...] * sum_ref[...]

    return pl.pallas_call(
        kernel,
        grid=(2, 2, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda i, phase, k: (i, k))],
        out_specs=pl.BlockSpec((8, 128), lambda i, phase, k: (i, phase)),
        out_shape=jax.ShapeDtypeStruct((16, 256), F32),
        scratch_shapes=[TILE],
    )(x)


@pytest.mark.parametrize("inverts", [False, True])
def test_a_sum_that_the_next_block_makes_use_of(inverts: bool) -> None:
    x = np.abs(_numbers())
    assert not found(functools.partial(sum_for_the_next_block, inverts=inverts, phases=1), x)


def test_a_sum_that_the_next_block_goes_on_with() -> None:
    x = np.abs(_numbers())
    (read,) = found(functools.partial(sum_for_the_next_block, inverts=False, phases=2), x)
    assert (read.kind, read.grid_point) == ("StaleRead", (0, 1, 0))


def centred(x: jax.Array, *, start: str) -> jax.Array:
    """Rows less their mean per group of two blocks: a sum in one phase, its use in the next."""

    def kernel(x_ref, out_ref, sum_ref):
        g, phase, i = (pl.program_id(axis) for axis in range(3))
        starts = {"once": g + phase + i == 0, "per group": phase + i == 0, "never": g < 0}

        @pl.when(starts[start])
        def _start() -> None:
            sum_ref[...] = jnp.zeros_like(sum_ref)

        @pl.when(phase == 0)
        def _add() -> None:
            sum_ref[...] += x_ref[...]

        @pl.when(phase == 1)
        def _use() -> None:
            out_ref[...] = x_ref[...] - sum_ref[...] / 2

    return pl.pallas_call(
        kernel,
        grid=(2, 2, 2),
        in_specs=[pl.BlockSpec((8, 128), lambda g, phase, i: (2 * g + i, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda g, phase, i: (2 * g + phase * i, 0)),
        out_shape=x,
        scratch_shapes=[TILE],
    )(x)


def test_a_sum_that_a_second_phase_uses_begins_with_its_group() -> None:
    x = np.concatenate([_numbers(), _numbers()])[:, :128]
    begins = "where its sum begins: @pl.when((pl.program_id(1) == 0) & (pl.program_id(2) == 0))"
    assert not found(functools.partial(centred, start="per group"), x)
    (stale,) = found(functools.partial(centred, start="once"), x)
    assert (stale.kind, stale.advice) == ("StaleRead", f"reset it {begins}")
    (unwritten,) = found(functools.partial(centred, start="never"), x)
    assert (unwritten.kind, unwritten.advice) == ("UninitializedRead", f"write it {begins}")


def test_what_no_block_sums_up_may_be_carried_or_not() -> None:
    def running(x):
        def kernel(x_ref, out_ref, acc_ref):
            acc_ref[...] += x_ref[...]
            out_ref[...] = acc_ref[...]

        rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            kernel, grid=(2,), in_specs=[rows], out_specs=rows, out_shape=x, scratch_shapes=[TILE]
        )(x)

    (read,) = found(running, _numbers()[:, :128])
    assert read.advice == (
        "write it before this line at each grid point or, if its value carries over along a grid "
        "axis, at the first step of that axis: @pl.when(pl.program_id(axis) == 0)"
    )


@pytest.mark.parametrize("how", ["first block", "each block", "masked", "none"])
def test_a_reset_by_a_choice(how: str) -> None:
    """A `jnp.where` in place of a `pl.when`: the cause names it if it keeps what was there."""

    def kernel(x_ref, out_ref, acc_ref):
        i, k = pl.program_id(0), pl.program_id(1)
        before = acc_ref[...]
        if how == "first block":
            before = jnp.where(i + k == 0, 0.0, before)
        elif how == "each block":
            before = jnp.where(k == 0, 0.0, before)
        part = x_ref[...]
        if how == "masked":  # of what is added, and not of the sum
            part = jnp.where(part > 0, part, 0.0)
        if how in ("masked", "none"):

            @pl.when(i + k == 0)
            def _start() -> None:
                acc_ref[...] = jnp.zeros_like(acc_ref)

            before = acc_ref[...]
        acc_ref[...] = before + part
        out_ref[...] = acc_ref[...]

    def function(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            grid=(2, 2),
            in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k))],
            out_specs=ROWS,
            out_shape=jax.ShapeDtypeStruct((16, 128), F32),
            scratch_shapes=[TILE],
        )(x)

    findings = found(function, _numbers())
    if how == "each block":
        assert not findings
        return
    (finding,) = findings
    assert finding.kind == "StaleRead"
    assert finding.source is not None
    line = finding.source.line
    assert finding.cause is not None
    if how == "first block":
        assert finding.cause == (
            f"nothing resets acc_ref at grid point (1, 0): the jnp.where in line {line + 2} keeps "
            "what the previous block left"
        )
    else:
        assert finding.cause.startswith("it is reset only at grid point (0, 0), in line ")
    assert finding.advice == (
        "reset it at the first step of each block of out_ref: @pl.when(pl.program_id(1) == 0)"
    )


def scanned(x: jax.Array, starts: jax.Array, *, state: str, resets: str) -> jax.Array:
    """A scan along each of the rows of blocks.

    Args:
      starts: whether each step resets the state, for `resets="table"`.
      state: "decay", a recurrence; "loop", one within a loop; "rows", a sum for each row of a
        block; or "sum", a sum of blocks with a single row.
      resets: steps that reset the state.
    """
    rows = 8 if state == "rows" else 1

    def kernel(starts_ref, x_ref, out_ref, state_ref):
        i, k = pl.program_id(0), pl.program_id(1)
        at = {
            "each row": k == 0,
            "first block": i + k == 0,
            "first row": i == 0,
            "table": starts_ref[i * pl.num_programs(1) + k] == 1,
        }

        @pl.when(at[resets])
        def _start() -> None:
            state_ref[...] = jnp.zeros_like(state_ref)

        before = state_ref[...]
        if state == "decay":
            state_ref[...] = before * 0.5 + x_ref[...]
        elif state == "loop":
            halved = lax.fori_loop(0, 3, lambda _, h: h * 0.5 + x_ref[...], before)
            state_ref[...] = halved
        else:
            state_ref[...] = before + jnp.sum(x_ref[...], axis=1, keepdims=True)
        out_ref[...] = x_ref[...] + before

    block = pl.BlockSpec((rows, 128), lambda i, k, _: (i, k))
    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(x.shape[0] // rows, x.shape[1] // 128),
            in_specs=[block],
            out_specs=block,
            scratch_shapes=[pltpu.VMEM((rows, 1 if state in ("rows", "sum") else 128), F32)],
        ),
        out_shape=x,
    )(starts, x)


@pytest.mark.parametrize(
    "state, resets, is_stale",
    [
        ("decay", "first block", True),
        ("decay", "first row", True),
        ("decay", "each row", False),
        ("decay", "table", False),  # sequences that data divide may go on in the next row
        ("loop", "first block", True),
        ("rows", "first block", True),
        ("rows", "each row", False),
        ("sum", "first block", False),  # it may be a cumulative sum of all blocks
        ("sum", "first row", True),
    ],
)
def test_a_state_that_goes_on_into_the_next_row(state: str, resets: str, is_stale: bool) -> None:
    x = np.random.default_rng(0).standard_normal((24 if state == "rows" else 3, 384))
    starts = np.array([1, 0, 0, 0, 0, 0, 0, 0, 0], np.int32)
    findings = found(
        lambda x, starts: scanned(x, starts, state=state, resets=resets),
        x.astype(np.float32),
        starts,
    )
    if not is_stale:
        assert not findings
        return
    (read,) = findings
    assert (read.kind, read.operand, read.grid_point) == ("StaleRead", "state_ref", (1, 0))
    assert (
        "grid point (1, 0), for block (1, 0) of out_ref, reads what grid point (0, 2) left in "
        "state_ref for block (0, 2): state_ref[0, 0] = "
    ) in read.message
    assert read.advice == "reset it where its sum begins: @pl.when(pl.program_id(1) == 0)"


def test_a_state_that_goes_on_after_a_long_row() -> None:
    x = np.random.default_rng(0).standard_normal((3, 40 * 128)).astype(np.float32)
    starts = np.zeros(120, np.int32)
    function = functools.partial(scanned, state="decay", resets="first block")
    (read,) = found(function, x, starts)
    assert (read.kind, read.operand, read.grid_point) == ("StaleRead", "state_ref", (1, 0))

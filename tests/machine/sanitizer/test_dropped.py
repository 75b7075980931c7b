"""Sums that are reset after something was added to them, and what only looks like that."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import call_with_table, found

F32, I32 = jnp.float32, jnp.int32
TILE = pltpu.VMEM((8, 128), F32)
X = np.random.default_rng(0).standard_normal((16, 384)).astype(np.float32)


def sums_of_rows(x: jax.Array, *, reset: str) -> jax.Array:
    """A sum of each row of blocks, in scratch."""

    def kernel(x_ref, out_ref, acc_ref):
        k = pl.program_id(1)

        def start() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        def begin() -> None:
            lanes = lax.broadcasted_iota(jnp.int32, (8, 128), 1)
            acc_ref[...] = jnp.where(lanes == 0, 0.0, -1e9)

        if reset in ("first", "second"):
            pl.when(k == (reset == "second"))(start)
        elif reset == "last":
            pl.when(pl.program_id(0) + k == 0)(start)
        elif reset == "first, a pattern":
            pl.when(k == 0)(begin)
        elif reset == "a pattern":
            begin()
        elif reset == "always":
            start()
        acc_ref[...] += x_ref[...]
        if reset == "after":
            pl.when(k == 0)(start)

        @pl.when(k == pl.num_programs(1) - 1)
        def _finish() -> None:
            out_ref[...] = acc_ref[...]
            if reset == "last":
                start()

    return pl.pallas_call(
        kernel,
        grid=(2, 3),
        in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k))],
        out_specs=pl.BlockSpec((8, 128), lambda i, k: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((16, 128), F32),
        scratch_shapes=[TILE],
    )(x)


LATE = {
    "second": ((0, 1), "it is reset at grid point (0, 1)", "block (0, 0) of out_ref begins"),
    "after": ((0, 0), "it is reset at the same grid point", "which adds to acc_ref"),
    "always": ((0, 1), "acc_ref[0, 0] was 0.12573 and is now 0", "block (0, 0) of out_ref begins"),
    "a pattern": ((0, 1), "was 0.12573 and is now 0", "block (0, 0) of out_ref begins"),
}


@pytest.mark.parametrize("reset", ["first", "first, a pattern", *LATE])
def test_reset_within_a_block(reset: str) -> None:
    findings = found(lambda x: sums_of_rows(x, reset=reset), X)
    if reset.startswith("first"):
        assert not findings
        return
    point, message, cause = LATE[reset]
    (finding,) = findings
    assert (finding.kind, finding.operand, finding.grid_point) == ("LostWrite", "acc_ref", point)
    assert finding.source is not None
    pattern = "acc_ref[...] = jnp.where(lanes == 0, 0.0, -1e9)"
    zeros = "acc_ref[...] = jnp.zeros_like(acc_ref)"
    assert finding.source.text == (pattern if reset == "a pattern" else zeros)
    assert finding.witness.other is not None
    assert finding.witness.other.text == "acc_ref[...] += x_ref[...]"
    assert message in finding.message
    assert cause in (finding.cause or "")
    assert (finding.advice or "").endswith(": @pl.when(pl.program_id(1) == 0)")


def sum_in_the_output(x: jax.Array, *, zeroed: str) -> list[jax.Array]:
    """A sum of blocks, added up in an output beside one that has a block for each grid point."""

    def kernel(x_ref, twice_ref, total_ref):
        i = pl.program_id(0)

        def start() -> None:
            total_ref[...] = jnp.zeros_like(total_ref)

        if zeroed == "always":
            start()
        else:
            pl.when({"first": i == 0, "late": i == 1}[zeroed])(start)
        total_ref[...] += x_ref[...]
        twice_ref[...] = x_ref[...] * 2

    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        kernel,
        grid=(3,),
        in_specs=[rows],
        out_specs=[rows, pl.BlockSpec((8, 128), lambda i: (0, 0))],
        out_shape=[jax.ShapeDtypeStruct((24, 128), F32), jax.ShapeDtypeStruct((8, 128), F32)],
    )(x)


@pytest.mark.parametrize("zeroed", ["first", "late", "always"])
def test_sum_in_a_used_output(zeroed: str) -> None:
    findings = found(lambda x: sum_in_the_output(x, zeroed=zeroed), np.ones((24, 128), np.float32))
    assert [(f.kind, f.operand, f.grid_point) for f in findings] == (
        [] if zeroed == "first" else [("LostWrite", "total_ref", (1,))]
    )


@pytest.mark.parametrize("reset", ["before", "within"])
def test_a_reset_in_a_loop_that_python_unrolls(reset: str) -> None:
    def kernel(x_ref, out_ref, acc_ref):
        def start() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        if reset == "before":
            start()
        for i in range(3):
            if reset == "within":
                start()
            acc_ref[...] += x_ref[...] * (i + 1.0)
        out_ref[...] = acc_ref[...]

    call = pl.pallas_call(
        kernel, out_shape=jax.ShapeDtypeStruct((8, 128), F32), scratch_shapes=[TILE]
    )
    findings = found(call, X[:8, :128])
    if reset == "before":
        assert not findings
        return
    (finding,) = findings
    line = finding.witness.other
    assert line is not None
    assert finding.cause == f"this line runs again after line {line.line}, which adds to acc_ref"
    assert finding.advice == "reset it before the loop that has both lines"


def sums_of_columns(x: jax.Array, *, zeroed: str) -> list[jax.Array]:
    """Sums over rows and steps of blocks of columns, in an output beside one that moves on.

    The last step of each row adds zeros.
    """

    def kernel(x_ref, twice_ref, total_ref):
        row, step = pl.program_id(1), pl.program_id(2)

        @pl.when((row == 0) & (step == 0) if zeroed == "once" else step == 0)
        def _start() -> None:
            total_ref[...] = jnp.zeros_like(total_ref)

        total_ref[...] += jnp.where(step < 2, x_ref[...], 0.0)
        twice_ref[...] = x_ref[...] * 2

    block = pl.BlockSpec((8, 128), lambda column, row, step: (3 * row + step, column))
    return pl.pallas_call(
        kernel,
        grid=(2, 2, 3),
        in_specs=[block],
        out_specs=[block, pl.BlockSpec((8, 128), lambda column, row, step: (0, column))],
        out_shape=[jax.ShapeDtypeStruct((48, 256), F32), jax.ShapeDtypeStruct((8, 256), F32)],
    )(x)


@pytest.mark.parametrize("zeroed", ["once", "each row"])
def test_a_sum_in_an_output_that_each_row_resets(zeroed: str) -> None:
    findings = found(lambda x: sums_of_columns(x, zeroed=zeroed), np.ones((48, 256), np.float32))
    if zeroed == "once":
        assert not findings
        return
    (finding,) = findings
    assert (finding.kind, finding.operand) == ("LostWrite", "total_ref")
    assert finding.grid_point == (0, 1, 0)
    assert finding.message.startswith("what grid point (0, 0, 1) added to total_ref is lost")
    assert (finding.advice or "").endswith(
        ": @pl.when((pl.program_id(1) == 0) & (pl.program_id(2) == 0))"
    )


@pytest.mark.parametrize("step", [1, 2])
def test_output_stored_before_the_last_addition(step: int) -> None:
    def kernel(x_ref, out_ref, acc_ref):
        k = pl.program_id(1)

        @pl.when(k == 0)
        def _() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]

        @pl.when(k == step)
        def _() -> None:
            out_ref[...] = acc_ref[...]

    findings = found(lambda x: call_by_rows(kernel, x, [TILE]), X)
    if step == 2:
        assert not findings
        return
    (finding,) = findings
    assert (finding.kind, finding.operand, finding.grid_point) == ("LostWrite", "acc_ref", (0, 1))
    assert finding.message.startswith("what grid point (0, 2) added to acc_ref is lost")
    assert finding.cause == (
        "block (0, 0) of out_ref was stored before that addition but not after it"
    )


def call_by_rows(kernel: Any, x: jax.Array, scratch: Any, width: int = 128) -> jax.Array:
    """A kernel with an output block for each row of blocks."""
    return pl.pallas_call(
        kernel,
        grid=(2, 3),
        in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k))],
        out_specs=pl.BlockSpec((8, width), lambda i, k: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((16, width), F32),
        scratch_shapes=scratch,
    )(x)


def totals_before(x: jax.Array) -> jax.Array:
    """Sums of the blocks before each one: the last total of a row is used by nothing."""

    def kernel(x_ref, out_ref, acc_ref):
        k = pl.program_id(1)

        @pl.when(k == 0)
        def _() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        out_ref[:, pl.ds(k * 128, 128)] = acc_ref[...]
        acc_ref[...] += x_ref[...]

    return call_by_rows(kernel, x, [TILE], 384)


def first_blocks(x: jax.Array, counts: jax.Array) -> jax.Array:
    """Sums of as many blocks of each row as a table says; the rest is added, and not stored."""

    def kernel(counts_ref, x_ref, out_ref, acc_ref):
        i, k = pl.program_id(0), pl.program_id(1)

        @pl.when(k == 0)
        def _() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]

        @pl.when(k == counts_ref[i] - 1)
        def _() -> None:
            out_ref[...] = acc_ref[...]

    return call_with_table(kernel, counts, x)


@pytest.mark.parametrize("reset", ["first", "always"])
def test_counters_in_smem_are_judged_one_by_one(reset: str) -> None:
    def kernel(x_ref, out_ref):
        def start() -> None:
            for b in range(4):
                out_ref[b] = 0

        if reset == "always":
            start()
        else:
            pl.when(pl.program_id(0) == 0)(start)

        def count(j: Any, _: Any) -> None:
            out_ref[x_ref[0, 0, j]] += 1

        lax.fori_loop(0, 8, count, None)

    def histogram(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            grid=(3,),
            in_specs=[
                pl.BlockSpec((1, 1, 8), lambda i: (i, 0, 0), memory_space=pltpu.SMEM),
            ],
            out_specs=pl.BlockSpec(memory_space=pltpu.SMEM),
            out_shape=jax.ShapeDtypeStruct((4,), I32),
        )(x)

    numbers = np.arange(24, dtype=np.int32).reshape(3, 1, 8) % 4
    findings = found(histogram, numbers)
    if reset == "first":
        assert not findings
        return
    assert {(f.kind, f.operand, f.grid_point) for f in findings} == {("LostWrite", "out_ref", (1,))}
    assert "out_ref[0] was 2 and is now 0" in findings[0].message


def softmax_of_rows(x: jax.Array, *, loops: bool) -> list[jax.Array]:
    """An online softmax's sums, with its maximum in an output that nothing else uses.

    Args:
      loops: over the rows of blocks within one grid point.
    """

    def step(x: Any, first: Any, last: Any, out: Any, m_ref: Any, sum_ref: Any) -> None:
        @pl.when(first)
        def _start() -> None:
            m_ref[...] = jnp.full_like(m_ref, -jnp.inf)
            sum_ref[...] = jnp.zeros_like(sum_ref)

        before = m_ref[...]
        m = jnp.maximum(before, x.max(axis=1, keepdims=True))
        sum_ref[...] = sum_ref[...] * jnp.exp(before - m) + jnp.exp(x - m)
        m_ref[...] = m

        @pl.when(last)
        def _finish() -> None:
            out[...] = sum_ref[...]

    def gridded(x_ref, out_ref, m_ref, sum_ref):
        k = pl.program_id(1)
        step(x_ref[...], k == 0, k == pl.num_programs(1) - 1, out_ref, m_ref, sum_ref)

    def looping(x_ref, out_ref, m_ref, sum_ref):
        def body(n: Any, _: Any) -> None:
            i, k = n // 3, n % 3
            rows = pl.ds(i * 8, 8)
            part = x_ref[rows, pl.ds(pl.multiple_of(k * 128, 128), 128)]
            step(part, k == 0, k == 2, out_ref.at[rows], m_ref, sum_ref)

        lax.fori_loop(0, 6, body, None)

    whole, rows = (16, 384), pl.BlockSpec((8, 128), lambda i, k: (i, 0))
    shapes = [jax.ShapeDtypeStruct((16, 128), F32), jax.ShapeDtypeStruct((8, 128), F32)]
    if loops:
        return pl.pallas_call(looping, out_shape=shapes, scratch_shapes=[TILE])(x)
    assert x.shape == whole
    return pl.pallas_call(
        gridded,
        grid=(2, 3),
        in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k))],
        out_specs=[rows, pl.BlockSpec((8, 128), lambda i, k: (0, 0))],
        out_shape=shapes,
        scratch_shapes=[TILE],
    )(x)


def documents(x: jax.Array, starts: jax.Array) -> list[jax.Array]:
    """A state that a document's start resets, with its last value in an output."""

    def kernel(starts_ref, x_ref, y_ref, state_ref, h_ref):
        k = pl.program_id(0)

        @pl.when(starts_ref[k] == 1)
        def _start() -> None:
            h_ref[...] = jnp.zeros_like(h_ref)

        h = h_ref[...] * 0.5 + x_ref[...]
        y_ref[pl.ds(k * 8, 8)] = h
        h_ref[...] = h
        state_ref[...] = h

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(4,),
            in_specs=[pl.BlockSpec((8, 128), lambda k, _: (k, 0))],
            out_specs=[
                pl.BlockSpec((32, 128), lambda k, _: (0, 0)),
                pl.BlockSpec((8, 128), lambda k, _: (0, 0)),
            ],
            scratch_shapes=[TILE],
        ),
        out_shape=[jax.ShapeDtypeStruct((32, 128), F32), jax.ShapeDtypeStruct((8, 128), F32)],
    )(starts, x)


def last_document(x: jax.Array, starts: jax.Array) -> jax.Array:
    """The sum of the last document alone: flags in a table end those before."""

    def kernel(starts_ref, x_ref, out_ref, acc_ref):
        k = pl.program_id(0)

        @pl.when(starts_ref[k] == 1)
        def _start() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]

        @pl.when(k == pl.num_programs(0) - 1)
        def _finish() -> None:
            out_ref[...] = acc_ref[...]

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(4,),
            in_specs=[pl.BlockSpec((8, 128), lambda k, _: (k, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda k, _: (0, 0)),
            scratch_shapes=[TILE],
        ),
        out_shape=jax.ShapeDtypeStruct((8, 128), F32),
    )(starts, x)


ROWS = np.random.default_rng(1).standard_normal((32, 128)).astype(np.float32)
STARTS = np.array([1, 0, 1, 0], np.int32)


@pytest.mark.parametrize(
    "function, args",
    [
        (lambda x: softmax_of_rows(x, loops=False), (X,)),
        (lambda x: softmax_of_rows(x, loops=True), (X,)),
        (documents, (ROWS, STARTS)),
        (last_document, (ROWS, STARTS)),
        (lambda x: sums_of_rows(x, reset="last"), (X,)),
        (totals_before, (X,)),
        (first_blocks, (X, np.array([2, 1], np.int32))),
    ],
    ids=[
        *("maximum", "maximum in a loop", "states", "last document", "zeros left"),
        *("totals before", "first blocks"),
    ],
)
def test_what_is_left_unread_on_purpose(function: Any, args: Any) -> None:
    assert not found(function, *args)


@pytest.mark.parametrize("apart", [False, True])
def test_one_slip_with_two_buffers_is_one_finding(apart: bool) -> None:
    """Two sums that are reset too late in one place; or one too late, and the other after it."""

    def kernel(x_ref, out_ref, sum_ref, squares_ref):
        k = pl.program_id(1)

        @pl.when(k == 1)
        def _() -> None:
            sum_ref[...] = jnp.zeros_like(sum_ref)
            if not apart:
                squares_ref[...] = jnp.zeros_like(squares_ref)

        if apart:

            @pl.when(k == 1)
            def _() -> None:
                squares_ref[...] = jnp.zeros_like(squares_ref)

        sum_ref[...] += x_ref[...]
        squares_ref[...] += x_ref[...] * x_ref[...]

        @pl.when(k == 2)
        def _() -> None:
            out_ref[...] = sum_ref[...] - squares_ref[...]

    findings = found(lambda x: call_by_rows(kernel, x, [TILE, TILE]), X)
    assert {(f.kind, f.grid_point) for f in findings} == {("LostWrite", (0, 1))}
    assert [f.operand for f in findings] == (["sum_ref", "squares_ref"] if apart else ["sum_ref"])
    (first, *_), line = findings, findings[0].source
    assert line is not None
    assert ("likewise" in first.message) is not apart
    if not apart:
        assert first.message.endswith(f"; likewise squares_ref in line {line.line + 2}")
        assert first.witness.values["likewise"] == "squares_ref"


def sums_in_a_pipeline(x: jax.Array, *, reset: str) -> jax.Array:
    """A sum of each row of blocks, which a pipeline within the kernel fetches."""

    def kernel(x_ref, out_ref, acc_ref):
        i = pl.program_id(0)

        def add(tile_ref):
            def start() -> None:
                acc_ref[...] = jnp.zeros_like(acc_ref)

            if reset == "first":
                pl.when(pl.program_id(0) == 0)(start)
            else:
                start()
            acc_ref[...] += tile_ref[...]

        tile = pl.BlockSpec((8, 128), lambda k: (i, k))
        pltpu.emit_pipeline(add, grid=(3,), in_specs=[tile])(x_ref)
        out_ref[...] = acc_ref[...]

    return pl.pallas_call(
        kernel,
        grid=(2,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((16, 128), F32),
        scratch_shapes=[TILE],
    )(x)


def test_steps_of_a_pipeline_within_a_kernel_are_grid_points() -> None:
    (lost,) = found(partial(sums_in_a_pipeline, reset="always"), X)
    assert lost.kind == "LostWrite"
    assert lost.operand == "acc_ref"
    assert lost.message.startswith(
        "what grid point (0,), loop iteration (0,) added to acc_ref is lost: it is reset at grid "
        "point (0,), loop iteration (1,) before anything reads it: acc_ref[0, 0] was "
    )
    assert lost.cause == "block (0, 0) of out_ref begins before that"
    assert found(partial(sums_in_a_pipeline, reset="first"), X) == ()


def in_one_block(x: jax.Array, *, how: str, beside: bool) -> jax.Array:
    """Sums of rows of blocks in an output that stays, perhaps beside one that moves on."""

    def kernel(x_ref, out_ref, *rest):
        *other, total_ref = rest
        i, k = pl.program_id(0), pl.program_id(1)
        if how == "each step":
            total_ref[...] = jnp.zeros_like(total_ref)
        else:

            @pl.when(k == 0)
            def _start() -> None:
                total_ref[...] = jnp.zeros_like(total_ref)

        if how == "exclusive":
            out_ref[pl.ds(i * 8, 8), pl.ds(k * 128, 128)] = total_ref[...]
        total_ref[...] += x_ref[...]
        if how != "exclusive":

            @pl.when(k == pl.num_programs(1) - 1)
            def _finish() -> None:
                out_ref[pl.ds(i * 8, 8), :] = jnp.broadcast_to(total_ref[:, 0:1], (8, 384))

        if beside:
            other[0][...] = x_ref[...] * 2

    whole, block = (
        pl.BlockSpec((16, 384), lambda i, k: (0, 0)),
        pl.BlockSpec((8, 128), lambda i, k: (i, k)),
    )
    return pl.pallas_call(
        kernel,
        grid=(2, 3),
        in_specs=[block],
        out_specs=[whole, block] if beside else whole,
        out_shape=[x, x] if beside else x,
        scratch_shapes=[pltpu.VMEM((8, 128), F32)],
    )(x)


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("how", ["each step", "each row", "exclusive"])
def test_sums_in_an_output_that_stays(how: str, beside: bool) -> None:
    """An exclusive scan does not need what the last step of a row adds."""
    findings = found(partial(in_one_block, how=how, beside=beside), X)
    if how != "each step":
        assert not findings
        return
    (finding,) = findings
    assert (finding.kind, finding.grid_point) == ("LostWrite", (0, 1))
    assert finding.message.startswith(
        f"what grid point (0, 0) added to rest[{int(beside)}] is lost"
    )

"""Copies from aliased arrays and reads of inputs that a kernel changes: which are faults."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import found, passed

from pallas_debug.machine import run
from pallas_debug.machine.sanitizer.order import OrderSanitizer

F32 = jnp.float32
ANY = pl.BlockSpec(memory_space=pl.ANY)
TILE = pltpu.VMEM((8, 128), F32)
STEPS = 3


def _copied(source: Any, target: Any, sem: Any) -> None:
    copy = pltpu.make_async_copy(source, target, sem)
    copy.start()
    copy.wait()


def _rows(ref: Any, step: Any) -> Any:
    return ref.at[pl.ds(step * 8, 8)]


def _called(kernel: Any, x: jax.Array, grid: tuple[int, ...] = (STEPS,)) -> jax.Array:
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[ANY],
        out_specs=ANY,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[TILE, TILE, pltpu.SemaphoreType.DMA],
        input_output_aliases={0: 0},
    )(x)


def rotated(x: jax.Array, by: int, *, doubles: bool = False) -> jax.Array:
    def kernel(x_hbm: Any, out_hbm: Any, tile_ref: Any, _: Any, sem: Any) -> None:
        i = pl.program_id(0)
        _copied(_rows(x_hbm, (i + by) % STEPS), tile_ref, sem)
        if doubles:
            tile_ref[...] = tile_ref[...] * 2
        _copied(tile_ref, _rows(out_hbm, i), sem)

    return _called(kernel, x)


def sums_so_far(x: jax.Array, *, by_output: bool) -> jax.Array:
    """Each block plus the result for the one before, which is read by either reference."""

    def kernel(x_hbm: Any, out_hbm: Any, tile_ref: Any, before_ref: Any, sem: Any) -> None:
        i = pl.program_id(0)
        _copied(_rows(x_hbm, i), tile_ref, sem)

        @pl.when(i > 0)
        def _before() -> None:
            _copied(_rows(out_hbm if by_output else x_hbm, i - 1), before_ref, sem)
            tile_ref[...] += before_ref[...]

        _copied(tile_ref, _rows(out_hbm, i), sem)

    return _called(kernel, x)


def states(x: jax.Array) -> jax.Array:
    """A recurrence from the first block on; the others are not read before they are written."""

    def kernel(x_hbm: Any, out_hbm: Any, tile_ref: Any, _: Any, sem: Any) -> None:
        i = pl.program_id(0)
        _copied(_rows(x_hbm, i), tile_ref, sem)
        tile_ref[...] = tile_ref[...] * 0.5 + 1
        _copied(tile_ref, _rows(out_hbm, i + 1), sem)

    return _called(kernel, x, (STEPS - 1,))


def doubled_twice(x: jax.Array) -> jax.Array:
    """Two passes, both of which read by the input's reference."""

    def kernel(x_hbm: Any, out_hbm: Any, tile_ref: Any, _: Any, sem: Any) -> None:
        i = pl.program_id(1)
        _copied(_rows(x_hbm, i), tile_ref, sem)
        tile_ref[...] = tile_ref[...] * 2
        _copied(tile_ref, _rows(out_hbm, i), sem)

    return _called(kernel, x, (2, STEPS))


def appended(x: jax.Array, new: jax.Array) -> list[jax.Array]:
    """A row that is written to a cache, of which the tile is then read with it."""

    def kernel(
        x_hbm: Any, new_ref: Any, out_hbm: Any, sum_ref: Any, tile_ref: Any, sem: Any
    ) -> Any:
        i = pl.program_id(0)
        _copied(new_ref, out_hbm.at[pl.ds(i * 8 + 3, 1)], sem)
        _copied(_rows(x_hbm, i), tile_ref, sem)
        sum_ref[...] = tile_ref[...] * 2

    return pl.pallas_call(
        kernel,
        grid=(STEPS,),
        in_specs=[ANY, pl.BlockSpec((1, 128), lambda i: (0, 0))],
        out_specs=[ANY, pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype)] * 2,
        scratch_shapes=[TILE, pltpu.SemaphoreType.DMA],
        input_output_aliases={0: 0},
    )(x, new)


X = np.random.default_rng(0).standard_normal((8 * STEPS, 128)).astype(np.float32)


@pytest.mark.parametrize(
    "function, point, line, message",
    [
        (
            lambda x: rotated(x, -1), (1,),
            "_copied(_rows(x_hbm, (i + by) % STEPS), tile_ref, sem)",
            f"after grid point (0,) overwrote it through out_hbm: x_hbm[0, 0] was {X[0, 0]:g} "
            f"and is now {X[16, 0]:g}",
        ),
        (
            lambda x: rotated(x, 1, doubles=True), (2,),
            "_copied(_rows(x_hbm, (i + by) % STEPS), tile_ref, sem)", "after grid point (0,) overwrote it",
        ),
    ],
)  # fmt: skip
def test_overwritten(function: Any, point: tuple[int, ...], line: str, message: str) -> None:
    (finding,) = found(function, X)
    assert (finding.kind, finding.operand, finding.grid_point) == (
        "OverwrittenRead", "x_hbm", point,
    )  # fmt: skip
    assert message in finding.message
    assert finding.source is not None
    assert finding.source.text in (line, "copy.start()")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: rotated(x, 0),
        lambda x: sums_so_far(x, by_output=True),
        lambda x: sums_so_far(x, by_output=False),
        states,
        doubled_twice,
        lambda x: appended(x, X[:1]),
    ],
    ids=["same", "sums", "sums by the input", "states", "twice", "appended"],
)
def test_not_overwritten(function: Any) -> None:
    assert not found(function, X)


def row_by_row(x: jax.Array, *, shift: int = 0, waits: bool = True) -> jax.Array:
    """Copies rows within a loop, by the output's reference."""

    def kernel(x_hbm: Any, out_hbm: Any, tile_ref: Any, _: Any, sem: Any) -> None:
        def body(i: Any, carry: int) -> int:
            copy = pltpu.make_async_copy(
                tile_ref.at[pl.ds(0, 1)], out_hbm.at[pl.ds(i + shift, 1)], sem
            )
            copy.start()
            if waits:
                copy.wait()
            return carry

        tile_ref[...] = jnp.zeros((8, 128), F32)
        jax.lax.fori_loop(0, x.shape[0], body, 0)

    return _called(kernel, x, grid=(1,))


def test_an_index_outside_is_that_of_the_reference_which_the_code_uses() -> None:
    call, arrays = passed(partial(row_by_row, shift=1), (jnp.zeros((8, 128)),))
    (finding,) = run.run(call, arrays).findings
    assert finding.operand == "out_hbm"
    assert finding.witness.index == "out_hbm[8:9, 0:128]"
    assert "in the copy of tile_ref to out_hbm" in finding.message


def test_a_copy_that_nothing_awaits_goes_to_the_reference_which_the_code_uses() -> None:
    call, arrays = passed(partial(row_by_row, waits=False), (jnp.zeros((8, 128)),))
    (finding,) = run.run(call, arrays, observers=[OrderSanitizer(call)]).findings
    assert finding.operand == "out_hbm"
    assert "the copy of tile_ref[0, 0:128] to out_hbm[0, 0:128]" in finding.message


def test_an_array_that_is_updated_in_place_without_an_alias() -> None:
    def adds(x):
        def kernel(x_ref, out_hbm, row_ref, sem):
            def copy(source, target) -> None:
                pltpu.async_copy(source, target, sem).wait()  # both ways

            copy(out_hbm.at[pl.ds(0, 8)], row_ref)
            row_ref[...] += x_ref[...]
            copy(row_ref, out_hbm.at[pl.ds(0, 8)])

        return pl.pallas_call(
            kernel,
            grid=(2,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
            out_specs=ANY,
            out_shape=jax.ShapeDtypeStruct((8, 128), F32),
            scratch_shapes=[TILE, pltpu.SemaphoreType.DMA],
        )(x)

    read = found(adds, np.ones((16, 128), np.float32))[0]
    assert (read.kind, read.operand) == ("UninitializedRead", "out_hbm")
    assert read.cause == "scratch buffers and outputs hold whatever was in memory before"
    assert read.advice == (
        "write all of it before this line, or alias an input to it with input_output_aliases"
    )


def changed_in_place(q: jax.Array, k: jax.Array, *, how: str) -> jax.Array:
    """Products of two blocks of queries with two of keys, of queries that are changed in place."""

    def kernel(q_ref: Any, k_ref: Any, out_ref: Any) -> None:
        j = pl.program_id(1)
        if how == "at the first step":

            @pl.when(j == 0)
            def _scale() -> None:
                q_ref[...] = q_ref[...] * 2

        elif how == "to a state":
            q_ref[...] = q_ref[...] * 2 + k_ref[...]
        elif how == "once for all":
            q_ref[...] = jnp.maximum(q_ref[...], 0)
        elif how == "to unit length":
            q = q_ref[...].astype(jnp.float32)
            length = jnp.sqrt(jnp.sum(q * q, axis=1, keepdims=True))
            q_ref[...] = (q / length).astype(q_ref.dtype)
        elif how == "without a use":
            q_ref[...] = q_ref[...] * 2

            @pl.when(j == 0)
            def _zero() -> None:
                out_ref[...] = jnp.zeros_like(out_ref)

            @pl.when(j == 1)
            def _store() -> None:
                out_ref[...] = q_ref[...]

            return
        else:
            q_ref[...] = q_ref[...] * 2  # scaled again
        out_ref[...] = q_ref[...] * k_ref[...]

    moves = how == "a block for each step"
    block = (8, 128)
    return pl.pallas_call(
        kernel,
        grid=(2, 2),
        in_specs=[
            pl.BlockSpec(block, lambda i, j: (i, j) if moves else (i, 0)),
            pl.BlockSpec(block, lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec(block, lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((16, 256), q.dtype),
    )(q, k)


@pytest.mark.parametrize(
    "how",
    [
        *("at each step", "at the first step", "to a state", "once for all", "without a use"),
        *("a block for each step", "to unit length"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_an_input_that_is_changed_in_place(how: str, dtype: str) -> None:
    q = np.arange(16 * 256).reshape(16, 256).astype(dtype) % 7 + 1
    findings = found(partial(changed_in_place, how=how), q, q[:8])
    if how != "at each step" or dtype == "int32":  # integers may be a state
        assert not findings
        return
    (read,) = findings
    assert (read.kind, read.operand, read.grid_point) == ("StaleRead", "q_ref", (0, 1))
    assert read.source is not None
    assert read.source.text.endswith("# scaled again")
    assert read.message == (
        "grid point (0, 1) changes q_ref[0, 0] from 2 to 4, after grid point (0, 0) has changed it"
    )
    assert read.cause == (
        "q_ref is an input: its block is not fetched again while its index stays the same"
    )
    assert read.advice == (
        "keep the result in a variable rather than in q_ref, or change it once for all steps"
    )


def phased(x: Any, *, stays: bool) -> Any:
    """The first of two phases adds up all blocks; the second divides each of them, in place."""

    def kernel(x_ref: Any, y_ref: Any, o_ref: Any, total: Any) -> None:
        phase, i = pl.program_id(0), pl.program_id(1)

        @pl.when(phase + i == 0)
        def _start() -> None:
            total[...] = jnp.zeros_like(total)

        @pl.when(phase == 0)
        def _add() -> None:
            total[...] += x_ref[...]

        @pl.when(phase == 1)
        def _divide() -> None:
            o_ref[...] = y_ref[...] / total[...]

    late = pl.BlockSpec((8, 128), lambda p, i: (jnp.where(p == 1, i, 0) if stays else i, 0))
    return pl.pallas_call(
        kernel,
        grid=(2, STEPS),
        in_specs=[pl.BlockSpec((8, 128), lambda p, i: (i, 0)), late],
        out_specs=late,
        out_shape=jax.ShapeDtypeStruct(x.shape, F32),
        scratch_shapes=[TILE],
        input_output_aliases={1: 0},
    )(x, x)


def test_an_input_that_holds_what_an_unwritten_block_left() -> None:
    x = np.arange(8 * STEPS * 128, dtype=np.float32).reshape(-1, 128) + 1
    assert not found(partial(phased, stays=True), x)
    (finding,) = found(partial(phased, stays=False), x)
    assert (finding.kind, finding.operand) == ("UninitializedRead", "y_ref")
    assert finding.cause == (
        "y_ref shares memory with o_ref: a block of o_ref was written back before the kernel had "
        "stored to all of it"
    )
    assert finding.advice == (
        "let the index map of o_ref return a block only where the kernel stores to all of it, or "
        "copy the block of y_ref to o_ref at the other grid points"
    )
    assert finding.values["shares memory with"] == "o_ref"

"""Which stores and grid points a wrong element comes from."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compared import line_of
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.comparison import provenance
from pallas_debug.model import Finding
from tests.broken_kernels import attention, broken

F32 = jnp.float32
X = jnp.arange(16.0 * 256).reshape(16, 256) + 1
ROWS = pl.BlockSpec((8, 128), lambda i, j: (i, 0))
TILES = pl.BlockSpec((8, 128), lambda i, j: (i, j))
TILE = pltpu.VMEM((8, 128), F32)


def found(function: Any, reference: Any, *args: Any) -> Finding:
    report = pallas_debug.compare(function, reference, *args, interpret="hlo")
    (finding,) = report.findings
    assert not report.notes
    return finding


def at(finding: Finding) -> tuple[int, tuple[int, ...] | None]:
    assert finding.source is not None
    return finding.source.line, finding.grid_point


def middle(finding: Finding) -> list[str]:
    """Lines of the message on how the element came about."""
    return [
        line
        for line in finding.message.splitlines()[2:]
        if not line.startswith(("largest error", "pattern"))
    ]


# Kernels that keep a state from one grid point to the next.


@pytest.mark.slow
def test_an_accumulator_that_is_rescaled_by_the_wrong_maximum() -> None:
    kernel = broken("rescaled_by_the_wrong_maximum")
    args = [jax.random.normal(jax.random.key(i), a.shape, F32) for i, a in enumerate(kernel.args)]
    finding = found(kernel.function, kernel.reference, *args)
    wrong = attention.rescaled_by_the_wrong_maximum
    assert at(finding) == (line_of(wrong, "out_ref[...] = "), (0, 1))
    assert f"{line_of(wrong, '# FAULT')} by 2 grid points, (0, 0) to (0, 1)" in finding.message
    scale, add = line_of(wrong, "# FAULT"), line_of(wrong, "acc_ref[...] += ")
    assert middle(finding) == [
        f"stored at line {at(finding)[0]} by grid point (0, 1), from l_ref and acc_ref; the same "
        "line stored the first element of the other differing block",
        f"l_ref: set at line {line_of(wrong, 'jnp.zeros_like(l_ref)')} by (0, 0); updated at line "
        f"{line_of(wrong, 'weights.sum(')} by 2 grid points, (0, 0) to (0, 1)",
        f"acc_ref: set at line {line_of(wrong, 'jnp.zeros_like(acc_ref)')} by (0, 0); updated at "
        f"line {scale} by 2 grid points, (0, 0) to (0, 1); updated at line {add} by 2 grid points, "
        "(0, 0) to (0, 1)",
    ]
    assert finding.values["writers of l_ref"].startswith("set at line ")


@pytest.mark.slow
def test_a_running_sum_that_is_not_reset() -> None:
    kernel = broken("denominator_of_the_query_before")
    x = jax.random.normal(jax.random.key(0), (16, 384), F32)
    finding = found(kernel.function, kernel.reference, x)
    wrong = attention.denominator_of_the_query_before
    assert at(finding) == (line_of(wrong, "out_ref[...] = "), (1, 2))
    fault, reset = line_of(wrong, "# FAULT"), line_of(wrong, "jnp.zeros_like(l_ref)")
    assert finding.other is not None
    assert finding.other.line == fault
    assert finding.cause == (
        f"l_ref is not reset where this block begins: it was last set at line {reset} by grid "
        f"point (0, 0), for another block of out_ref, and line {fault} continues from it at grid "
        "point (1, 0)"
    )
    assert finding.advice == (
        "reset l_ref at the first step of each block of out_ref: @pl.when(pl.program_id(axis) == "
        "0), with the axis along which the block stays the same"
    )
    carried, own = middle(finding)[1:]
    assert carried == (
        f"l_ref: set at line {reset} by (0, 0), for another block; updated at line {fault} by 6 "
        "grid points, (0, 0) to (1, 2)"
    )
    assert own.startswith("m_ref: set at line ")
    assert own.endswith(f" {line_of(wrong, 'm_ref[...] = m')} by 3 grid points, (1, 0) to (1, 2)")


def test_of_two_states_only_the_one_that_a_value_is_computed_from() -> None:
    """What is stored first is computed from both, and what both become with it."""

    def sums(x: jax.Array) -> Any:
        def kernel(x_ref: Any, both_ref: Any, one_ref: Any, one_acc: Any, two_acc: Any) -> None:
            @pl.when(pl.program_id(1) == 0)
            def _reset() -> None:
                one_acc[...] = jnp.zeros_like(one_acc)
                two_acc[...] = jnp.ones_like(two_acc)

            one, two = one_acc[...] + x_ref[...], two_acc[...] * 0.5
            both_ref[...] = one * two
            one_ref[...] = one + 1
            one_acc[...], two_acc[...] = one, two

        return pl.pallas_call(
            kernel,
            out_shape=(x[:, :128], x[:, :128]),
            grid=(2, 2),
            in_specs=[TILES],
            out_specs=(ROWS, ROWS),
            scratch_shapes=[TILE, TILE],
        )(x)

    def right(x: jax.Array) -> Any:
        total = x[:, :128] + x[:, 128:]
        return total * 0.25, total

    stored, *written = middle(found(sums, right, X))
    assert stored.endswith(" by grid point (0, 1), from one_acc")
    assert len(written) == 1
    assert written[0].startswith("one_acc: set at line ")


def matmul(x: jax.Array, y: jax.Array, *, is_right: bool) -> Any:
    def kernel(x_ref: Any, y_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        starts = pl.program_id(2) == 0
        if not is_right:
            starts &= (pl.program_id(0) == 0) & (pl.program_id(1) == 0)

        @pl.when(starts)
        def _reset() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += jnp.dot(x_ref[...], y_ref[...])

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _store() -> None:
            o_ref[...] = acc_ref[...]

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((16, 256), F32),
        grid=(2, 2, 2),
        in_specs=[
            pl.BlockSpec((8, 128), lambda i, j, k: (i, k)),
            pl.BlockSpec((128, 128), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((8, 128), lambda i, j, k: (i, j)),
        scratch_shapes=[TILE],
    )(x, y)


@pytest.mark.slow
def test_a_matmul_that_resets_its_accumulator_at_the_wrong_step() -> None:
    y = jnp.ones((256, 256))
    assert pallas_debug.compare(lambda x: matmul(x, y, is_right=True), lambda x: x @ y, X).ok
    finding = found(lambda x: matmul(x, y, is_right=False), lambda x: x @ y, X)
    store = line_of(matmul, "o_ref[...] = acc_ref[...]")
    add, reset = line_of(matmul, "+= jnp.dot"), line_of(matmul, "jnp.zeros_like")
    assert at(finding) == (store, (0, 1, 1))
    assert middle(finding)[1:] == [
        f"acc_ref: set at line {reset} by (0, 0, 0), for another block; updated at line {add} by 4 "
        "grid points, (0, 0, 0) to (0, 1, 1)"
    ]
    assert "; the same line stored the first element of 2 other differing blocks" in finding.message
    assert finding.cause is not None
    assert finding.cause.endswith(f"and line {add} continues from it at grid point (0, 1, 0)")


@pytest.mark.slow
def test_an_output_that_is_added_to_in_place() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _first() -> None:
            o_ref[...] = x_ref[...]

        for row in (0, 4):
            o_ref[pl.ds(row, 4)] += x_ref[pl.ds(row, 4)]

    def function(x: jax.Array) -> Any:
        out = jax.ShapeDtypeStruct((16, 128), F32)
        return pl.pallas_call(kernel, out_shape=out, grid=(2, 2), in_specs=[TILES], out_specs=ROWS)(
            x
        )

    finding = found(function, lambda x: x[:, :128] + x[:, 128:], X)
    line = line_of(kernel, "+=")
    assert at(finding) == (line, (0, 1))
    assert middle(finding)[1:] == [
        f"o_ref: set at line {line_of(kernel, 'o_ref[...] = x')} by (0, 0); updated at line {line} "
        "by 2 grid points, (0, 0) to (0, 1)"
    ]


# Loops, branches, copies, and kernels that are called several times.


@pytest.mark.slow
def test_loops_and_branches_on_the_way_to_a_store() -> None:
    def kernel(x_ref: Any, o_ref: Any, acc_ref: Any, scale_ref: Any) -> None:
        scale_ref[...] = x_ref[...] * 0 + 2

        def add(k: Any, total: Any) -> Any:
            acc_ref[pl.ds(k, 1)] = total
            return total + lax.cond(
                k > 2, lambda: x_ref[pl.ds(k, 1)], lambda: scale_ref[pl.ds(k, 1)]
            )

        total = lax.fori_loop(0, 8, add, jnp.zeros((1, 128), F32))
        for_all = lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + acc_ref[...]), (0, acc_ref[...] * 0)
        )

        @pl.when(pl.program_id(0) == 1)
        def _() -> None:
            o_ref[...] = for_all[1] + total

    def function(x: jax.Array) -> Any:
        block = pl.BlockSpec((8, 128), lambda i: (0, i))
        out = jax.ShapeDtypeStruct((8, 256), F32)
        return pl.pallas_call(
            kernel, out_shape=out, grid=(2,), in_specs=[block], out_specs=block,
            scratch_shapes=[TILE, TILE],
        )(x)  # fmt: skip

    finding = found(function, lambda x: jnp.zeros((8, 256)).at[:, 128:].set(jnp.inf), X[:8])
    assert middle(finding) == ["no step stored it"]
    (store,) = [line_of(kernel, "o_ref[...] = ")]
    only_last = found(lambda x: function(x)[4:, 128:], lambda x: x[4:, 128:], X[:8])
    assert at(only_last) == (store, (1,))
    first, *sources = middle(only_last)
    assert first == f"stored at line {store} by grid point (1,), from acc_ref and scale_ref"
    assert sources == [
        f"acc_ref: set at line {line_of(kernel, 'acc_ref[pl.ds(k, 1)] = ')} by (1,)",
        f"scale_ref: set at line {line_of(kernel, 'scale_ref[...] = ')} by (1,)",
    ]


def copied(x: jax.Array) -> Any:
    def kernel(x_ref: Any, o_ref: Any, tile_ref: Any, sem: Any) -> None:
        tile_ref[...] = x_ref[...] * 3
        copy = pltpu.make_async_copy(tile_ref, o_ref.at[pl.ds(pl.program_id(0) * 8, 8)], sem)
        copy.start()
        copy.wait()

    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        kernel, out_shape=x, grid=(2,), in_specs=[rows], out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[TILE, pltpu.SemaphoreType.DMA],
    )(x)  # fmt: skip


@pytest.mark.slow
def test_an_output_that_is_copied_by_dma() -> None:
    x = X[:, :128]
    finding = found(copied, lambda x: x * jnp.where(jnp.arange(16) < 9, 3, 2)[:, None], x)
    line = line_of(copied, "copy.start()")
    assert at(finding) == (line, (1,))
    assert middle(finding) == [
        f"copied at line {line} by grid point (1,), from tile_ref",
        f"tile_ref: set at line {line_of(copied, 'tile_ref[...] = ')} by (1,)",
    ]
    assert "the grid point that wrote it is unknown" not in finding.message


def gathered(lengths: jax.Array, x: jax.Array) -> Any:
    def kernel(lengths_ref: Any, x_ref: Any, o_ref: Any, rows_ref: Any, sem: Any) -> None:
        row = pl.program_id(0)

        @pl.loop(0, lengths_ref[row])
        def _(i: Any) -> None:
            place = pl.ds(i * 8, 8)
            pltpu.sync_copy(x_ref.at[row, place], rows_ref.at[place])

        o_ref[0] = jnp.sum(rows_ref[...].reshape(4, 8, 128), 0)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((2, 8, 128), jnp.float32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(2,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((1, 8, 128), lambda i, lengths_ref: (i, 0, 0)),
            scratch_shapes=[pltpu.VMEM((32, 128), jnp.float32), pltpu.SemaphoreType.DMA],
        ),
    )(lengths, x)


@pytest.mark.slow
def test_a_buffer_that_holds_rows_of_another_block() -> None:
    x = jnp.arange(2 * 32 * 128.0).reshape(2, 32, 128)

    def right(lengths: jax.Array, x: jax.Array) -> jax.Array:
        is_there = jnp.arange(32)[:, None] < 8 * lengths[:, None, None]
        return jnp.where(is_there, x, 0).reshape(2, 4, 8, 128).sum(1)

    finding = found(gathered, right, jnp.array([4, 1], jnp.int32), x)
    line = line_of(gathered, "pltpu.sync_copy")
    assert finding.cause is not None
    assert finding.cause.startswith(
        f"rows_ref holds what line {line} copied at grid point (0,), for another block of o_ref, "
        f"alongside what line {line} copied at (1,)"
    )
    assert finding.values["writers of rows_ref"] == (
        f"copied at line {line} by (0,), 3 times, for another block; copied at line {line} by (1,)"
    )


@pytest.mark.slow
def test_the_call_of_a_kernel_that_a_result_comes_from() -> None:
    @jax.jit
    def scale(x: jax.Array) -> Any:
        def kernel(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = x_ref[...] * jnp.where(x_ref[...] > 4e3, 2.0, 1.0)

        return pl.pallas_call(kernel, out_shape=x)(x)

    def function(x: jax.Array) -> Any:
        def body(c: Any) -> Any:
            return c[0] + 1, scale(c[1])

        _, y = lax.while_loop(lambda c: c[0] < 2, body, (0, x))
        y, _ = lax.scan(lambda c, _: (scale(c), c.sum()), y, None, length=2)
        y = lax.cond(y[0, 0] > 0, scale, lambda y: y, y)
        return scale(scale(y).reshape(256, 16)).reshape(16, 256) * 1.0

    finding = found(function, lambda x: x, X)
    assert finding.source is not None
    assert finding.source.text == "o_ref[...] = x_ref[...] * jnp.where(x_ref[...] > 4e3, 2.0, 1.0)"
    assert middle(finding) == []  # the finding's own line says it all
    assert finding.values["writers of o_ref"] == f"set at line {finding.source.line}"


@pytest.mark.slow
def test_a_run_that_cannot_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "SECONDS", -1.0)
    finding = found(lambda x: matmul(x, x.T @ x, is_right=False), lambda x: x @ (x.T @ x), X)
    assert middle(finding) == [
        "the line that stored it is unknown: a run on the kernel machine takes more than -1 s"
    ]
    assert finding.grid_point == (0, 1, 1)
    assert finding.source is not None
    assert finding.source.text is not None
    assert finding.source.text.startswith("def kernel(")


def test_what_a_run_is_bounded_by() -> None:
    """The writes that are kept do not grow with the grid."""

    def kernel(x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        def row(r: Any, _: Any) -> None:
            acc_ref[pl.ds(r, 1)] += x_ref[pl.ds(r, 1)]

        lax.fori_loop(0, 8, row, None)
        o_ref[...] = acc_ref[...]

    def function(x: jax.Array) -> Any:
        whole = pl.BlockSpec((8, 128), lambda i: (0, 0))
        return pl.pallas_call(
            kernel,
            out_shape=x,
            grid=(50,),
            in_specs=[whole],
            out_specs=whole,
            scratch_shapes=[TILE],
        )(x)

    finding = found(function, lambda x: x, X[:8, :128])
    (line,) = middle(finding)[1:]
    update = line_of(kernel, "+=")
    assert line == (
        f"acc_ref: set at line {line_of(kernel, 'jnp.zeros_like')} by (0,); updated at line "
        f"{update} by 50 grid points, (0,) to (49,)"
    )
    assert np.isfinite(float(finding.values["value"]))


def running_mean(x: jax.Array, *, is_right: bool) -> jax.Array:
    """Sums of columns so far; the carry is the first row of a block instead of the last."""

    def kernel(x_ref: Any, o_ref: Any, carry: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            carry[...] = jnp.zeros_like(carry)

        for row in range(8):
            o_ref[row] = x_ref[row] + (o_ref[row - 1] if row else carry[0])
        carry[0] = carry[0] + o_ref[7 if is_right else 0] - carry[0]

    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        kernel, grid=(2,), in_specs=[rows], out_specs=rows, out_shape=x,
        scratch_shapes=[pltpu.VMEM((1, 128), F32)],
    )(x)  # fmt: skip


@pytest.mark.slow
def test_a_carry_is_not_said_to_lack_a_reset() -> None:
    wrong = functools.partial(running_mean, is_right=False)
    right = functools.partial(jnp.cumsum, axis=0)
    finding = found(wrong, right, jnp.ones((16, 128), F32))
    assert str(finding.cause).startswith("carry was last set at line ")
    assert str(finding.cause).endswith(
        "if this block should not depend on that one, a reset is missing"
    )
    assert str(finding.advice).startswith("reset carry before this block, unless it carries values")


@pytest.mark.slow
def test_a_line_that_a_loop_of_python_has_several_times() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]
        for _ in range(3):
            o_ref[...] = o_ref[...] * 2  # FAULT

    def call(x: jax.Array) -> jax.Array:
        return pl.pallas_call(kernel, out_shape=x)(x)

    finding = found(call, lambda x: x * 4, jnp.ones((8, 128), F32))
    assert f"updated at line {line_of(kernel, '# FAULT')}, 3 times" in finding.message

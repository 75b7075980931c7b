"""The chain of writers behind the first wrong element, and the line that it accuses."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from compared import line_of
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.comparison import chain
from pallas_debug.comparison.path import on_path
from pallas_debug.findings.hints import HintKind
from pallas_debug.findings.mismatch import MAX_SHOWN
from pallas_debug.model import Finding, Hint
from tests.broken_kernels import broken

F32 = jnp.float32
X = jnp.arange(16.0 * 256).reshape(16, 256) + 1
ROWS = pl.BlockSpec((8, 128), lambda i, j: (i, 0))
TILES = pl.BlockSpec((8, 128), lambda i, j: (i, j))
TILE = pltpu.VMEM((8, 128), F32)


def found(function: Any, reference: Any, *args: Any) -> Finding:
    report = pallas_debug.compare(function, reference, *args)
    (finding,) = [one for one in report.findings if one.kind == "ValueMismatch"]
    assert not report.notes
    return finding


def at(finding: Finding) -> tuple[int, tuple[int, ...] | None]:
    assert finding.source is not None
    return finding.source.line, finding.grid_point


def links(finding: Finding) -> list[tuple[int, Any, str]]:
    """Line, grid point and action of each link; the message shows them if there are several."""
    if len(finding.chain) > 1:
        assert all(link.action in finding.message for link in finding.chain[:MAX_SHOWN])
    return [
        (0 if link.source is None else link.source.line, link.grid_point, link.action)
        for link in finding.chain
    ]


# The corpus: kernels whose fault is one of intent.

INTENT = {
    "zeroed_at_the_start_of_the_grid": "acc_ref is not reset where this block begins",
    "second_sum_not_zeroed": "acc_ref is not reset where this block begins",
    "count_of_the_group_before": "count_ref is not reset where this block begins",
    "denominator_of_the_query_before": "l_ref is not reset where this block begins",
    "maximum_of_the_query_before": "m_ref is not reset where this block begins",
    "zeroed_along_the_wrong_axis": "which nothing had read",
    "rows_of_the_longer_sequence": "rows_ref holds what line ",
    "product_replaced_at_each_step": "which nothing had read",
    "duplicate_in_a_scatter": "which nothing had read",
    "frames_overlap": "which nothing had read",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", INTENT)
def test_the_faulty_line_of_a_kernel_whose_fault_is_intent(name: str) -> None:
    kernel = broken(name)
    args = kernel.make_args()
    if name == "maximum_of_the_query_before":  # else the maximum cancels out
        args = (args[0] + jnp.where(jnp.arange(16) < 8, 200.0, 0.0)[:, None],)
    finding = found(kernel.function, kernel.reference, *args)
    assert INTENT[name] in str(finding.cause)
    assert finding.source is not None
    if name == "zeroed_along_the_wrong_axis":  # the reset is named, and the sum that it erases
        assert f"what line {kernel.line} wrote to acc_ref" in str(finding.cause)
    else:
        assert finding.source.line == kernel.line


def test_a_prefetch_of_the_wrong_block_is_among_the_links() -> None:
    kernel = broken("current_block_prefetched")
    finding = found(kernel.function, kernel.reference, *kernel.make_args())
    store, copy = finding.chain
    assert store.action == "sets out_ref from tiles_ref"
    assert copy.action == "copies x_ref[0:8, 0:128] to tiles_ref"
    assert copy.source is not None
    assert copy.source.text == "fetch(i, i + 1).start()"


def add_parts(table: jax.Array, parts: jax.Array) -> jax.Array:
    """pytorch/helion#2637: each grid point loads the initial value again."""

    def kernel(table_ref: Any, part_ref: Any, o_ref: Any) -> None:
        o_ref[...] = table_ref[...]
        o_ref[...] += part_ref[...]

    return pl.pallas_call(
        kernel, out_shape=table, grid=(2, 3), in_specs=[ROWS, TILES], out_specs=ROWS,
        input_output_aliases={0: 0},
    )(table, parts)  # fmt: skip


def test_a_preload_that_erases_what_was_added() -> None:
    finding = found(
        add_parts,
        lambda table, parts: table + parts.reshape(16, 3, 128).sum(1),
        jnp.ones((16, 128)),
        jax.random.normal(jax.random.key(0), (16, 384)),
    )
    preload, add = line_of(add_parts, "= table_ref"), line_of(add_parts, "+= part_ref")
    assert at(finding) == (preload, (0, 2))
    assert finding.other is not None
    assert finding.other.line == add
    assert finding.cause == (
        f"line {preload} replaces at grid point (0, 2) what line {add} wrote to o_ref at (0, 1), "
        "which nothing had read"
    )
    assert links(finding) == [
        (add, (0, 2), "updates o_ref from part_ref"),
        (preload, (0, 2), "sets o_ref from table_ref"),
    ]


# Sums and states that are kept from one grid point to the next.


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


def test_a_matmul_that_resets_its_accumulator_at_the_wrong_step() -> None:
    y = jnp.ones((256, 256))
    assert pallas_debug.compare(lambda x: matmul(x, y, is_right=True), lambda x: x @ y, X).ok
    finding = found(lambda x: matmul(x, y, is_right=False), lambda x: x @ y, X)
    store = line_of(matmul, "o_ref[...] = acc_ref[...]")
    add, reset = line_of(matmul, "+= jnp.dot"), line_of(matmul, "jnp.zeros_like")
    assert at(finding) == (add, (0, 1, 0))
    assert links(finding) == [
        (store, (0, 1, 1), "sets o_ref from acc_ref"),
        (add, (0, 1, 1), "updates acc_ref from x_ref and y_ref, 2 times"),
        (
            add,
            (0, 0, 1),
            "updates acc_ref from x_ref and y_ref, 2 times, for another block of o_ref",
        ),
        (reset, (0, 0, 0), "sets acc_ref to a constant, for another block of o_ref"),
    ]
    assert finding.chain[1].since == (0, 1, 0)
    assert finding.cause == (
        f"acc_ref is not reset where this block begins: it was last set by (0, 0, 0), line {reset}, "
        f"for another block of o_ref, and line {add} continues from it at (0, 1, 0)"
    )
    assert f"line {add} at (0, 1, 0) to (0, 1, 1) updates acc_ref" in finding.message


def test_hints_on_the_chain_come_first() -> None:
    y = jnp.ones((256, 256))
    finding = found(lambda x: matmul(x, y, is_right=False), lambda x: x @ y, X)
    here, reset = finding.source, finding.other

    def hint(kind: HintKind, operand: str | None, source: Any, kernel: str = "kernel") -> Hint:
        return Hint(kind=kind, kernel=kernel, message="", operand=operand, source=source)

    carried = hint(HintKind.CARRIED, "acc_ref", here)
    unread = hint(HintKind.UNREAD_WRITE, "acc_ref", reset)
    part = hint(HintKind.UNREAD_INPUT, "x_ref", None)
    elsewhere = [
        hint(HintKind.CARRIED, "acc_ref", here, kernel="another"),
        hint(HintKind.CARRIED, "other_ref", here),
        hint(HintKind.UNREAD_INPUT, "other_ref", None),
        hint(HintKind.UNREAD_WRITE, "acc_ref", None),
    ]
    assert on_path([part, *elsewhere, unread, carried], finding) == (carried, unread, part)
    assert on_path([carried], replace(finding, chain=())) == ()


@pytest.mark.slow
def test_an_accumulator_that_is_rescaled_by_the_wrong_maximum() -> None:
    kernel = broken("rescaled_by_the_wrong_maximum")
    args = [jax.random.normal(jax.random.key(i), a.shape, F32) for i, a in enumerate(kernel.args)]
    finding = found(kernel.function, kernel.reference, *args)
    assert kernel.line in [line for line, _, _ in links(finding)]


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

    finding = found(sums, right, X)
    assert {link.buffer for link in finding.chain} == {"one_ref", "one_acc"}
    assert finding.chain[0].sources == ("one_acc", "x_ref")


def sums(x: jax.Array, *, first: int = 0, last: int = 2) -> jax.Array:
    """Sums of three blocks: reset at the steps up to one, and stored at a step."""

    def kernel(x_ref: Any, o_ref: Any, acc: Any) -> None:
        @pl.when(pl.program_id(0) <= first)
        def _() -> None:
            acc[...] = jnp.zeros_like(acc)

        acc[...] += x_ref[...]

        @pl.when(pl.program_id(0) == last)
        def _() -> None:
            o_ref[...] = acc[...]

    return pl.pallas_call(
        kernel, grid=(3,), in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
        scratch_shapes=[TILE],
        out_shape=jax.ShapeDtypeStruct((8, 128), F32),
    )(x)  # fmt: skip


def test_a_sum_that_is_stored_early_and_one_that_is_reset_late() -> None:
    x = jnp.arange(24.0)[:, None] ** 2 + jnp.arange(128.0)

    def right(x: jax.Array) -> jax.Array:
        return x.reshape(3, 8, 128).sum(0)

    add, store = line_of(sums, "acc[...] += "), line_of(sums, "o_ref[...] = acc")
    finding = found(functools.partial(sums, last=1), right, x)
    assert finding.cause == (
        f"line {store} stores the block at grid point (1,), and line {add} updates acc after that, "
        "at (2,): that is not in the result"
    )
    finding = found(functools.partial(sums, first=2), right, x)
    assert finding.cause == (
        f"line {line_of(sums, 'jnp.zeros_like')} replaces at grid point (2,) what line {add} wrote "
        "to acc at (1,), which nothing had read"
    )


@pytest.mark.parametrize("is_last", [True, False])
def test_a_value_that_was_replaced_is_no_cause_if_the_new_one_contains_it(is_last: bool) -> None:
    def kernel(x_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += x_ref[...]
        o_ref[...] = (acc_ref[...] if is_last else jnp.flip(acc_ref[...], 0)) * 2

    def function(x: jax.Array) -> Any:
        return pl.pallas_call(
            kernel, out_shape=x[:, :128], grid=(2, 2), in_specs=[TILES], out_specs=ROWS,
            scratch_shapes=[TILE],
        )(x)  # fmt: skip

    finding = found(function, lambda x: x[:, :128] + x[:, 128:], X)
    assert "replaces" not in str(finding.cause)
    assert at(finding) == (line_of(kernel, "o_ref[...] = "), (0, 1))


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
    assert finding.chain == ()
    assert str(finding.cause).startswith("no step of the kernel writes [0, 0]: it holds whatever")
    only_last = found(lambda x: function(x)[4:, 128:], lambda x: x[4:, 128:], X[:8])
    assert at(only_last) == (line_of(kernel, "o_ref[...] = "), (1,))
    lines = dict.fromkeys(line for line, _, _ in links(only_last))
    assert list(lines) == [
        line_of(kernel, "o_ref[...] = "),
        line_of(kernel, "scale_ref[pl.ds(k, 1)]"),
        line_of(kernel, "scale_ref[...] = "),
        line_of(kernel, "acc_ref[...])"),
        line_of(kernel, "acc_ref[pl.ds(k, 1)] = "),
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


def test_an_output_that_is_copied_by_dma() -> None:
    x = X[:, :128]
    finding = found(copied, lambda x: x * jnp.where(jnp.arange(16) < 9, 3, 2)[:, None], x)
    line = line_of(copied, "copy.start()")
    assert at(finding) == (line, (1,))
    assert links(finding) == [
        (line, (1,), "copies tile_ref[0:8, 0:128] to o_ref"),
        (line_of(copied, "tile_ref[...] = "), (1,), "sets tile_ref from x_ref"),
    ]


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
    assert [link.action for link in finding.chain] == ["sets o_ref from x_ref"]


def test_a_run_that_cannot_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "SECONDS", -1.0)
    finding = found(lambda x: matmul(x, x.T @ x, is_right=False), lambda x: x @ (x.T @ x), X)
    assert (
        "; what wrote it is unknown: a run on the kernel machine takes more than -1 s"
    ) in finding.message
    assert (finding.grid_point, finding.chain) == (None, ())
    assert finding.source is not None
    assert finding.source.text is not None
    assert finding.source.text.startswith("def kernel(")


@pytest.mark.parametrize("is_short", [True, False])
def test_the_log_of_a_long_run_keeps_its_end(
    is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    if is_short:
        monkeypatch.setattr("pallas_debug.comparison.writes.MAX_EVENTS", 100)
    finding = found(function, lambda x: x, X[:8, :128])
    store, update, *reset = finding.chain
    assert (store.grid_point, update.grid_point) == ((49,), (49,))
    assert bool(reset) != is_short
    if not is_short:
        assert update.since == (0,)
        assert update.action == "updates acc_ref from x_ref, 50 times"


def test_a_line_that_a_loop_of_python_has_several_times() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]
        for _ in range(3):
            o_ref[...] = o_ref[...] * 2  # FAULT

    def call(x: jax.Array) -> jax.Array:
        return pl.pallas_call(kernel, out_shape=x)(x)

    finding = found(call, lambda x: x * 4, jnp.ones((8, 128), F32))
    fault, first = line_of(kernel, "# FAULT"), line_of(kernel, "= x_ref[...]")
    assert [(line, action) for line, _, action in links(finding)] == [
        (fault, "updates o_ref, 3 times"),
        (first, "sets o_ref from x_ref"),
    ]

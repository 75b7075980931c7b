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
    return finding.source.line, finding.grid_point


def links(finding: Finding) -> list[tuple[int, Any, str]]:
    """Line, grid point and action of each link."""
    return [
        (0 if link.source is None else link.source.line, link.grid_point, link.action)
        for link in finding.chain
    ]


@functools.cache
def carried_sum() -> Finding:
    """A matmul that resets its accumulator only at the start of the grid."""
    kernel = broken("zeroed_at_the_start_of_the_grid")
    return found(kernel.function, kernel.reference, *kernel.make_args())


def test_each_link_has_its_line_point_and_block() -> None:
    finding = carried_sum()
    _, (add, *_), (before, *_), _ = links(finding)
    assert before == add
    assert at(finding) == (add, (0, 1, 0))
    assert (finding.source, finding.other) == tuple(finding.chain[i].source for i in (1, 3))
    assert [link.grid_point for link in finding.chain] == [
        (0, 1, 1), (0, 1, 1), (0, 0, 1), (0, 0, 0),
    ]  # fmt: skip
    assert [link.since for link in finding.chain] == [None, (0, 1, 0), (0, 0, 0), None]


def test_hints_on_the_chain_come_first() -> None:
    finding = carried_sum()
    here, reset = finding.source, finding.other

    def hint(kind: HintKind, operand: str | None, source: Any, kernel: str = "") -> Hint:
        kernel = kernel or finding.kernel
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
    assert finding.source.text == "o_ref[...] = x_ref[...] * jnp.where(x_ref[...] > 4e3, 2.0, 1.0)"
    assert [link.action for link in finding.chain] == ["sets o_ref from x_ref"]


def test_a_run_that_cannot_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "SECONDS", -1.0)
    finding = carried_sum.__wrapped__()
    assert "its writers are unknown: a run on the kernel machine takes more" in finding.message
    assert (finding.grid_point, finding.chain) == (None, ())
    assert finding.source.function == finding.kernel


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

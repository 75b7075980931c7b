"""Grid points to watch: which are chosen, what is checked at them, and what is said of the others."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.bridge.hosted.watch import WatchedPoints, parse
from pallas_debug.bridge.programs import program as ir
from pallas_debug.errors import UsageError
from pallas_debug.machine.memory import MemoryBuffer
from pallas_debug.machine.shadow.shadow import GIVEN, BufferShadow
from pallas_debug.session import Mode

F32, I32 = jnp.float32, jnp.int32
X = jnp.ones((256, 384), I32)


def totals_kernel(x_ref: Any, out_ref: Any, acc_ref: Any) -> None:
    @pl.when((pl.program_id(0) == 0) & (pl.program_id(1) == 0))
    def _() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += x_ref[...]
    out_ref[...] = acc_ref[...].astype(F32)


def totals(x: jax.Array) -> jax.Array:
    """A sum that another core may have begun, over 8 output blocks of 3 steps each."""
    return pl.pallas_call(
        totals_kernel,
        out_shape=jax.ShapeDtypeStruct((256, 128), F32),
        grid=(8, 3),
        in_specs=[pl.BlockSpec((32, 128), lambda i, k: (i, k))],
        out_specs=pl.BlockSpec((32, 128), lambda i, k: (i, 0)),
        scratch_shapes=[pltpu.VMEM((32, 128), x.dtype)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(x)


TOTALS = np.repeat(3.0 * np.arange(1, 9), 32)[:, None] * np.ones(128)


def watched(points: str, function: Any = totals, x: Any = X) -> tuple[list[str], str]:
    """Findings with their grid points, and what was not checked; the results have to be right."""
    report, out = pallas_debug.check(function, sanitize=True, watch=points)(x)
    if function is totals:
        np.testing.assert_array_equal(out, TOTALS)
    return [f"{f.kind} {f.grid_point}" for f in report.findings], " ".join(report.not_checked)


# The grammar


def boxes(text: str, grid: tuple[int, ...]) -> list[tuple[range, ...]]:
    return [part.ranges(grid) for part in parse(text).of("k", len(grid))]


def test_entries_are_positions_ranges_and_whole_axes() -> None:
    assert boxes("0:4,*,7", (8, 3, 9)) == [(range(4), range(3), range(7, 8))]
    assert boxes(" -1 , -2: , :2 ", (8, 3, 9)) == [(range(7, 8), range(1, 3), range(2))]
    assert boxes("6:99,3,-4", (8, 3, 3)) == [(range(6, 8), range(0), range(0))]
    assert boxes("0;k=1;other=2", (4,)) == [(range(1, 2),)]
    assert boxes("0;3;0,1", (4,)) == [(range(1),), (range(3, 4),)]
    assert boxes("0,0", (4,)) == []


def test_overlapping_selections_are_counted_once() -> None:
    grid = (5, 4, 3)
    parts = parse("0:3,*,1;2:,1:3,*;-1,*,*").of("k", 3)
    points = WatchedPoints(grid, ("",) * 3, tuple(part.ranges(grid) for part in parts))
    each = [point for point in np.ndindex(grid) if point in points]
    assert points.count == len(each) == 34
    assert points.total == 60


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "an axis is empty"),
        ("0:4,,7", "an axis is empty"),
        ("0;", "an axis is empty"),
        ("k=", "an axis is empty"),
        ("=0", "a name is missing before `=`"),
        ("a", "'a' is not a position"),
        ("1:2:3", "'1:2:3' is not a position"),
        ("0x1", "'0x1' is not a position"),
        ("1.0", "'1.0' is not a position"),
        ("٣", "'٣' is not a position"),
        ("9999999999", "'9999999999' is not a position"),
    ],
)
def test_what_is_no_grid_point(text: str, why: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text)
    assert str(error.value) == (
        f"{text!r} does not choose grid points to watch: {why}. Write a position, a range or `*` "
        "for each axis of the grid, as in `0:4,*,7`; `kernel=0:4,*` for one kernel; join several "
        "by `;`"
    )


def test_points_in_the_text_of_a_mode() -> None:
    mode = Mode.parse("machine,sanitize,watch=0:4,*,7")
    assert (mode.sanitizes, mode.params["watch"]) == (True, "0:4,*,7")
    assert Mode.parse(str(mode)) == mode
    assert Mode.parse(str(Mode("machine", {"watch": "0,*", "sanitize": True}))).sanitizes
    with pytest.raises(UsageError, match=r"watch=0,\* chooses grid points for the sanitizer"):
        Mode.parse("machine,watch=0,*")
    with pytest.raises(UsageError, match="'a' is not a position"):
        Mode.parse("machine,sanitize,watch=a")


# Shadows of arrays in HBM


def test_a_shadow_takes_memory_only_where_it_is_written() -> None:
    generator = np.random.default_rng(0)
    shape = (3, 130, 1500)
    memory = ir.RefType(shape, np.dtype(np.int8), "hbm")
    buffer = MemoryBuffer(0, np.zeros(shape, np.int8), "x_ref", "array", memory)
    kept, array = BufferShadow(buffer, "array", GIVEN, is_sparse=True), np.zeros(shape, np.int32)
    kept.put((slice(0, 2), 3), GIVEN)  # what it holds already
    assert kept.dense is None
    rows = generator.permutation(130)[:9]
    cells: list[Any] = [
        (slice(0, 2), slice(7, 100, 3), slice(1000, 1030)),
        (2, slice(60, 70), 1499),
        (1, rows, slice(0, 8)),
        (slice(0, 3), rows[:, None], np.arange(5)),
        (1, 5, 5),
        (slice(0, 0), 1, 1),
    ]
    for number, index in enumerate(cells, start=2):
        for values in (number, generator.integers(2, 50, array[index].shape)):
            kept.put(index, values)
            array[index] = values
            np.testing.assert_array_equal(kept.numbers, array)
    assert kept.distinct() == set(np.unique(array[array > 0]).tolist())


# What is checked


@pytest.mark.slow
def test_only_watched_grid_points_are_checked() -> None:
    assert watched("4:6,*")[0] == ["UninitializedRead (5, 0)"]
    found, left_out = watched("totals_kernel=3,*")
    assert found == []
    assert left_out == (
        "kernel `totals_kernel` was judged by the sanitizer only in part: memory and arithmetic are "
        "checked at 3 of 24 grid points (3,*). The absence of findings in the rest proves nothing."
    )
    found, left_out = watched("0:2,-1;9,*")
    assert found == []
    assert (
        "checked at 2 of 24 grid points (0:2,-1;9,*), but its grid (8, 3) has no 9,*." in left_out
    )


def test_watching_all_grid_points_leaves_nothing_out() -> None:
    whole = ["UninitializedRead (1, 0)"], ""
    assert watched("*,0;*,1:") == whole
    assert watched("0") == whole  # for kernels whose grid has one axis


def test_a_grid_of_other_axes_than_named() -> None:
    found, left_out = watched("totals_kernel=1")
    assert found == []
    assert (
        "runs on the kernel machine without being judged, because the grid points to watch in kernel "
        "`totals_kernel`, '1', have 1 axis, but its grid (8, 3) has 2." in left_out
    )


@pytest.mark.slow
def test_a_refusal_offers_grid_points_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pallas_debug.defaults.MAX_SHADOW_BYTES", 200_000)
    report, _ = pallas_debug.check(totals, sanitize=True)(X)
    (message,) = report.not_checked
    assert "kernel `totals_kernel` has 135,168 elements (`x_ref`: int32[256, 384])" in message
    assert message.endswith(
        "Sanitize it on smaller arrays with the same blocks, or watch only some of its grid "
        "points, such as 0,* (`watch='0,*'`, `--watch '0,*'`, `--pallas-interpret='machine,sanitize,watch=0,*'`). The "
        "absence of findings in it proves nothing."
    )
    (points,) = re.findall(r"watch='([^']*)'`, `--watch", message)
    assert "checked at 3 of 24 grid points (0,*). The abs" in watched(points)[1]
    assert watched("0:2,*")[0] == ["UninitializedRead (1, 0)"]
    assert (
        "The watched grid points '0,*,*' are not for this kernel, whose grid has 2 axes"
        in (watched("0,*,*")[1])
    )
    monkeypatch.setattr("pallas_debug.defaults.MAX_SHADOW_BYTES", 10_000)
    assert "Sanitize it on smaller arrays with the same blocks. The abs" in watched("0:7,*")[1]


def added_kernel(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = lax.div(jnp.full_like(x_ref[...], 100), x_ref[...] - jnp.int8(100))


@pytest.mark.slow
def test_arithmetic_and_grids_that_the_call_gives() -> None:
    def added(x: jax.Array, steps: Any) -> jax.Array:
        rows = pl.BlockSpec((32, 128), lambda i: (i, 0))
        return pl.pallas_call(
            added_kernel, out_shape=x, grid=(steps,), in_specs=[rows], out_specs=rows,
            input_output_aliases={0: 0},
        )(x)  # fmt: skip

    x = jnp.zeros((128, 128), jnp.int8).at[96:].set(100)
    call = jax.jit(lambda x: added(x, jnp.int32(x[0, 0] + 4)))
    assert watched("0:3", call, x) == (
        [],
        "kernel `added_kernel` was judged by the sanitizer only in part: memory and arithmetic are "
        "checked at 3 of 4 grid points (0:3). The absence of findings in the rest proves nothing.",
    )
    assert watched("3", call, x)[0] == ["DivisionByZero (3,)"]
    assert (
        "checked at 0 of 4 grid points (4:), but its grid (4) has no 4:."
        in watched("4:", call, x)[1]
    )


def copied_kernel(x_ref: Any, out_ref: Any, tile: Any, sem: Any) -> None:
    i = pl.program_id(0)

    @pl.when(i != 2)
    def _() -> None:
        copy = pltpu.make_async_copy(x_ref.at[pl.ds(8 * i, 8)], tile, sem)
        copy.start()
        copy.wait()

    copy = pltpu.make_async_copy(tile, out_ref.at[pl.ds(8 * (i // 2), 8)], sem)
    copy.start()
    copy.wait()


def copied(x: jax.Array) -> jax.Array:
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        copied_kernel, out_shape=x, grid=(4,), in_specs=[anywhere], out_specs=anywhere,
        scratch_shapes=[pltpu.VMEM((8, 128), F32), pltpu.SemaphoreType.DMA],
    )(x)  # fmt: skip


@pytest.mark.parametrize(
    "points, kinds",
    [
        ("*", ["OutputNotWritten None"]),
        ("0:2", []),
        ("2:", []),
        ("1:3", []),  # each replaces what an unwatched one wrote
        ("0;2", []),
    ],
)
def test_what_others_write_gives_no_finding(points: str, kinds: list[str]) -> None:
    x = jnp.arange(32 * 128, dtype=F32).reshape(32, 128)
    assert watched(points, copied, x)[0] == kinds


def short_kernel(x_ref: Any, out_ref: Any) -> None:
    out_ref[0:6] = x_ref[0:6] + 1


@pytest.mark.parametrize("points, rows", [("0:2", "6:8"), ("1:3", "14:16"), ("3", "30:32")])
def test_outputs_that_watched_grid_points_leave_unwritten(points: str, rows: str) -> None:
    def short(x: jax.Array) -> jax.Array:
        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            short_kernel, out_shape=x, grid=(4,), in_specs=[block], out_specs=block
        )(x)

    report, _ = pallas_debug.check(short, sanitize=True, watch=points)(jnp.ones((32, 128), F32))
    (finding,) = report.findings
    assert finding.message.startswith(f"out_ref[{rows}, 0:128]")
    written = 2 if points == "3" else 4
    assert f"{written * 128} of 4,096 elements" in finding.message


# From everywhere


@pytest.mark.slow
def test_verify_does_not_count_a_kernel_watched_in_part_as_checked() -> None:
    verdict = pallas_debug.verify(totals, X, engines="machine", watch="0,*")
    (outcome,) = (o for o in verdict.outcomes if o.engine == "machine")
    assert outcome.status == "unjudged"
    assert "checked at 3 of 24 grid points" in str(outcome.reason)
    assert not verdict.ok
    verdict = pallas_debug.verify(totals, X, engines="machine", watch="3:5,*")
    (finding,) = verdict.findings
    assert (str(finding.kind), finding.grid_point) == ("UninitializedRead", (4, 0))
    assert "checked at 6 of 24 grid points" in str(verdict)
    assert pallas_debug.verify(totals, X, engines="machine", watch="0:,*").findings
    with pytest.raises(UsageError, match="name the engine `machine` as well"):
        pallas_debug.verify(totals, X, engines="static", watch="0,*")


@pytest.mark.parametrize(
    "points, why",
    [
        (
            "8,*",
            "there are no grid points '8,*' to watch: kernel `totals_kernel` has the grid (8, 3)",
        ),
        (
            "0,0;0",
            "there are no grid points '0' to watch: kernel `totals_kernel` has the grid (8, 3)",
        ),
        (
            "totals_kernal=0,0",
            "there is no kernel 'totals_kernal' (did you mean 'totals_kernel'?) to watch: kernel `totals_",
        ),
    ],
)
def test_verify_refuses_grid_points_that_no_kernel_has(points: str, why: str) -> None:
    with pytest.raises(UsageError, match="^" + re.escape(why)):
        pallas_debug.verify(totals, X, targets="v5e", engines="machine", watch=points)


def test_without_the_sanitizer_it_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        pallas_debug.check(totals, watch="0,*")
    assert str(error.value) == (
        "watch='0,*' chooses grid points for the sanitizer: pass sanitize=True as well"
    )
    with pytest.raises(UsageError, match="pass sanitize=True as well"):
        pallas_debug.debug(watch="0,*")
    with pytest.raises(UsageError, match="'x' is not a position"):
        pallas_debug.debug(sanitize=True, watch="x")

"""Reads and writes that go wrong, as the machine's shadow memory shows them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_kernels import ALL, BrokenKernel
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import decoded, found, sanitized
from tiers import first_of_each_fault

from pallas_debug.machine import run
from pallas_debug.machine.sanitizer.memory import MemorySanitizer
from pallas_debug.model import Finding

FAULTS = (
    "BlockOutOfBounds",
    "ConflictingWrites",
    "LostWrite",
    "OutOfBoundsRead",
    "OutOfBoundsWrite",
    "OutputNotWritten",
    "OutputRevisited",
    "OverwrittenRead",
    "PaddingRead",
    "StaleRead",
    "UninitializedRead",
    "WaitSourceMismatch",
)
KERNELS = [kernel for kernel in ALL if kernel.fault in FAULTS]

WITNESSES: dict[str, tuple[str, tuple[int, ...] | None, tuple[int, ...]]] = {
    "accumulator_never_zeroed": ("acc_ref", (0,), ()),
    "accumulator_zeroed_at_the_wrong_step": ("acc_ref", (0, 0), ()),
    "block_before_the_array": ("previous_ref", (0,), ()),
    "block_past_the_array": ("next_ref", (1,), ()),
    "contraction_outermost": ("out_ref", (1, 0), ()),
    "copy_past_the_end": ("x_ref", (1,), ()),
    "counter_never_zeroed": ("count_ref", (0,), ()),
    "element_offset_as_block_index": ("x_ref", (1,), ()),
    "grid_rounded_down": ("out_ref", None, ()),
    "loop_one_row_too_far": ("x_ref", None, (16,)),
    "output_block_skipped": ("out_ref", (2,), ()),
    "output_never_zeroed": ("out_ref", (0,), ()),
    "output_revisited": ("out_ref", (2,), ()),
    "padding_in_a_sum": ("x_ref", (2,), ()),
    "padding_masked_on_one_side": ("y_ref", (1,), ()),
    "page_past_the_pool": ("page_ref", (2,), ()),
    "parallel_scratch_carried": ("acc_ref", (1,), ()),
    "read_before_the_start": ("x_ref", None, (0,)),
    "read_past_the_end": ("x_ref", (1,), ()),
    "scalar_read_past_the_end": ("lengths_ref", (1,), ()),
    "write_past_the_end": ("out_ref", (1,), ()),
}
"""Operand, grid point and iterations, for kernels without a record for the machine."""

F32, I32 = jnp.float32, jnp.int32
TILE = pltpu.VMEM((8, 128), F32)


@functools.cache
def faults(kernel: BrokenKernel) -> tuple[Finding, ...]:
    return found(kernel.function, *kernel.make_args())


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_broken_kernel(kernel: BrokenKernel) -> None:
    finding, *others = faults(kernel)
    assert not others
    assert (finding.kind, finding.witness.line) == (kernel.fault, (kernel.file, kernel.line))
    assert finding.engines == ("machine",)
    assert finding.operand is not None
    assert finding.operand in finding.message
    wanted = kernel.machine
    if wanted is None:
        witness = finding.operand, finding.grid_point, finding.loop
        assert witness == WITNESSES[kernel.name]
        return
    assert finding.operand == wanted.operand
    assert finding.grid_point == wanted.grid_point
    assert finding.loop == wanted.loop
    assert wanted.values.items() <= finding.witness.values.items()


@pytest.mark.parametrize("kernel", first_of_each_fault(KERNELS))
def test_repaired_twin(kernel: BrokenKernel) -> None:
    assert not found(kernel.repaired, *kernel.make_args())


@pytest.mark.parametrize(
    "name, message",
    [
        ("last_entry_past_the_rows", "the index comes from starts_ref[2], which is 20"),
        ("zeroed_at_the_start_of_the_grid", "reset only at grid point (0, 0, 0), in line"),
        ("zeroed_along_the_wrong_axis", "under @pl.when(pl.program_id(0) == 0)"),
        ("rows_of_the_longer_sequence", "in 384 of 1,024 elements: rows_ref[5, 0]"),
        ("maximum_of_the_query_before", "under @pl.when((i == 0) & (j == 0))"),
        ("counts_zeroed_for_nonempty_sequences", "it is written only at grid point (1,)"),
        ("counter_never_zeroed", "scratch buffers and outputs hold whatever was in memory before"),
        ("rolled_in_place", "after grid point (0,) overwrote it through out_ref: x_ref[0, 0] was "),
        ("reversed_in_place", "while what grid point (1,) wrote to out_ref is copied back"),
        ("grid_rounded_down", "out_ref[16:20, 0:128] is never written"),
        ("output_block_skipped", "conditional, and its condition was false"),
        ("rows_past_the_length_not_written", "384 of 2,048 elements"),
    ],
)
def test_cause(name: str, message: str) -> None:
    (kernel,) = (kernel for kernel in KERNELS if kernel.name == name)
    (finding,) = faults(kernel)
    assert message in f"{finding.message}; {finding.cause}"


# Single cases


def test_an_index_map_that_returns_one_block_is_not_said_to_lack_steps() -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...]

    def copied(x: jax.Array) -> jax.Array:
        block = pl.BlockSpec((8, 256), lambda i: (i, 0))
        first = pl.BlockSpec((8, 256), lambda i: (0, 0))
        return pl.pallas_call(kernel, x, grid=(5,), in_specs=[block], out_specs=first)(x)

    causes = [f.cause for f in found(copied, np.ones((40, 256), np.float32))]
    assert "the index map leaves blocks out" in causes


def test_a_store_that_ran_went_elsewhere() -> None:
    """Its condition was true; the row that it computed is another one."""

    def kernel(x_ref: Any, out_ref: Any) -> None:
        i = pl.program_id(0)

        @pl.when(i < 3)
        def _() -> None:
            out_ref[pl.ds((i + 1) * 8, 8), :] = x_ref[...]

    def call(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel, x, grid=(4,), in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
            out_specs=pl.BlockSpec((32, 128), lambda i: (0, 0)),
        )(x)  # fmt: skip

    (finding,) = found(call, jnp.ones((32, 128), F32))
    assert (finding.kind, finding.operand) == ("OutputNotWritten", "out_ref")
    assert (finding.cause or "").startswith(
        "the stores to out_ref that ran did not reach it; the one in this line is conditional"
    )


@pytest.mark.parametrize("dtype", [F32, jnp.bfloat16])
def test_a_product_with_a_mask_keeps_what_padding_holds(dtype: Any) -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        is_inside = lax.broadcasted_iota(I32, (8, 256), 1) < 200
        out_ref[...] = x_ref[...] * is_inside.astype(dtype)

    def masked(x: jax.Array) -> jax.Array:
        block = pl.BlockSpec((8, 256), lambda i: (0, 0))
        out = jax.ShapeDtypeStruct((8, 256), dtype)
        return pl.pallas_call(kernel, out, grid=(1,), in_specs=[block], out_specs=block)(x)

    (finding,) = found(masked, jnp.ones((8, 200), dtype))
    assert (finding.kind, finding.operand) == ("PaddingRead", "x_ref")


@pytest.mark.parametrize("first, last, point, element", [
    (-1, 63, (0,), "x_ref[7, 0]"),
    (0, 64, (3,), "x_ref[24, 0]"),
])  # fmt: skip
def test_padding_is_masked_at_one_end_and_not_at_the_other(
    first: int, last: int, point: tuple[int], element: str
) -> None:
    """Blocks overlap by a row above and below, as a convolution needs them."""

    def kernel(x_ref: Any, out_ref: Any) -> None:
        row = lax.broadcasted_iota(I32, (32, 128), 0) + pl.program_id(0) * 16 - 8
        x = jnp.where((row >= first) & (row <= last), x_ref[...], 0.0)
        out_ref[...] = x[7:23] + x[9:25]

    def filtered(x: jax.Array) -> jax.Array:
        window = pl.BlockSpec((pl.Element(32, (8, 8)), pl.Element(128)), lambda i: (i * 16, 0))
        rows = pl.BlockSpec((16, 128), lambda i: (i, 0))
        return pl.pallas_call(kernel, x, grid=(4,), in_specs=[window], out_specs=rows)(x)

    (finding,) = found(filtered, jnp.ones((64, 128), F32))
    assert (finding.kind, finding.grid_point) == ("PaddingRead", point)
    assert element in finding.message
    is_before = "a block begins before the array" in (finding.cause or "")
    assert is_before == (point == (0,))


def test_functions_of_the_host_are_called_once() -> None:
    """A read of padding makes the sanitizer run the kernel again."""
    seen: list[float] = []

    def kernel(x_ref, out_ref):
        jax.debug.callback(lambda x: seen.append(float(x)), x_ref[0, 0])
        out_ref[...] = x_ref[...]

    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))

    def function(x: jax.Array) -> jax.Array:
        return pl.pallas_call(kernel, out_shape=x, grid=(2,), in_specs=[rows], out_specs=rows)(x)

    x = np.arange(12 * 128, dtype=np.float32).reshape(12, 128)
    call = decoded(function, [x])
    findings, sanitizer = sanitized(call, [[x]])
    assert not findings
    assert {suspect.kind for suspect in sanitizer.suspects.values()} == {"padding"}
    assert seen == [0.0, 1024.0]


def test_an_output_that_declares_visits_in_any_order_is_read_back() -> None:
    def kernel(x_ref, out_ref):
        @pl.when(pl.program_id(0) < 2)
        def _start() -> None:
            out_ref[...] = jnp.zeros_like(out_ref)

        out_ref[...] += x_ref[...]

    def function(x: jax.Array, revisit: pl.RevisitMode | None) -> jax.Array:
        mode = pl.Buffered(1, revisit=revisit)
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((16, 128), F32),
            grid=(4,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i % 2, 0), pipeline_mode=mode),
        )(x)

    x = np.arange(32 * 128, dtype=np.float32).reshape(32, 128)
    for revisit, kinds in ((pl.RevisitMode.ANY, []), (None, ["OutputRevisited"])):
        call = decoded(functools.partial(function, revisit=revisit), [x])
        sanitizer = MemorySanitizer(call, [[x]])
        ran = run.run(call, [[x]], observers=[sanitizer])
        assert [finding.kind for finding in ran.findings] == kinds
        if not kinds:
            np.testing.assert_array_equal(ran.results[0][0], x[:16] + x[16:])


@pytest.mark.parametrize("masks", [True, False])
def test_unwritten_rows_of_a_reshaped_reference_count_where_they_are_used(masks: bool) -> None:
    """The written rows that the same load reads keep their values in the run that decides."""

    def kernel(x_ref, out_ref, tile_ref):
        tile_ref[0] = x_ref[...]
        rows = tile_ref.reshape(16, 128)[...]
        inside = lax.broadcasted_iota(jnp.int32, rows.shape, 0) < (8 if masks else 9)
        out_ref[...] = jnp.where(inside, rows, 0.0)

    def function(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((16, 128), F32),
            scratch_shapes=[pltpu.VMEM((2, 8, 128), F32)],
        )(x)

    x = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
    findings, _ = sanitized(decoded(function, [x]), [[x]])
    assert [finding.kind for finding in findings] == ([] if masks else ["UninitializedRead"])


@pytest.mark.parametrize("rows", [8, 5])
def test_the_element_named_is_one_whose_value_is_kept(rows: int) -> None:
    """Rows under the mask of an update are read too, but what was there is discarded."""

    def kernel(x_ref, out_ref, sum_ref):
        inside = lax.broadcasted_iota(jnp.int32, (8, 128), 0) < rows
        sum_ref[...] = jnp.where(inside, x_ref[...], sum_ref[...])
        out_ref[...] = sum_ref[...]

    def function(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((8, 128), F32),
            scratch_shapes=[pltpu.VMEM((8, 128), F32)],
        )(x)

    x = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
    findings, _ = sanitized(decoded(function, [x]), [[x]])
    assert [finding.kind for finding in findings] == ["UninitializedRead"] * (rows < 8)
    if findings:
        assert "384 of 1,024 elements, starting with sum_ref[5, 0]" in findings[0].message


@pytest.mark.parametrize("how", ["adds", "replaces", "overlaps"])
def test_a_state_that_each_grid_point_copies_to_one_place(how: str) -> None:
    """The last value of a sum is its result; a value without a past, or another place, is lost."""

    def kernel(x_ref, out_hbm, sum_ref, sem):
        i = pl.program_id(0)
        before = 0.0 if how == "replaces" else jnp.where(i == 0, 0.0, sum_ref[...])
        sum_ref[...] = x_ref[...] + before
        rows = pl.ds(i * 4 if how == "overlaps" else 0, 8)
        copy = pltpu.make_async_copy(sum_ref, out_hbm.at[rows], sem)
        copy.start()
        copy.wait()

    def function(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            grid=(3,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            out_shape=jax.ShapeDtypeStruct((16 if how == "overlaps" else 8, 128), F32),
            scratch_shapes=[TILE, pltpu.SemaphoreType.DMA],
        )(x)

    x = np.arange(24 * 128, dtype=np.float32).reshape(24, 128)
    kinds = [finding.kind for finding in found(function, x)]
    assert kinds == ([] if how == "adds" else ["ConflictingWrites"])


IN_A_LOOP = ("moves", "stays", "overlaps", "adds", "flagged", "until", "looked up", "filled")
UNROLLED = ("stays, unrolled", "moves, unrolled", "filled, unrolled", "copied first, unrolled")


@pytest.mark.parametrize("how", [*IN_A_LOOP, *UNROLLED])
def test_copies_of_a_loop_to_one_place(how: str) -> None:
    """Each iteration's values are its own; a sum, or what data select, is meant to be replaced.

    So is what a copy writes past the rows of its group, which the copy of the next group replaces,
    and what rows without data keep: zeros, or the rows of another array.
    """
    way, _, unroll = how.partition(", ")
    rows = {"moves": 8, "filled": 8, "copied first": 8, "overlaps": 4}.get(way, 0)
    passes = 2 if way in ("filled", "copied first") else 1

    def kernel(x_ref, out_hbm, tile_ref):
        def body(i: Any, _: Any = None) -> None:
            before = jnp.where(i == 0, 0.0, tile_ref[...]) if way == "adds" else 0.0
            from_input = way == "copied first" and i < 3
            step, i = i, i % 3
            part = x_ref[pl.ds(i * 8, 8)]
            tile_ref[...] = jnp.where((way == "filled") & (step < 3), 0.0, part * 2 + before)
            source = x_ref.at[pl.ds(i * 8, 8)] if from_input else tile_ref

            start = part[0, 0].astype(jnp.int32) // 9999 if way == "looked up" else i * rows

            def copy() -> None:
                pltpu.sync_copy(source, out_hbm.at[pl.ds(start, 8)])

            pl.when(part[0, 0] >= 0)(copy) if way == "flagged" else copy()

        if unroll:
            for i in range(3 * passes):
                body(i)
        elif way == "until":
            lax.while_loop(
                lambda i: (x_ref[i * 8, 0] < 2048) & (i < 3), lambda i: (body(i), i + 1)[1], 0
            )
        else:
            pl.loop(0, 3 * passes)(body)

    def function(x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            kernel,
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            out_shape=jax.ShapeDtypeStruct((2 * rows + 8, 128), F32),
            scratch_shapes=[TILE],
        )(x)

    x = np.arange(24 * 128, dtype=np.float32).reshape(24, 128)
    findings = found(function, x)
    assert [f.kind for f in findings] == ["ConflictingWrites"] * (way == "stays")
    for finding in findings:
        assert finding.cause == "both iterations write to the same place, and the last one wins"
        assert "let each iteration" in (finding.advice or "")
        at = "twice by this line, with" if unroll else "at loop iteration (1,), and with"
        assert f" is written {at} different values" in finding.message

"""Reads and writes that go wrong, as the machine's shadow memory shows them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from called import called
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from machine_runs import decoded, found, sanitized

from pallas_debug.machine import run
from pallas_debug.machine.shadow.memory import MemorySanitizer

F32, I32 = jnp.float32, jnp.int32


# Single cases


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


def test_functions_of_the_host_are_called_once() -> None:
    """A read of padding makes the sanitizer run the kernel again."""
    seen: list[float] = []

    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))

    @called(grid=(2,), in_specs=[rows], out_specs=rows)
    def kernel(x_ref, out_ref):
        jax.debug.callback(lambda x: seen.append(float(x)), x_ref[0, 0])
        out_ref[...] = x_ref[...]

    x = np.arange(12 * 128, dtype=np.float32).reshape(12, 128)
    call = decoded(kernel, [x])
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

    @called(jax.ShapeDtypeStruct((16, 128), F32), scratch_shapes=[pltpu.VMEM((2, 8, 128), F32)])
    def kernel(x_ref, out_ref, tile_ref):
        tile_ref[0] = x_ref[...]
        rows = tile_ref.reshape(16, 128)[...]
        inside = lax.broadcasted_iota(jnp.int32, rows.shape, 0) < (8 if masks else 9)
        out_ref[...] = jnp.where(inside, rows, 0.0)

    x = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
    findings, _ = sanitized(decoded(kernel, [x]), [[x]])
    assert [finding.kind for finding in findings] == ([] if masks else ["UninitializedRead"])


@called(grid=(5,), block=pl.BlockSpec((8, 256), lambda i: (i, 0)), input_output_aliases={0: 0})
def updated_in_place(x_ref, out_ref, *, copies):
    """Double the even blocks in place; the others are copied, or left out by mistake."""

    @pl.when(pl.program_id(0) % 2 == 0)
    def _double() -> None:
        out_ref[...] = x_ref[...] * 2

    @pl.when((pl.program_id(0) % 2 == 1) & copies)
    def _copy() -> None:
        out_ref[...] = x_ref[...]


def test_a_block_of_an_aliased_output_that_is_not_stored_is_overwritten() -> None:
    x = np.ones((40, 256), np.float32)
    assert not found(lambda x: updated_in_place(x, copies=True), x)
    (finding,) = found(lambda x: updated_in_place(x, copies=False), x)
    assert (finding.kind, finding.operand) == ("OutputNotWritten", "out_ref")
    assert finding.message == (
        "nothing writes out_ref[8:16, 0:256] and out_ref[24:32, 0:256] (4,096 of 10,240 "
        "elements); it does not keep the input that shares it"
    )
    assert finding.advice == "copy the input's block to out_ref wherever nothing else is stored"


def copies_in_a_pipeline(x: jax.Array, *, rows: int) -> jax.Array:
    """A pipeline that stores so many rows of each of its blocks of 8."""

    def kernel(x_hbm, out_hbm):
        def copy(x_ref, out_ref):
            out_ref[:rows] = x_ref[:rows]

        blocks = pl.BlockSpec((8, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(copy, grid=(2,), in_specs=[blocks], out_specs=[blocks])(x_hbm, out_hbm)

    hbm = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(kernel, in_specs=[hbm], out_specs=hbm, out_shape=x)(x)


def test_a_block_that_a_pipeline_copies_out_unwritten() -> None:
    x = np.ones((16, 128), np.float32)
    assert not found(lambda x: copies_in_a_pipeline(x, rows=8), x)
    (gap,) = found(lambda x: copies_in_a_pipeline(x, rows=4), x)
    assert (gap.kind, gap.operand, gap.loop) == ("OutputNotWritten", "out_hbm", (0,))
    assert gap.message == (
        "nothing writes 512 of 1,024 elements of a block that the pipeline copies to out_hbm"
    )
    assert gap.advice == (
        "store to all of a block of out_hbm before the pipeline moves on to the next one"
    )

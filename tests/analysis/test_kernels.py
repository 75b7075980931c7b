"""Findings in kernel bodies, and cases in which static analysis reports nothing."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis_runs import F32, TILE, Captures, S, X, kinds, look, rows
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.analysis import analyze

# Reads and writes.


def test_an_access_under_a_condition_that_is_not_known_is_left_alone(captures: Captures) -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...]

        @pl.when(jnp.sum(x_ref[...]) > 0)
        def _shift() -> None:
            out_ref[...] = x_ref[pl.ds(pl.program_id(0) * 8 + 4, 8), :]

    assert look(captures, kernel, **rows(4)).findings == ()


def test_an_access_that_a_condition_keeps_within_bounds(captures: Captures) -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        i = pl.program_id(0)
        out_ref[...] = jnp.zeros_like(out_ref)

        @pl.when(i < 3)
        def _next() -> None:
            out_ref[...] = x_ref[pl.ds(i * 8 + 8, 8), :]

    whole = pl.BlockSpec((32, 128), lambda i: (0, 0))
    assert look(captures, kernel, **{**rows(4), "in_specs": [whole]}).findings == ()


def test_an_index_from_a_table_does_not_follow_the_grid(captures: Captures) -> None:
    def pick(rows_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[pl.ds(rows_ref[pl.program_id(0)], 8), :]

    def call(rows: Any, x: Any) -> Any:
        spec = pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(2,),
            in_specs=[pl.BlockSpec((16, 128), lambda i, rows_ref: (0, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i, rows_ref: (i, 0)),
        )
        return pl.pallas_call(pick, out_shape=x, grid_spec=spec)(rows, x)

    args = jax.ShapeDtypeStruct((2,), jnp.int32), jax.ShapeDtypeStruct((16, 128), jnp.float32)
    (captured,) = captures(call, args)
    (finding,) = analyze(captured, prefetch=[np.array([0, 12], np.int32)]).findings
    assert finding.message.startswith("x_ref[12:20, 0:128] reaches 4 past the end")
    assert finding.cause == "the index is not bounded by the shape of the ref"


def test_a_slice_of_a_slice(captures: Captures) -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        half = x_ref.at[pl.ds(pl.program_id(0) * 8, 16)]
        out_ref[...] = half[pl.ds(pl.program_id(0) * 3 + 6, 8), :]

    whole = pl.BlockSpec((32, 128), lambda i: (0, 0))
    (finding,) = look(
        captures, kernel, out=S((16, 128), F32), **{**rows(2), "in_specs": [whole]}
    ).findings
    assert (finding.kind, finding.grid_point) == ("OutOfBoundsRead", (1,))
    assert finding.index == "x_ref.at[8:24, 0:128][9:17, 0:128]"


def test_an_output_that_parallel_steps_share_is_a_fault_only_if_they_store_other_values(
    captures: Captures,
) -> None:
    def kernel(x_ref: Any, out_ref: Any, sum_ref: Any) -> None:
        @pl.when(pl.program_id(1) == 0)
        def _start() -> None:
            sum_ref[...] = jnp.zeros_like(sum_ref)

        sum_ref[...] += x_ref[...]
        out_ref[...] = sum_ref[...]

    spec = pl.BlockSpec((8, 128), lambda i, j: (i, 0))
    analysis = look(
        captures,
        kernel,
        out=(X, S((8, 128), F32)),
        grid=(4, 3),
        in_specs=[spec],
        out_specs=(spec, pl.BlockSpec((8, 128), lambda i, j: (0, 0))),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )
    (race,) = analysis.findings
    assert (race.kind, race.operand, race.counts) == ("DataRace", "sum_ref", False)
    assert race.only_if == "the grid points store different values"


# Blocks.


def in_blocks(block: tuple[int, ...], shape: tuple[int, ...], **options: Any) -> Any:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = jnp.zeros_like(out_ref)

    spec = pl.BlockSpec(block, lambda i: (i, *[0] * (len(block) - 1)), **options)
    steps = -(-shape[0] // block[0])
    whole = pl.BlockSpec((8, 128), lambda i: (0, 0))

    def run(x: Any) -> Any:
        return pl.pallas_call(
            kernel, out_shape=S((8, 128), F32), grid=(steps,), in_specs=[spec], out_specs=whole
        )(x)

    return run, (S(shape, F32),)


SHAPES = {
    (8, 128): [],
    (16, 200): [],
    (8, 100): [
        "x_ref, float32[32, 200], is divided into blocks of (8, 100): 100 is neither a multiple "
        "of 128 nor the whole dimension"
    ],
    (12, 128): [
        "x_ref, float32[32, 200], is divided into blocks of (12, 128): 12 is neither a multiple "
        "of 8 nor the whole dimension"
    ],
}


@pytest.mark.parametrize("block", SHAPES)
def test_the_shapes_of_blocks(captures: Captures, block: tuple[int, int]) -> None:
    (captured,) = captures(*in_blocks(block, (32, 200)))
    found = [f for f in analyze(captured).findings if f.kind == "BlockShapeTiling"]
    assert [f.message for f in found] == SHAPES[block]


def test_what_stays_in_hbm_is_not_cut_into_blocks(captures: Captures) -> None:
    (captured,) = captures(*in_blocks((8, 128), (32, 128), memory_space=pl.ANY))
    (finding,) = analyze(captured).findings
    assert finding.message == "x_ref, float32[32, 128], is divided into blocks of (8, 128) in ANY"


# Lines.


def elsewhere(i: Any) -> tuple[Any, Any]:
    return i + 1, 0


def test_the_line_of_a_spec_that_is_made_elsewhere(captures: Captures) -> None:
    shared = pl.BlockSpec((8, 128), elsewhere)

    def kernel(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] + y_ref[...]

    def run(x: Any) -> Any:
        here = pl.BlockSpec((8, 128), lambda i: (i, 0))
        spec = pl.GridSpec(
            grid=(4,),
            in_specs=[
                here,
                shared,  # the line
            ],
            out_specs=here,
        )
        call = pl.pallas_call(kernel, out_shape=X, grid_spec=spec)
        return call(x, x)

    (captured,) = captures(run, (X,))
    (finding,) = analyze(captured).findings
    assert finding.source is not None
    assert finding.source.text == "shared,  # the line"
    assert finding.source.function == "run"


def test_a_kernel_whose_source_is_not_to_be_had(captures: Captures) -> None:
    scope: dict[str, Any] = {"pl": pl, "S": S, "F32": F32}
    source = (
        "def run(x):\n"
        "    def kernel(x_ref, out_ref):\n"
        "        out_ref[...] = x_ref[...]\n"
        "    rows = pl.BlockSpec((8, 128), lambda i: (i + 1, 0))\n"
        "    return pl.pallas_call(kernel, out_shape=x, grid=(4,), in_specs=[rows],\n"
        "                          out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)))(x)\n"
    )
    exec(compile(source, "<generated>", "exec"), scope)  # as notebooks do
    (captured,) = captures(scope["run"], (X,))
    (finding,) = analyze(captured).findings
    assert finding.kind == "BlockOutOfBounds"
    assert finding.source is not None
    assert (finding.source.file, finding.source.line) == ("<generated>", 4)


@pytest.mark.parametrize("what", ["read", "write", "add", "copy", "number"])
def test_an_index_that_is_a_float(captures: Captures, what: str) -> None:
    def kernel(x_ref: Any, out_ref: Any, tile_ref: Any) -> None:
        start = pl.program_id(0) * 16 / 2
        part = pl.ds(start, 8)
        out_ref[...] = jnp.zeros_like(out_ref)
        if what == "read":
            out_ref[0:8] = x_ref[part]
        elif what == "write":
            out_ref[part] = x_ref[0:8]
        elif what == "add":
            out_ref[part] += x_ref[0:8]
        elif what == "copy":
            pltpu.sync_copy(x_ref.at[part], tile_ref)
        else:
            out_ref[0:1] = x_ref[start][None]

    found = look(captures, kernel, grid=(2,), scratch_shapes=[TILE]).findings
    floats = [finding for finding in found if finding.kind == "InvalidOperation"]
    assert floats
    assert all(finding.message.endswith("is indexed by a float32") for finding in floats)


@pytest.mark.parametrize("dtype", [F32, jnp.complex64])
def test_complex_numbers_are_one_finding(captures: Captures, dtype: Any) -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = jnp.fft.fft(x_ref[...]).real

    (found,) = look(captures, kernel, S((8, 128), dtype), S((8, 128), F32)).findings
    assert found.kind == "UnsupportedDtype"
    name = "x_ref: " if dtype != F32 else ""
    assert found.message == f"{name}complex64[8, 128] holds complex numbers"


def test_an_index_that_was_cast_is_none(captures: Captures) -> None:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        start = (pl.program_id(0) * 16 / 2).astype(jnp.int32)
        out_ref[...] = x_ref[pl.ds(start, 8)]

    options = {"out_specs": pl.BlockSpec((8, 128), lambda i: (i, 0)), "grid": (2,)}
    assert kinds(look(captures, kernel, out=S((16, 128), F32), **options)) == []

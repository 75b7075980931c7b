"""Inputs that loops over slices and copies, or an inner pipeline, do not read to their end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.analysis import analyze
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.model import Finding

Captures = Callable[..., list[Capture]]
F32 = jnp.float32
S = jax.ShapeDtypeStruct
X = S((300, 128), F32)
HBM = pl.BlockSpec(memory_space=pl.ANY)
SUM = S((1, 128), F32)


def unread(captures: Captures, function: Callable[..., Any], *args: Any) -> list[Finding]:
    (captured,) = captures(function, args)
    return [f for f in analyze(captured).findings if f.kind == "InputNotRead"]


def rows(x: Any) -> Any:
    return jnp.sum(x, axis=0, keepdims=True)


def sliced(x: Any, *, steps: int = 4, tail: int = 0) -> Any:
    def add_slices(x_ref: Any, o_ref: Any) -> None:
        def add(i: Any, total: Any) -> Any:
            return total + rows(x_ref[pl.ds(i * 64, 64), :])

        total = lax.fori_loop(0, steps, add, jnp.zeros((1, 128), F32))
        o_ref[...] = total + (rows(x_ref[steps * 64 :, :]) if tail else 0)

    return pl.pallas_call(add_slices, out_shape=SUM)(x)


def copied(x: Any, *, tail: int = 0, first: int = 0, less: int = 0) -> Any:
    """A double-buffered loop over copies, and one for what is left if it has `tail` rows."""

    def add_copies(x_ref: Any, o_ref: Any, buffer: Any, sem: Any) -> None:
        def copy(i: Any, size: int = 64) -> Any:
            source = x_ref.at[pl.ds(i * 64, size)]
            return pltpu.make_async_copy(source, buffer.at[i % 2, pl.ds(0, size)], sem.at[i % 2])

        steps = x.shape[0] // 64 - less
        o_ref[...] = jnp.zeros_like(o_ref)
        copy(first).start()

        def add(i: Any, _: Any) -> None:
            @pl.when(i + 1 < steps)
            def _fetch() -> None:
                copy(i + 1).start()

            copy(i).wait()
            o_ref[...] += rows(buffer[i % 2])

        lax.fori_loop(first, steps, add, None)
        if tail:
            copy(steps, tail).start()
            copy(steps, tail).wait()
            o_ref[...] += rows(buffer[steps % 2, 0:tail])

    return pl.pallas_call(
        add_copies,
        out_shape=SUM,
        in_specs=[HBM],
        scratch_shapes=[pltpu.VMEM((2, 64, 128), F32), pltpu.SemaphoreType.DMA((2,))],
    )(x)


def piped(x: Any, *, steps: int = 4) -> Any:
    def add_blocks(x_hbm: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

        def add(x_ref: Any) -> None:
            o_ref[...] += rows(x_ref[...])

        block = pl.BlockSpec((64, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(add, grid=(steps,), in_specs=[block])(x_hbm)

    return pl.pallas_call(add_blocks, out_shape=SUM, in_specs=[HBM])(x)


@pytest.mark.parametrize(
    "function, operand, text",
    [
        (sliced, "x_ref", "x_ref[pl.ds(i * 64, 64), :]"),
        (copied, "x_ref", "copy(i + 1).start()"),
        (piped, "x_hbm", "o_ref[...] += rows(x_ref[...])"),
    ],
)
def test_the_rest_after_whole_blocks(
    captures: Captures, function: Callable[..., Any], operand: str, text: str
) -> None:
    (finding,) = unread(captures, function, X)
    assert finding.source is not None
    assert text in (finding.source.text or "")
    assert finding.message == (
        f"no slice or copy covers 256:300 along dimension 0 of {operand} (float32[300, 128]): "
        "these elements are never read"
    )
    assert finding.cause == (
        f"{operand} is read in 4 blocks of 64, but 300 elements need 5: a size was rounded down"
    )
    assert finding.advice == (
        "handle the elements after the last whole block separately, or use a block size that "
        "divides the array"
    )
    values = finding.witness.values
    assert (values["not read"], values["steps"], values["needed"]) == ("44 of 300", "4", "5")


@pytest.mark.parametrize(
    "options, part, cause, advice",
    [
        ({"less": 1}, "192:256", "the last block is left out", "last iteration read block 3"),
        ({"first": 1}, "0:64", "the first block is left out", "first iteration read block 0"),
    ],
)
def test_a_block_that_the_loop_leaves_out(
    captures: Captures, options: dict[str, int], part: str, cause: str, advice: str
) -> None:
    (finding,) = unread(captures, lambda x: copied(x, **options), S((256, 128), F32))
    assert finding.message.startswith(f"no slice or copy covers {part} along dimension 0 of x_ref")
    assert finding.cause == (f"x_ref is read in 3 blocks of 64, but 256 elements need 4: {cause}")
    assert finding.advice == f"let the {advice}"


def shifted(x: Any) -> Any:
    """Each block of the output is the block after it, and the last one is zeros."""

    def shift(x_ref: Any, o_ref: Any) -> None:
        i = pl.program_id(0)
        o_ref[...] = jnp.zeros_like(o_ref)

        @pl.when(i + 1 < pl.num_programs(0))
        def _next() -> None:
            o_ref[...] = x_ref[pl.ds(i * 64 + 64, 64), :]

    return pl.pallas_call(
        shift,
        grid=(4,),
        in_specs=[pl.BlockSpec((256, 128), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((64, 128), lambda i: (i, 0)),
        out_shape=S((256, 128), F32),
    )(x)


def differences(x: Any) -> Any:
    """Each row of the output comes from a part that begins at an offset, and ends at the next."""

    def subtract(starts_ref: Any, o_ref: Any) -> None:
        def one(i: Any, total: Any) -> Any:
            return total + starts_ref[i]

        o_ref[0] = lax.fori_loop(0, starts_ref.shape[0] - 1, one, jnp.int32(0))

    smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    return pl.pallas_call(subtract, in_specs=[smem], out_specs=smem, out_shape=S((1,), jnp.int32))(
        x
    )


def doubled(x: Any) -> Any:
    """The output has as many rows as are read."""

    def double(x_ref: Any, o_ref: Any) -> None:
        def one(i: Any, _: Any) -> None:
            o_ref[pl.ds(i * 64, 64), :] = x_ref[pl.ds(i * 64, 64), :] * 2

        lax.fori_loop(0, 4, one, None)

    return pl.pallas_call(double, out_shape=S((256, 128), F32))(x)


def pooled(x: Any) -> Any:
    """The output has a row for each block that is read."""

    def pool(x_ref: Any, o_ref: Any) -> None:
        def one(i: Any, _: Any) -> None:
            o_ref[pl.ds(i, 1), :] = rows(x_ref[pl.ds(i * 64, 64), :])

        lax.fori_loop(0, 4, one, None)

    return pl.pallas_call(pool, out_shape=S((4, 128), F32))(x)


def added(x: Any) -> Any:
    """The array is given twice, and read on by its second name."""

    def add(x_ref: Any, again_ref: Any, o_ref: Any) -> None:
        def one(i: Any, total: Any) -> Any:
            return total + rows(x_ref[pl.ds(i * 64, 64), :])

        o_ref[...] = lax.fori_loop(0, 4, one, rows(again_ref[256:300, :]))

    return pl.pallas_call(add, out_shape=SUM)(x, x)


QUIET: dict[str, tuple[Callable[..., Any], Any]] = {
    "slices that fit": (sliced, S((256, 128), F32)),
    "slices and a tail": (lambda x: sliced(x, tail=44), X),
    "whole blocks left out": (lambda x: sliced(x, steps=3), X),
    "copies that fit": (copied, S((256, 128), F32)),
    "copies and a tail": (lambda x: copied(x, tail=44), X),
    "a pipeline to the end": (lambda x: piped(x, steps=5), X),
    "an output of as many rows": (doubled, X),
    "an output of as many blocks": (pooled, X),
    "an array that is given twice": (added, X),
    "a shift by a block": (shifted, S((256, 128), F32)),
    "offsets but the last": (differences, S((9,), jnp.int32)),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_is_read_or_left_out_on_purpose(captures: Captures, name: str) -> None:
    function, argument = QUIET[name]
    assert unread(captures, function, argument) == []


# Index maps of a pipeline within the kernel


def block(shape: Any, *index: str) -> pl.BlockSpec:
    """Blocks of a pipeline with the grid (i, j, k); an index of "-" stays 0."""

    def at(*ids: Any) -> tuple[Any, ...]:
        return tuple(0 if name == "-" else ids["ijk".index(name)] for name in index)

    return pl.BlockSpec(shape, at)


def pipelined(
    x_at: str = "ik", y_at: str = "kj", bias_at: str = "-j", steps: int = 3
) -> Callable[..., Any]:
    """A matmul of (32, 384) and (384, 256) by `emit_pipeline`, with a bias."""

    def kernel(x_hbm: Any, y_hbm: Any, bias_hbm: Any, o_hbm: Any, acc_ref: Any) -> None:
        def step(x_ref: Any, y_ref: Any, bias_ref: Any, o_ref: Any) -> None:
            k = pl.program_id(2)
            acc_ref[...] = jnp.where(k == 0, 0.0, acc_ref[...]) + x_ref[...] @ y_ref[...]

            @pl.when(k == pl.num_programs(2) - 1)
            def _finish() -> None:
                o_ref[...] = acc_ref[...] + bias_ref[...]

        pltpu.emit_pipeline(
            step,
            grid=(2, 2, steps),
            in_specs=[
                block((16, 128), *x_at), block((128, 128), *y_at), block((1, 128), *bias_at)
            ],
            out_specs=[block((16, 128), "i", "j")],
        )(x_hbm, y_hbm, bias_hbm, o_hbm)  # fmt: skip

    return lambda *args: pl.pallas_call(
        kernel,
        in_specs=[HBM] * 3,
        out_specs=HBM,
        out_shape=S((32, 256), F32),
        scratch_shapes=[pltpu.VMEM((16, 128), F32)],
    )(*args)


OPERANDS = S((32, 384), F32), S((384, 256), F32), S((1, 256), F32)


@pytest.mark.parametrize(
    "options, operand, part, rest, moving",
    [
        ({"x_at": "i-"}, "x_hbm (float32[32, 384])", "1", 256, "y_hbm"),
        ({"y_at": "-j"}, "y_hbm (float32[384, 256])", "0", 256, "x_hbm"),
        ({"y_at": "k-"}, "y_hbm (float32[384, 256])", "1", 128, "bias_hbm"),
        ({"bias_at": "--"}, "bias_hbm (float32[1, 256])", "1", 128, "y_hbm"),
    ],
)
def test_an_index_map_of_an_inner_pipeline_that_stays(
    captures: Captures, options: Any, operand: str, part: str, rest: int, moving: str
) -> None:
    (finding,) = unread(captures, pipelined(**options), *OPERANDS)
    assert finding.message == (
        f"the pipeline in the kernel copies only 0:128 along dimension {part} of {operand}: the "
        f"other {rest} elements are never read"
    )
    assert finding.cause == (
        "its index map does not use the dimension of the pipeline's grid along which "
        f"{moving} moves through as many elements"
    )
    assert finding.advice == (
        "return the index of that dimension there, or pass only that part of the array"
    )
    assert finding.source is not None
    assert operand.partition("_")[0] in (finding.source.text or "")


def test_a_pipeline_in_each_step_of_a_grid(captures: Captures) -> None:
    """Blocks of the batch's array are selected by the outer grid, and its rows by the inner one."""

    def kernel(x_hbm: Any, bias_hbm: Any, o_hbm: Any) -> None:
        def step(x_ref: Any, bias_ref: Any, o_ref: Any) -> None:
            o_ref[...] = x_ref[...] + bias_ref[...]

        batch = pl.program_id(0)
        rows = block((8, 128), "j", "i")
        pltpu.emit_pipeline(
            step, grid=(2, 3), in_specs=[rows, block((1, 128), "-", bias)], out_specs=[rows]
        )(x_hbm.at[batch], bias_hbm.at[batch], o_hbm.at[batch])

    def run(x: Any, vector: Any) -> Any:
        return pl.pallas_call(
            kernel, grid=(2,), in_specs=[HBM] * 2, out_specs=HBM, out_shape=x
        )(x, vector)  # fmt: skip

    args = S((2, 24, 256), F32), S((2, 1, 256), F32)
    bias = "-"
    (finding,) = unread(captures, run, *args)
    assert "copies only 0:128 along dimension 2 of bias_hbm" in finding.message
    bias = "i"
    assert unread(captures, run, *args) == []


def test_an_inner_pipeline_of_one_step_less(captures: Captures) -> None:
    """The output has 256 columns, as many as the part that is read: by coincidence."""
    (finding,) = unread(captures, pipelined(steps=2), *OPERANDS)
    assert finding.message == (
        "no slice or copy covers 256:384 along dimension 1 of x_hbm (float32[32, 384]) and 256:384 "
        "along dimension 0 of y_hbm (float32[384, 256]): these elements are never read"
    )
    assert finding.cause == (
        "x_hbm is read in 2 blocks of 128, but 384 elements need 3: the last block is left out"
    )
    assert finding.advice == "give that dimension of the pipeline's grid 3 steps"


def both(*specs: Any, out: Any, shape: Any, grid: Any = (2, 2, 1)) -> Callable[..., Any]:
    """A sum by `emit_pipeline` of blocks of all operands, which may be rows."""

    def kernel(*refs: Any) -> None:
        def step(*blocks: Any) -> None:
            blocks[-1][...] = sum(one[...] for one in blocks[:-1])

        pltpu.emit_pipeline(step, grid=grid, in_specs=list(specs), out_specs=[out])(*refs)

    return lambda *args: pl.pallas_call(
        kernel, in_specs=[HBM] * len(args), out_specs=HBM, out_shape=shape
    )(*args)


TILE, WIDE = (8, 128), S((16, 256), F32)
MEANT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a matmul": (pipelined(), OPERANDS),
    # The other operand moves with the same dimension of the grid.
    "the left half": (
        both(
            block(TILE, "i", "-"), block(TILE, "-", "i"), out=block(TILE, "i", "-"),
            shape=S((16, 128), F32), grid=(2, 1, 1),
        ),
        (S((16, 256), F32), S((8, 256), F32)),
    ),
    "an array that is given twice": (
        both(
            block(TILE, "i", "-"), block(TILE, "i", "j"), out=block(TILE, "i", "j"), shape=WIDE
        ),
        (WIDE, WIDE),
    ),
    "blocks of another size": (
        both(
            block((8, 64), "i", "-"), block((8, 64), "-", "j"), out=block((8, 64), "i", "j"),
            shape=S((16, 128), F32),
        ),
        (WIDE, S((8, 128), F32)),
    ),
    "two of three blocks, and an output for them": (
        both(
            block(TILE, "-", "j"), block(TILE, "i", "j"), out=block(TILE, "i", "j"), shape=WIDE
        ),
        (S((8, 384), F32), S((16, 384), F32)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANT)
def test_inner_pipelines_that_read_what_is_meant(captures: Captures, name: str) -> None:
    function, args = MEANT[name]
    assert unread(captures, function, *args) == []


# Copies in loops


def multiplied(
    x_at: str = "ik", y_at: str = "kj", o_at: str = "ij", *, unroll: bool = False
) -> Callable[..., Any]:
    """A matmul of (32, 384) and (384, 128) whose kernel copies blocks; an index of "-" stays 0."""

    def kernel(x_hbm: Any, y_hbm: Any, o_hbm: Any, x_buf: Any, y_buf: Any, acc: Any) -> None:
        def part(ref: Any, shape: tuple[int, int], at: str, k: Any) -> Any:
            ids = {"i": pl.program_id(0), "j": 0, "k": k, "-": 0}
            return ref.at[tuple(pl.ds(ids[a] * n, n) for a, n in zip(at, shape, strict=True))]

        acc[...] = jnp.zeros_like(acc)

        @pl.loop(0, 3, unroll=3 if unroll else 1)
        def _block(k: Any) -> None:
            pltpu.sync_copy(part(x_hbm, (16, 128), x_at, k), x_buf)
            pltpu.sync_copy(part(y_hbm, (128, 128), y_at, k), y_buf)
            acc[...] += x_buf[...] @ y_buf[...]

        pltpu.sync_copy(acc, part(o_hbm, (16, 128), o_at, 0))

    return lambda *args: pl.pallas_call(
        kernel,
        grid=(2,),
        in_specs=[HBM] * 2,
        out_specs=HBM,
        out_shape=S((32, 128), F32),
        scratch_shapes=[pltpu.VMEM(n, F32) for n in ((16, 128), (128, 128), (16, 128))],
    )(*args)


FACTORS = S((32, 384), F32), S((384, 128), F32)


@pytest.mark.parametrize(
    "options, operand, part, rest, moving",
    [
        ({"x_at": "i-"}, "x_hbm (float32[32, 384])", "0:128 along dimension 1", 256, "y_hbm"),
        ({"y_at": "-j"}, "y_hbm (float32[384, 128])", "0:128 along dimension 0", 256, "x_hbm"),
        (
            {"y_at": "-j", "unroll": True},
            *("y_hbm (float32[384, 128])", "0:128 along dimension 0", 256, "x_hbm"),
        ),
        ({"x_at": "-k"}, "x_hbm (float32[32, 384])", "0:16 along dimension 0", 16, "o_hbm"),
    ],
)
def test_a_copy_that_stays_on_one_block(
    captures: Captures, options: Any, operand: str, part: str, rest: int, moving: str
) -> None:
    (finding,) = unread(captures, multiplied(**options), *FACTORS)
    assert finding.message == (
        f"the kernel copies only {part} of {operand}: the other {rest} elements are never read"
    )
    assert finding.cause == (
        f"its slice stays the same, while {moving} moves through as many elements"
    )
    assert finding.advice == (
        f"let it move with that of {moving}, or pass only that part of the array"
    )


@pytest.mark.parametrize(
    "options, shapes",
    [
        ({}, FACTORS),
        ({"unroll": True}, FACTORS),
        # Nothing moves through as many elements.
        ({"x_at": "-k"}, (S((48, 384), F32), FACTORS[1])),
        ({"y_at": "-j"}, (FACTORS[0], S((256, 128), F32))),
        # It may be one array.
        ({"x_at": "i-"}, (S((384, 384), F32), S((384, 384), F32))),
    ],
)
def test_copies_of_what_is_needed(captures: Captures, options: Any, shapes: Any) -> None:
    assert unread(captures, multiplied(**options), *shapes) == []


def chunks(x: Any, *, how: str) -> Any:
    """Six chunks that a kernel doubles one by one."""

    def kernel(x_hbm: Any, o_hbm: Any, buf: Any) -> None:
        if how == "begin":
            pltpu.sync_copy(x_hbm.at[0], buf)

        @pl.loop(0, 6)
        def _chunk(i: Any) -> None:
            if how == "first":

                @pl.when(i == 0)
                def _fetch() -> None:
                    pltpu.sync_copy(x_hbm.at[0], buf)

            elif how != "begin":
                pltpu.sync_copy(x_hbm.at[i if how == "each" else 0], buf)
            buf[...] = buf[...] * 2
            pltpu.sync_copy(buf, o_hbm.at[i])

    return pl.pallas_call(
        kernel,
        in_specs=[HBM],
        out_specs=HBM,
        out_shape=S((6, 8, 128), F32),
        scratch_shapes=[pltpu.VMEM((8, 128), F32)],
    )(x)


@pytest.mark.parametrize("how", ["same", "each", "first", "begin"])
def test_a_chunk_that_each_iteration_copies(captures: Captures, how: str) -> None:
    """Copied once, the first chunk may be the begin of a state."""
    found = unread(captures, functools.partial(chunks, how=how), S((6, 8, 128), F32))
    if how != "same":
        assert found == []
        return
    (finding,) = found
    assert finding.message == (
        "the kernel copies only 0:1 along dimension 0 of x_hbm (float32[6, 8, 128]): the other 5 "
        "elements are never read"
    )
    assert finding.cause == "its slice stays the same, while o_hbm moves through as many elements"

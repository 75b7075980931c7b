"""Inputs that a grid of `size // block` steps does not read to their end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.analysis import analyze
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.model import Finding

Captures = Callable[..., list[Capture]]
F32 = jnp.float32
S = jax.ShapeDtypeStruct


def matmul(x_ref: Any, y_ref: Any, o_ref: Any, acc_ref: Any) -> None:
    @pl.when(pl.program_id(1) == 0)
    def _start() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += x_ref[...] @ y_ref[...]
    o_ref[...] = acc_ref[...]


def product(x: Any, y: Any, *, less: int = 0, block: int = 8) -> Any:
    """A matmul whose grid divides K by 128 and rounds down.

    Args:
      less: steps that it leaves out.
      block: rows of the output.
    """
    (rows, k), columns = x.shape, y.shape[1]
    return pl.pallas_call(
        matmul,
        out_shape=S((rows, columns), F32),
        grid=(rows // block, k // 128 - less),
        in_specs=[
            pl.BlockSpec((block, 128), lambda i, k: (i, k)),
            pl.BlockSpec((128, columns), lambda i, k: (k, 0)),
        ],
        out_specs=pl.BlockSpec((block, columns), lambda i, k: (i, 0)),
        scratch_shapes=[pltpu.VMEM((block, columns), F32)],
    )(x, y)


def found(captures: Captures, function: Callable[..., Any], *args: Any) -> tuple[Finding, ...]:
    (captured,) = captures(function, args)
    return analyze(captured).findings


def test_the_end_of_a_contraction(captures: Captures) -> None:
    (finding,) = found(captures, product, S((16, 300), F32), S((300, 128), F32))
    assert finding.kind == "InputNotRead"
    assert finding.operand == "x_ref"
    assert finding.source is not None
    assert "k // 128" in (finding.source.text or "")
    assert finding.message == (
        "no grid point gets 256:300 along dimension 1 of x_ref (float32[16, 300]) and 256:300 "
        "along dimension 0 of y_ref (float32[300, 128]): these elements are never read"
    )
    assert finding.cause == (
        "dimension 1 of the grid has 2 steps, but 300 elements in blocks of 128 need 3: a size "
        "was rounded down"
    )
    assert finding.advice == (
        "use pl.cdiv(size, block) steps and mask the part of the last block past the end, or use "
        "a block size that divides the array"
    )
    values = finding.witness.values
    assert (values["not read"], values["steps"], values["needed"]) == ("44 of 300", "2", "3")


def test_under_vmap_the_dimension_is_the_authors(captures: Captures) -> None:
    batch = jax.vmap(product)
    (finding,) = found(captures, batch, S((3, 16, 300), F32), S((3, 300, 128), F32))
    assert "dimension 1 of the grid has 2 steps" in (finding.cause or "")


def copy(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]


def added(x_ref: Any, again_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + again_ref[...]


def summed(x_ref: Any, o_ref: Any) -> None:
    @pl.when(pl.program_id(0) == 0)
    def _start() -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += x_ref[...]


ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
ONE = pl.BlockSpec((8, 128), lambda i: (0, 0))


def rows(
    kernel: Any, rows_of_output: int, *in_specs: Any, out: Any = ROWS, **more: Any
) -> Callable[..., Any]:
    """A call of two steps over its rows."""
    return lambda *args: pl.pallas_call(
        kernel,
        out_shape=S((rows_of_output, 128), F32),
        grid=(2,),
        in_specs=in_specs,
        out_specs=out,
        **more,
    )(*args)


X = S((20, 128), F32)
QUIET = {
    # The output is made for what is read: the rest is left out on purpose.
    "a pooled output": (rows(copy, 16, ROWS), (X,), []),
    # The output ends too early itself, and says so.
    "a cut output": (rows(copy, 20, ROWS), (X,), ["OutputNotWritten"]),
    # More than the last block is missing: not a size that was rounded down.
    "whole blocks": (rows(summed, 8, ROWS, out=ONE), (S((32, 128), F32),), []),
    "an input that fits": (rows(summed, 8, ROWS, out=ONE), (S((16, 128), F32),), []),
    # The other operand reads on.
    "a halo": (
        rows(added, 8, ROWS, pl.BlockSpec((8, 128), lambda i: (i + 1, 0)), out=ONE),
        (X, X),
        ["OutputRevisited"],
    ),
    "an input in place": (rows(copy, 20, ROWS, input_output_aliases={0: 0}), (X,), []),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_is_left_out_on_purpose_is_not_reported(captures: Captures, name: str) -> None:
    function, args, expected = QUIET[name]
    kinds = [f.kind for f in found(captures, function, *args) if f.kind != "OutputRevisited"]
    assert kinds == [kind for kind in expected if kind != "OutputRevisited"]


def test_a_contraction_of_one_step_less(captures: Captures) -> None:
    def short(x: Any, y: Any) -> Any:
        return product(x[:, : x.shape[1] - 128], y[: y.shape[0] - 128])

    assert found(captures, short, S((16, 512), F32), S((512, 128), F32)) == ()

    (finding,) = found(
        captures, functools.partial(product, less=1), S((16, 512), F32), S((512, 128), F32)
    )
    assert finding.kind == "InputNotRead"
    assert finding.source is not None
    assert "k // 128 - less" in (finding.source.text or "")
    assert finding.message == (
        "no grid point gets 384:512 along dimension 1 of x_ref (float32[16, 512]) and 384:512 "
        "along dimension 0 of y_ref (float32[512, 128]): these elements are never read"
    )
    assert finding.cause == (
        "dimension 1 of the grid has 3 steps, but 512 elements in blocks of 128 need 4: the last "
        "block is left out"
    )
    assert finding.advice == "give dimension 1 of the grid 4 steps"

    # Both operands may be one array: even then, what both leave out is in none.
    square = S((512, 512), F32)

    def squared(x: Any) -> Any:
        return product(x, x, less=1, block=512)

    assert [f.kind for f in found(captures, squared, square)] == ["InputNotRead"]


@pytest.mark.parametrize("k, why", [
    (256, "the last block is left out"), (200, "a size was rounded down")
])  # fmt: skip
def test_a_contraction_of_a_single_step(captures: Captures, k: int, why: str) -> None:
    short = functools.partial(product, less=k // 128 - 1)
    (finding,) = found(captures, short, S((16, k), F32), S((k, 128), F32))
    assert finding.message == (
        f"no grid point gets 128:{k} along dimension 1 of x_ref (float32[16, {k}]) and 128:{k} "
        f"along dimension 0 of y_ref (float32[{k}, 128]): these elements are never read"
    )
    assert finding.cause == (
        f"dimension 1 of the grid has 1 step, but {k} elements in blocks of 128 need 2: {why}"
    )


def of_one_step(*specs: Any, out: Any, shape: Any) -> Callable[..., Any]:
    """A sum of all operands over a grid with one step along its second dimension."""

    def kernel(*refs: Any) -> None:
        refs[-1][...] = sum(ref[...] for ref in refs[:-1])

    return lambda *args: pl.pallas_call(
        kernel, out_shape=shape, grid=(2, 1), in_specs=specs, out_specs=out
    )(*args)


TILES = pl.BlockSpec((8, 128), lambda i, k: (i, k))
LEFT = pl.BlockSpec((8, 128), lambda i, k: (i, 0))
TWO = S((16, 256), F32)
ONE_STEP = {
    "one block": (of_one_step(TILES, out=LEFT, shape=S((16, 128), F32)), [S((16, 128), F32)]),
    "an operand of one block": (
        of_one_step(TILES, TILES, out=LEFT, shape=S((16, 128), F32)),
        [TWO, S((16, 128), F32)],
    ),
    "an output for what is read": (
        of_one_step(TILES, out=TILES, shape=S((16, 128), F32)),
        [TWO],
    ),
    "both halves": (
        of_one_step(
            TILES,
            pl.BlockSpec((8, 128), lambda i, k: (i, k + 1)),
            out=LEFT,
            shape=S((16, 128), F32),
        ),
        [TWO, TWO],
    ),
    "the first part alone": (of_one_step(LEFT, out=LEFT, shape=S((16, 128), F32)), [TWO]),
}


@pytest.mark.parametrize("name", ONE_STEP)
def test_a_dimension_of_one_step_that_is_meant(captures: Captures, name: str) -> None:
    function, args = ONE_STEP[name]
    assert found(captures, function, *args) == ()


def scaled(*in_specs: Any, shapes: Any = None, grid: Any = (2, 3)) -> Callable[..., Any]:
    def kernel(*refs: Any) -> None:
        refs[-1][...] = sum(ref[...] for ref in refs[:-1])

    return lambda *args: pl.pallas_call(
        kernel,
        out_shape=S((16, 384), F32),
        grid=grid,
        in_specs=in_specs,
        out_specs=pl.BlockSpec((8, 128), lambda i, j: (i, j)),
    )(*args)


BOTH = pl.BlockSpec((8, 128), lambda i, j: (i, j))


def phased(x_map: Any, y_map: Any) -> Callable[..., Any]:
    """A kernel in two phases, whose second output has its blocks in one of them alone."""

    def kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + y_ref[...]

    return lambda x, y: pl.pallas_call(
        kernel,
        out_shape=S((8, 128), F32),
        grid=(2, 4),
        in_specs=[pl.BlockSpec((8, 128), x_map), pl.BlockSpec((8, 128), y_map)],
        out_specs=pl.BlockSpec((8, 128), lambda p, i: (0, 0)),
    )(x, y)


@pytest.mark.parametrize(
    "x_map, unread",
    [
        (lambda p, i: (i, 0), 0),
        (lambda p, i: (0, 0), 1),  # unlike y_ref, which moves in the second phase
        (lambda p, i: (jnp.where(p == 0, i, 3), 0), 0),
    ],
)
def test_an_operand_that_moves_in_one_phase(captures: Captures, x_map: Any, unread: int) -> None:
    def late(p: Any, i: Any) -> Any:
        return jnp.where(p == 1, i, 0), 0

    given = found(captures, phased(x_map, late), S((32, 128), F32), S((32, 130), F32))
    assert [f.operand for f in given if f.kind == "InputNotRead"] == ["x_ref"] * unread


def test_an_index_map_that_ignores_a_dimension_of_the_grid(captures: Captures) -> None:
    rows = pl.BlockSpec((8, 128), lambda i, j: (i, 0))
    (finding,) = found(captures, scaled(rows), S((16, 384), F32))
    assert finding.kind == "InputNotRead"
    assert finding.source is not None
    assert finding.source.text == "in_specs=in_specs,"
    assert finding.message == (
        "every grid point gets 0:128 along dimension 1 of refs[0] (float32[16, 384]): the other "
        "256 elements are never read"
    )
    assert finding.cause == (
        "its index map does not use dimension 1, along which refs[1] moves through as many elements"
    )
    assert finding.advice == (
        "return the index of dimension 1 of the grid there, or pass only that part of the array"
    )
    assert finding.witness.values["not read"] == "256 of 384"


@pytest.mark.parametrize("dtype, block", [(jnp.uint8, 64), (jnp.int32, 16), (F32, 64), (F32, 128)])
def test_an_index_map_unlike_that_of_a_packed_operand(
    captures: Captures, dtype: Any, block: int
) -> None:
    """Of a product with integers that hold several weights each; floats are not packed."""

    def kernel(x_ref: Any, w_ref: Any, o_ref: Any) -> None:
        o_ref[...] += jnp.sum(x_ref[...]) + jnp.sum(w_ref[...].astype(F32))

    def call(x: Any, w: Any) -> Any:
        return pl.pallas_call(
            kernel,
            out_shape=S((8, 128), F32),
            grid=(3,),
            in_specs=[
                pl.BlockSpec((8, 128), lambda k: (0, 0)),
                pl.BlockSpec((block, 128), lambda k: (k, 0)),
            ],
            out_specs=pl.BlockSpec((8, 128), lambda k: (0, 0)),
        )(x, w)

    findings = found(captures, call, S((8, 384), F32), S((3 * block, 128), dtype))
    unread = [finding for finding in findings if finding.kind == "InputNotRead"]
    if dtype is F32 and block == 64:
        assert not unread
        return
    (finding,) = unread
    what = "elements" if dtype is F32 else "blocks"
    assert finding.cause == (
        f"its index map does not use dimension 0, along which w_ref moves through as many {what}"
    )


@pytest.mark.parametrize("steps, is_found", [(3, True), (2, False)])
def test_a_dimension_of_the_grid_that_no_index_map_uses(
    captures: Captures, steps: int, is_found: bool
) -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] += x_ref[...]

    def call(x: Any) -> Any:
        return pl.pallas_call(
            kernel,
            out_shape=S((16, 128), F32),
            grid=(2, steps),
            in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i, k: (i, 0)),
        )(x)

    findings = found(captures, call, S((16, 384), F32))
    unread = [finding for finding in findings if finding.kind == "InputNotRead"]
    assert [finding.cause for finding in unread] == [
        "its index map does not use dimension 1, which has as many steps, and neither does any "
        "other index map"
    ] * is_found


def test_an_index_map_that_ignores_two_dimensions_of_the_grid(captures: Captures) -> None:
    def copy_column(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + y_ref[...]

    def call(x: Any, y: Any) -> Any:
        return pl.pallas_call(
            copy_column,
            out_shape=S((24, 384), F32),
            grid=(3, 3),
            in_specs=[
                pl.BlockSpec((8, 128), lambda i, j: (0, 0)),
                pl.BlockSpec((8, 128), lambda i, j: (j, 0)),
            ],
            out_specs=pl.BlockSpec((8, 128), lambda i, j: (i, j)),
        )(x, y)

    (finding,) = found(captures, call, S((24, 128), F32), S((24, 128), jnp.bfloat16))
    assert finding.operand == "x_ref"
    assert finding.cause == (
        "its index map does not use dimension 0, along which o_ref moves, or 1, along which y_ref "
        "moves through as many elements"
    )
    assert finding.advice == (
        "return the index of that dimension of the grid there, or pass only that part of the array"
    )


def test_an_input_whose_rest_another_operand_reads(captures: Captures) -> None:
    """The two may be one array, as where each row is compared with the first."""
    call = scaled(pl.BlockSpec((8, 128), lambda i, j: (i, 0)), BOTH)
    (finding,) = found(captures, call, S((16, 384), F32), S((16, 384), F32))
    assert finding.kind == "InputNotRead"
    assert finding.only_if == "refs[0] and refs[1] are not the same array"
    assert not finding.counts


@pytest.mark.parametrize(
    "specs, shapes",
    [
        ([BOTH], [(16, 384)]),
        # A part of another size, as of weights for several layers.
        ([pl.BlockSpec((8, 128), lambda i, j: (0, 0))], [(32, 512)]),
        ([pl.BlockSpec((8, 128), lambda i, j: (i, 0))], [(16, 128)]),
        # It moves along this dimension with another one of the grid.
        ([pl.BlockSpec((8, 128), lambda i, j: (j, i))], [(24, 256)]),
    ],
)
def test_inputs_that_are_read_as_meant(captures: Captures, specs: Any, shapes: Any) -> None:
    assert found(captures, scaled(*specs), *(S(shape, F32) for shape in shapes)) == ()


def test_a_sum_over_rows_that_ends_too_early(captures: Captures) -> None:
    (finding,) = found(captures, rows(summed, 8, ROWS, out=ONE), X)
    assert finding.kind == "InputNotRead"
    assert finding.message.startswith("no grid point gets 16:20 along dimension 0 of x_ref")


def loaded(
    condition: str, *, x_map: Any = lambda i, j: (i, j), out_map: Any = lambda i, j: (i, j)
) -> Callable[..., Any]:
    """Scratch that is filled from an input at some grid points, and stored at all."""

    def kernel(x_ref: Any, y_ref: Any, o_ref: Any, buf: Any) -> None:
        i, j = pl.program_id(0), pl.program_id(1)
        holds = {"first": i + j == 0, "row": i == 0, "column": j == 0, "data": y_ref[0, 0] > 0}

        @pl.when(holds[condition])
        def _load() -> None:
            buf[...] = x_ref[...]

        o_ref[...] = buf[...]

    spec = pl.BlockSpec((8, 128), x_map)
    return lambda x, y: pl.pallas_call(
        kernel,
        out_shape=S((16, 256), F32),
        grid=(2, 2),
        in_specs=[spec, pl.BlockSpec((8, 128), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((8, 128), out_map),
        scratch_shapes=[pltpu.VMEM((8, 128), F32)],
    )(x, y)


ROW, COLUMN = (lambda i, j: (i, 0)), (lambda i, j: (0, j))
TALL, WIDE = S((16, 128), F32), S((8, 256), F32)
LOADED = [
    (loaded("first"), TWO, 0),
    (loaded("row"), TWO, 0),
    (loaded("column"), TWO, 1),
    (loaded("first", x_map=ROW), TALL, 0),
    (loaded("column", x_map=ROW), TALL, None),
    (loaded("row", x_map=COLUMN), WIDE, None),
    (loaded("data"), TWO, None),
    (loaded("row", out_map=COLUMN), TWO, None),
]


@pytest.mark.parametrize("function, x, axis", LOADED)
def test_an_input_that_is_read_only_at_first(
    captures: Captures, function: Any, x: Any, axis: int | None
) -> None:
    given = found(captures, function, x, S((16, 512), F32))
    unread = [f for f in given if f.kind == "InputNotRead" and f.operand == "x_ref"]
    if axis is None:
        assert not unread
        return
    (finding,) = unread
    assert finding.message == (
        f"x_ref is read only at step 0 of dimension {axis} of the grid, although its block changes "
        "along it, as that of o_ref does: its other blocks are never read"
    )
    assert finding.cause == (
        f"the condition around this line holds only where pl.program_id({axis}) is 0"
    )
    assert finding.advice == (
        f"read x_ref at each step of dimension {axis}, or return a constant index there"
    )
    assert finding.source is not None
    assert finding.source.text == "buf[...] = x_ref[...]"

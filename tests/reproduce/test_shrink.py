"""Smaller kernels that fail in the same way, and the parts of the search for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from broken_kernels import broken
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge.lowering import trace
from pallas_debug.errors import CannotRunError
from pallas_debug.reproduce import recorded, run
from pallas_debug.reproduce.recorded import Recorded
from pallas_debug.reproduce.shrinking.changes import KINDS
from pallas_debug.reproduce.shrinking.lines import parse
from pallas_debug.reproduce.shrinking.search import shrunk
from pallas_debug.session import Options, Session
from pallas_debug.store import open_dumps

F32 = jnp.float32


def large(s: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """A kernel with loops and branches around one operation that a TPU has not."""

    def kernel(s_ref: Any, x_ref: Any, y_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        i = pl.program_id(1)

        @pl.when(i == 0)
        def _() -> None:
            acc_ref[...] = jnp.zeros_like(acc_ref)

        def body(j: Any, c: Any) -> Any:
            return c + x_ref[pl.ds(j * 8, 8), :] * jnp.exp(c)

        c = lax.fori_loop(0, 4, body, jnp.zeros((8, 128), F32))
        w = jnp.where(c > 0, c, -c) + y_ref[:8, :].astype(F32)
        r = lax.cond(s_ref[0] > 3, lambda: jnp.cumsum(w, axis=0), lambda: w)
        acc_ref[...] += jnp.dot(r, r.T, preferred_element_type=F32)[:, :8] @ r

        @pl.when(i == pl.num_programs(1) - 1)
        def _() -> None:
            o_ref[...] = acc_ref[...]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4, 2),
        in_specs=[
            pl.BlockSpec((32, 128), lambda i, j, s: (i, j)),
            pl.BlockSpec((16, 128), lambda i, j, s: (s[i] // 2, j)),
        ],
        out_specs=pl.BlockSpec((8, 128), lambda i, j, s: (i, j)),
        scratch_shapes=[pltpu.VMEM((8, 128), F32)],
    )
    params = pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"))
    out = jax.ShapeDtypeStruct((32, 256), F32)
    return pl.pallas_call(kernel, out_shape=out, grid_spec=spec, compiler_params=params)(s, x, y)


LARGE = (
    jax.ShapeDtypeStruct((4,), jnp.int32),
    jax.ShapeDtypeStruct((128, 256), F32),
    jax.ShapeDtypeStruct((64, 256), jnp.bfloat16),
)


def dumped(
    function: Callable[..., Any], args: Sequence[Any], target: str, folder: Path
) -> Recorded:
    with Session(Options(dumps=folder, targets=(target,), interpret="off", jobs=1)) as session:
        trace.lower_for_kernels(function, args, {}, session.targets[0])
    assert session.problems == []
    (stored,) = open_dumps(folder).kernels()
    return recorded.read(stored, None)


def statements(script: str) -> list[str]:
    program = script[script.index("\nimport jax\n") : script.index("\nTOPOLOGY")]
    return [line.strip() for line in parse(program.lstrip()).text.split("\n")]


@pytest.mark.slow
def test_a_large_kernel_that_jax_refuses(tmp_path: Path) -> None:
    found = dumped(large, LARGE, "v5e", tmp_path)
    messages: list[str] = []
    small = shrunk(found, seconds=120, report=messages.append)
    assert messages[0] == (
        "38 statements, lowering: Unimplemented primitive in Pallas TPU lowering for tc: cumsum"
    )
    assert "reduced the grid from 4x2 to 1x1: 38 statements" in messages
    assert any(line.startswith("assumed that a branch is taken") for line in messages)
    assert messages[-1].startswith("Shrunk by pallas-debug from 38 statements to 3, in ")
    lines = statements(small)
    assert [line for line in lines if "cumsum" in line] == [
        "v20 = lax.cumsum(v17, axis=0, reverse=False)  # f32[1,1]"
    ]
    assert "def kernel(o_ref, acc_ref):" in lines
    assert "grid=(1, 1)," in lines
    assert not any("128" in line or "compiler_params" in line for line in lines)
    assert "#   removed the operand y_ref\n" in small
    assert "# It fails in the same way: lowering: Unimplemented primitive" in small
    assert run.run(small).is_as(found.failure)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name,target,left",
    [
        ("unproven_lane_offset", "v5e", "pl.ds(v1, 1)"),
        ("scratch_over_the_capacity", "v4", "pltpu.VMEM("),
    ],
)
def test_kernels_that_the_compiler_refuses(
    name: str, target: str, left: str, tmp_path: Path
) -> None:
    kernel = broken(name)
    found = dumped(kernel.function, kernel.args, target, tmp_path)
    small = shrunk(found, seconds=60)
    assert left in small
    before, after = statements_and_elements(found.program or ""), statements_and_elements(small)
    assert after < before
    assert run.run(small).is_as(found.failure)


def statements_and_elements(text: str) -> tuple[int, int]:
    """How large a program is: its lines, and the elements of its arguments."""
    shapes = [
        jax.ShapeDtypeStruct(tuple(int(n) for n in line.split("((")[1].split(")")[0].split(",") if n.strip()), F32)
        for line in text.split("\n")
        if line.strip().startswith("jax.ShapeDtypeStruct((")
    ]  # fmt: skip
    return text[: text.find("TOPOLOGY")].count("\n    "), sum(shape.size for shape in shapes)


@pytest.mark.slow
def test_what_cannot_be_shrunk(tmp_path: Path) -> None:
    kernel = broken("cumulative_sum")
    found = dumped(kernel.function, kernel.args, "v5e", tmp_path)
    program = (found.program or "").replace("lax.cumsum", "lax.cummax")
    other = Recorded(**{**vars(found), "program": program})
    with pytest.raises(CannotRunError) as error:
        shrunk(other, seconds=60)
    assert str(error.value) == (
        "cumsum_rows does not fail here in the same way: the dump has lowering: Unimplemented "
        "primitive in Pallas TPU lowering for tc: cumsum, but here the result is lowering: "
        "Unimplemented primitive in Pallas TPU lowering for tc: cummax. Are other versions of jax or libtpu installed?"
    )
    with pytest.raises(CannotRunError, match="cumsum_rows cannot be made smaller: for a reason"):
        shrunk(
            Recorded(**{**vars(found), "program": None, "why_no_program": "for a reason"}),
            seconds=9,
        )


@pytest.mark.slow
def test_time_that_runs_out_is_said(tmp_path: Path) -> None:
    found = dumped(large, LARGE, "v5e", tmp_path)
    messages: list[str] = []
    shrunk(found, seconds=0.001, report=messages.append)
    assert messages[-1] == (
        "Shrunk by pallas-debug from 38 statements to 38, in 0 successful steps of 0 tried; the "
        "time limit ended the search."
    )


PROGRAM = """\
import jax

ARGUMENTS = [
    jax.ShapeDtypeStruct((16, 128), jnp.float32),  # x_ref
    jax.ShapeDtypeStruct((16, 128), jnp.float32),  # y_ref
]
AXES = {}
ENABLE_X64 = False


def double(x_ref, y_ref, o_ref):
    v1 = pl.program_id(0)  # i32[]
    v2 = v1 == 0  # bool[]
    @pl.when(v2)
    def when():
        v3 = x_ref[...]  # f32[8,128]
        o_ref[...] = v3
    def body(i, v4):
        v5 = v4 + 1.0  # f32[8,128]
        return v5
    v6 = lax.fori_loop(0, 4, body, v7)  # f32[8,128]
    v8 = v6 * 2.0  # f32[8,128]
    o_ref[...] = v8


def call(*args):
    return pl.pallas_call(
        double,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            grid=(2,),
            in_specs=[
                pl.BlockSpec((8, 128), lambda i0: (i0, 0)),  # x_ref
                pl.BlockSpec((8, 128), lambda i0: (i0, 0)),  # y_ref
            ],
        ),
    )(*args)
"""


def test_a_program_is_read_and_written_alike() -> None:
    assert parse(PROGRAM).text == PROGRAM
    assert parse(PROGRAM).size == 11


@pytest.mark.parametrize(
    "kind,what,there,gone",
    [
        ("smaller_grid", "reduced the grid from 2 to 1", "grid=(1,),", "grid=(2,),"),
        ("without_statements", "removed or zeroed a statement", "v8 = jnp.zeros((8, 128), jnp.float32)",
         "v6 * 2.0"),
        ("without_statements", "removed or zeroed a statement", "o_ref[...] = v8", "@pl.when(v2)"),
        ("unwrapped", "assumed that a branch is taken", "\n    o_ref[...] = v3", "@pl.when(v2)"),
        ("unwrapped", "reduced a loop to one iteration", "    v5 = v7 + 1.0", "fori_loop"),
        ("bypassed", "replaced a result with an operand", "    o_ref[...] = v6\n", "v8"),
        ("without_operands", "removed the operand y_ref", "def double(x_ref, o_ref):", "y_ref"),
        ("simpler_index_maps", "simplified an index map",
         "pl.BlockSpec((8, 128), lambda *_: (0, 0,)),  # x_ref", "((8, 128), lambda i0: (i0, 0)),  # x_ref"),
        ("smaller_sizes", "reduced 128 to 64", "ShapeDtypeStruct((16, 64), jnp.float32)", "128"),
    ],
)  # fmt: skip
def test_changes(kind: str, what: str, there: str, gone: str) -> None:
    (change,) = (k for k in KINDS if k.__name__ == kind)
    found = [c for c in change(parse(PROGRAM)) if c.what == what and there in c.program.text]
    assert any(gone not in c.program.text for c in found)
    for candidate in found:
        assert parse(candidate.program.text).text == candidate.program.text

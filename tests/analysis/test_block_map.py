"""Block maps of captured kernels: index maps evaluated over the whole grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_debug_kernels import flash_attention

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.walk import prefetch
from pallas_debug.bridge.walk.block_map import block_map
from pallas_debug.compiler import targets
from pallas_debug.profile.blocks import BlockMap, OperandBlocks

Captures = Callable[..., list[Capture]]

F32 = jnp.float32


def copy(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]


def mapped(captures: Captures, function: Any, *args: Any) -> BlockMap:
    (captured,) = captures(function, args)
    return block_map(captured)


def named(blocks: BlockMap, name: str) -> OperandBlocks:
    (found,) = (operand for operand in blocks.operands if operand.name == name)
    return found


def test_flash_attention(captures: Captures) -> None:
    q = jax.ShapeDtypeStruct((1, 2, 2048, 128), jnp.bfloat16)
    blocks = mapped(captures, lambda q, k, v: flash_attention(q, k, v, causal=True), q, q, q)
    assert blocks.grid == (1, 2, 4, 4)
    assert blocks.parallel == (True, True, True, False)
    assert [o.name for o in blocks.pipelined] == ["q_ref", "k_ref", "v_ref", "out_ref"]
    query, key = named(blocks, "q_ref"), named(blocks, "k_ref")
    assert (query.block_bytes, query.buffers) == (131072, 2)
    # Blocks above the diagonal are not fetched: the index map returns to the first one.
    positions = range(16)
    rows = [blocks.block(key, blocks.point(n)) for n in positions]
    assert [row[2] for row in rows if row] == [0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 2, 0, 0, 1, 2, 3]
    assert blocks.point(17) == (0, 1, 0, 1)


def test_buffers_and_spaces(captures: Captures) -> None:
    def kernel(x_ref: Any, w_ref: Any, s_ref: Any, h_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] + w_ref[...] + s_ref[0, 0]

    def call(x: Any, w: Any, s: Any, h: Any) -> Any:
        return pl.pallas_call(
            kernel,
            grid=(4,),
            in_specs=[
                pl.BlockSpec((8, 128), lambda i: (i, 0), pipeline_mode=pl.Buffered(1)),
                pl.BlockSpec((8, 128), lambda i: (0, 0)),
                pl.BlockSpec((1, 1), lambda i: (0, 0), memory_space=pltpu.SMEM),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct((32, 128), F32),
        )(x, w, s, h)

    x = jax.ShapeDtypeStruct((32, 128), F32)
    w, s = jax.ShapeDtypeStruct((8, 128), F32), jax.ShapeDtypeStruct((1, 1), F32)
    blocks = mapped(captures, call, x, w, s, x)
    found = {o.name: (o.is_pipelined, o.buffers) for o in blocks.operands}
    assert found == {
        "x_ref": (True, 1),
        "w_ref": (True, 1),
        "s_ref": (True, 1),
        "h_ref": (False, 1),
        "o_ref": (True, 2),
    }


def test_a_grid_too_long_for_an_array_of_its_steps_is_unknown(captures: Captures) -> None:
    """Its positions are not made: they would take more memory than the machine has."""

    def call(x: Any) -> Any:
        spec = pl.BlockSpec((8, 128), lambda i: (0, 0))
        n = 1 << 40
        return pl.pallas_call(copy, grid=(n,), in_specs=[spec], out_specs=spec, out_shape=x)(x)

    blocks = mapped(captures, call, jax.ShapeDtypeStruct((8, 128), F32))
    reason = "its grid has 1,099,511,627,776 steps along a dimension"
    assert {operand.unknown for operand in blocks.operands} == {reason}


def test_blocks_outside_and_parts_never_touched(captures: Captures) -> None:
    def call(x: Any) -> Any:
        return pl.pallas_call(
            copy,
            grid=(5,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i // 2, 0)),
            out_shape=jax.ShapeDtypeStruct((36, 128), F32),
        )(x)

    blocks = mapped(captures, call, jax.ShapeDtypeStruct((32, 128), F32))
    assert [operand.untouched for operand in blocks.operands] == [0, 12 * 128]


def test_overlapping_blocks(captures: Captures) -> None:
    def call(x: Any) -> Any:
        return pl.pallas_call(
            lambda x_ref, o_ref: o_ref.__setitem__(..., x_ref[:8]),
            grid=(3,),
            in_specs=[pl.BlockSpec((pl.Element(16), pl.Element(128)), lambda i: (i * 8, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
            out_shape=jax.ShapeDtypeStruct((24, 128), F32),
        )(x)

    blocks = mapped(captures, call, jax.ShapeDtypeStruct((40, 128), F32))
    assert blocks.operands[0].untouched == 8 * 128


def prefetched(table: Any, x: Any) -> Any:
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, table_ref: (table_ref[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, table_ref: (i, 0)),
    )

    def kernel(table_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    return pl.pallas_call(kernel, grid_spec=spec, out_shape=x)(table, x)


def test_maps_that_read_scalar_prefetch(captures: Captures) -> None:
    x = jax.ShapeDtypeStruct((32, 128), F32)
    (captured,) = captures(prefetched, [jax.ShapeDtypeStruct((4,), jnp.int32), x])
    unknown = block_map(captured)
    operand = unknown.operands[0]
    assert operand.unknown == "it reads table_ref, whose values are unknown"
    assert ([d.size for d in operand.dimensions], operand.untouched) == ([8, 128], None)
    assert unknown.block(operand, unknown.point(0)) is None
    assert unknown.scalars == ()

    table = np.array([2, 2, 0, 2], np.int32)
    found = prefetch.tables(prefetched, [table, x], {}, targets.resolve("v5e"))
    ((values,),) = found.values()
    known = block_map(captured, {0: np.asarray(values[0])})
    operand = known.operands[0]
    assert operand.tables == ("table_ref",)
    assert [(s.number, s.name, s.values) for s in known.scalars] == [(0, "table_ref", (2, 2, 0, 2))]
    assert [known.block(operand, known.point(n)) for n in range(4)] == [
        (2, 0),
        (2, 0),
        (0, 0),
        (2, 0),
    ]
    assert operand.untouched == 16 * 128


def test_a_grid_whose_size_the_call_passes(captures: Captures) -> None:
    x = jax.ShapeDtypeStruct((32, 128), F32)

    def call(steps: Any, x: Any) -> Any:
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(copy, grid=(steps,), in_specs=[spec], out_specs=spec, out_shape=x)(x)

    (captured,) = captures(call, [jax.ShapeDtypeStruct((), jnp.int32), x])
    assert block_map(captured).unknown is not None
    known = block_map(captured, bounds=[np.array(3, np.int32)])
    assert (known.unknown, known.grid) == (None, (3,))
    assert [(s.name, s.values) for s in known.scalars] == [("grid[0]", (3,))]

"""Changes, simulated and compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from called import called
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.tpu import flash_attention, matmul

from pallas_debug.errors import UsageError
from pallas_debug.ir.operations import Module
from pallas_debug.model import Kernel, Operand, OperandKind
from pallas_debug.profile import changed
from pallas_debug.profile.blocks import BlockIndex, BlockMap, OperandBlocks
from pallas_debug.profile.growth import Axes, Growth, _reshaped
from pallas_debug.profile.stats import Profile

Compiled = Callable[..., Profile]

SQUARE = jax.ShapeDtypeStruct((2048, 2048), jnp.bfloat16)
HEADS = jax.ShapeDtypeStruct((1, 4, 2048, 128), jnp.bfloat16)
ROWS = jax.ShapeDtypeStruct((4096, 512), jnp.float32)


def double(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2.0


def doubled(x: jax.Array, *, block: int) -> jax.Array:
    spec = pl.BlockSpec((block, 512), lambda i: (i, 0))
    return called(grid=(x.shape[0] // block,), block=spec)(double)(x)


def product(x: jax.Array, y: jax.Array, *, block: int) -> Any:
    return matmul.matmul(x, y, block_shape=(block, block), block_k=512)


def attention(q: jax.Array, k: jax.Array, v: jax.Array, *, block: int) -> Any:
    sizes = flash_attention.BlockSizes(block_q=block, block_k_major=block, block_k=block, block_b=1)
    return flash_attention.flash_attention(q, k, v, block_sizes=sizes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "function, args, small, large, least, most",
    [
        (doubled, (ROWS,), 8, 128, 0.9, 1.25),
        pytest.param(product, (SQUARE, SQUARE), 256, 512, 0.9, 1.25, marks=pytest.mark.slow),
        pytest.param(attention, (HEADS,) * 3, 128, 512, 0.9, 1.4, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("target", ["v5e", "v6e"])
def test_compiled_kernels_take_what_is_promised(
    function: Any,
    args: Any,
    small: int,
    large: int,
    least: float,
    most: float,
    target: str,
    compiled: Compiled,
) -> None:
    before, after = (
        compiled(functools.partial(function, block=block), *args, target=target)
        for block in (small, large)
    )
    assert before.blocks is not None
    assert after.blocks is not None
    changes = [
        f"{old.name}[{n}]={new.dimensions[n].size}"
        for old, new in zip(before.blocks.pipelined, after.blocks.pipelined, strict=True)
        for n in range(len(new.dimensions))
        if new.dimensions[n].size != old.dimensions[n].size
    ]
    promised = before.simulator.what_if(changes)
    assert promised.cycles.value is not None
    assert after.cycles.total.value is not None
    assert least <= promised.cycles.value / after.cycles.total.value <= most
    assert promised.steps == after.blocks.points
    # With the blocks of the other kernel, the simulation is the same.
    assert before.simulator.simulated(after.blocks, "x").cycles == promised.cycles


def transposed_grid(x: jax.Array, y: jax.Array, *, order: str) -> jax.Array:
    """A matrix product without a loop over the contraction: which operand stays is the order's."""

    def kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

    swap = order == "nm"

    def at(i: Any, j: Any) -> tuple[Any, Any]:
        return (j, i) if swap else (i, j)

    m, n = x.shape[0] // 128, y.shape[1] // 512
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), jnp.float32),
        grid=(n, m) if swap else (m, n),
        in_specs=[
            pl.BlockSpec((128, x.shape[1]), lambda i, j: (at(i, j)[0], 0)),
            pl.BlockSpec((x.shape[1], 512), lambda i, j: (0, at(i, j)[1])),
        ],
        out_specs=pl.BlockSpec((128, 512), lambda i, j: at(i, j)),
    )(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e", "v6e"])
def test_another_order_of_the_grid_takes_what_is_promised(target: str, compiled: Compiled) -> None:
    args = (jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16),) * 2
    slow, fast = (
        compiled(functools.partial(transposed_grid, order=order), *args, target=target)
        for order in ("mn", "nm")
    )
    for one, other in ((slow, fast), (fast, slow)):
        promised = one.simulator.what_if(["order=1,0"]).cycles.value
        assert promised == pytest.approx(other.cycles.total.value, rel=0.1)


def once(x: jax.Array, *, buffers: int) -> jax.Array:
    spec = pl.BlockSpec((256, 512), lambda i: (i, 0))
    buffered = pl.BlockSpec((256, 512), lambda i: (i, 0), pipeline_mode=pl.Buffered(buffers))
    return called(grid=(x.shape[0] // 256,), in_specs=[buffered], out_specs=spec)(double)(x)


def test_a_second_buffer_takes_what_is_promised(compiled: Compiled) -> None:
    one, two = (compiled(functools.partial(once, buffers=n), ROWS, target="v5e") for n in (1, 2))
    promised = one.simulator.what_if(["x_ref.buffers=2"]).cycles.value
    assert promised == pytest.approx(two.cycles.total.value, rel=0.1)


def test_less_to_copy_takes_no_longer(compiled: Compiled) -> None:
    profile = compiled(functools.partial(doubled, block=128), ROWS, target="v5e")
    now = profile.cycles.total.value
    assert now is not None
    halved = profile.simulator.what_if(["x_ref.bits=16"]).cycles.value
    resident = profile.simulator.what_if(["x_ref[0]=64", "x_ref.bits=16"]).cycles.value
    assert halved is not None
    assert resident is not None
    assert now / 2 < halved < now
    assert profile.simulator.what_if(["x_ref.bits=32"]).cycles.value == now


@pytest.mark.slow
def test_bounds_are_below_the_estimate_and_add_up(compiled: Compiled) -> None:
    profile = compiled(functools.partial(attention, block=128), *[HEADS] * 3, target="v5e")
    now = profile.cycles.total.value
    assert now is not None
    for change in ("without=spill@0x10", "without=matmul@0x10", "overlap=0x10:4"):
        found = profile.simulator.what_if([change])
        assert found.is_bound
        assert found.change == change
        assert 0 < (found.cycles.value or 0) <= now
    once, fourfold = (profile.simulator.what_if([f"overlap=0x10:{n}"]).cycles for n in (1, 4))
    assert once.value == now
    assert (fourfold.value or now) < now


@pytest.mark.parametrize(
    "change, message",
    [
        ("x_ref=8", "is no change; there are k_ref"),
        ("y_ref[0]=8", r"y_ref\[0\] is no block of this kernel, which has x_ref\[0..1\], o_ref"),
        ("y_ref.bits=8", "is no block of this kernel"),
        ("x_ref[2]=8", "is no block"),
        ("x_ref[1]=8", "no axis of the grid"),
        ("x_ref[0]=24", "do not divide dimension 0 of x_ref, which has 4,096 elements"),
        ("x_ref[0]=4096", "needs 32 MiB of VMEM, of the 16 MiB that the kernel may use"),
        ("x_ref.bits=0", "elements have 1, 2, 4, 8, 16, 32, 64 bits, not 0"),
        ("x_ref.buffers=0", "x_ref needs at least one buffer"),
        ("order=1", "1 is no order of the axes of a grid with 1 axes"),
        ("without=magic", "no instruction of class 'magic' runs in this kernel"),
        ("without=load@0x999", "no loop begins at bundle 0x999; there are 0x"),
        ("overlap=0x999:2", "no loop begins"),
    ],
)
def test_what_cannot_be_changed_is_said(change: str, message: str, once_compiled: Profile) -> None:
    with pytest.raises(UsageError, match=message):
        once_compiled.simulator.what_if([change])


def test_a_bound_is_not_combined(once_compiled: Profile) -> None:
    with pytest.raises(UsageError, match="is not combined with other changes"):
        once_compiled.simulator.what_if(["x_ref[0]=16", "without=load"])


@pytest.fixture(scope="module")
def once_compiled(compiled: Compiled) -> Profile:
    return compiled(functools.partial(doubled, block=8), ROWS, target="v5e")


# Block maps


def rows_of(grid: tuple[int, ...], *indices: BlockIndex) -> BlockMap:
    operand = OperandBlocks(
        name="x_ref", kind="input", shape=(1024, 1024), dtype="float32", bits=32, space="vmem",
        is_pipelined=True, buffers=2, dimensions=indices,
    )  # fmt: skip
    return BlockMap(grid=grid, parallel=(False,) * len(grid), operands=(operand,))


CAUSAL = rows_of(
    (4, 4),
    # Blocks above the diagonal are those of the diagonal, as in jax's flash attention.
    BlockIndex(
        kind="blocked", size=8, bound=32, axes=(0, 1),
        values=tuple(j if j <= i else 0 for i in range(4) for j in range(4)),
    ),
)  # fmt: skip


def test_blocks_that_are_skipped_are_no_work() -> None:
    busy = changed.busy_points(CAUSAL)
    assert busy is not None
    assert busy.tolist() == [[j <= i or j == 0 for j in range(4)] for i in range(4)]


def test_larger_blocks_are_skipped_if_all_of_theirs_were() -> None:
    larger = changed.scaled(CAUSAL, {0: 2, 1: 2})
    (index,) = larger.operands[0].dimensions
    assert (larger.grid, index.size) == ((2, 2), 16)
    assert [index.at((i, j), larger.grid) for i in range(2) for j in range(2)] == [0, 0, 0, 1]
    busy = changed.busy_points(larger)
    assert busy is not None
    assert busy.tolist() == [[True, False], [True, True]]


def test_an_order_is_undone_by_its_inverse() -> None:
    index = CAUSAL.operands[0].dimensions[0]
    assert changed.reordered(changed.reordered(CAUSAL, (1, 0)), (1, 0)) == CAUSAL
    moved = changed.reordered(CAUSAL, (1, 0))
    assert all(
        moved.operands[0].dimensions[0].at((j, i), (4, 4)) == index.at((i, j), (4, 4))
        for i in range(4)
        for j in range(4)
    )


def test_an_index_of_two_axes_is_not_simulated() -> None:
    index = BlockIndex(kind="blocked", size=8, bound=128, strides=(4, 1))
    with pytest.raises(UsageError, match="no axis of the grid moves the blocks of x_ref along 0"):
        changed.resized(rows_of((4, 4), index), {("x_ref", 0): 16})
    with pytest.raises(UsageError, match="the index of x_ref along dimension 0 does not simply"):
        changed.scaled(rows_of((4, 4), index), {1: 2})


# Growth of the work at a line

ATTENTION = """module {
  func.func @kernel(%arg0: i32, %arg1: i32, %arg2: memref<64x128xf32>, %arg3: memref<256x128xf32>, %arg4: memref<64x1xf32>) attributes {} {
    %0 = vector.load %arg2[%c0, %c0] : memref<64x128xf32>, vector<64x128xf32> loc("k.py":1:0)
    %1 = vector.load %arg3[%c0, %c0] : memref<256x128xf32>, vector<256x128xf32> loc("k.py":2:0)
    %2 = tpu.matmul %0, %1, %cst {dimension_numbers = #tpu.dot_dimension_numbers<[1], [1], [0], [0], [0, 0, 1, 0], [], []>} : vector<64x128xf32>, vector<256x128xf32>, vector<64x256xf32> -> vector<64x256xf32> loc("k.py":3:0)
    %3 = vector.multi_reduction <maximumf>, %2, %cst [1] : vector<64x256xf32> to vector<64xf32> loc("k.py":4:0)
    %4 = vector.shape_cast %3 : vector<64xf32> to vector<64x1xf32> loc("k.py":5:0)
    %5 = vector.load %arg4[%c0, %c0] : memref<64x1xf32>, vector<64x1xf32> loc("k.py":6:0)
    %6 = arith.maximumf %4, %5 : vector<64x1xf32> loc("k.py":7:0)
    vector.store %6, %arg4[%c0, %c0] : memref<64x1xf32>, vector<64x1xf32> loc("k.py":8:0)
    %7 = tpu.transpose %1, [1, 0] : vector<256x128xf32> -> vector<128x256xf32> loc("k.py":9:0)
    %8 = vector.load %arg3[%c0, %c0] : memref<256x128xf32>, vector<8x128xf32> loc("k.py":10:0)
  }
}
"""


@pytest.mark.parametrize(
    "line, factor",
    [
        (1, 2),  # the block of queries
        (2, 3),  # that of keys
        (3, 6),  # scores grow with both
        (4, 6),  # so do their maxima's inputs
        (5, None),  # nothing is computed
        (6, 2),  # scratch follows what is stored in it
        (7, 2),
        (9, 3),
        (10, 1),  # a part of a block stays as large as it is
        (11, None),
    ],
)
def test_work_grows_along_the_axes_of_its_values(line: int, factor: float | None) -> None:
    def blocks(name: str, axis: int, rows: int) -> OperandBlocks:
        strides = (1, 0) if axis == 0 else (0, 1)
        return OperandBlocks(
            name=name, kind="input", shape=(1024, 128), dtype="float32", bits=32, space="vmem",
            is_pipelined=True, buffers=2,
            dimensions=(
                BlockIndex(kind="blocked", size=rows, bound=1024, strides=strides),
                BlockIndex(kind="blocked", size=128, bound=128, strides=(0, 0)),
            ),
        )  # fmt: skip

    grid = BlockMap(grid=(16, 4), operands=(blocks("q_ref", 0, 64), blocks("k_ref", 1, 256)))
    kinds: dict[str, OperandKind] = {
        "grid[1]": "dynamic_grid",  # which the kernel's function does not get
        "q_ref": "input",
        "k_ref": "input",
        "m_ref": "scratch",
    }
    operands = [
        Operand(name=name, kind=kind, shape=(64, 128), dtype="float32", memory_space="vmem")
        for name, kind in kinds.items()
    ]
    kernel = Kernel(name="k", digest="", primitive="pallas_call", operands=tuple(operands))
    growth = Growth(kernel, grid, Module.of(ATTENTION, "mlir"))
    assert growth.of_place(("k.py", line), {0: 2.0, 1: 3.0}) == factor


@pytest.mark.parametrize(
    "axes, old, new, expected",
    [
        ((0, 1), (8, 128), (8, 128), (0, 1)),
        ((None, 0), (256, 128), (8, 32, 128), (None, None, 0)),  # split, beside an axis
        ((0, None), (256, 128), (8, 32, 128), (0, None, None)),
        ((0, None, 1), (8, 32, 128), (256, 128), (0, 1)),  # merged
        ((0, 1, 2), (8, 32, 128), (256, 128), (None, 2)),  # of two axes
        ((2, 1, None), (1, 256, 128), (256, 128), (1, None)),  # a head that is dropped
        ((1, None), (256, 128), (1, 256, 128), (None, 1, None)),
        ((0,), (128,), (1, 128), (None, 0)),
        ((0,), (8, 128), (1024,), (None,)),  # axes that do not fit the shape
    ],
)
def test_axes_follow_dimensions_that_are_split_merged_or_dropped(
    axes: Axes, old: tuple[int, ...], new: tuple[int, ...], expected: Axes
) -> None:
    assert _reshaped(axes, old, new) == expected

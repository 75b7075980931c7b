"""What TPU interpret mode lacks and we add: views of references, masks, semaphores, DMAs."""

from __future__ import annotations

import contextlib
import inspect
import random
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import dtypes
from jax._src.state import discharge, indexing, types
from jax._src.state.primitives import ref_addupdate
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge.interpret import interpret, tpu_interpret
from pallas_debug.bridge.interpret.extend.views import OutOfView, RefView, size_of
from pallas_debug.model import Finding

F32 = jnp.float32
X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
TILE = pltpu.VMEM((8, 128), F32)
DMA = pltpu.SemaphoreType.DMA
REGULAR = pltpu.SemaphoreType.REGULAR


# Views, compared with jax's own discharge of references.

DTYPES = (jnp.uint8, jnp.uint16, jnp.bfloat16, jnp.int32, jnp.float32, jnp.int4)


def chains(seed: int) -> Iterator[tuple[np.ndarray[Any, Any], list[Any]]]:
    """Arrays with chains of random transforms."""
    rng = random.Random(seed)
    for number in range(20):
        dtype = jnp.dtype(rng.choice(DTYPES))
        shape = rng.choice([(16, 8), (4, 8, 16), (8,)])
        values = np.random.RandomState(number).randint(0, 7, shape).astype(dtype)
        chain: list[Any] = []
        aval: Any = jax.core.ShapedArray(shape, dtype)
        for _ in range(rng.randint(1, 4)):
            transform = a_transform(rng, aval.shape, aval.dtype)
            chain.append(transform)
            aval = transform.transform_type(aval)
        yield values, chain


def a_transform(rng: random.Random, shape: tuple[int, ...], dtype: Any) -> Any:
    kind = rng.choice("nrb")
    if kind == "b" and len(shape) > 1:
        bits = shape[-2] * dtypes.itemsize_bits(dtype)
        fitting = [d for d in map(jnp.dtype, DTYPES) if bits % dtypes.itemsize_bits(d) == 0]
        return types.BitcastTransform(rng.choice(fitting))
    if kind == "r":
        size = int(np.prod(shape))
        return types.ReshapeTransform(
            rng.choice([(size,), *((n, size // n) for n in (2, 4, 8) if size % n == 0)])
        )
    indices: list[Any] = []
    for size in shape:
        stride = rng.choice([1, 1, 2])
        count = rng.randint(1, -(-size // stride))
        start = rng.randint(0, size - ((count - 1) * stride + 1))
        is_index = len(shape) > 2 and rng.random() < 0.2
        indices.append(np.int32(start) if is_index else indexing.Slice(start, count, stride))
    return indexing.NDIndexer(tuple(indices), shape, ())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_views_select_what_jax_selects(seed: int) -> None:
    for values, chain in chains(seed):
        wanted = np.asarray(
            discharge.transform_array(jnp.asarray(values), jax.tree.map(jnp.int32, chain))
        )
        read = RefView(values, chain).read()
        assert read.dtype == wanted.dtype, chain
        assert read.shape == wanted.shape, chain
        assert read.tobytes() == wanted.tobytes(), chain
        assert size_of(values.shape, values.dtype, chain) == wanted.nbytes

        ones = np.zeros_like(values)
        ones.view(np.uint8)[...] = 0xF if values.dtype == jnp.int4 else 0xFF
        view = RefView(ones, chain)
        view.write(np.zeros_like(wanted))
        assert not view.read().view(np.uint8).any()
        changed = (ones.view(np.uint8).reshape(*values.shape, -1) & 0xF != 0xF).any(axis=-1)
        covered = np.zeros(values.shape, int)
        for range_ in view.ranges():
            covered[range_] += 1
        np.testing.assert_array_equal(covered, changed.astype(int), str(chain))


def test_a_transposed_view_and_one_that_leaves_its_reference() -> None:
    values = X.copy()
    transposed = types.TransposeTransform((1, 0))
    rows = indexing.NDIndexer((indexing.Slice(126, 4, 1), indexing.Slice(0, 8, 1)), (128, 8), ())
    RefView(values, [transposed]).write(-X.T)
    np.testing.assert_array_equal(values, -X)
    with pytest.raises(OutOfView) as caught:
        RefView(values, [types.ReshapeTransform((8, 128)), transposed, rows])
    assert caught.value.chain == ".reshape(8, 128).transpose(1, 0)"
    assert caught.value.shape == (128, 8)
    padded = RefView(values, [transposed, rows], is_padded=True)
    np.testing.assert_array_equal(padded.read(np.nan)[:2], -X.T[126:])
    assert np.isnan(padded.read(np.nan)[2:]).all()
    assert padded.ranges() == [(slice(0, 8, 1), slice(126, 128, 1))]


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.bfloat16, jnp.int32])
@pytest.mark.parametrize(
    "range_",
    [
        (np.array([5, 0, 5]), slice(1, 3, 1), slice(0, 128, 1)),
        (slice(0, 4, 2), np.array([[1], [3]]), np.array([7, 9, 100])),
        (np.array([2, 1]), slice(0, 2, 1), 3),
        (1, np.array(2), np.array([], int)),
    ],
)
def test_a_gather_from_a_recast_reference(dtype: Any, range_: tuple[Any, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 256, (8, 16, 128)).astype(dtype)
    words = types.BitcastTransform(jnp.int32)
    whole = RefView(values, [words]).read()[:, :4]
    narrowed = (slice(0, 8, 1), slice(0, 4, 1), slice(0, 128, 1))
    view = RefView(values, [words, narrowed, range_])
    np.testing.assert_array_equal(view.read(), whole[range_])
    view.write(np.zeros(view.shape, np.int32))
    whole[range_] = 0
    np.testing.assert_array_equal(RefView(values, [words]).read()[:, :4], whole)


def test_a_gather_costs_what_it_selects_and_not_the_size_of_the_array() -> None:
    cache = np.zeros((1 << 18, 128), np.uint8)
    rows = np.array([3, 1 << 15])
    tracemalloc.start()
    view = RefView(cache, [types.BitcastTransform(jnp.int32), (rows, slice(0, 128, 1))])
    assert view.read().shape == (2, 128)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 18


def test_the_ranges_of_a_recast_view_are_found_once() -> None:
    pairs = np.arange(16 * 128, dtype=np.uint16).reshape(16, 128)
    rows = (np.array([5, 1, 5, 2]), slice(0, 64, 1))
    view = RefView(pairs, [types.BitcastTransform(jnp.int32), rows])
    assert view.ranges() is view.ranges()
    assert view.ranges() == [(slice(start, stop, 1), slice(0, 64, 1))
                             for start, stop in ((2, 6), (10, 12))]  # fmt: skip


# Kernels.


def run(kernel: Callable[..., None], *args: Any, out: Any = None, **options: Any) -> Any:
    out = jax.ShapeDtypeStruct(X.shape, X.dtype) if out is None else out
    found: list[Finding] = []
    with tpu_interpret.reporting(found.append), interpret.interpreting("tpu,detect_races"):
        result = pl.pallas_call(kernel, out_shape=out, **options)(*(args or (X,)))
        jax.block_until_ready(result)
    assert found == []
    return np.asarray(result)


def test_loads_and_stores_of_reshaped_and_bitcast_references() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]
        o_ref.reshape(4, 2, 128)[:, 1] = x_ref.reshape(4, 2, 128)[:, 0] * 2
        bits = o_ref.bitcast(jnp.int32)
        bits[0] = bits[0] ^ jnp.int32(-(2**31))

    wanted = X.copy()
    wanted[1::2] = wanted[::2] * 2
    wanted[0] = -wanted[0]
    np.testing.assert_array_equal(run(kernel), wanted)


def test_bitcasts_join_rows() -> None:
    halves = jnp.arange(16 * 128).reshape(16, 128).astype(jnp.uint16)

    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref.bitcast(jnp.uint32)[2:4]

    wanted = np.asarray(halves).astype(np.uint32)
    out = jax.ShapeDtypeStruct((2, 128), jnp.uint32)
    result = run(kernel, halves, out=out)
    np.testing.assert_array_equal(result, wanted[4:8:2] | wanted[5:8:2] << 16)


def test_copies_between_views_of_dynamic_size() -> None:
    def kernel(x_ref: Any, o_ref: Any, sem: Any) -> None:
        o_ref[...] = jnp.zeros_like(o_ref)
        size = x_ref[0, 3].astype(jnp.int32)
        source = x_ref.reshape(8, 1, 128).at[pl.ds(1, size)]
        copy = pltpu.make_async_copy(source, o_ref.reshape(8, 1, 128).at[pl.ds(4, size)], sem)
        copy.start()
        copy.wait()

    wanted = np.zeros_like(X)
    wanted[4:7] = X[1:4]
    np.testing.assert_array_equal(run(kernel, scratch_shapes=[DMA]), wanted)


def test_copies_that_add_and_updates_that_add() -> None:
    def kernel(x_ref: Any, o_ref: Any, sem: Any) -> None:
        o_ref[...] = x_ref[...]
        pltpu.async_copy(x_ref.at[0:4], o_ref.at[4:8], sem, add=True).wait()
        ref_addupdate(o_ref, (slice(0, 2),), jnp.ones((2, 128)))

    wanted = X.copy()
    wanted[4:] += X[:4]
    wanted[:2] += 1
    np.testing.assert_array_equal(run(kernel, scratch_shapes=[DMA]), wanted)


@pytest.mark.parametrize("choice", [0, 1])
def test_copies_of_selected_references(choice: int) -> None:
    def kernel(x_ref: Any, o_ref: Any, one: Any, other: Any, sem: Any) -> None:
        one[...], other[...], o_ref[...] = x_ref[...], -x_ref[...], x_ref[...] * 2
        index = x_ref[0, choice].astype(jnp.int32)
        source = pl.select_ref(index, one.at[2:6], other.at[4:8])
        target = pl.select_ref(1 - index, o_ref.at[0:4], o_ref.at[4:8])
        copy = pltpu.make_async_copy(source, target, sem)
        copy.start()
        copy.wait()

    wanted = X * 2
    if choice:
        wanted[0:4] = -X[4:8]
    else:
        wanted[4:8] = X[2:6]
    np.testing.assert_array_equal(run(kernel, scratch_shapes=[TILE, TILE, DMA]), wanted)


def test_loads_that_repeat_rows_and_columns() -> None:
    def kernel(x_ref: Any, start_ref: Any, rows_ref: Any, columns_ref: Any) -> None:
        rows_ref[...] = x_ref[1, pl.ds(start_ref[0], 16, 0), :]
        columns_ref[...] = x_ref.at[1][pl.ds(0, 16), pl.ds(start_ref[0], 128, 0)]

    x = np.arange(2 * 16 * 128, dtype=np.float32).reshape(2, 16, 128)
    start = pl.BlockSpec(memory_space=pltpu.SMEM)
    shapes = [jax.ShapeDtypeStruct((16, 128), np.float32)] * 2
    rows, columns = run(
        kernel, x, np.array([5], np.int32), out=shapes, in_specs=[pl.BlockSpec(), start]
    )
    np.testing.assert_array_equal(rows, np.broadcast_to(x[1, 5], (16, 128)))
    np.testing.assert_array_equal(columns, np.broadcast_to(x[1, :, 5:6], (16, 128)))


def test_masked_loads() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        rows = jax.lax.broadcasted_iota(jnp.int32, (8, 128), 0)
        loaded = pltpu.load(x_ref, mask=rows < 5)
        o_ref[...] = jnp.where(rows < 5, loaded, -1.0)

    wanted = X.copy()
    wanted[5:] = -1
    np.testing.assert_array_equal(run(kernel), wanted)


def test_masked_stores_of_more_rows_than_columns() -> None:
    def kernel(x_ref: Any, o_ref: Any, tall: Any) -> None:
        rows = jax.lax.broadcasted_iota(jnp.int32, (256, 128), 0)
        tall[...] = jnp.zeros_like(tall)
        pltpu.store(tall.at[1], jnp.full((256, 128), 3.0), mask=rows >= 250)
        o_ref[...] = x_ref[...] + tall[1, pl.ds(248, 8)] + tall[0, pl.ds(248, 8)]

    wanted = X.copy()
    wanted[2:] += 3
    tall = pltpu.VMEM((2, 256, 128), F32)
    np.testing.assert_array_equal(run(kernel, scratch_shapes=[tall]), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("count", [6, 7])
def test_masked_stores_may_reach_beyond_the_end(count: int) -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.zeros_like(o_ref)
        rows = jax.lax.broadcasted_iota(jnp.int32, (8, 128), 0)
        start = pl.program_id(0) + 2
        pltpu.store(o_ref.at[pl.ds(start, 8)], x_ref[...], mask=rows < count)  # the store

    if count == 6:
        wanted = np.concatenate([np.zeros_like(X[:2]), X[:6]])
        np.testing.assert_array_equal(run(kernel, grid=(1,)), wanted)
    else:
        assert str(only_finding(kernel, grid=(1,)).kind) == "OutOfBoundsWrite"


def test_semaphores_are_read_and_awaited_without_a_decrement() -> None:
    def kernel(x_ref: Any, o_ref: Any, sems: Any) -> None:
        pl.semaphore_signal(sems.at[1], 3)
        pl.semaphore_wait(sems.at[1], 2, decrement=False)
        count = pl.semaphore_read(sems.at[1]) * 10 + pl.semaphore_read(sems.at[0])
        o_ref[...] = x_ref[...] + count.astype(F32)
        pl.semaphore_wait(sems.at[1], 3)

    np.testing.assert_array_equal(run(kernel, scratch_shapes=[REGULAR((2,))]), X + 30)


def test_a_loop_that_polls_a_copy_ends() -> None:
    def kernel(x_ref: Any, o_ref: Any, sem: Any) -> None:
        copy = pltpu.make_async_copy(x_ref, o_ref, sem)
        copy.start()
        jax.lax.while_loop(lambda n: n == 0, lambda _: pl.semaphore_read(sem), jnp.int32(0))
        copy.wait()

    np.testing.assert_array_equal(run(kernel, scratch_shapes=[DMA]), X)


# Findings.


def only_finding(kernel: Callable[..., None], mode: str = "tpu", **options: Any) -> Finding:
    found: list[Finding] = []
    out = jax.ShapeDtypeStruct(X.shape, X.dtype)
    with (
        pytest.raises(Exception, match="in kernel"),
        tpu_interpret.reporting(found.append),
        interpret.interpreting(mode),
    ):
        jax.block_until_ready(pl.pallas_call(kernel, out_shape=out, **options)(X))
    (finding,) = found
    return finding


def test_an_index_that_leaves_a_view() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        row = x_ref[0, 3].astype(jnp.int32)
        o_ref[...] = x_ref[...]
        o_ref[0:4] = x_ref.reshape(4, 2, 128)[pl.ds(row, 2)].reshape(4, 128)

    finding = only_finding(kernel)
    assert finding.kind == "OutOfBoundsRead"
    assert finding.operand == "x_ref.reshape(4, 2, 128)"
    assert finding.index == "x_ref.reshape(4, 2, 128)[3:5, 0:2, 0:128]"
    assert "reaches 1 past the end of dimension 0 of float32[4, 2, 128]" in finding.message


def test_a_copy_to_a_view_that_it_leaves() -> None:
    def kernel(x_ref: Any, o_ref: Any, sem: Any) -> None:
        row = x_ref[0, 3].astype(jnp.int32)
        copy = pltpu.make_async_copy(
            x_ref.reshape(4, 2, 128).at[0:2], o_ref.reshape(4, 2, 128).at[pl.ds(row, 2)], sem
        )
        copy.start()
        copy.wait()

    finding = only_finding(kernel, scratch_shapes=[DMA])
    assert finding.kind == "OutOfBoundsWrite"
    assert finding.index == "o_ref.reshape(4, 2, 128)[3:5, 0:2, 0:128]"


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 1])
def test_races_of_views_are_those_of_their_elements(offset: int) -> None:
    """Two cores write alternate rows, through a reshaped reference; or one writes the other's."""

    def kernel(x_ref: Any, o_hbm: Any, tile: Any, sem: Any) -> None:
        core = pl.program_id(0)
        tile[...] = x_ref[...]
        rows = o_hbm.reshape(4, 2, 128).at[:, core * (1 - offset)]
        pltpu.async_copy(tile.reshape(4, 2, 128).at[:, core], rows, sem).wait()

    options: dict[str, Any] = {
        "grid": (2,),
        "out_specs": pl.BlockSpec(memory_space=pl.ANY),
        "in_specs": [pl.BlockSpec((8, 128), lambda i: (0, 0))],
        "scratch_shapes": [TILE, DMA],
        "compiler_params": pltpu.CompilerParams(dimension_semantics=("parallel",)),
    }
    found: list[Finding] = []
    mode = "tpu,detect_races,num_cores_or_threads=2"
    with tpu_interpret.reporting(found.append), interpret.interpreting(mode):
        call = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(X.shape, X.dtype), **options)
        with contextlib.ExitStack() as stack:
            if offset and "on_race" in inspect.signature(pltpu.InterpretParams).parameters:
                stack.enter_context(pytest.raises(Exception, match="DataRace"))
            result = jax.block_until_ready(call(X))
    if not offset:
        np.testing.assert_array_equal(result, X)
    assert [finding.kind for finding in found] == ["DataRace"] * offset


ZERO = np.zeros(1, np.int32)
"""An index that jax does not know while it traces: it rejects constant ones out of bounds."""

SMEM, HBM = (pl.BlockSpec(memory_space=space) for space in (pltpu.SMEM, pl.ANY))


def copy_tiles(shape: tuple[int, ...], size: tuple[int, int], *, view: Any = None) -> Any:
    """Copy a tile-aligned block at the end of an array in HBM to VMEM and on to another array."""

    def kernel(zero_ref: Any, x_ref: Any, o_ref: Any, tile: Any) -> None:
        source = x_ref if view is None else x_ref.reshape(view)
        rows, columns = (pl.ds(zero_ref[0], n) for n in size)
        pltpu.sync_copy(source.at[..., rows, columns], tile)
        pltpu.sync_copy(tile, o_ref.at[..., rows, columns])

    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    shape = shape if view is None else view
    result = run(
        kernel,
        ZERO,
        x,
        out=jax.ShapeDtypeStruct(shape, x.dtype),
        in_specs=[SMEM, HBM],
        out_specs=HBM,
        scratch_shapes=[pltpu.VMEM((*shape[:-2], *size), np.float32)],
    )
    return x.reshape(shape), result


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape, size, view",
    [
        ((8, 250), (8, 256), None),
        ((13, 128), (16, 128), None),
        ((2, 13, 250), (16, 256), None),
        ((16, 250), (8, 256), (2, 8, 250)),
    ],
)
def test_copies_of_whole_tiles_take_the_padding_along(
    shape: tuple[int, ...], size: tuple[int, int], view: Any
) -> None:
    x, result = copy_tiles(shape, size, view=view)
    np.testing.assert_array_equal(result, x)


@pytest.mark.parametrize("shape, size", [((8, 250), (8, 257)), ((13, 128), (17, 128))])
def test_copies_beyond_the_padding_are_out_of_bounds(
    shape: tuple[int, ...], size: tuple[int, int]
) -> None:
    found: list[Finding] = []
    with pytest.raises(Exception, match="OutOfBoundsRead"), tpu_interpret.reporting(found.append):  # noqa: SIM117
        with interpret.interpreting("tpu"):
            copy_tiles(shape, size)
    assert [finding.kind for finding in found] == ["OutOfBoundsRead"]


def test_the_padding_is_uninitialised() -> None:
    def kernel(zero_ref: Any, x_ref: Any, o_ref: Any) -> None:
        pltpu.sync_copy(x_ref.at[:, pl.ds(zero_ref[0], 128)], o_ref)

    x = np.ones((8, 100), np.float32)
    out = jax.ShapeDtypeStruct((8, 128), x.dtype)
    result = run(kernel, ZERO, x, out=out, in_specs=[SMEM, HBM])
    np.testing.assert_array_equal(result[:, :100], x)
    assert np.isnan(result[:, 100:]).all()


def test_a_copy_of_nothing_at_the_end_of_an_array() -> None:
    def kernel(count_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.zeros((8, 128))
        rows = pl.ds(8 - count_ref[0], count_ref[0])
        nothing = pl.ds(count_ref[0], 8 - count_ref[0])
        pltpu.sync_copy(x_ref.at[rows], o_ref.at[rows])
        pltpu.sync_copy(x_ref.at[nothing], o_ref.at[nothing])

    x = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
    result = run(kernel, np.array([8], np.int32), x, in_specs=[SMEM, HBM])
    np.testing.assert_array_equal(result, x)

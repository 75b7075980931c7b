"""Kernels of the SparseCore, on the kernel machine."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.session import Options, Session

sc = pytest.importorskip("jax.experimental.pallas.tpu_sc")

I32, F32 = jnp.int32, jnp.float32
LANES, SUBCORES = 8, 16
X = np.random.default_rng(0).permutation(LANES).astype(np.int32)
REGULAR = pltpu.SemaphoreType.REGULAR


def run(function: Callable[..., Any], *args: Any) -> Any:
    with Session(Options(interpret="machine", chip="v6e")) as session:
        out = jax.block_until_ready(jax.jit(function)(*args))
    assert not session.observer.findings
    return out


def vector(subcores: int = SUBCORES, cores: int = 1) -> Any:
    return sc.VectorSubcoreMesh(
        core_axis_name="core", subcore_axis_name="subcore", num_cores=cores, num_subcores=subcores
    )


def lanes(
    body: Callable[[jax.Array], Any], *, dtype: Any = I32, size: int = LANES, x: Any = X
) -> np.ndarray:
    """What a subcore makes of a vector."""

    def call(x: jax.Array) -> jax.Array:
        @pl.kernel(
            out_type=jax.ShapeDtypeStruct((size,), dtype),
            mesh=vector(1),
            scratch_types=[pltpu.VMEM(x.shape, x.dtype), pltpu.VMEM((size,), dtype)],
        )
        def kernel(x_hbm: Any, o_hbm: Any, x_ref: Any, o_ref: Any) -> None:
            pltpu.sync_copy(x_hbm, x_ref)
            o_ref[...] = jnp.zeros_like(o_ref)
            found = body(x_ref)
            if found is not None:
                o_ref[...] = found
            pltpu.sync_copy(o_ref, o_hbm)

        return kernel(x)

    return np.asarray(run(call, x))


@pytest.mark.slow
def test_scans() -> None:
    odd = X % 2 == 1
    total = lanes(lambda ref: sc.cumsum(ref[...], mask=ref[...] % 2 == 1))
    np.testing.assert_array_equal(total, np.cumsum(X * odd))
    largest = lanes(lambda ref: sc.cummax(ref[...], mask=ref[...] % 2 == 1))
    expected = np.maximum.accumulate(np.where(odd, X, -1))
    np.testing.assert_array_equal(largest, np.where(expected < 0, X, expected))
    counts = lanes(lambda ref: sc.scan_count(ref[...] % 3)[0])
    np.testing.assert_array_equal(
        counts, [(X[: i + 1] % 3 == n).sum() for i, n in enumerate(X % 3)]
    )
    last = lanes(lambda ref: sc.scan_count(ref[...] % 3)[1].astype(I32))
    np.testing.assert_array_equal(last, [n not in X[i + 1 :] % 3 for i, n in enumerate(X % 3)])


def test_counts_of_lanes() -> None:
    assert lanes(lambda ref: sc.all_reduce_population_count(ref[...] < 3)).tolist() == [3] * LANES
    first = int(np.flatnonzero(X == 5)[0])
    assert lanes(lambda ref: sc.all_reduce_ffs(ref[...] == 5)).tolist() == [first] * LANES
    assert lanes(lambda ref: sc.all_reduce_ffs(ref[...] > 99)).tolist() == [LANES] * LANES


@pytest.mark.parametrize("descending", [False, True])
def test_sorting_puts_what_takes_no_part_last(descending: bool) -> None:
    def sort(ref: Any) -> Any:
        mask = ref[...] % 2 == 1
        keys, values, _ = sc.sort_key_val(ref[...], -ref[...], mask=mask, descending=descending)
        return keys * 100 - values

    keys = sorted(X[X % 2 == 1], reverse=descending) + sorted(X[X % 2 == 0], reverse=descending)
    np.testing.assert_array_equal(lanes(sort), np.array(keys) * 101)


def test_packing() -> None:
    def pack(ref: Any) -> Any:
        both = sc.pack(ref[...] * 1.0, ref[...] * -2.0, format=sc.PackFormat.INTERLEAVED)
        first, second = sc.unpack(both, format=sc.PackFormat.INTERLEAVED)
        is_new = "dim" in inspect.signature(pltpu.bitcast).parameters
        words = pltpu.bitcast(both, I32, dim=-1) if is_new else sc.bitcast(both, I32)
        return words + (first + second).astype(I32)

    pairs = np.stack([X, -2.0 * X], axis=-1).astype(jnp.bfloat16)
    expected = pairs.reshape(-1).view(np.int32) - X
    np.testing.assert_array_equal(lanes(pack), expected)


def test_gathers_and_scatters_by_lane() -> None:
    def body(ref: Any) -> Any:
        index = ref[...]
        found = sc.load_gather(ref, [index], mask=index < 4)
        spread = jnp.where(index < 4, found, 100)
        sc.addupdate_scatter(ref, [index // 4], spread)  # four lanes each add to two elements
        sc.store_scatter(ref, [index], -index, mask=index == 7)
        return ref[...]

    expected = X.copy()
    added = np.where(X < 4, X[np.minimum(X, 3)], 100)
    np.add.at(expected, X // 4, added)
    expected[7] = -7
    np.testing.assert_array_equal(lanes(body), expected)


def test_what_a_mask_compresses_and_expands() -> None:
    def body(ref: Any) -> Any:
        mask = ref[...] > 4
        value = ref[...]
        sc.store_compressed(ref.at[...], value, mask=mask)
        return jnp.where(mask, sc.load_expanded(ref.at[...], mask=mask), 0) + ref[...] * 10

    big = X[X > 4]
    expected = np.array([*big, *X[len(big) :]]) * 10 + np.where(X > 4, X, 0)
    np.testing.assert_array_equal(lanes(body), expected)


def test_a_mask_that_fills_a_list_to_its_last_element() -> None:
    """The slice ends beyond the reference; what the mask selects does not."""

    def body(ref: Any, first: int = LANES - 3) -> Any:
        value, mask = ref[...], ref[...] > 4
        sc.store_compressed(ref.at[pl.ds(value[0] * 0 + first, LANES)], value * 10, mask=mask)
        found = sc.load_expanded(ref.at[pl.ds(value[0] * 0 + first, LANES)], mask=mask)
        return ref[...] + jnp.where(mask, found, 0)

    big = X[X > 4] * 10
    assert len(big) == 3
    expected = np.array([*X[:-3], *big])
    expected[X > 4] += big
    np.testing.assert_array_equal(lanes(body), expected)

    message = r"x_ref\[6:9\] reaches 1 past the end of dimension 0 of int32\[8\]"
    with pytest.raises(Exception, match=message):
        lanes(functools.partial(body, first=LANES - 2))


def test_a_loop_with_a_carry() -> None:
    def body(ref: Any) -> Any:
        @sc.parallel_loop(1, ref[...].sum(), 9, carry=jnp.int32(5))
        def total(i: Any, carry: Any) -> Any:
            ref[...] = ref[...] + i
            return carry + i

        return ref[...] * 1000 + total

    steps = sum(range(1, 28, 9))
    np.testing.assert_array_equal(lanes(body), (X + steps) * 1000 + steps + 5)


def test_copies_of_rows_that_memory_names() -> None:
    """Gathered without those ignored, which the wait counts nevertheless, and added at a place."""
    table = np.arange(6 * 8, dtype=np.int32).reshape(6, 8)
    rows = np.array([4, 0, 4, 2], np.int32)

    def call(table: jax.Array, rows: jax.Array) -> Any:
        @pl.kernel(
            out_type=[jax.ShapeDtypeStruct((4, 8), I32), jax.ShapeDtypeStruct((6, 8), I32)],
            mesh=vector(1),
            scratch_types=[
                pltpu.VMEM((4,), I32),
                pltpu.VMEM((4, 8), I32),
                pltpu.VMEM_SHARED((6, 8), I32),
                pltpu.SemaphoreType.DMA,
            ],
        )
        def kernel(
            x_hbm: Any, i_hbm: Any, o_hbm: Any, sum_hbm: Any, index: Any, tile: Any, shared: Any,
            sem: Any,
        ) -> None:  # fmt: skip
            pltpu.sync_copy(i_hbm, index)
            tile[...] = jnp.zeros_like(tile)
            rows = x_hbm.reshape(1, 6, 8).at[0]
            pltpu.async_copy(rows.at[sc.Indices(index, ignored_value=0)], tile, sem).wait()
            pltpu.sync_copy(tile, o_hbm)
            pltpu.sync_copy(x_hbm, shared)
            pltpu.sync_copy(tile, shared.at[index], add=True)
            pltpu.sync_copy(shared, sum_hbm)

        return kernel(table, rows)

    got, total = run(call, table, rows)
    tile = np.where((rows == 0)[:, None], 0, table[rows])
    np.testing.assert_array_equal(got, tile)
    expected = table.copy()
    np.add.at(expected, rows, tile)
    np.testing.assert_array_equal(total, expected)


def test_subcores_share_memory_and_meet() -> None:
    """Each of two SparseCores sums what its subcores put into its own memory, in two ways."""

    def call() -> Any:
        @pl.kernel(
            out_type=jax.ShapeDtypeStruct((2, SUBCORES, LANES), I32),
            mesh=vector(cores=2),
            scratch_types=[
                pltpu.VMEM_SHARED((SUBCORES, LANES), I32),
                pltpu.VMEM((SUBCORES, LANES), I32),
                pltpu.SMEM((1,), I32),
            ],
        )
        def kernel(o_hbm: Any, shared: Any, tile: Any, count: Any) -> None:
            core, me = jax.lax.axis_index("core"), jax.lax.axis_index("subcore")
            count[0] = 0
            tile[0] = jnp.full((LANES,), core * 100 + me, I32)
            pltpu.sync_copy(tile.at[0], shared.at[me])
            sc.subcore_barrier()
            sc.fetch_and_add(count, me + 1, subcore_id=0)
            pltpu.sync_copy(shared, tile)
            sc.subcore_barrier()
            total = tile[0]
            for row in range(1, SUBCORES):
                total = total + tile[row]
            tile[0] = total * 1000 + count[0]
            pltpu.sync_copy(tile.at[0], o_hbm.at[core, me])

        return kernel()

    got = np.asarray(run(call))
    sums = 120 + np.array([0, 100 * SUBCORES])
    np.testing.assert_array_equal(got[:, 1:, 0], np.repeat(sums[:, None], SUBCORES - 1, 1) * 1000)
    np.testing.assert_array_equal(got[:, 0, 0], sums * 1000 + 136)


def test_scalar_and_vector_subcores_run_together() -> None:
    def by_vector(x_hbm: Any, o_hbm: Any, ready: Any, done: Any) -> None:
        pl.semaphore_wait(ready, 1)
        me = jax.lax.axis_index("subcore")
        pltpu.sync_copy(x_hbm.at[me], o_hbm.at[me])
        pl.semaphore_signal(done, 1)

    def by_scalar(x_hbm: Any, o_hbm: Any, ready: Any, done: Any) -> None:
        pltpu.sync_copy(x_hbm.at[5], o_hbm.at[5])
        for subcore in range(4):
            pl.semaphore_signal(ready, 1, device_id={"subcore": subcore})
        pl.semaphore_wait(done, 4)
        pltpu.sync_copy(o_hbm.at[3], o_hbm.at[4])

    def call(x: jax.Array) -> jax.Array:
        vectors, scalars = vector(4), sc.ScalarSubcoreMesh(axis_name="core", num_cores=1)
        return pl.kernel(
            body=[by_vector, by_scalar],
            mesh=[vectors, scalars],
            out_type=x,
            scratch_types=[REGULAR(()) @ vectors, REGULAR(()) @ scalars],
        )(x)

    x = np.arange(6 * LANES, dtype=np.int32).reshape(6, LANES)
    np.testing.assert_array_equal(run(call, x), x[[0, 1, 2, 3, 3, 5]])


def test_a_subcore_that_does_not_come_to_the_barrier() -> None:
    def call(x: jax.Array) -> jax.Array:
        @pl.kernel(out_type=x, mesh=vector(3))
        def kernel(x_hbm: Any, o_hbm: Any) -> None:
            @pl.when(jax.lax.axis_index("subcore") < 2)
            def _() -> None:
                sc.subcore_barrier()

        return kernel(x)

    session = Session(Options(interpret="machine", chip="v6e"))
    with session, pytest.raises(Exception, match="Deadlock"):
        jax.block_until_ready(jax.jit(call)(X))
    (finding,) = session.observer.findings
    assert "barrier of subcores is at 2, but the wait needs 3" in finding.message


def test_the_sanitizer_refuses_a_sparse_core_by_name() -> None:
    def call(x: jax.Array) -> jax.Array:
        @pl.kernel(out_type=x, mesh=vector(1))
        def copy(x_hbm: Any, o_hbm: Any) -> None:
            pltpu.sync_copy(x_hbm, o_hbm)

        return copy(x)

    with Session(Options(interpret="machine,sanitize", chip="v6e")) as session:
        np.testing.assert_array_equal(jax.jit(call)(X), X)
    (skip,) = session.unchecked
    assert session.launched == {kernel.digest for kernel in session.kernels}
    assert skip.reason == (
        "it runs on the kernel machine without being judged, because kernel `copy` runs on a "
        "SparseCore, which the sanitizer does not check"
    )

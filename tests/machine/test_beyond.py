"""Kernels that neither of jax's interpreters runs: the machine runs them, or refuses them by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import on_machine
import pytest
from invented import invented_p
from jax import lax
from jax._src.pallas.mosaic import primitives as tpu_primitives
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge import chip
from pallas_debug.compiler.targets import BUILTIN
from pallas_debug.errors import MachineError
from pallas_debug.machine.machine import Stopped

F32, I32 = jnp.float32, jnp.int32
X = np.linspace(-2, 2, 8 * 128, dtype=np.float32).reshape(8, 128)
ANY, SMEM, VMEM = (pl.BlockSpec(memory_space=s) for s in (pl.ANY, pltpu.SMEM, pltpu.VMEM))
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR
TILE = pltpu.VMEM((8, 128), F32)


@pytest.fixture(autouse=True)
def tpu7x() -> Iterator[None]:
    (target,) = (target for target in BUILTIN if target.name == "tpu7x")
    with chip.answering_everywhere(target):
        yield


def run(kernel: Callable[..., None], *args: Any, out: Any = X, **options: Any) -> list[np.ndarray]:
    shape = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), out)
    return on_machine.run(pl.pallas_call(kernel, out_shape=shape, **options), *args)


@pytest.mark.slow
def test_keys_of_the_tpu() -> None:
    """Equal keys give equal numbers, others others; uniform numbers are uniform."""

    def kernel(key_ref: Any, o_ref: Any) -> None:
        key = key_ref[...]
        first, second = tpu_primitives.unwrap_pallas_seed(key)
        again = tpu_primitives.wrap_pallas_seed(first, second, impl="pallas_tpu")
        for n, k in enumerate((key, again, jax.random.fold_in(key, 3))):
            o_ref[n] = jax.random.uniform(k, (8, 128))
        pltpu.prng_seed(5)
        o_ref[3] = pltpu.stateful_uniform((8, 128), F32)

    def call(key: Any) -> Any:
        out = jax.ShapeDtypeStruct((4, 8, 128), F32)
        return pl.pallas_call(kernel, in_specs=[SMEM], out_shape=out)(pltpu.to_pallas_key(key))

    (got,) = on_machine.run(call, jax.random.key(0))
    np.testing.assert_array_equal(got[0], got[1])
    assert (got[0] != got[2]).mean() > 0.9
    assert ((got >= 0) & (got < 1)).all()
    assert np.abs(got.mean(axis=(1, 2)) - 0.5).max() < 0.05
    np.testing.assert_array_equal(on_machine.run(call, jax.random.key(0))[0], got)
    assert (on_machine.run(call, jax.random.key(1))[0] != got)[:3].mean() > 0.9


def test_references_that_no_scope_creates() -> None:
    """`empty_ref` is new each time, `get_global` is one buffer for all grid points."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        total = pl.get_global(pltpu.SMEM((1,), I32))
        temporary = jax.empty_ref(jax.typeof(x_ref[...]), memory_space=pltpu.VMEM)
        temporary[...] = x_ref[...] + 1
        i = pl.program_id(0)
        total[0] = jnp.where(i == 0, 1, total[0] * 2)
        o_ref[0] = temporary[...] * total[0].astype(F32)

    spec = pl.BlockSpec((1, 8, 128), lambda i: (i, 0, 0))
    out = jax.ShapeDtypeStruct((3, 8, 128), F32)
    (got,) = run(kernel, X, out=out, out_specs=spec, grid=(3,))
    np.testing.assert_array_equal(got, [(X + 1) * 2**i for i in range(3)])


def test_copies_of_dynamic_size_of_padding_and_of_nothing() -> None:
    def kernel(n_ref: Any, x_hbm: Any, wide_hbm: Any, o_hbm: Any, tile: Any, sem: Any) -> None:
        rows = wide_hbm.reshape(1, 2, 100)
        tile[...] = jnp.zeros_like(tile)
        n = n_ref[0]
        pltpu.async_copy(x_hbm.at[pl.ds(2, n)], tile.at[pl.ds(0, n)], sem).wait()
        pltpu.async_copy(x_hbm.at[pl.ds(n + 5, n - 3)], tile.at[pl.ds(0, n - 3)], sem).wait()
        # 100 columns occupy 128.
        pltpu.async_copy(wide_hbm.at[:, pl.ds(n - 3, 128)], tile.at[pl.ds(4, 2)], sem).wait()
        pltpu.async_copy(rows.at[0, :, pl.ds(n - 3, 128)], tile.at[pl.ds(6, 2)], sem).wait()
        words = tile.bitcast(I32).reshape(8, 1, 128)
        pltpu.async_copy(words.at[pl.ds(0, n - 3)], words.at[pl.ds(4, n - 3)], sem).wait()
        pltpu.sync_copy(tile, o_hbm)

    wide = np.ones((2, 100), np.float32)
    (got,) = run(
        kernel, np.array([3], np.int32), X, wide,
        in_specs=[SMEM, ANY, ANY], out_specs=ANY, scratch_shapes=[TILE, DMA],
    )  # fmt: skip
    np.testing.assert_array_equal(got[:4], [*X[2:5], np.zeros(128)])
    np.testing.assert_array_equal(got[4:, :100], np.ones((4, 100)))
    assert np.isnan(got[4:, 100:]).all()


def test_aliases_of_a_grid_of_dynamic_size() -> None:
    """They count the operands without the grid's sizes."""

    def kernel(a_hbm: Any, b_hbm: Any, o_hbm: Any, sem: Any) -> None:
        row = pl.ds(pl.program_id(0), 1)
        pltpu.async_copy(a_hbm.at[row], o_hbm.at[row], sem).wait()

    def call(n: Any, a: Any, b: Any) -> Any:
        return pl.pallas_call(
            kernel, out_shape=a, grid=(n,), in_specs=[ANY, ANY], out_specs=ANY,
            scratch_shapes=[DMA], input_output_aliases={1: 0},
        )(a, b)  # fmt: skip

    (got,) = on_machine.run(call, jnp.int32(3), X, 2 * X)
    np.testing.assert_array_equal(got, np.concatenate([X[:3], 2 * X[3:]]))


def test_an_index_out_of_a_reshaped_reference() -> None:
    def kernel(n_ref: Any, x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref.reshape(2, 4, 128).at[:, pl.ds(n_ref[0], 4)].reshape(8, 128)[...]

    with pytest.raises(Stopped, match="out of bounds"):
        run(kernel, np.array([1], np.int32), X, in_specs=[SMEM, VMEM])


def test_references_chosen_at_run_time() -> None:
    def kernel(n_ref: Any, a_hbm: Any, b_hbm: Any, o_ref: Any, sem: Any) -> None:
        chosen = pl.select_ref(n_ref[0], a_hbm, b_hbm)
        pltpu.async_copy(chosen.at[pl.ds(n_ref[1], 4)], o_ref.at[0:4], sem).wait()
        o_ref[4:] = o_ref[:4] * 2

    for choice, given in enumerate((X, -X, -X)):  # past the end is the last
        (got,) = run(
            kernel, np.array([choice, 3], np.int32), X, -X,
            in_specs=[SMEM, ANY, ANY], scratch_shapes=[DMA],
        )  # fmt: skip
        np.testing.assert_array_equal(got, np.concatenate([given[3:7], 2 * given[3:7]]))


def test_a_primitive_without_a_row_is_refused_with_its_line() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = lax.fori_loop(0, 2, lambda _, x: invented_p.bind(x), x_ref[...])  # loop

    with pytest.raises(MachineError) as caught:
        run(kernel, X)
    assert str(caught.value).startswith(
        f"the kernel machine has no rule for `invented`, at {__file__}:"
    )
    assert str(caught.value).endswith("# loop")


@pytest.mark.skipif(not hasattr(pltpu, "annotate"), reason="since jax 0.12")
def test_annotations_for_the_compiler_change_nothing() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        annotated = pltpu.annotate(x_ref, no_store=True)  # type: ignore[attr-defined, unused-ignore]
        o_ref[...] = annotated[...] + 1

    np.testing.assert_array_equal(run(kernel, X)[0], X + 1)

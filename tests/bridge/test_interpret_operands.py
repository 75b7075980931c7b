"""Operands whose types carry more than a shape: memory spaces, and axes that values vary over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import config
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from meshes import tensorcore_mesh

import pallas_debug
from pallas_debug.errors import CannotRunError


def add_one(x_ref, out_ref):
    out_ref[...] = x_ref[...] + 1


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """jax compares the types of all values, as its own tests make it do."""
    with jax.enable_checks(True):
        yield


def run(mode: str, call: Callable[[Any], Any], x: np.ndarray) -> np.ndarray:
    if mode == "check":
        report, result = pallas_debug.check(call)(x)
        assert report.ok
        assert not report.not_checked
        return np.asarray(result)
    with pallas_debug.interpret(mode):
        return np.asarray(call(x))


@pytest.mark.parametrize("mode", ["hlo", "tpu", "check"])
def test_an_operand_in_a_memory_space(mode):
    @jax.jit
    def call(x):
        x = pltpu.with_memory_space_constraint(x, pltpu.HBM)
        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            add_one,
            out_shape=pltpu.HBM((16, 128), jnp.float32),
            grid=2,
            in_specs=[block],
            out_specs=block,
        )(x)

    x = np.arange(16 * 128, dtype=np.float32).reshape(16, 128)
    np.testing.assert_array_equal(run(mode, call, x), x + 1)


@pytest.mark.parametrize("mode", ["hlo", "tpu", "check"])
def test_an_operand_that_varies_over_a_mesh_axis(mode):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")

    def call(x):
        return pl.pallas_call(add_one, out_shape=jax.typeof(x), name="varying")(x)

    x = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
    sharded = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=spec, out_specs=spec))
    np.testing.assert_array_equal(run(mode, sharded, x), x + 1)


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
def test_a_captured_scalar_in_a_kernel_on_a_mesh_of_cores(cores):
    mesh = tensorcore_mesh(cores)

    @jax.jit
    def call(x, row):
        @pl.kernel(out_type=jax.ShapeDtypeStruct((cores, 8, 128), jnp.int32), mesh=mesh)
        def copy_rows(x_ref, out_ref):
            core = jax.lax.axis_index("core")
            pltpu.sync_copy(x_ref.at[row + core], out_ref.at[core])

        return copy_rows(x)

    x = np.arange(4 * 8 * 128, dtype=np.int32).reshape(4, 8, 128)
    for mode in ("tpu", "auto"):
        with pallas_debug.interpret(mode):
            np.testing.assert_array_equal(call(x, 1), x[1 : 1 + cores])


def test_a_kernel_that_writes_to_references_it_closes_over():
    def stateful(refs):
        x_ref, out_ref = refs

        def kernel():
            pltpu.sync_copy(x_ref, out_ref)

        pl.pallas_call(kernel, out_shape=[])()

    @jax.jit
    def call(x):
        return pl.run_state(stateful)((x, jnp.zeros_like(x)))[1]

    x = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
    for mode in ("auto", "tpu"):
        with pallas_debug.interpret(mode):
            np.testing.assert_array_equal(call(x), x)
    is_right = jax.__version_info__ >= (0, 12)
    expected = (
        contextlib.nullcontext()
        if is_right
        else pytest.raises(CannotRunError, match="does not return what is written to")
    )
    with expected, pallas_debug.interpret("hlo"):
        np.testing.assert_array_equal(call(x), x)


@pytest.mark.slow
def test_a_kernel_on_a_mesh_that_writes_to_references_it_closes_over():
    @jax.jit
    def call(x):
        x_ref, out_ref = jax.new_ref(x), jax.new_ref(jnp.zeros_like(x))

        @pl.kernel(out_type=(), mesh=tensorcore_mesh(1))
        def copy():
            pltpu.sync_copy(x_ref, out_ref)

        copy()
        return out_ref[...]

    x = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
    for mode in ("auto", "tpu"):
        with pallas_debug.interpret(mode):
            np.testing.assert_array_equal(call(x), x)


@pytest.mark.slow
def test_pipelines_are_traced_inline_whatever_the_setting():
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))

    def kernel(x_ref, out_ref):
        pltpu.emit_pipeline(add_one, grid=(2,), in_specs=[block], out_specs=[block])(x_ref, out_ref)

    hbm = pl.BlockSpec(memory_space=pl.ANY)
    x = np.arange(16 * 128, dtype=np.float32).reshape(16, 128)
    call = pl.pallas_call(kernel, out_shape=jax.typeof(x), in_specs=[hbm], out_specs=hbm)
    with config.use_emit_pipeline_primitive(True), pallas_debug.interpret("tpu"):
        np.testing.assert_array_equal(jax.jit(call)(x), x + 1)


def mapped_kernel(x_ref: Any, scale_ref: Any, out_ref: Any) -> None:
    """Map a pipeline over axis 1 of the input and axis 0 of the output; the scales are shared."""

    def body(x_ref: Any, scale_ref: Any, out_ref: Any) -> None:
        step = pl.program_id(0) + 10 * pl.num_programs(0)
        out_ref[...] = x_ref[...] * scale_ref[...] + step.astype(jnp.float32)

    block = pl.BlockSpec((8, 128), lambda i: (pl.num_programs(0) - 1 - i, 0))
    pipeline = pltpu.emit_pipeline(
        body,
        grid=(2,),
        in_specs=[block, pl.BlockSpec((8, 128), lambda i: (0, 0))],
        out_specs=[block],
        dimension_semantics=(pltpu.ARBITRARY,),
    )
    jax.vmap(pipeline, in_axes=(1, None, 0))(x_ref, scale_ref, out_ref)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "tpu", "machine,sanitize"])
def test_pipelines_are_mapped_within_kernels(mode: str) -> None:
    x = np.arange(16 * 3 * 128, dtype=np.float32).reshape(16, 3, 128)
    scale = np.full((8, 128), 2, np.float32)
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    out = jax.ShapeDtypeStruct((3, 16, 128), jnp.float32)
    call = pl.pallas_call(mapped_kernel, out_shape=out, in_specs=[hbm, hbm], out_specs=hbm)
    with config.use_emit_pipeline_primitive(True), pallas_debug.interpret(mode):
        found = jax.jit(call)(x, scale)
    steps = np.repeat([21, 20], 8)[None, :, None]  # from the last block to the first
    np.testing.assert_array_equal(found, x.transpose(1, 0, 2) * 2 + steps)
    with pallas_debug.interpret(mode), pytest.raises(NotImplementedError, match="Batching rule"):
        jax.jit(call).trace(x, scale)  # without the setting, as on a TPU

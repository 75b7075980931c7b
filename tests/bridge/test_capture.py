"""Capture of kernels, however a program reaches them, and the captured data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas import core as jax_core
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P
from meshes import tensorcore_mesh

from pallas_debug.model import CostEstimate, Kernel, SourceLine
from pallas_debug.session import Options, Session, Subscriber

X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)


def double_kernel(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def double(x: jax.Array) -> jax.Array:
    return pl.pallas_call(double_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def sharded(x: jax.Array) -> jax.Array:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    body = jax.shard_map(double, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    return body(jnp.concatenate([x] * 4))


def through_core_map(x: jax.Array) -> jax.Array:
    def run(refs: Any) -> None:
        x_ref, o_ref = refs

        @pl.core_map(tensorcore_mesh(), name="through_core_map")
        def copy() -> None:
            pltpu.sync_copy(x_ref, o_ref)

    return pl.run_state(run)((x, jnp.zeros_like(x)))[1]


def through_pl_kernel(x: jax.Array) -> jax.Array:
    mesh = tensorcore_mesh()

    def body(x_ref: Any, o_ref: Any) -> None:
        pltpu.sync_copy(x_ref, o_ref)

    return pl.kernel(body, out_shape_of(x), mesh=mesh, name="through_pl_kernel")(x)


def out_shape_of(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


@pytest.mark.parametrize("runs", [True, False])
def test_a_program_that_was_jitted_and_run_before_is_seen(runs: bool) -> None:
    function = jax.jit(double)
    with pltpu.force_tpu_interpret_mode(True):
        function(X)
        with Session(Options(), runs=runs) as session:
            function(X)
    assert [k.name for k in session.kernels] == ["double_kernel"]


def test_pl_kernel_is_seen() -> None:
    with Session(Options(interpret="tpu")) as session:
        out = jax.jit(through_pl_kernel)(X)
    np.testing.assert_array_equal(out, X)
    (kernel,) = session.kernels
    assert kernel.primitive == "mpmd_map"
    assert kernel.grid_names == ("core",)
    assert [(o.kind, o.shape) for o in kernel.operands] == [
        ("input", (8, 128)),
        ("output", (8, 128)),
    ]


@pytest.mark.skipif("core_map" not in dir(jax_core), reason="this jax has no core_map")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_core_map_is_seen() -> None:
    with Session(Options(interpret="tpu")) as session:
        out = jax.jit(through_core_map)(X)
    np.testing.assert_array_equal(out, X)
    (kernel,) = session.kernels
    assert kernel.name == "through_core_map"


def test_every_run_of_a_program_is_told_when_asked_for() -> None:
    used: list[str] = []

    class Listener(Subscriber):
        def kernel_used(self, kernel: Kernel) -> None:
            used.append(kernel.name)

    function, other = jax.jit(double), jax.jit(lambda x: x + 1)
    with Session(Options(), Listener(), runs=True):
        for _ in range(3):
            function(X)
            other(X)
    assert used == ["double_kernel"] * 3


def everything_kernel(
    table_ref: Any, x_ref: Any, w_ref: Any, o_ref: Any, acc_ref: Any, sem_ref: Any
) -> None:
    del table_ref, sem_ref
    acc_ref[...] = x_ref[...] + w_ref[...]
    o_ref[...] = acc_ref[...]


@functools.cache
def everything() -> Kernel:
    call = pl.pallas_call(
        everything_kernel,
        out_shape=jax.ShapeDtypeStruct((4, 16, 256), jnp.float32),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(4, 2),
            in_specs=[
                pl.BlockSpec((None, 8, 256), lambda i, j, table: (table[i], j, 0)),
                pl.BlockSpec((8, 256), lambda i, j, table: (0, 0), memory_space=pltpu.VMEM),
            ],
            out_specs=pl.BlockSpec((None, 8, 256), lambda i, j, table: (i, j, 0)),
            scratch_shapes=[pltpu.VMEM((8, 256), jnp.float32), pltpu.SemaphoreType.DMA((2,))],
        ),
        input_output_aliases={1: 0},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=32 * 2**20
        ),
        cost_estimate=pl.CostEstimate(flops=7, transcendentals=8, bytes_accessed=9),
        metadata={"team": "attention"},
        name="everything",
    )
    with Session(Options()) as session:
        jax.jit(call).lower(
            jax.ShapeDtypeStruct((4,), jnp.int32),
            jax.ShapeDtypeStruct((4, 16, 256), jnp.float32),
            jax.ShapeDtypeStruct((8, 256), jnp.float32),
        )
    (kernel,) = session.kernels
    return kernel


def test_what_is_kept_of_a_kernel() -> None:
    kernel = everything()
    assert (kernel.name, kernel.primitive) == ("everything", "pallas_call")
    assert (kernel.grid, kernel.dimension_semantics) == ((4, 2), ("parallel", "arbitrary"))
    assert kernel.aliases == ((1, 0),)
    assert kernel.compiler_params["vmem_limit_bytes"] == str(32 * 2**20)
    assert kernel.cost_estimate == CostEstimate(flops=7, transcendentals=8, bytes_accessed=9)
    assert kernel.metadata == {"team": "attention"}
    assert kernel.versions["jax"] == jax.__version__
    assert kernel.source == SourceLine(
        file=__file__,
        line=everything_kernel.__code__.co_firstlineno,
        function="everything_kernel",
        text="def everything_kernel(",
    )
    x, w = kernel.operands[1:3]
    assert "c[a]" in str(x.index_map)  # table[i]
    assert "(0:i32[], 0:i32[])" in str(w.index_map)


@pytest.mark.parametrize(
    "index,name,kind,shape,dtype,space,block",
    [
        (0, "table_ref", "scalar_prefetch", (4,), "int32", "smem", None),
        (1, "x_ref", "input", (4, 16, 256), "float32", "default", (None, 8, 256)),
        (2, "w_ref", "input", (8, 256), "float32", "vmem", (8, 256)),
        (3, "o_ref", "output", (4, 16, 256), "float32", "default", (None, 8, 256)),
        (4, "acc_ref", "scratch", (8, 256), "float32", "vmem", None),
        (5, "sem_ref", "scratch", (2,), "dma_sem", "semaphore", None),
    ],
)
def test_what_is_kept_of_an_operand(
    index: int, name: str, kind: str, shape: Any, dtype: str, space: str, block: Any
) -> None:
    operand = everything().operands[index]
    assert (operand.name, operand.kind, operand.shape) == (name, kind, shape)
    assert operand.dtype == dtype
    assert operand.memory_space.startswith(space)
    assert operand.block_shape == block
    assert (operand.index_map is None) == (block is None)


def test_a_dynamic_grid_is_kept() -> None:
    def call(n: jax.Array, x: jax.Array) -> jax.Array:
        spec = pl.BlockSpec((8, 128), lambda i: (0, 0))
        return pl.pallas_call(
            double_kernel, grid=(n,), in_specs=[spec], out_specs=spec, out_shape=out_shape_of(x)
        )(x)

    with Session(Options()) as session:
        out = jax.jit(call)(2, X)
    np.testing.assert_array_equal(out, 2 * X)
    (kernel,) = session.kernels
    assert kernel.grid == (None,)
    assert [o.kind for o in kernel.operands] == ["dynamic_grid", "input", "output"]


def test_the_mesh_is_kept() -> None:
    with Session(Options()) as session:
        jax.jit(sharded)(X)
    (kernel,) = session.kernels
    assert kernel.mesh == {"x": 4}
    assert kernel.operands[0].shape == (8, 128)


@pytest.mark.slow
def test_a_kernel_has_the_same_digest_in_every_process(run_python: Any, tmp_path: Any) -> None:
    code = """
import jax, jax.numpy as jnp
from pallas_debug_kernels import flash_attention
from pallas_debug.session import Options, Session, Subscriber
q = jax.ShapeDtypeStruct((1, 1, 128, 128), jnp.float32)
with Session(Options()) as session:
    jax.jit(flash_attention).lower(q, q, q)
print(session.kernels[0].digest)
"""
    digests = {run_python("-c", code, PYTHONHASHSEED=seed).stdout for seed in ("1", "2")}
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


def test_another_order_of_the_mesh_axes_makes_another_kernel() -> None:
    def of(*axes: str) -> Callable[[Any], Any]:
        mesh = jax.make_mesh((2, 2), axes, axis_types=(jax.sharding.AxisType.Auto,) * 2)
        return jax.jit(
            jax.shard_map(double, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
        )

    with Session(Options()) as session:
        for axes in (("x", "y"), ("y", "x"), ("x", "y")):
            of(*axes)(X)
    assert [list(k.mesh) for k in session.kernels] == [["x", "y"], ["y", "x"]]
    assert len({k.digest for k in session.kernels}) == 2

"""Script that provokes libtpu's messages about programs rather than kernels.

It loads libtpu into its own process, and prints a message for each entry of the catalogue as JSON.
Dumps go where LIBTPU_INIT_ARGS says, which is also the only argument.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,no-any-return"

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.extend
import numpy as np
from jax import lax
from jax._src import compiler
from jax.experimental import pallas as pl
from jax.experimental import topologies
from jax.experimental.pallas import tpu as pltpu
from jax.interpreters import mlir
from jax.sharding import Mesh, PartitionSpec, SingleDeviceSharding

F32 = jax.numpy.float32
ANY = pl.BlockSpec(memory_space=pl.ANY)
SMEM = pl.BlockSpec(memory_space=pltpu.SMEM)
DEVICES = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices


def array(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


def lowered(function, *args, **kwargs):
    return jax.jit(function, **kwargs).trace(*args).lower(lowering_platforms=("tpu",))


def compiled(function, *args, device=DEVICES[0]):
    here = SingleDeviceSharding(device)
    return lowered(function, *args, in_shardings=here, out_shardings=here).compile()


def moved_to_host(x):
    """jax would bring it back before it is returned, so XLA's own annotation is written."""
    move = jax.ffi.ffi_call("MoveToHost", jax.typeof(x), custom_call_api_version=2)
    return lax.dynamic_update_slice(move(x * 2), x[:8], (0, 0))


def copy_to_the_next(x):
    def kernel(x_ref, o_ref, sent, received):
        to = (lax.rem(lax.axis_index("x") + 1, 4),)
        pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, device_id=to).start()

    mesh = Mesh(np.array(DEVICES[:4]), ("x",))
    rows = PartitionSpec("x")
    copies = pl.pallas_call(
        kernel,
        out_shape=array(16, 128),
        in_specs=[ANY],
        out_specs=ANY,
        scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
    )
    return jax.shard_map(copies, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)(x)


def without_assignment(function, *args):
    """As who loads an exported module and forgets the devices that it is for."""
    client = DEVICES[0].client
    options = compiler.get_compile_options(
        num_replicas=1, num_partitions=4, device_assignment=None, backend=client
    )
    options.executable_build_options.use_spmd_partitioning = True
    options.executable_build_options.use_shardy_partitioner = True
    module = lowered(function, *args).compiler_ir("stablehlo")
    compile_ = getattr(client, "compile", None) or client.compile_and_load
    compile_(module, compiler.xc.DeviceList(tuple(DEVICES[:4])), options)


def copy_from_anywhere(start, x):
    def kernel(start_ref, x_ref, o_ref, semaphore):
        rows = x_ref.at[pl.ds(start_ref[0], 8)]
        copying = pltpu.make_async_copy(rows, o_ref, semaphore)
        copying.start()
        copying.wait()

    call = pl.pallas_call(
        kernel,
        out_shape=array(8, 128),
        in_specs=[SMEM, ANY],
        scratch_shapes=[pltpu.SemaphoreType.DMA],
    )
    return call(start, x)


LOOKUP = jax.extend.core.Primitive("lookup")
LOOKUP.def_abstract_eval(lambda *avals, config: avals[-1])
mlir.register_lowering(
    LOOKUP,
    lambda ctx, *operands, config: jax.ffi.ffi_lowering(
        "SparseDenseMatmulOp",
        api_version=1,
        backend_config=config,
        skip_ffi_layout_processing=True,
    )(ctx, *operands),
)


def lookup_of_many(rows, ids, samples, gains, table):
    """An embedding lookup, as jax-tpu-embedding writes it for SparseCores."""
    config = {
        "sparse_dense_matmul_config": {
            "max_ids_per_partition": 1 << 18,
            "max_unique_ids_per_partition": 1 << 18,
            "sharding_strategy": 1,
            "pad_value": 2**31 - 1,
        },
        "device_type": "DEVICE_TYPE_SPARSECORE",
    }
    activations = jax.numpy.zeros((16384, table.shape[1]), F32)
    return LOOKUP.bind(rows, ids, samples, gains, table, activations, config=json.dumps(config))


def error_of(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    return ""


def main(dumps):
    int32 = jax.numpy.int32
    message = {
        "host-offload-output": error_of(compiled, moved_to_host, array(1024, 1024)),
        "exported-kernel": error_of(without_assignment, copy_to_the_next, array(64, 128)),
    }
    if jax.__version_info__ < (0, 12):  # the libtpu of jax 0.12 finds a way
        v6e = topologies.get_topology_desc(platform="tpu", topology_name="v6e:2x2").devices[0]
        rows, ids = array(16, dtype=int32), array(65536, dtype=int32)
        operands = rows, ids, ids, array(65536), array(1 << 20, 8)
        message["sparsecore-replicas"] = error_of(compiled, lookup_of_many, *operands, device=v6e)
    compiled(copy_from_anywhere, array(1, dtype=int32), array(64, 128))
    for path in sorted(dumps.glob("*final_bundles.txt")):
        for line in path.read_text(errors="replace").splitlines():
            if "BoundsCheck" in line:
                message["halt-out-of-bounds"] = line.strip()
    sys.stdout.write(json.dumps(message))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

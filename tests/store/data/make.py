"""Generator of libtpu's raw dumps: `python make.py KERNEL`, with `--xla_mosaic_dump_to=DIR` set.

    env JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1 ALLOW_MULTIPLE_LIBTPU_LOAD=1 \\
      LIBTPU_INIT_ARGS=--xla_mosaic_dump_to=libtpu-0.0.50/add  python make.py add

The directories beside this file were written so. KERNEL is `add`; `misaligned`, which Mosaic
refuses (E2003); or `aborting`, at which libtpu 0.0.50 aborts.
"""

import sys

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental import topologies
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import SingleDeviceSharding


def add(x_ref: jax.Ref, y_ref: jax.Ref, o_ref: jax.Ref) -> None:
    o_ref[...] = x_ref[...] + y_ref[...]


def misaligned(i_ref: jax.Ref, x_ref: jax.Ref, o_ref: jax.Ref) -> None:
    o_ref[...] = x_ref[:, pl.ds(i_ref[0], 128)]


def aborting(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
    mask = x_ref[0, :] > 0
    o_ref[...] = jnp.where(mask[:, None], 1.0, 0.0) + jnp.zeros((128, 128), jnp.float32)


SMEM, VMEM = pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)
FLOATS = jax.ShapeDtypeStruct((8, 128), jnp.float32)

KERNELS = {
    "add": (add, (VMEM, VMEM), (FLOATS, FLOATS), FLOATS),
    "misaligned": (
        misaligned,
        (SMEM, VMEM),
        (jax.ShapeDtypeStruct((1,), jnp.int32), jax.ShapeDtypeStruct((8, 512), jnp.float32)),
        FLOATS,
    ),
    "aborting": (aborting, (VMEM,), (FLOATS,), jax.ShapeDtypeStruct((128, 128), jnp.float32)),
}


def main(name: str) -> None:
    kernel, specs, arguments, out = KERNELS[name]
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    device = SingleDeviceSharding(topology.devices[0])
    call = pl.pallas_call(kernel, out_shape=out, in_specs=list(specs), out_specs=VMEM, name=name)
    placed = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=device) for a in arguments]
    jax.jit(call).lower(*placed).compile()


if __name__ == "__main__":
    main(sys.argv[1])

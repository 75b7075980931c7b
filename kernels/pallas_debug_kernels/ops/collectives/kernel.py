"""The kernel, which runs on every core of the ring.

A chip may write to another's memory only once that chip has entered the same kernel: until then,
the memory may still be in use for something else. The barrier semaphore ensures this.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

_HBM = pl.BlockSpec(memory_space=pl.ANY)


def all_gather_kernel(
    x_ref: jax.Ref,  # [rows, cols] in HBM
    out_ref: jax.Ref,  # [num_devices, rows, cols] in HBM
    own_sem: jax.Ref,
    send_sems: jax.Ref,  # [num_devices - 1], one per hop: a neighbour may be hops ahead
    receive_sems: jax.Ref,  # [num_devices - 1]
    *,
    axis_name: str,
) -> None:
    """On each hop, forward to the right what arrived from the left on the previous hop."""
    num_devices = out_ref.shape[0]
    me = lax.axis_index(axis_name)
    own = pltpu.make_async_copy(x_ref, out_ref.at[me], own_sem)
    own.start()
    _, right = _meet_neighbours(axis_name)
    own.wait()
    for hop in map(jnp.int32, range(num_devices - 1)):
        part = lax.rem(me + (num_devices - hop), jnp.int32(num_devices))
        copy = pltpu.make_async_remote_copy(
            out_ref.at[part],
            out_ref.at[part],
            send_sems.at[hop],
            receive_sems.at[hop],
            device_id={axis_name: right},
        )
        copy.start()
        copy.wait()  # sent, and the next part has arrived


def _meet_neighbours(axis_name: str) -> tuple[jax.Array, jax.Array]:
    """Wait until both neighbours have entered this kernel; return their indices, left and right."""
    me, num_devices = lax.axis_index(axis_name), jnp.int32(lax.axis_size(axis_name))
    left = lax.rem(me + (num_devices - 1), num_devices)
    right = lax.rem(me + 1, num_devices)
    barrier = pltpu.get_barrier_semaphore()
    for neighbour in (left, right):
        pl.semaphore_signal(barrier, 1, device_id={axis_name: neighbour})
    pl.semaphore_wait(barrier, 2)
    return left, right


@partial(jax.jit, static_argnames=("mesh", "axis_name"))
def launch(x: jax.Array, *, mesh: Mesh | AbstractMesh, axis_name: str) -> jax.Array:
    """Run the kernel on every device, each with its own rows."""
    num_devices = mesh.shape[axis_name]

    def on_each(rows: jax.Array) -> jax.Array:
        gather = pl.pallas_call(
            partial(all_gather_kernel, axis_name=axis_name),
            out_shape=jax.ShapeDtypeStruct((num_devices, *rows.shape), rows.dtype),
            in_specs=[_HBM],
            out_specs=_HBM,
            scratch_shapes=[
                pltpu.SemaphoreType.DMA,
                pltpu.SemaphoreType.DMA((max(num_devices - 1, 1),)),
                pltpu.SemaphoreType.DMA((max(num_devices - 1, 1),)),
            ],
            compiler_params=pltpu.CompilerParams(collective_id=0),
            name="all_gather",
        )
        parts: jax.Array = gather(rows)  # [num_devices, rows, cols]
        return parts.reshape(x.shape)

    out: jax.Array = jax.shard_map(
        on_each,
        mesh=mesh,
        in_specs=PartitionSpec(axis_name),
        out_specs=PartitionSpec(),
        check_vma=False,
    )(x)
    return out

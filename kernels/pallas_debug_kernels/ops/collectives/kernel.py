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
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from ..._arguments import check_dtype, check_ndim, either

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


DTYPES = ("float32", "bfloat16", "int32")


def all_gather(
    x: jax.Array, *, mesh: Mesh | AbstractMesh | None = None, axis_name: str = "x"
) -> jax.Array:
    """Gather all rows of `x` on every device, passing them around the ring one hop at a time.

    Args:
      x: float32, bfloat16 or int32 `[rows, cols]`; its rows are sharded over the devices.
      mesh: the devices; None is a ring of all devices. An `AbstractMesh` is mapped to the first
        devices of this host; if there are too few, the kernel can be compiled but not run.
      axis_name: the axis of `mesh` that forms the ring.

    Returns:
      An array with the shape and dtype of `x`, replicated on every device.

    Raises:
      ValueError: for any other shape, dtype or axis, or rows that cannot be divided evenly among
        the devices.
    """
    mesh = _checked_mesh(x, mesh, axis_name)
    out: jax.Array = launch(x, mesh=mesh, axis_name=axis_name)
    return out


def _checked_mesh(
    x: jax.Array, mesh: Mesh | AbstractMesh | None, axis_name: str
) -> Mesh | AbstractMesh:
    check_ndim("all_gather", "x", x, ("rows", "cols"))
    check_dtype("all_gather", "x", x, DTYPES)
    if mesh is None:
        mesh = jax.make_mesh((jax.device_count(),), (axis_name,), axis_types=(AxisType.Auto,))
    if axis_name not in mesh.axis_names:
        names = either([repr(name) for name in mesh.axis_names])
        raise ValueError(
            f"all_gather: axis_name is {axis_name!r}. It must be an axis of mesh: {names}."
        )
    num_devices = mesh.shape[axis_name]
    if x.shape[0] % num_devices:
        raise ValueError(
            f"all_gather: x has shape {x.shape}. Its first dimension must be a multiple of "
            f"{num_devices}, the number of devices along {axis_name!r}."
        )
    return _laid_over_devices(mesh) if isinstance(mesh, AbstractMesh) else mesh


def _laid_over_devices(mesh: AbstractMesh) -> Mesh | AbstractMesh:
    if mesh.size > jax.device_count():
        return mesh
    return jax.make_mesh(
        mesh.axis_sizes,
        mesh.axis_names,
        axis_types=mesh.axis_types,
        devices=jax.devices()[: mesh.size],
    )

"""Public API of the collective: rows moved between chips."""

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from ..._arguments import check_dtype, check_ndim, either
from .kernel import launch

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

"""Replay of recorded calls of a kernel, without the rest of the program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.lowering import hook
from pallas_debug.bridge.lowering.calls import KernelCall, is_key


def replay(captured: Capture, calls: Sequence[KernelCall]) -> Callable[[], list[Any]]:
    """Return a function that calls a kernel with each of these operands.

    Results of a kernel on several devices have a leading axis over these.
    """
    primitive = hook.PRIMITIVES[captured.kernel.primitive]
    params = {**captured.params, "interpret": False}  # the mode is chosen when it is bound
    params.pop("kernel_arg_transforms", None)  # present only under the GPU's interpreter

    def kernel(*operands: Any) -> Any:
        given = zip(operands, captured.avals, strict=True)
        return primitive.bind(*(_as_key(o, aval.dtype) for o, aval in given), **params)

    def replayed() -> list[Any]:
        with jax.enable_x64(captured.enable_x64):
            if captured.mesh is None:
                program = jax.jit(kernel)
                return [jax.block_until_ready(program(*operands)) for (operands,) in calls]
            program = jax.jit(_on_devices(kernel, captured.mesh))
            stacked = ([np.stack(of_all) for of_all in zip(*call, strict=True)] for call in calls)
            return [jax.block_until_ready(program(*operands)) for operands in stacked]

    return replayed


def _as_key(operand: Any, dtype: Any) -> Any:
    return jax.random.wrap_key_data(operand, impl=dtype._impl.name) if is_key(dtype) else operand


def _on_devices(kernel: Callable[..., Any], mesh: Any) -> Callable[..., Any]:
    """Run a kernel on each device of a mesh, with its part of the first axis of all operands."""
    names, counts = tuple(mesh.axis_names), tuple(dict(mesh.shape).values())
    devices = np.array(jax.devices()[: math.prod(counts)]).reshape(counts)

    def on_device(*operands: Any) -> list[Any]:
        return [result[None] for result in kernel(*(operand[0] for operand in operands))]

    spec = PartitionSpec(names)
    whole = Mesh(devices, names)
    sharded: Callable[..., Any] = jax.shard_map(
        on_device, mesh=whole, in_specs=spec, out_specs=spec, check_vma=False
    )
    return sharded

"""Places on other devices and cores: their numbers, and the same memory there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.errors import MachineError
from pallas_debug.machine.memory import MemoryBuffer
from pallas_debug.machine.threads import Thread

if TYPE_CHECKING:
    from pallas_debug.machine.machine import Machine


class NoSuchDevice(Exception):
    """A step names a device or core that the mesh does not have.

    Attributes:
      axis: mesh axis; None for a logical number.
      count: number of devices or cores along the axis.
    """

    def __init__(self, value: int, count: int, axis: str | None, *, is_core: bool = False) -> None:
        super().__init__(f"{value} of {count} along {axis}")
        self.value = value
        self.count = count
        self.axis = axis
        self.is_core = is_core


def _number(sizes: Mapping[str, int], at: Sequence[int], *, is_core: bool = False) -> int:
    """Return the number of the place with these coordinates.

    Raises:
      NoSuchDevice: a coordinate is outside its axis.
    """
    for (axis, count), value in zip(sizes.items(), at, strict=True):
        if not 0 <= value < count:
            raise NoSuchDevice(int(value), count, axis, is_core=is_core)
    return int(np.ravel_multi_index(tuple(at), tuple(sizes.values())))


def device_number(
    machine: Machine, thread: Thread, device: ir.DeviceId, registers: list[Any]
) -> int:
    """Return the number of the device that a step names.

    Raises:
      NoSuchDevice: the mesh does not have the device.
    """
    mesh = machine.launch.mesh
    if device.number is not None:
        number, count = int(registers[device.number.number]), math.prod(mesh.values())
        if not 0 <= number < count:
            raise NoSuchDevice(number, count, None)
        return number
    own = machine.devices[thread.device].coordinates
    given = device.coordinates
    found: dict[str, int]
    if isinstance(given, tuple):
        if len(given) == 1 and np.ndim(registers[given[0].number]):
            values = [int(i) for i in np.asarray(registers[given[0].number])]
        else:
            values = [int(registers[reg.number]) for reg in given]
        found = dict(zip(mesh, values, strict=False))
    else:
        assert given is not None
        found = _coordinates(machine, given, registers)
    if not mesh:
        return 0
    return _number(mesh, [found.get(name, own[name]) for name in mesh])


def core_number(
    machine: Machine, thread: Thread, device: ir.DeviceId | None, core: ir.Reg | None,
    registers: list[Any], known: int,
) -> int:  # fmt: skip
    """Return the number of the core that a step names.

    Args:
      known: core whose memory the step's reference is in; the default if the step names none.
    """
    meshes = machine.launch.meshes
    target, first = machine.launch.mesh_of(known)
    if core is not None:
        given = np.asarray(registers[core.number])
        if not meshes:  # a single-core kernel names it 0
            return int(given)
        axes = meshes[target].axes
        return first + _number(axes, [int(n) for n in np.atleast_1d(given)], is_core=True)
    named = device.coordinates if device is not None else None
    found = _coordinates(machine, named, registers) if isinstance(named, Mapping) else {}
    if not meshes or not any(axis in meshes[target].axes for axis in found):
        return known if meshes else thread.core
    return core_at(machine, thread, found, target)


def core_at(machine: Machine, thread: Thread, named: Mapping[str, int], mesh: int) -> int:
    """Return a core of a mesh: at the thread's own coordinates, except for those that are named."""
    axes = machine.launch.meshes[mesh].axes
    own_mesh, own_first = machine.launch.mesh_of(thread.core)
    own_axes = machine.launch.meshes[own_mesh].axes
    place = np.unravel_index(thread.core - own_first, tuple(own_axes.values()))
    found = {**dict(zip(own_axes, map(int, place), strict=True)), **named}
    first = sum(other.size for other in machine.launch.meshes[:mesh])
    return first + _number(axes, [found.get(axis, 0) for axis in axes], is_core=True)


def _coordinates(
    machine: Machine, named: Mapping[str | tuple[str, ...], ir.Reg], registers: list[Any]
) -> dict[str, int]:
    """Positions of devices and cores along the axes that a step names."""
    sizes = {**machine.launch.mesh, **machine.launch.cores}
    found: dict[str, int] = {}
    for axes, reg in named.items():
        number = int(registers[reg.number])
        if isinstance(axes, str):
            found[axes] = number
            continue
        shape = tuple(sizes[axis] for axis in axes)
        if not 0 <= number < math.prod(shape):
            raise NoSuchDevice(number, math.prod(shape), ", ".join(axes))
        found.update(zip(axes, map(int, np.unravel_index(number, shape)), strict=True))
    return found


def elsewhere(machine: Machine, buffer: MemoryBuffer, device: int, core: int) -> MemoryBuffer:
    """Return the same operand or scratch on another device and core.

    Memory that the cores of a device share is the same on all. A core that has not yet entered the
    scope of a buffer gets this one when it does.
    """
    if buffer.kind not in ("scratch", "scoped", "barrier") or buffer.type.space == "shared":
        core = buffer.core
    if (buffer.device, buffer.core) == (device, core):
        return buffer
    for other in machine.buffers:
        if (other.device, other.core) == (device, core) and _is_same(buffer, other):
            return other
    place = f"core {core}" if device == buffer.device else f"device {device}"
    if buffer.kind != "scoped" or device >= len(machine.devices):
        raise MachineError(f"`{buffer.name}` does not exist on {place}")
    scope = buffer.scope
    if core != buffer.core:
        other_core = next(t for t in machine.threads if (t.device, t.core) == (device, core))
        scope = (*scope[:3], core, other_core.point)
    early = machine.allocate(buffer.type, buffer.name, "scoped", device=device, scope=scope)
    early.core, early.is_early = core, True
    return early


def claimed(machine: Machine, thread: Thread, scope: tuple[Any, ...]) -> MemoryBuffer | None:
    """Return the buffer of a scope that another core referred to before this one entered it."""
    own = thread.device, thread.core
    for buffer in machine.buffers:
        if not buffer.is_early or (buffer.device, buffer.core) != own:
            continue
        *of_buffer, point = buffer.scope
        # A core that has not begun has had no grid point yet.
        if buffer.scope == scope or (point == () and of_buffer == [*scope[:-1]]):
            buffer.is_early, buffer.scope = False, scope
            return buffer
    return None


def require_claimed(machine: Machine) -> None:
    """Reject a run in which a core never entered a scope that another core has referred to."""
    for buffer in machine.buffers:
        if buffer.is_early:
            raise MachineError(
                f"`{buffer.name}` is used from another core or device, but core {buffer.core} of "
                f"device {buffer.device} was not in its scope, then or later"
            )


def _is_same(one: MemoryBuffer, other: MemoryBuffer) -> bool:
    """Return whether two buffers of different cores or devices are the same operand or scratch."""
    if one.kind != other.kind:
        return False
    if one.core == other.core:
        return one.scope == other.scope
    if one.kind == "scratch":
        return one.name == other.name
    return one.scope[:3] == other.scope[:3]

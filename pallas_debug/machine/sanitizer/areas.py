"""What the sanitizer judges: an observer for each area."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pallas_debug import defaults
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.errors import MachineError
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sanitizer.memory import MemorySanitizer
from pallas_debug.machine.sanitizer.numbers import ClaimsObserver, NumbersObserver
from pallas_debug.machine.sanitizer.order import OrderSanitizer

Arrays = Sequence[Sequence[Any]]

AREAS: tuple[Callable[[Launch, Arrays, int], MachineObserver], ...] = (
    lambda launch, arrays, first: OrderSanitizer(launch, devices=len(arrays)),
    lambda launch, arrays, first: MemorySanitizer(launch, arrays, first=first),
    lambda launch, arrays, first: ClaimsObserver(launch),
    lambda launch, arrays, first: NumbersObserver(launch),
)
"""Makers of observers, whose findings are listed in this order: causes before consequences.

Each takes the launch, the arrays of all devices, and the number of the first of these devices. An
observer has a method `findings`, which is called once the run is over, or was stopped.
"""


SHADOW_BYTES = 4
"""Bytes that the sanitizer keeps for an element: the number of the write that put it there."""


def require_cores(launch: Launch) -> None:
    """Refuse a kernel of a SparseCore, whose accesses the sanitizer has no rules for.

    Raises:
      MachineError: it is one.
    """
    if any(mesh.kind != "tensor" for mesh in launch.meshes):
        raise MachineError(
            f"kernel `{launch.name}` runs on a SparseCore, which the sanitizer does not judge"
        )


def require_room(launch: Launch) -> None:
    """Refuse a kernel whose arrays are too large for shadow memory.

    Raises:
      MachineError: with the sizes, and what to do.
    """
    shapes = [operand.array or operand.type.shape for operand in launch.operands]
    elements = sum(map(math.prod, shapes)) * math.prod(launch.mesh.values())
    needed = elements * SHADOW_BYTES
    if needed > defaults.MAX_SHADOW_BYTES:
        most = max(launch.operands, key=lambda o: math.prod(o.array or o.type.shape))
        shape = ", ".join(map(str, most.array or most.type.shape))
        raise MachineError(
            f"kernel `{launch.name}` has {elements:,} elements (`{most.name}`: "
            f"{most.type.dtype}[{shape}]), for which the sanitizer needs up to "
            f"{needed / (1 << 30):.1f} GiB of shadow memory; its limit is "
            f"{defaults.MAX_SHADOW_BYTES / (1 << 30):.1f} GiB. Sanitize it on smaller arrays with "
            "the same blocks"
        )


def observers(launch: Launch, arrays: Arrays, first: int = 0) -> list[MachineObserver]:
    """Observers for a run."""
    return [make(launch, arrays, first) for make in AREAS]

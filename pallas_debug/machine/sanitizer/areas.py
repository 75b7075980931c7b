"""Areas that the sanitizer checks, with an observer for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.errors import MachineError
from pallas_debug.machine.gpu.undefined import UndefinedElements
from pallas_debug.machine.hints import CarriedMemory, LowPrecisionSums, ReplacedWrites
from pallas_debug.machine.numbers import ClaimsObserver, NumbersObserver, RandomBitsObserver
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.order.findings import OrderSanitizer
from pallas_debug.machine.sanitizer.again import KernelCall
from pallas_debug.machine.shadow.memory import MemorySanitizer

Arrays = Sequence[Sequence[Any]]


def require_cores(launch: Launch) -> None:
    """Reject a SparseCore kernel: the sanitizer has no rules for its accesses.

    Raises:
      MachineError: the kernel runs on a SparseCore.
    """
    if any(mesh.kind != "tensor" for mesh in launch.meshes):
        raise MachineError(
            f"kernel `{launch.name}` runs on a SparseCore, which the sanitizer does not check"
        )


def observers(
    launch: Launch, arrays: Arrays, first: int = 0, *,
    infinities: bool = False,
) -> list[MachineObserver]:  # fmt: skip
    """Create the observers of a run, in the order in which their findings are listed: causes first.

    An observer has a method `findings`, which is called after the run has ended or was stopped.

    Args:
      arrays: arrays of the call, for each device.
      first: number of the first of these devices in the mesh.
      infinities: whether infinities in the results are findings, as NaNs are.
    """
    order = OrderSanitizer(launch, devices=len(arrays))
    memory = MemorySanitizer(launch, arrays, order=order, first=first)
    call = KernelCall(launch, arrays, {"first": first})
    return [
        order,
        CarriedMemory(memory),
        ReplacedWrites(memory),
        LowPrecisionSums(memory),
        memory,
        ClaimsObserver(launch),
        RandomBitsObserver(launch),
        *([UndefinedElements(launch, call)] if launch.is_gpu else []),
        NumbersObserver(launch, rerun=call.run, infinities=infinities),
    ]

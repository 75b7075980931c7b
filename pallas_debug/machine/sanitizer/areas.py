"""Areas that the sanitizer judges: an observer for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pallas_debug.bridge.hosted.watch import WatchedPoints
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.errors import MachineError
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sanitizer.memory import MemorySanitizer
from pallas_debug.machine.sanitizer.numbers import ClaimsObserver, NumbersObserver
from pallas_debug.machine.sanitizer.order import OrderSanitizer
from pallas_debug.machine.sanitizer.shadows.replay import KernelCall

Arrays = Sequence[Sequence[Any]]

Make = Callable[[Launch, Arrays, int, WatchedPoints | None], MachineObserver]

AREAS: tuple[Make, ...] = (
    lambda launch, arrays, first, watched: OrderSanitizer(launch, devices=len(arrays)),
    lambda launch, arrays, first, watched: MemorySanitizer(
        launch, arrays, first=first, watched=watched
    ),
    lambda launch, arrays, first, watched: ClaimsObserver(launch),
    lambda launch, arrays, first, watched: NumbersObserver(
        launch, watched, rerun=KernelCall(launch, arrays, {"first": first}).run
    ),
)
"""Makers of observers, whose findings are listed in this order: causes before consequences.

Each takes the launch, the arrays of all devices, the number of the first of these devices, and the
grid points that are watched, None for all. An observer has a method `findings`, which is called
once the run is over, or was stopped.
"""


def require_cores(launch: Launch) -> None:
    """Refuse a kernel of a SparseCore, whose accesses the sanitizer has no rules for.

    Raises:
      MachineError: it is one.
    """
    if any(mesh.kind != "tensor" for mesh in launch.meshes):
        raise MachineError(
            f"kernel `{launch.name}` runs on a SparseCore, which the sanitizer does not judge"
        )


def observers(
    launch: Launch, arrays: Arrays, first: int = 0, watched: WatchedPoints | None = None
) -> list[MachineObserver]:
    """Observers for a run.

    Args:
      watched: grid points that are judged; None for all.
    """
    made = [make(launch, arrays, first, watched) for make in AREAS]
    for memory in made:
        if isinstance(memory, MemorySanitizer):
            memory.has_races = lambda: any(
                one.detector.races for one in made if isinstance(one, OrderSanitizer)
            )
    return made

"""What the sanitizer judges: an observer for each area."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pallas_debug.bridge.programs.launch import Launch
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


def observers(launch: Launch, arrays: Arrays, first: int = 0) -> list[MachineObserver]:
    """Observers for a run."""
    return [make(launch, arrays, first) for make in AREAS]

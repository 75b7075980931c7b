"""Events of a walk through a schedule: copies, waits and iterations, with their cycles."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyEvent:
    """Execution of a copy.

    Attributes:
      bundle: index of the bundle that starts the copy.
      direction: source and destination memories, such as `hbm_to_vmem`.
      start, stop: cycles at which the copy starts and completes.
      size: size in bytes.
    """

    bundle: int
    direction: str
    start: float
    stop: float
    size: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitEvent:
    """A wait for copies.

    Attributes:
      start, stop: cycles at which the core starts waiting and continues.
    """

    start: float
    stop: float


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationEvent:
    """The start of an iteration of a loop."""

    loop: int
    iteration: int
    start: float


Event = CopyEvent | WaitEvent | IterationEvent

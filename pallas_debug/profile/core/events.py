"""Events of a walk through a schedule: copies, waits and iterations, with their cycles."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_debug.profile.core.scalars import Address


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyEvent:
    """A copy that was started.

    Attributes:
      bundle: index of the bundle that starts it.
      direction: its memories, such as `hbm_to_vmem`.
      start, stop: cycles at which it starts and arrives.
      size: bytes.
      flag: the semaphore that it signals.
    """

    bundle: int
    direction: str
    start: float
    stop: float
    size: int | None
    flag: Address | None


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitEvent:
    """A wait for copies.

    Attributes:
      start, stop: cycles at which the core arrives at it, and goes on.
    """

    bundle: int
    start: float
    stop: float
    flag: Address | None


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationEvent:
    """The start of an iteration of a loop."""

    loop: int
    iteration: int
    start: float


Event = CopyEvent | WaitEvent | IterationEvent

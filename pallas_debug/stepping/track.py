"""Interface of a run that can be stepped through: its places, and the values at each of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pallas_debug.model import SourceLine
from pallas_debug.stepping.conditions import Expression, Names


@dataclass(frozen=True, kw_only=True)
class StepPlace:
    """A place in a run: a line that is about to be executed.

    Attributes:
      tick: number of machine steps before it.
      thread: number of the core that is about to execute it.
      iterations: of the enclosing loops, outermost first, from 0.
      calls: lines of the calls that lead to the line, outermost first.
      ended: whether the run is over; the line is then None.
      devices: number of devices that run the kernel together.
    """

    tick: int
    kernel: str
    thread: int = 0
    device: int = 0
    point: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    iterations: tuple[int, ...] = ()
    line: SourceLine | None = None
    calls: tuple[SourceLine, ...] = ()
    ended: bool = False
    devices: int = 1

    @property
    def key(self) -> tuple[Any, ...]:
        """Two places differ if their keys do; a line has as many ticks as it has operations."""
        at = None if self.line is None else self.line.place
        stack = tuple(call.place for call in self.calls)
        return self.thread, self.point, self.iterations, stack, at


@dataclass(frozen=True, kw_only=True)
class NamedValue:
    """A value that has a name at some place.

    Attributes:
      kind: "variable", "input", "output", "prefetch", "scratch", "scoped" or "semaphore".
      dtype: name of the dtype.
      block: index of the block in the whole array; None if it is not a block.
      whole: shape of the whole array.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    block: tuple[int, ...] | None = None
    whole: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class FlyingCopy:
    """A DMA in flight: where from, where to, how much, and where it was started."""

    number: int
    source: str
    destination: str
    nbytes: int
    point: tuple[int, ...]
    line: SourceLine | None


@dataclass(frozen=True, kw_only=True)
class ElementWriter:
    """Last writer of an element.

    Attributes:
      element: the element, such as `acc_ref[0, 3]`.
      how: "stored", "copied by a DMA", "fetched", "written back", "given" (an argument) or "never".
      place: place of the step that wrote it; None if no step did.
      value: value since then.
    """

    element: str
    how: str
    place: StepPlace | None
    value: str


@dataclass(frozen=True, kw_only=True)
class WatchedElements:
    """A value or a slice of it; the run stops when it changes.

    Attributes:
      name: name of the value.
      expression: the whole text.
    """

    name: str
    expression: Expression


@dataclass(frozen=True, kw_only=True)
class WatchHit:
    """A watched value has changed.

    Attributes:
      before, after: values before and after; None if it did not exist.
      wrote: line that wrote it; None if the pipeline or a DMA did.
    """

    watched: WatchedElements
    before: Any
    after: Any
    wrote: SourceLine | None


@dataclass(frozen=True, kw_only=True)
class DeviceStatus:
    """Position of a device in the kernel.

    Attributes:
      waits: what it waits for, such as `sem[0] is 0, and 1 is awaited`; None if it does not wait.
      is_shown: whether values are those of this device.
      is_next: whether it executes the next step.
    """

    place: StepPlace
    waits: str | None
    is_shown: bool
    is_next: bool


class Track(Protocol):
    """A run that can be stepped through in both directions.

    Attributes:
      interrupted: event that another thread sets to end a movement.
    """

    interrupted: bool

    @property
    def place(self) -> StepPlace: ...

    @property
    def fault(self) -> str | None:
        """Why the run cannot continue from here; None if it can."""

    def forward(
        self, until: Callable[[StepPlace], bool], watched: Sequence[WatchedElements] = ()
    ) -> bool | WatchHit:
        """Go to the next line at which `until` is true, or to after a watched value changes.

        Returns:
          False if the end of the run, or a fault, came first.
        """

    def backward(
        self, until: Callable[[StepPlace], bool], watched: Sequence[WatchedElements] = ()
    ) -> bool | WatchHit:
        """Go to the last line before this at which `until` is true, or to before a change.

        Returns:
          False if there is no such line; the run is then at its start.
        """

    def who(self, element: WatchedElements) -> Sequence[ElementWriter]:
        """Writers of one element, latest first, then those of the elements it was copied from."""

    def values(self) -> Sequence[NamedValue]:
        """The names at this place, operands first."""

    def value(self, name: str) -> np.ndarray[Any, Any] | None:
        """The value of a name; None if there is none."""

    def copies(self) -> Sequence[FlyingCopy]:
        """DMAs in flight, oldest first."""

    def lines(self, file: str) -> Sequence[str]:
        """The lines of a source file; none if it is not readable."""

    def executable(self, file: str) -> Collection[int]:
        """Numbers of the lines of a file at which the run can stop."""

    def devices(self) -> Sequence[DeviceStatus]: ...

    def show_device(self, number: int) -> DeviceStatus:
        """Show the values of a device until the next step.

        Raises:
          ConditionFailed: there is no such device.
        """


def names_of(track: Track) -> Names:
    """Return a function that looks up the values of names at the current place of a run."""

    def value_of(name: str) -> np.ndarray[Any, Any]:
        value = track.value(name)
        if value is None:
            raise KeyError(name)
        return value

    return value_of


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Return whether two arrays are equal, also where they are NaN."""
    return a.shape == b.shape and a.tobytes() == b.tobytes()

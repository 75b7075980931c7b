"""Facts about faults of order: sides of races, threads that wait."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_debug.findings.facts import Point, line_text
from pallas_debug.model import SourceLine


@dataclass(frozen=True, kw_only=True)
class Access:
    """One side of a race.

    Attributes:
      loop: iterations of the enclosing loops, outermost first.
      copy: source and destination, if a copy accesses the memory instead of the core.
      semaphore: semaphore that the copy signals when it is done.
      from_device: device that started the copy, if it is not the device of the memory.
      is_stored: whether the grid point stores to the block that its pipeline writes back.
      is_next: whether it is an access of the pipeline, which continues after a grid point's code.
    """

    writes: bool
    grid_point: Point | None = None
    loop: Point = ()
    device: int = 0
    core: int = 0
    copy: tuple[str, str] | None = None
    semaphore: str | None = None
    from_device: int | None = None
    is_stored: bool = True
    is_next: bool = False

    @property
    def sender(self) -> int:
        return self.device if self.from_device is None else self.from_device

    def text(self, *, names_core: bool) -> str:
        """Describe the access: `read at grid point (1,), loop iteration (2,)`."""
        verb = "written" if self.writes else "read"
        if not self.is_stored:
            verb = "written back without a store"
        by = f" by the copy of {self.copy[0]} to {self.copy[1]}" if self.copy else ""
        if self.copy and self.from_device is not None:
            by += f" from device {self.from_device}"
        places = [f" at grid point {self.grid_point}"] if self.grid_point else []
        places += [f" in loop iteration {self.loop}"] if self.loop else []
        return verb + by + ",".join(places) + (f" on core {self.core}" if names_core else "")


@dataclass(frozen=True, kw_only=True)
class Race:
    """Two unordered accesses.

    Attributes:
      clobbers: whether a copy replaces data that the other side reads.
      axes: parallel axes along which the two grid points differ, if known.
      overlap: elements that both sides access, if fewer than the slice that is named.
      is_gpu: whether the grid points run at the same time on a GPU.
    """

    here: Access
    there: Access
    clobbers: bool = False
    axes: tuple[int, ...] = ()
    overlap: str | None = None
    is_gpu: bool = False

    @property
    def first(self) -> str:
        return self.here.text(names_core=self.of_cores)

    @property
    def second(self) -> str:
        return self.there.text(names_core=self.of_cores)

    @property
    def copy(self) -> Access | None:
        """The copy that takes part; of two, that of `there`, which the other one has to follow."""
        return next((side for side in (self.there, self.here) if side.semaphore), None)

    @property
    def deadline(self) -> str:
        """Event by which the copy has to be over."""
        return "before the grid point ends" if self.there.is_next else "before this access"

    @property
    def dimensions(self) -> str:
        return ", ".join(map(str, self.axes))

    @property
    def of_cores(self) -> bool:
        return self.here.core != self.there.core and self.here.sender == self.there.sender

    @property
    def is_sent_early(self) -> bool:
        """True if a device sends to memory that its owner still uses."""
        if self.copy is None or self.copy.from_device is None:
            return False
        return self.clobbers or any(s.writes for s in (self.here, self.there) if not s.copy)


@dataclass(frozen=True, kw_only=True)
class Stuck:
    """Another thread that waits forever."""

    semaphore: str
    line: SourceLine | None = None
    device: int = 0
    core: int = 0

    def __str__(self) -> str:
        line = f" in {line_text(self.line)}" if self.line else ""
        core = f", core {self.core}," if self.core else ""
        return f"device {self.device}{core} waits for {self.semaphore}{line}"

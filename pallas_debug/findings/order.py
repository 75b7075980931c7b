"""Cases of faults of order: races, copies and waits, semaphores, deadlocks, revisits, loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pallas_debug.findings.case import Case, Test, has
from pallas_debug.findings.facts import Point, line_text
from pallas_debug.findings.faults import Fault
from pallas_debug.model import SourceLine

# Facts


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


# Races


def _race(cause: str, advice: str, when: Test | None = None) -> Case:
    message = "{what} is {race.first}{between}{race.second}{race.overlap:; both access %}"
    return Case(message, cause, advice, when)


_RACES = [
    _race(
        "the grid points of a kernel run at the same time on a GPU, in any order",
        "give each grid point its own elements, or make all accesses atomic (plt.atomic_add)",
        lambda f: f.race.axes and f.race.is_gpu,
    ),
    _race(
        "grid dimension {race.dimensions} is parallel, so two cores may share it (v4 and v5p)",
        'give each grid point its own block, or make the axis "arbitrary" in dimension_semantics',
        lambda f: f.race.axes,
    ),
    _race(
        "two cores access the same memory, and no semaphore orders the accesses",
        "let core {race.there.core} signal core {race.here.core}, which waits for that, or call "
        "pltpu.core_barrier in between",
        lambda f: f.race.of_cores,
    ),
    _race(
        "device {race.copy.from_device} does not wait until device {race.copy.device} is done "
        "with this memory",
        "let device {race.copy.device} signal after its last use, and wait for that before the "
        "copy; or send elsewhere",
        lambda f: f.race.is_sent_early,
    ),
    _race(
        "the copy writes to a buffer that has yet to be read",
        "start the copy after the read, or use a second buffer",
        lambda f: f.race.clobbers,
    ),
    _race(
        "nothing waits {race.deadline} until the copy on {race.copy.semaphore} is over",
        "wait for {race.copy.semaphore} {race.deadline}, once for each copy that signals it",
        lambda f: f.race.copy,
    ),
    _race(
        "no wait and no semaphore orders the accesses",
        "let one side signal a semaphore when its access is over, and the other wait for it",
    ),
]

_OVERLAP = Case(
    "the copy of {source} to {destination} reads {overlap}, which it also writes",
    "a copy moves its data in pieces, and may read what it has already written",
    "copy by way of a buffer in VMEM, or in several copies, each awaited, that do not overlap",
    has("source", "overlap"),
)

_EARLY = Case(
    "device {sender} copies {source} to {what} of device {receiver}, which may not have entered "
    "the kernel",
    "device {sender} has not waited for device {receiver}, whose memory may still be in use",
    "signal pltpu.get_barrier_semaphore() of each neighbour and wait for as many signals "
    "(collective_id)",
    lambda f: f.receiver is not None,
)

# Waits

_NOT_AWAITED = (
    "the copy of {source} to {destination} is never awaited: {left:,} bytes are left on {semaphore}"
)


def _stuck(cause: str, advice: str, when: Test | None = None) -> Case:
    return Case(
        "{semaphore}{core: on core %}{device: on device %} is at {count}{unit: %}, but the wait "
        "needs {needed}{unit: %}{signals: (signals: %}{waits:, waits: %)}{stuck:; %}"
        "{last:\nthe last %}",
        cause,
        advice,
        when,
    )


_DEADLOCKS = [
    _stuck(
        "the {those} on it, here and in the kernel that returned it, add up to less than the waits",
        "start a copy of the same slices, or signal, once for each wait, in one of these kernels",
        has("is_given"),
    ),
    _stuck(
        "no copy has been started on it before this wait",
        "start the copy before the wait, on the same semaphore",
        lambda f: f.of_copy and f.is_started is False,
    ),
    _stuck(
        "its copies transfer less than its waits take: each start allows one wait",
        "wait once for each copy started, with the same slices and the same semaphore",
        has("of_copy"),
    ),
    _stuck(
        "it is signalled less often than it is waited for",
        "signal it once for each wait, on the device and core that waits, before other waits",
    ),
]

CASES: Mapping[Fault, Sequence[Case]] = {
    Fault.DATA_RACE: [_OVERLAP, _EARLY, *_RACES],
    Fault.DMA_NOT_AWAITED: [
        Case(
            _NOT_AWAITED,
            "copies started on {semaphore}: {starts}, waits: {waits}; the kernel may end before it",
            "wait once for each copy started; do not start a copy when nothing is left to fetch",
        )
    ],
    Fault.WAIT_SIZE_MISMATCH: [
        Case(
            "the wait on {semaphore} takes {awaited:,} bytes\nthe copy of {source} to "
            "{destination} transfers {copied:,}",
            "the wait returns before the copy is over, and leaves bytes on {semaphore}"
            if is_early
            else "the wait also needs the bytes of another copy",
            "wait with the descriptor that started the copy, or with one of the same slices",
            (lambda f: f.awaited < f.copied) if is_early else None,
        )
        for is_early in (True, False)
    ],
    Fault.SEMAPHORE_LEFT_OVER: [
        Case(
            "{semaphore}{device: on device %} is {count}, not 0, at the end of the kernel"
            "{last:\nthe last %}",
            "signals add up to {signals}, waits to {waits}; the next kernel inherits the count",
            "wait for {semaphore} as often as it is signalled",
        )
    ],
    Fault.NONDETERMINISTIC_RESULT: [
        Case(
            "{element} is {one} in one legal order and {other_value} in another ({differ:,} of "
            "{size:,} differ)",
            "nothing orders {first} and {second}",
            advice,
            when,
        )
        for advice, when in (
            ("where its value matters, wait for {reads} instead of reading it", has("reads")),
            ("wait for one copy before starting the other, or give each its own buffer", None),
        )
    ],
    Fault.OUTPUT_REVISITED: [
        Case(
            "{what} is visited {visits} and again at {again}, with another block in between",
            "an output block is written back when the next one begins, and is never read back",
            "let its grid points follow each other: last the axes along which it stays the same",
        )
    ],
    Fault.DEADLOCK: _DEADLOCKS,
    Fault.ENDLESS_LOOP: [
        Case(
            "the loop never ends: iteration {count:,} begins as {since:,} did{state:, with %}",
            "the body does not change the values that the condition depends on, or restores them",
            "change {names} in the body so that the condition becomes false",
            lambda f: f.since is not None,
        ),
        Case(
            "the loop has not ended after {count:,} iterations{state:, with %}"
            "{unchanged:; its body never changes %}",
            "the kernel machine stops every loop at this limit",
            "bring the condition closer to being false in each iteration; or use smaller arguments",
        ),
    ],
}

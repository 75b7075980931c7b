"""Cases of faults of order: races, copies and waits, semaphores, deadlocks, revisits, loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pallas_debug.findings.case import Case, Test, has
from pallas_debug.findings.facts import Point, line_text
from pallas_debug.findings.faults import Fault
from pallas_debug.model import SourceLine

PARALLEL = "parallel dimensions"
"""Name in a witness: grid dimensions that would avoid the fault if they were sequential."""


def of_axes(axes: Sequence[int]) -> dict[str, str]:
    """Return the value of a witness for a fault that is caused by parallel grid axes."""
    return {PARALLEL: ", ".join(map(str, axes))} if axes else {}


# Facts


@dataclass(frozen=True, kw_only=True)
class Access:
    """One side of a race.

    Attributes:
      loop: iterations of the enclosing loops, outermost first.
      copy: source and destination, if a copy accesses the memory instead of the core.
      semaphore: semaphore that the copy signals when it is done.
      from_device: device that started the copy, if it is not the device of the memory.
      is_to_self: whether it is a copy between devices from one device to itself.
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
    is_to_self: bool = False
    is_stored: bool = True
    is_next: bool = False

    @property
    def action(self) -> str:
        """Action of the pipeline."""
        return "refills the window" if self.writes else "writes back the window"

    @property
    def sender(self) -> int:
        return self.device if self.from_device is None else self.from_device

    def text(self, *, names_device: bool = False, names_core: bool = False) -> str:
        """Describe the access: `read at grid point (1,), loop iteration (2,)`."""
        verb = "written" if self.writes else "read"
        if not self.is_stored:
            verb = "written back without a store"
        by = f" by the copy of {self.copy[0]} to {self.copy[1]}" if self.copy else ""
        if self.copy and self.from_device is not None:
            by += f" from device {self.from_device}"
        on = f" (semaphore {self.semaphore})" if self.semaphore else ""
        places = [f" at grid point {self.grid_point}"] if self.grid_point else []
        places += [f" in loop iteration {self.loop}"] if self.loop else []
        at = ",".join(places) + (f" on core {self.core}" if names_core else "")
        return verb + by + on + at + (f" on device {self.device}" if names_device else "")

    @property
    def facts(self) -> dict[str, str]:
        """Return the access as values of a witness."""
        known = {
            "grid point": self.grid_point,
            "loop iteration": self.loop,
            "copy": self.copy and f"{self.copy[0]} to {self.copy[1]}",
            "semaphore": self.semaphore,
            "sender": None if self.from_device is None else f"device {self.from_device}",
        }
        return {name: str(value) for name, value in known.items() if value}


@dataclass(frozen=True, kw_only=True)
class Race:
    """Two unordered accesses.

    Attributes:
      was_filled: whether the memory held earlier data that the read was meant to see.
      axes: parallel axes along which the two grid points differ, if known.
      overlap: elements that both sides access, if fewer than the slice that is named.
      waited: semaphores on which a core waited between the start of the copy and its own access;
        None if unknown.
      alike: number of copies in flight on the copy's semaphore when it was waited for, if the wait
        took the bytes of fewer.
      heard: cores whose signals the core of `here` has waited for, if `there` is on another core of
        the device.
      was_empty: whether the memory is not known to have held anything before the writing copy.
      is_gpu: whether the grid points run at the same time on a GPU.
    """

    here: Access
    there: Access
    was_filled: bool = False
    axes: tuple[int, ...] = ()
    overlap: str | None = None
    waited: tuple[str, ...] | None = None
    alike: int = 1
    heard: frozenset[int] | None = None
    was_empty: bool = False
    is_gpu: bool = False

    def __str__(self) -> str:
        named = self.here.device != self.there.device
        cores = not named and self.here.core != self.there.core
        here, there = (
            side.text(names_device=named, names_core=cores) for side in (self.here, self.there)
        )
        return f"{here} here and {there} on the other side"

    @property
    def copy(self) -> Access | None:
        """The copy that takes part, or the first of two."""
        return next((side for side in (self.here, self.there) if side.copy), None)

    @property
    def dimensions(self) -> str:
        return ", ".join(map(str, self.axes))

    @property
    def of_copies(self) -> bool:
        return bool(self.here.copy and self.there.copy)

    @property
    def core_writes(self) -> bool:
        """True if a core writes memory that a copy accesses."""
        return any(side.writes for side in (self.here, self.there) if not side.copy)

    @property
    def is_known(self) -> bool:
        """True if it is known what was waited for, and a wait for the copy would have helped."""
        is_known = self.waited is not None and self.copy is not None and bool(self.copy.semaphore)
        return is_known and (self.core_writes or not self.was_filled)

    @property
    def writer(self) -> Access:
        return self.here if self.here.writes else self.there

    @property
    def awaited(self) -> list[str]:
        """Other semaphores that were waited for in place of the copy's."""
        return [name for name in dict.fromkeys(self.waited or ()) if name != self.copy_semaphore]

    @property
    def copy_semaphore(self) -> str | None:
        return None if self.copy is None else self.copy.semaphore

    @property
    def of_one_sender(self) -> bool:
        return self.of_copies and self.here.sender == self.there.sender

    @property
    def known_signals(self) -> str:
        """Signals that the core of `here` has waited for, as a clause."""
        heard = self.heard or frozenset()
        if self.there.core in heard:
            return (
                f"the signal of core {self.there.core} that it has waited for does not follow this "
                "write"
            )
        if heard == {self.here.core}:
            return "it has waited only for its own signal"
        cores = " and ".join(map(str, sorted(heard - {self.here.core})))
        if cores:
            return f"it has waited only for signals from core {cores}"
        return "it has not waited for any signal"

    @property
    def facts(self) -> dict[str, str]:
        """Return the race as values of a witness."""
        facts = {f"other {name}": value for name, value in self.there.facts.items()}
        facts |= of_axes(self.axes)
        facts |= {n: v for n, v in self.here.facts.items() if n in ("semaphore", "sender")}
        if self.overlap:
            facts["overlap"] = self.overlap
        if self.alike > 1:
            facts["under way"] = str(self.alike)
        if self.waited:
            facts["waited for"] = ", ".join(self.waited)
        return facts


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Amount that a line adds to a semaphore, or takes from it.

    Attributes:
      amount: sum over all executions; bytes for copies.
      points: number of grid points at which it ran.
      devices: devices that ran it, unless it is only the one with the semaphore.
    """

    line: SourceLine
    amount: int
    points: int
    devices: tuple[int, ...] = ()

    def __str__(self) -> str:
        by = f", by device {', '.join(map(str, self.devices))}" if self.devices else ""
        at = f" at {_plural(self.points, 'grid point')}"
        return f"{line_text(self.line)} ({self.amount:,}{at}{by})"


@dataclass(frozen=True, kw_only=True)
class Stuck:
    """Another thread that waits forever: for `needed` of a semaphore with value `count`."""

    semaphore: str
    count: int
    needed: int
    line: SourceLine | None = None
    device: int = 0
    core: int = 0
    grid_point: Point | None = None

    def __str__(self) -> str:
        at = f" at grid point {self.grid_point}" if self.grid_point else ""
        line = f" in {line_text(self.line)}" if self.line else ""
        core = f", core {self.core}," if self.core else ""
        return (
            f"device {self.device}{core} waits for {self.needed:,} on {self.semaphore}, which is "
            f"at {self.count:,},{line}{at}"
        ).rstrip(",")


class Amount(NamedTuple):
    """Number of things, with their name: bytes, copies, signals."""

    number: int
    one: str = ""
    many: str = ""

    def __str__(self) -> str:
        return _plural(self.number, self.one, self.many) if self.one else f"{self.number:,}"


def _plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


# Races

_PIECES = "let each of them write its own elements"
_SIGNAL = "let one side signal a semaphore that the other waits for"


def _race(cause: str, advice: str, when: Test | None = None) -> Case:
    message = "{what} is {race}; nothing orders the two{race.overlap:; both access %}"
    return Case(message, cause, advice, when)


_RACES = [
    _race(
        "the grid points of a kernel run at the same time on a GPU, in any order",
        "give each grid point its own elements, or make all accesses of shared ones atomic "
        "(plt.atomic_add), with initial values from outside of the kernel (input_output_aliases)",
        lambda f: f.race.axes and f.race.is_gpu,
    ),
    _race(
        "grid dimension {race.dimensions} is parallel, and the grid points of a parallel axis may "
        "run on several cores at once (v4 and v5p have two)",
        'give each grid point its own block, or make the axis "arbitrary" in dimension_semantics',
        lambda f: f.race.axes,
    ),
    _race(
        "cores {race.there.core} and {race.here.core} write the same elements, and no semaphore "
        "orders the writes",
        "let each core write its own elements, or let one signal a semaphore that the other waits "
        "for",
        lambda f: f.race.heard is not None and f.race.here.writes and f.race.there.writes,
    ),
    _race(
        "core {race.here.core} reads what core {race.there.core} writes, but {race.known_signals}",
        "after the write and its wait, let core {race.there.core} signal a semaphore of core "
        "{race.here.core} (core_index={race.here.core}), which waits for it before the read; or "
        "call pltpu.core_barrier on both cores in between",
        lambda f: f.race.heard is not None,
    ),
    _race(
        "the copy is still in flight when the pipeline {race.there.action}",
        "wait for {race.here.semaphore} before the grid point ends",
        lambda f: f.race.of_copies and f.race.there.is_next and f.race.here.semaphore,
    ),
    _race(
        "{race.alike} copies are in flight on {race.copy.semaphore}, but the wait before this "
        "access does not cover the bytes of all of them: any of them may be the one that has "
        "finished",
        "wait for all of them first, or give each copy its own semaphore",
        lambda f: f.race.alike > 1 and (f.race.there.writes or not f.race.of_copies),
    ),
    _race(
        "the copy on {race.there.semaphore} is still in flight when this one starts",
        "wait for {race.there.semaphore} before this copy starts, or " + _PIECES,
        lambda f: f.race.of_one_sender and f.race.there.semaphore,
    ),
    _race(
        "devices {race.here.sender} and {race.there.sender} both write there, and nothing orders "
        "the writes",
        "let each device write its own elements, or let one wait for a signal that the other's "
        "copy has arrived",
        lambda f: f.race.of_copies and f.race.here.writes and f.race.there.writes,
    ),
    _race(
        "device {race.writer.sender} sends to memory that device {race.here.device} copies from, "
        "and neither waits until the other is done",
        "if the data that arrives should be copied, wait for {race.writer.semaphore} before that "
        "copy starts; if not, receive into other elements, or let device {race.here.device} signal "
        "device {race.writer.sender} after its copy, which waits for that before it sends",
        lambda f: f.race.of_copies,
    ),
    _race(
        "two devices access the same memory",
        _SIGNAL,
        lambda f: f.race.copy is None and f.race.here.device != f.race.there.device,
    ),
    _race(
        "two cores access the same memory, and no semaphore orders the accesses",
        _SIGNAL,
        lambda f: f.race.copy is None,
    ),
    _race(
        "device {race.copy.from_device} sends to memory that device {race.copy.device} still uses, "
        "and is not notified when that use ends",
        "send to elements that device {race.copy.device} does not use, or let device "
        "{race.copy.device} signal device {race.copy.from_device} after the last access, which "
        "waits for that signal before it starts the copy",
        lambda f: f.race.copy.from_device is not None and (f.race.core_writes or f.race.was_filled),
    ),
    _race(
        "the wait before this access is for {race.awaited}, but the copy signals "
        "{race.copy.semaphore}",
        "wait for {race.copy.semaphore} before this access",
        lambda f: f.race.is_known and f.race.awaited == list(dict.fromkeys(f.race.waited)) != [],
    ),
    _race(
        "there is no wait between the start of the copy and this access; the copy signals "
        "{race.copy.semaphore}",
        "wait for {race.copy.semaphore} before this access",
        lambda f: f.race.is_known and not f.race.waited,
    ),
    _race(
        "the copy writes to a buffer that has yet to be read",
        "start the copy after the read, or use a second buffer",
        lambda f: f.race.was_filled and not f.race.core_writes,
    ),
    _race(
        "the copy is still in flight at this access",
        "wait for the copy before this line, or use another buffer",
    ),
]

_OVERLAP = Case(
    "the copy of {source} to {destination} reads {overlap}, which it also writes; nothing orders "
    "the two",
    "a copy moves its data in pieces, and may read what it has already written",
    "copy by way of a buffer in VMEM, or in several copies that do not overlap, and wait for each "
    "before the next starts",
    has("source", "overlap"),
)


_EARLY = [
    Case(
        "the copy of {source} from device {sender} writes {what} on device {receiver}, which may "
        "not have entered the kernel yet",
        "device {sender} has waited {heard}: until device {receiver} enters the kernel, its "
        "memory may be in use for something else",
        advice,
        when,
    )
    for advice, when in (
        (
            "wait for all signals before the copy: the signals of the barrier semaphore on device "
            "{sender} add up to {unheard[0]}, the waits to {unheard[1]}",
            has("receiver", "unheard"),
        ),
        (
            "let device {receiver} also signal device {sender}, and wait for all signals",
            has("receiver", "has_barrier"),
        ),
        (
            "first signal the barrier semaphore (pltpu.get_barrier_semaphore) of each neighbour "
            "and wait for as many signals; this requires collective_id in compiler_params",
            lambda f: f.receiver is not None,
        ),
    )
]

# Waits

_GOES_ON = (
    "the kernel may end before the copy does, leaving the semaphore raised for the next kernel"
)
_NOT_AWAITED = (
    "the copy of {source} to {destination} is never waited for on {semaphore}: {left:,} bytes are "
    "left on it when the kernel ends"
)
_ONCE = "wait once for each copy started; do not start a copy when nothing is left to fetch"
_LEFT = (
    "{semaphore}{device: on device %} is {count} at the end of the kernel, but must be 0: signals "
    "add up to {sums[0]}, waits to {sums[1]}{signals:; signalled in %}{waits:, waited for in %}"
)
_AS_OFTEN = "wait for {semaphore} as often as it is signalled: the next kernel inherits its count"
_NEVER_ENDS = (
    "{semaphore}{core: on core %}{device: on device %} is at {count}, but the wait needs {needed}"
    "{signals:; all signals add up to %}{waits:, all waits to %}{stuck:; nothing else can run: %}"
)
_UNDER_WAY = "{under_way:; copies on % have not been waited for yet}"
_SAME_SLICES = "wait with the descriptor that started the copy, or with one of the same slices"


def _stuck(cause: str, advice: str, when: Test | None = None) -> Case:
    return Case(_NEVER_ENDS, cause, advice, when)


_START = "start the copy before the wait, on the same semaphore"
_EACH = "signal it once for every wait, on the device and core that waits"

_DEADLOCKS = [
    Case(
        "{semaphore} is waited for at grid point {grid_point}, but {done} at {started}: the wait "
        "never ends if another core runs that grid point",
        "{cores}, and each core has its own semaphores and scratch",
        'make grid dimension {axes} "arbitrary", or start each copy and wait for it on the same '
        "core",
        has("started"),
    ),
    _stuck(
        "{act} in {sender[1]} on device {sender[0]}, which is blocked by an earlier wait",
        "on at least one side, send what the other side waits for before waiting for it",
        has("sender"),
    ),
    _stuck(
        "on {elsewhere[0]} it is at {elsewhere[1]}, which nothing has waited for: the {those} went "
        "there",
        "pass the device and core that wait (device_id, core_index), or wait on each for as many "
        "{those} as are sent to it",
        has("elsewhere"),
    ),
    _stuck(
        "the {those} on it, here and in the kernel that returned it, add up to less than the waits",
        "{each} for every wait, in one of these kernels",
        has("is_given"),
    ),
    _stuck(
        "{missing} missing: its copies transfer less than its waits take" + _UNDER_WAY,
        _SAME_SLICES,
        lambda f: f.of_copy and f.was_raised and f.count.number,
    ),
    _stuck(
        "no copy to {unstarted} has been started on it; others on it have all been waited for"
        + _UNDER_WAY,
        _START,
        has("of_copy", "was_raised", "unstarted"),
    ),
    _stuck(
        "all copies on it have already been waited for{earlier:, in %}: each start allows one wait"
        + _UNDER_WAY,
        "start a copy for this wait, too, or remove the wait: wait once for each copy started, "
        "with the same slices and the same semaphore",
        has("of_copy", "was_raised"),
    ),
    _stuck(f"no copy has been started on it before this wait{_UNDER_WAY}", _START, has("of_copy")),
    _stuck("it is never signalled", _EACH, lambda f: not f.was_raised and not f.signals),
    _stuck(
        "it is signalled too late",
        _EACH,
        lambda f: f.signals is not None and f.signals >= f.waits,
    ),
    _stuck("it is signalled less often than it is waited for", _EACH),
]

# Loops

_CLOSER = "check that every iteration brings the condition closer to being false; if the loop is"
_ENDLESS = "the loop has not ended after {count:,} iterations"
_SAME_STATE = (
    "the loop never ends: its condition sees the same values in iteration {count:,} as in "
    "iteration {since:,}{state:, with %}"
)
_CHANGE = "change {names} in the body so that the condition becomes false"

CASES: Mapping[Fault, Sequence[Case]] = {
    Fault.DATA_RACE: [_OVERLAP, *_EARLY, *_RACES],
    Fault.DMA_NOT_AWAITED: [
        Case(
            _NOT_AWAITED,
            f"{{starts}} started on {{semaphore}}, but nothing waits for it; {_GOES_ON}",
            "wait for {semaphore} before the kernel ends",
            lambda f: not f.waits.number,
        ),
        Case(
            _NOT_AWAITED,
            f"{{starts}} started on {{semaphore}}, but only {{waits}} waited for; {_GOES_ON}",
            _ONCE,
            lambda f: f.starts.number > f.waits.number,
        ),
        Case(_NOT_AWAITED, _GOES_ON, _ONCE),
    ],
    Fault.WAIT_SIZE_MISMATCH: [
        Case(
            "the wait on {semaphore} takes {awaited:,} bytes{descriptor:, the size of %}, but the "
            "copy of {source} to {destination} transfers {copied:,}",
            cause,
            _SAME_SLICES,
            when,
        )
        for cause, when in (
            (
                "the wait returns when {awaited:,} of {copied:,} bytes have arrived, and {rest:,} "
                "remain on {semaphore}",
                lambda f: f.awaited < f.copied,
            ),
            (
                "the wait takes {more:,} bytes more than the copy transfers: it ends only if "
                "another copy transfers them",
                None,
            ),
        )
    ],
    Fault.SEMAPHORE_LEFT_OVER: [
        Case(
            _LEFT,
            "it is signalled at {signalled_at}, but the wait in {fewest} is on a branch that runs "
            "at only {fewest_points}",
            _AS_OFTEN,
            has("fewest"),
        ),
        Case(_LEFT, "it is signalled more than it is waited for", _AS_OFTEN, has("waits")),
        Case(_LEFT, "nothing waits for it", _AS_OFTEN),
    ],
    Fault.NONDETERMINISTIC_RESULT: [
        Case(
            "{element} is {one} if {first} comes first, but {other_value} if {second} does; "
            "{differ:,} of {size:,} elements differ",
            "nothing orders {first} and {second}",
            advice,
            when,
        )
        for advice, when in (
            (
                "wait for one copy before starting the other, or give each its own buffer",
                has("of_copies"),
            ),
            ("where its value matters, wait for {reads} instead of reading it", has("reads")),
            ("let one side signal a semaphore that the other waits for", None),
        )
    ],
    Fault.OUTPUT_REVISITED: [
        Case(
            "{what} is visited {visits} and again at grid point {again}, with another block in "
            "between: its contents have left VMEM",
            cause,
            advice,
            when,
        )
        for cause, advice, when in (
            (
                "the table that the index map reads names the block twice, with another block in "
                "between; an output block is written back when the next one begins",
                "sort the table so that all grid points of a block are consecutive",
                # No order of axes joins the visits.
                lambda f: f.from_table and f.last[:-1] == f.again[:-1],
            ),
            (
                "an output block is written back when the next one begins, and is never read back",
                "put the grid axes along which the block stays the same last",
                None,
            ),
        )
    ],
    Fault.DEADLOCK: _DEADLOCKS,
    Fault.ENDLESS_LOOP: [
        Case(
            _SAME_STATE,
            "nothing that the condition depends on changes from one iteration to the next",
            _CHANGE,
            lambda f: f.since is not None and f.count == f.since + 1,
        ),
        Case(
            _SAME_STATE,
            # Values that are compared only occasionally may have changed and changed back.
            "the body restores the values that the condition depends on, or never changes them",
            _CHANGE,
            lambda f: f.since is not None,
        ),
        Case(
            _ENDLESS + " and {seconds:.0f} s{state:, with %}{unchanged:; its body never changes %}",
            None,
            f"{_CLOSER} meant to be this long, allow it more seconds: --pallas-hang under pytest, "
            "hang_after in code",
            lambda f: f.seconds is not None,
        ),
        Case(
            _ENDLESS + "{state:, with %}{unchanged:; its body never changes %}",
            "the kernel machine stops every loop at this limit",
            f"{_CLOSER} meant to be this long, use smaller arguments here",
        ),
    ],
}

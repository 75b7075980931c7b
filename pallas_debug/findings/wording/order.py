"""Wording of ordering faults: races, order-dependent results, revisited blocks, loops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pallas_debug.findings.facts import Point
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.model import Finding

PIPELINE, WRITES_BACK = "pipeline", "writes back the window"
"""Name and value in a witness: the other side of a race is the pipeline, writing a window back."""

SIDES, COPIES, WRITES = "both sides", "copies", "copies that write"
"""Name and values in a witness: both sides of a race are copies, possibly both writing."""

UNDER_WAY = "under way"
"""Name in a witness: number of copies in flight on a semaphore when it was waited for."""

CORES = "cores"
"""Name in a witness: cores of both sides of a race, if they differ."""

PARALLEL = "parallel dimensions"
"""Name in a witness: grid dimensions that would avoid the fault if they were sequential."""


def of_axes(axes: Iterable[int]) -> dict[str, str]:
    """Return the value of a witness for a fault that is caused by parallel grid axes."""
    numbers = ", ".join(map(str, axes))
    return {PARALLEL: numbers} if numbers else {}


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

    def text(self, *, names_device: bool = False, names_core: bool = False) -> str:
        """Describe the access: `read at grid point (1,), loop iteration (2,)`."""
        verb = "written" if self.writes else "read"
        if not self.is_stored:
            verb = "written back without a store"
        by = f" by the copy of {self.copy[0]} to {self.copy[1]}" if self.copy else ""
        if self.copy and self.from_device is not None:
            by += f" from device {self.from_device}"
        on = f" (semaphore {self.semaphore})" if self.semaphore else ""
        where = []
        if self.grid_point:
            where.append(f" at grid point {self.grid_point}")
        if self.loop:
            where.append(f" in loop iteration {self.loop}")
        at = ",".join(where)
        at += f" on core {self.core}" if names_core else ""
        return verb + by + on + at + (f" on device {self.device}" if names_device else "")

    @property
    def action(self) -> str:
        """Action of the pipeline, such as `writes back the window`."""
        return "refills the window" if self.writes else WRITES_BACK

    @property
    def facts(self) -> dict[str, str]:
        """Return the access as values of a witness."""
        facts = {}
        if self.grid_point:
            facts["grid point"] = str(self.grid_point)
        if self.loop:
            facts["loop iteration"] = str(self.loop)
        if self.copy:
            facts["copy"] = f"{self.copy[0]} to {self.copy[1]}"
        if self.semaphore:
            facts["semaphore"] = self.semaphore
        if self.from_device is not None:
            facts["sender"] = f"device {self.from_device}"
        return facts


_RACES = {
    "parallel": (
        "the grid points of a parallel axis may run on several cores at once (v4 and v5p have two)",
        'give each grid point its own block, or make the axis "arbitrary" in dimension_semantics',
    ),
    "programs": (
        "the grid points of a kernel run at the same time on a GPU, in any order",
        "give each grid point its own elements, or make all accesses of shared ones atomic "
        "(plt.atomic_add), with initial values from outside of the kernel (input_output_aliases)",
    ),
    "devices": (
        "two devices access the same memory",
        "let one side signal a semaphore that the other waits for",
    ),
    "cores": (
        "two cores access the same memory, and no semaphore orders the accesses",
        "let one side signal a semaphore that the other waits for",
    ),
    "copies": ("two copies are in flight at once", "wait for one copy before starting the other"),
    "written": (
        "the copy is still in flight when its buffer is written",
        "wait for the copy before this line, or write to another buffer",
    ),
    "unread": (
        "the copy writes to a buffer that has yet to be read",
        "start the copy after the read, or use a second buffer",
    ),
    "early": (
        "copied data is available only after the wait",
        "wait for the copy before this line",
    ),
}


def data_race(
    seen: Sighting, *, what: str, here: Access, there: Access, was_filled: bool = False,
    axes: tuple[int, ...] = (), overlap: str | None = None, waited: tuple[str, ...] | None = None,
    alike: int = 1, heard_cores: frozenset[int] | None = None, was_empty: bool = False,
    is_gpu: bool = False,
) -> Finding:  # fmt: skip
    """Report two unordered accesses.

    Args:
      what: slice or block, with its shape.
      was_filled: whether the memory held earlier data that the read was meant to see.
      axes: parallel axes along which the two grid points differ, if known.
      overlap: elements that both sides access, if fewer than `what`.
      waited: semaphores on which a core waited between the start of the copy and its own access;
        None if unknown.
      alike: number of copies in flight on the copy's semaphore when it was waited for, if the wait
        took the bytes of fewer.
      heard_cores: cores whose signals the core of `here` has waited for, if `there` is on another
        core of the device.
      was_empty: whether the memory is not known to have held anything before the writing copy.
      is_gpu: whether the grid points run at the same time on a GPU.
    """
    why = "parallel" if axes else _why(here, there, was_filled)
    cause, advice = _RACES[why]
    if why == "copies" and here.copy and there.copy:
        cause, advice = _between_copies(here, there, was_empty) or (cause, advice)
        if there.writes and alike > 1:
            cause, advice = _wrong_wait(there, why, waited, alike) or (cause, advice)
    if why == "copies" and there.is_next and here.semaphore:
        cause = f"the copy is still in flight when the pipeline {there.action}"
        advice = f"wait for {here.semaphore} before the grid point ends"
    if axes and is_gpu:
        cause, advice = _RACES["programs"]
    elif axes:
        cause = f"grid dimension {', '.join(map(str, axes))} is parallel, and {cause}"
    copy = here if here.copy else there if there.copy else None
    if copy is not None and why != "copies":
        cause, advice = _wrong_wait(copy, why, waited, alike) or (cause, advice)
    if heard_cores is not None and not axes:
        cause, advice = _between_cores(here, there, heard_cores)
    named = here.device != there.device
    cores = not named and here.core != there.core
    facts = {f"other {name}": value for name, value in there.facts.items()} | of_axes(axes)
    if here.copy and there.copy and not there.is_next:
        facts[SIDES] = WRITES if here.writes and there.writes else COPIES
    if there.is_next:
        facts[PIPELINE] = there.action
    if here.semaphore:
        facts["semaphore"] = here.semaphore
    if here.from_device is not None:
        facts["sender"] = f"device {here.from_device}"
    if cores:
        facts[CORES] = f"{here.core}, {there.core}"
    if overlap:
        facts["overlap"] = overlap
    if alike > 1:
        facts[UNDER_WAY] = str(alike)
    if waited:
        facts["waited for"] = ", ".join(waited)
    sides = [side.text(names_device=named, names_core=cores) for side in (here, there)]
    shared = f"; both access {overlap}" if overlap else ""
    return seen.with_values(facts).found(
        Fault.DATA_RACE,
        f"{what} is {sides[0]} here and {sides[1]} on the other side; nothing orders the "
        f"two{shared}",
        cause,
        advice,
    )


def _between_copies(here: Access, there: Access, was_empty: bool) -> tuple[str, str] | None:
    """Return cause and advice for two copies; `there` was started first."""
    device = here.device
    senders = [device if side.from_device is None else side.from_device for side in (here, there)]
    if senders[0] == senders[1]:
        return _of_one_device(here, there)
    if here.writes and there.writes:
        return (
            f"devices {senders[0]} and {senders[1]} both write there, and nothing orders the "
            "writes",
            "let each device write its own elements, or let one wait for a signal that the "
            "other's copy has arrived",
        )
    writer = senders[0] if here.writes else senders[1]
    reader = senders[1] if here.writes else senders[0]
    if reader != device or writer == device:
        return None
    apart = (
        f"receive into elements that are not copied; or let device {device}, once it has waited "
        f"for its copy, signal device {writer}, which waits for that signal before it sends"
    )
    if there.writes or was_empty:
        arrival, sending = (here, "the other copy") if here.writes else (there, "this copy")
        return (
            f"device {device} may copy either the previous data or what device {writer} sends "
            "there",
            f"if it should copy the data that arrives, wait for {arrival.semaphore or 'it'} "
            f"before {sending} starts; if not, {apart}",
        )
    return (
        f"device {writer} sends to memory that device {device} is still copying from, and is not "
        "notified when that copy is done",
        apart,
    )


def _of_one_device(here: Access, there: Access) -> tuple[str, str] | None:
    if not there.semaphore or (here.core, here.device) != (there.core, there.device):
        return None
    other = f"the copy on {there.semaphore}"
    wait = f"wait for {there.semaphore} before this copy starts"
    if here.is_to_self and here.writes:
        return (
            f"device {here.device} sends this copy to itself, where {other} also "
            f"{'writes' if there.writes else 'reads'}",
            f"pass the receiving device as device_id or, if it is this one, {wait}",
        )
    if not there.writes:
        return f"{other} may still be reading the data that this one overwrites", wait
    if here.writes:
        return (
            f"{other} also writes there, and may arrive last",
            f"{wait}, or let each of them write its own elements",
        )
    return f"this copy reads data that {other} may not have delivered yet", wait


def _between_cores(here: Access, there: Access, heard: frozenset[int]) -> tuple[str, str]:
    """Return cause and advice for memory shared by cores; `here` should have waited for `there`."""
    if here.writes and there.writes:
        return (
            f"cores {there.core} and {here.core} write the same elements, and no semaphore orders "
            "the writes",
            "let each core write its own elements, or let one signal a semaphore that the other "
            "waits for",
        )
    if there.core in heard:
        known = f"the signal of core {there.core} that it has waited for does not follow this write"
    elif heard == {here.core}:
        known = "it has waited only for its own signal"
    elif heard:
        cores = " and ".join(map(str, sorted(heard - {here.core})))
        known = f"it has waited for signals from core {cores}"
    else:
        known = "it has not waited for any signal"
    return (
        f"core {here.core} reads what core {there.core} writes, but {known}",
        f"after the write and its wait, let core {there.core} signal a semaphore of core "
        f"{here.core} (core_index={here.core}), which waits for it before the read; or call "
        "pltpu.core_barrier on both cores in between",
    )


def _wrong_wait(
    copy: Access, why: str, waited: tuple[str, ...] | None, alike: int
) -> tuple[str, str] | None:
    """Return cause and advice, if it is known what was waited for instead of the copy."""
    if alike > 1:
        return (
            f"{alike} copies are in flight on {copy.semaphore}, but the wait before this access "
            "does not cover the bytes of all of them: any of them may be the one that has finished",
            "wait for all of them first, or give each copy its own semaphore",
        )
    if waited is None or copy.semaphore is None:
        return None
    if why == "unread" or (copy.from_device is not None and why == "written"):
        if copy.from_device is None:
            return None
        signal = (
            f"after the last access, let device {copy.device} signal device {copy.from_device}, "
            "which waits for that signal before it starts the copy"
        )
        if why == "written":
            return (
                f"device {copy.from_device} sends to memory that device {copy.device} stores to, "
                "and is not notified when that store is done",
                f"send to elements that device {copy.device} does not store to, or {signal}",
            )
        return (
            f"device {copy.from_device} sends while the previous data is still in use on device "
            f"{copy.device}, and is not notified when that use ends",
            signal,
        )
    if copy.semaphore in waited:
        return None  # the wait took the bytes of an earlier copy
    if waited:
        advice = f"wait for {copy.semaphore} before this access"
        array = _array(copy.semaphore)
        slots = [name for name in dict.fromkeys(waited) if _array(name) == array]
        if slots and copy.from_device is None:
            advice += f", or access the slot of {' and '.join(slots)}"
        return (
            f"the wait before this access is for {' and '.join(dict.fromkeys(waited))}, but the "
            f"copy signals {copy.semaphore}",
            advice,
        )
    return (
        f"there is no wait between the start of the copy and this access; the copy signals "
        f"{copy.semaphore}",
        f"wait for {copy.semaphore} before this access",
    )


def _array(semaphore: str) -> str:
    return semaphore.partition("[")[0]


def _why(
    here: Access, there: Access, was_filled: bool
) -> Literal["parallel", "cores", "devices", "copies", "written", "unread", "early"]:
    sides = [access for access in (here, there) if access.copy is None]
    if not sides:
        return "copies"
    if len(sides) == 2:
        if here.device != there.device:
            return "devices"
        return "parallel" if here.core == there.core else "cores"
    if sides[0].writes:
        return "written"
    return "unread" if was_filled else "early"


def nondeterministic_result(
    seen: Sighting, *, element: str, one: str, other: str, first: str, second: str,
    differ: int, size: int, of_copies: bool = False, reads: str | None = None,
) -> Finding:  # fmt: skip
    """Report an output that depends on the order of two events.

    Args:
      element: first element that differs: `out_ref[3, 7]`.
      one: its value if `first` comes before `second`.
      other: its value if `second` comes before `first`.
      first, second: the events: `the copy of x_ref to tile_ref`.
      differ: number of differing elements, out of `size`.
      of_copies: whether both events are copies.
      reads: semaphore, if the second event is a read of it.
    """
    facts = {"one order": one, "other order": other}
    advice = "let one side signal a semaphore that the other waits for"
    if of_copies:
        advice = "wait for one copy before starting the other, or give each its own buffer"
    elif reads is not None:
        advice = f"where its value matters, wait for {reads} instead of reading it"
    return seen.with_values(facts).found(
        Fault.NONDETERMINISTIC_RESULT,
        f"{element} is {one} if {first} comes first, but {other} if {second} does; {differ:,} of "
        f"{size:,} elements differ",
        f"nothing orders {first} and {second}",
        advice,
    )


def output_revisited(
    seen: Sighting, *, what: str, first: Point, last: Point, again: Point, from_table: bool = False
) -> Finding:
    """Report an output block that is revisited after another; it was visited `first` to `last`.

    Args:
      from_table: whether the index map reads scalar prefetch.
    """
    visits = f"at grid point {first}" if first == last else f"at grid points {first} to {last}"
    facts = {"first visit": str(first), "last visit": str(last)}
    cause = "an output block is written back when the next one begins, and is never read back"
    advice = "put the grid axes along which the block stays the same last"
    if from_table and last[:-1] == again[:-1]:  # no order of axes joins the visits
        cause = "the table that the index map reads names the block twice, with another block in "
        cause += "between; an output block is written back when the next one begins"
        advice = "sort the table so that all grid points of a block are consecutive"
    return seen.with_values(facts).found(
        Fault.OUTPUT_REVISITED,
        f"{what} is visited {visits} and again at grid point {again}, with another block in "
        "between: its contents have left VMEM",
        cause,
        advice,
    )


def endless_loop(
    seen: Sighting,
    *,
    count: int,
    values: Mapping[str, str],
    since: int | None,
    seconds: float | None = None,
    unchanged: Sequence[str] = (),
) -> Finding:
    """Report a loop that was stopped.

    Args:
      count: number of iterations so far.
      seconds: duration of these iterations; None if the loop is stopped at an iteration limit.
      values: values that its condition depends on, by name.
      since: an earlier iteration with the same values, if nothing else can end the loop.
      unchanged: names of the values that the body returns unchanged.
    """
    names = ", ".join(values) or "the values it reads"
    shown = ", ".join(f"{name} = {value}" for name, value in values.items())
    state = f", with {shown}" if shown else ""
    if since is None and unchanged:
        state += f"; its body never changes {' and '.join(unchanged)}"
    if since is not None:
        # Values that are compared only occasionally may have changed in between, and changed back.
        cause = (
            "nothing that the condition depends on changes from one iteration to the next"
            if count == since + 1
            else "the body restores the values that the condition depends on, or never changes them"
        )
        return seen.found(
            Fault.ENDLESS_LOOP,
            f"the loop never ends: its condition sees the same values in iteration {count} as in "
            f"iteration {since}{state}",
            cause,
            f"change {names} in the body so that the condition becomes false",
        )
    closer = "check that every iteration brings the condition closer to being false"
    if seconds is None:
        return seen.found(
            Fault.ENDLESS_LOOP,
            f"the loop has not ended after {count:,} iterations{state}",
            "the kernel machine stops every loop at this limit",
            f"{closer}; if the loop is meant to be this long, use smaller arguments here",
        )
    return seen.found(
        Fault.ENDLESS_LOOP,
        f"the loop has not ended after {count:,} iterations and {seconds:.0f} s{state}",
        None,
        f"{closer}; if the loop is meant to be this long, allow it more seconds: "
        "--pallas-hang under pytest, hang_after in code",
    )

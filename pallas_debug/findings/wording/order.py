"""Wording of ordering and counting faults: races, revisited blocks, copies, semaphores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting, Wording
from pallas_debug.model import Finding

Point = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Access:
    """One side of a race.

    Attributes:
      loop: iterations of the loops around it, outermost first.
      copy: source and destination, if a copy accesses the memory rather than the core.
      semaphore: what the copy signals when it is done.
    """

    writes: bool
    grid_point: Point | None = None
    loop: Point = ()
    device: int = 0
    copy: tuple[str, str] | None = None
    semaphore: str | None = None

    def text(self, *, names_device: bool = False) -> str:
        """`read at grid point (1,), loop iteration (2,)`."""
        verb = "written" if self.writes else "read"
        by = f" by the copy of {self.copy[0]} to {self.copy[1]}" if self.copy else ""
        on = f" (semaphore {self.semaphore})" if self.semaphore else ""
        where = []
        if self.grid_point:
            where.append(f" at grid point {self.grid_point}")
        if self.loop:
            where.append(f" in loop iteration {self.loop}")
        at = ",".join(where)
        return verb + by + on + at + (f" on device {self.device}" if names_device else "")

    @property
    def facts(self) -> dict[str, str]:
        """The same as values of a witness."""
        facts = {}
        if self.grid_point:
            facts["grid point"] = str(self.grid_point)
        if self.loop:
            facts["loop iteration"] = str(self.loop)
        if self.copy:
            facts["copy"] = f"{self.copy[0]} to {self.copy[1]}"
        if self.semaphore:
            facts["semaphore"] = self.semaphore
        return facts


_RACES = {
    "parallel": (
        "the grid points of a parallel axis run on several cores at once (v4 and v5p have two)",
        'give each grid point a block of its own, or make the axis "arbitrary" in '
        "dimension_semantics",
    ),
    "devices": (
        "two devices touch the same memory",
        "let one signal a semaphore that the other waits for",
    ),
    "copies": ("two copies are under way at once", "wait for one before the other starts"),
    "written": (
        "the copy is still under way when its buffer is written",
        "wait for the copy before this line, or write to another buffer",
    ),
    "unread": (
        "the copy writes into a buffer that is still to be read",
        "start the copy after the read, or give it a second buffer",
    ),
    "early": (
        "what a copy brings is there only after its wait",
        "wait for the copy before this line",
    ),
}


def data_race(
    seen: Sighting, *, what: str, here: Access, there: Access, was_filled: bool = False,
    axes: tuple[int, ...] = (),
) -> Finding:  # fmt: skip
    """Two accesses that nothing orders.

    Args:
      what: the slice or block, with its shape.
      was_filled: whether earlier data was there that the read was meant to see.
      axes: parallel axes in which the two grid points differ, if known.
    """
    cause, advice = _RACES[_why(here, there, was_filled)]
    if axes:
        cause = f"grid dimension {', '.join(map(str, axes))} is parallel, and {cause}"
    named = here.device != there.device
    facts = {f"other {name}": value for name, value in there.facts.items()}
    if here.semaphore:
        facts["semaphore"] = here.semaphore
    return seen.at(values={**seen.witness.values, **facts}).found(
        Fault.DATA_RACE,
        Wording(
            f"{what} is {here.text(names_device=named)} here, and {there.text(names_device=named)} "
            "on the other side; nothing orders the two",
            cause,
            advice,
        ),
    )


def _why(
    here: Access, there: Access, was_filled: bool
) -> Literal["parallel", "devices", "copies", "written", "unread", "early"]:
    cores = [access for access in (here, there) if access.copy is None]
    if not cores:
        return "copies"
    if len(cores) == 2:
        return "parallel" if here.device == there.device else "devices"
    if cores[0].writes:
        return "written"
    return "unread" if was_filled else "early"


def output_revisited(
    seen: Sighting, *, what: str, first: Point, last: Point, again: Point
) -> Finding:
    """An output block that is visited again after another one; it was visited `first` to `last`."""
    visits = f"at grid point {first}" if first == last else f"at grid points {first} to {last}"
    facts = {"first visit": str(first), "last visit": str(last)}
    return seen.at(values={**seen.witness.values, **facts}).found(
        Fault.OUTPUT_REVISITED,
        Wording(
            f"{what} is the output block again at grid point {again}, as it was {visits}, with "
            "another block in between: what it held has left VMEM",
            "an output block is written back when another one comes, and is never read back",
            "make the grid axes over which the block stays the same the last ones",
        ),
    )


def copy_not_awaited(
    seen: Sighting, *, semaphore: str, source: str, destination: str, left: int | None = None
) -> Finding:
    """A copy that is started but never waited for; `left` is in bytes."""
    rest = "" if left is None else f": {left:,} bytes of it are left at the end"
    return seen.found(
        Fault.DMA_NOT_AWAITED,
        Wording(
            f"the copy of {source} to {destination} is never waited for on {semaphore}{rest}",
            "the kernel may be over before the copy is, and the next kernel finds the semaphore "
            "raised",
            "wait once for each start; where the last step has nothing to fetch, do not start",
        ),
    )


def semaphore_left_over(
    seen: Sighting, *, semaphore: str, count: int, is_awaited: bool,
    totals: tuple[int, int] | None = None,
) -> Finding:  # fmt: skip
    """A semaphore with a nonzero count at the end; `totals` are of signals and waits."""
    sums = "" if totals is None else f": signals add up to {totals[0]}, waits to {totals[1]}"
    return seen.found(
        Fault.SEMAPHORE_LEFT_OVER,
        Wording(
            f"{semaphore} is {count} at the end of the kernel, and has to be 0{sums}",
            "it is signalled more than it is waited for" if is_awaited else "nothing waits for it",
            f"wait for {semaphore} as often as it is signalled: the next kernel inherits it",
        ),
    )


def deadlock(
    seen: Sighting, *, semaphore: str, count: int, needed: int, of_copy: bool, was_raised: bool,
    totals: tuple[int, int] | None = None, device: int = 0, others: int = 0,
) -> Finding:  # fmt: skip
    """A wait that never ends.

    Args:
      count: value of the semaphore; bytes, if the wait is for a copy.
      needed: amount that the wait takes, in the same unit.
      was_raised: whether a copy was started on it, or a signal sent, before.
      totals: sums of all signals and of all waits, if known.
      others: number of other threads stuck in a wait.
    """
    unit = " bytes" if of_copy else ""
    on = f" on device {device}" if device else ""
    message = f"{semaphore}{on} is {count}{unit}, and the wait needs {needed}{unit}"
    if totals is not None:
        message += f"; all signals add up to {totals[0]}, all waits to {totals[1]}"
    if others:
        message += f"; {others} more {'thread waits' if others == 1 else 'threads wait'} as well"
    if of_copy and was_raised:
        cause = "the copies on it were all waited for before: a start is good for one wait"
        advice = "wait once for each start, with the same slices and the same semaphore"
    elif of_copy:
        cause = "the copy was started on another semaphore, later, or not at all"
        advice = "start the copy before the wait, on the same semaphore"
    else:
        late = totals is not None and totals[0] >= totals[1]
        never = not was_raised and not (totals and totals[0])
        cause = (
            "it is never signalled"
            if never
            else "it is signalled too late"
            if late
            else "it is signalled less often than it is waited for"
        )
        advice = "signal it once for every wait, on the device and core that waits"
    facts = {"count": str(count), "awaited": str(needed)}
    if totals is not None:
        facts |= {"signals": str(totals[0]), "waits": str(totals[1])}
    seen = seen.at(values={**seen.witness.values, **facts})
    return seen.found(Fault.DEADLOCK, Wording(message, cause, advice))


def endless_loop(
    seen: Sighting, *, count: int, seconds: float, values: Mapping[str, str], since: int | None
) -> Finding:
    """A loop that was stopped.

    Args:
      count: iterations so far.
      values: what its condition depends on, by name.
      since: an earlier iteration with the same values, if nothing else can end the loop.
    """
    names = ", ".join(values) or "what it reads"
    shown = ", ".join(f"{name} = {value}" for name, value in values.items())
    state = f", with {shown}" if shown else ""
    if since is not None:
        return seen.found(
            Fault.ENDLESS_LOOP,
            Wording(
                f"the loop has no end: in iteration {count} its condition sees what it saw in "
                f"iteration {since}{state}",
                "nothing that the condition depends on changes from one iteration to the next",
                f"change {names} in the body, so that the condition becomes false",
            ),
        )
    return seen.found(
        Fault.ENDLESS_LOOP,
        Wording(
            f"the loop has not ended after {count:,} iterations and {seconds:.0f} s{state}",
            None,
            "check that every iteration brings the condition closer to being false; if the loop is "
            "meant to be this long, allow it more seconds: --pallas-hang under pytest, hang_after "
            "in code",
        ),
    )

"""Wording of unbalanced counts: copies and their waits, semaphores, deadlocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pallas_debug.findings.facts import Point, line_text, listed, two_cores
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording.order import SIDES, of_axes
from pallas_debug.model import Finding, SourceLine

SIGNALLED_BY = "signalled by"
"""Name in a witness: other devices that signal a left-over semaphore, unless it is the barrier."""


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


NOT_AWAITED = "not awaited"
"""Name in a witness: other semaphores, with copies that nothing has waited for yet."""


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


def overlapping_copy(seen: Sighting, *, copy: tuple[str, str], overlap: str) -> Finding:
    """Report a copy within one array that writes elements of its own source.

    Args:
      copy: source and destination.
      overlap: elements that it both reads and writes.
    """
    return seen.with_values({"overlap": overlap}).found(
        Fault.DATA_RACE,
        f"the copy of {copy[0]} to {copy[1]} reads {overlap}, which it also writes; nothing orders "
        "the two",
        "a copy moves its data in pieces, and may read what it has already written",
        "copy by way of a buffer in VMEM, or in several copies that do not overlap, and wait for "
        "each before the next starts",
    )


def copy_not_awaited(
    seen: Sighting, *, semaphore: str, source: str, destination: str, left: int | None = None,
    starts: int | None = None, waits: int | None = None,
) -> Finding:  # fmt: skip
    """Report a copy that is started but never waited for.

    Args:
      left: bytes that nothing waits for.
      starts, waits: number of copies started on this semaphore and of waits for one, if known.
    """
    rest = "" if left is None else f": {left:,} bytes are left on it when the kernel ends"
    cause = (
        "the kernel may end before the copy does, leaving the semaphore raised for the next kernel"
    )
    advice = "wait once for each copy started; do not start a copy when nothing is left to fetch"
    facts = {"semaphore": semaphore}
    if starts is not None and waits is not None:
        facts |= {"starts": str(starts), "waits": str(waits)}
        if not waits:
            count = _plural(starts, "copy is", "copies are")
            cause = f"{count} started on {semaphore}, but nothing waits for it; {cause}"
            advice = f"wait for {semaphore} before the kernel ends"
        elif starts > waits:
            cause = (
                f"{_plural(starts, 'copy is', 'copies are')} started on {semaphore}, but only "
                f"{_plural(waits, 'is', 'are')} waited for; {cause}"
            )
    return seen.with_values(facts).found(
        Fault.DMA_NOT_AWAITED,
        f"the copy of {source} to {destination} is never waited for on {semaphore}{rest}",
        cause,
        advice,
    )


def of_unawaited_copy(race: Finding, unawaited: Finding) -> Finding:
    """Reword a race with a copy that nothing waits for.

    Args:
      unawaited: `DmaNotAwaited` finding of that copy.
    """
    semaphore, waits = unawaited.values["semaphore"], unawaited.values.get("waits")
    cause = f"a copy on {semaphore} is never waited for, so it"
    if waits == "0":
        cause = f"nothing waits for {semaphore}, so the copy on it"
    elif waits is not None:
        starts = unawaited.values["starts"]
        counted = _plural(int(waits), "is", "are")
        only = "only " if int(waits) < int(starts) else ""
        cause = (
            f"{starts} copies are started on {semaphore}, but {only}{counted} waited for, so one"
        )
    here, other = race.values.get("semaphore"), race.other
    is_here = here == semaphore and unawaited.source == race.source
    if SIDES not in race.values:
        user = f"line {other.line}" if here is not None and other else "this line"
    elif not is_here or unawaited.source == other:
        user = "this copy starts"
    else:
        user = f"the copy in line {other.line} starts" if other else "the other copy starts"
    return replace(
        race,
        cause=f"{cause} may be in flight until the kernel ends or longer",
        advice=f"wait for {semaphore} before {user}",
    )


def wait_size_mismatch(
    seen: Sighting, *, semaphore: str, copied: int, awaited: int, source: str, destination: str,
    descriptor: str | None = None,
) -> Finding:  # fmt: skip
    """Report a wait for a number of bytes other than that of the copy on its semaphore.

    Args:
      copied, awaited: number of bytes of the copy and of the wait.
      source, destination: slices of the copy.
      descriptor: slice from which the wait gets its size.
    """
    of = f", the size of {descriptor}," if descriptor else ","
    facts = {"copied bytes": str(copied), "awaited bytes": str(awaited)}
    if awaited < copied:
        cause = (
            f"the wait returns when {awaited:,} of {copied:,} bytes have arrived, and "
            f"{copied - awaited:,} remain on {semaphore}"
        )
    else:
        cause = (
            f"the wait takes {awaited - copied:,} bytes more than the copy transfers: it ends "
            "only if another copy transfers them"
        )
    return seen.with_values(facts).found(
        Fault.WAIT_SIZE_MISMATCH,
        f"the wait on {semaphore} takes {awaited:,} bytes{of} but the copy of {source} to "
        f"{destination} transfers {copied:,}",
        cause,
        "wait with the descriptor that started the copy, or with one of the same slices",
    )


def semaphore_left_over(
    seen: Sighting, *, semaphore: str, count: int, is_awaited: bool,
    totals: tuple[int, int] | None = None, device: int = 0,
    signals: Sequence[Tally] = (), waits: Sequence[Tally] = (),
) -> Finding:  # fmt: skip
    """Report a semaphore with a nonzero count at the end.

    Args:
      totals: sums of all signals and all waits, if known.
      device: device of the semaphore.
      signals, waits: lines that raised and lowered it.
    """
    on = f" on device {device}" if device else ""
    sums = "" if totals is None else f": signals add up to {totals[0]}, waits to {totals[1]}"
    lines = ""
    if signals:
        lines = f"; signalled in {_listed(signals)}"
        lines += f", waited for in {_listed(waits)}" if waits else ""
    cause = "it is signalled more than it is waited for" if is_awaited else "nothing waits for it"
    if waits and len(signals) == 1 and signals[0].points > min(wait.points for wait in waits):
        fewest = min(waits, key=lambda wait: wait.points)
        cause = (
            f"it is signalled at {_plural(signals[0].points, 'grid point')}, but the wait in "
            f"{line_text(fewest.line)} is on a branch that runs at only {fewest.points}"
        )
    return seen.found(
        Fault.SEMAPHORE_LEFT_OVER,
        f"{semaphore}{on} is {count} at the end of the kernel, but must be 0{sums}{lines}",
        cause,
        f"wait for {semaphore} as often as it is signalled: the next kernel inherits its count",
    )


def deadlock(
    seen: Sighting, *, semaphore: str, count: int, needed: int, of_copy: bool, was_raised: bool,
    totals: tuple[int, int] | None = None, device: int = 0, others: int = 0,
    stuck: Sequence[Stuck] = (), sender: tuple[int, SourceLine] | None = None,
    elsewhere: tuple[int, int] | None = None, earlier: SourceLine | None = None,
    is_given: bool = False, core: int = 0, on_core: tuple[int, int] | None = None,
    axes: Sequence[int] = (), under_way: Sequence[str] = (),
    unstarted: tuple[str, Sequence[str]] | None = None,
) -> Finding:  # fmt: skip
    """Report a wait that never ends.

    Args:
      count: value of the semaphore, in bytes if the wait is for a copy.
      needed: amount that the wait takes, in the same unit.
      was_raised: whether a copy was started on it, or a signal sent, beforehand.
      totals: sums of all signals and all waits, if known.
      others: number of other threads that wait forever.
      stuck: these threads, if known.
      sender: device and line of a signal or copy that would end the wait, in a thread that is
        blocked before it.
      elsewhere: device and count of the same semaphore on another device, if it is not zero.
      earlier: line that waited for the same copy earlier.
      is_given: whether another kernel returned the semaphore.
      core: core that waits.
      on_core: core and count of the same semaphore on another core, if it is not zero.
      axes: parallel grid axes along which the grid points of both waits differ.
      under_way: semaphores of the device with copies that nothing has waited for yet.
      unstarted: destination of the wait, if no copy on the semaphore fills it, and the destinations
        of those copies.
    """

    def amount(number: int) -> str:
        return _plural(number, "byte") if of_copy else f"{number:,}"

    on = f" on core {core}" if core else ""
    on += f" on device {device}" if device else ""
    message = f"{semaphore}{on} is at {amount(count)}, but the wait needs {amount(needed)}"
    if totals is not None:
        message += f"; all signals add up to {totals[0]}, all waits to {totals[1]}"
    if stuck:
        message += f"; nothing else can run: {'; '.join(map(str, stuck))}"
    elif others:
        message += f"; {others} more {'thread waits' if others == 1 else 'threads wait'}, too"
    if sender is not None:
        by, line = sender
        act = "the copy that it waits for is started" if of_copy else "it is signalled"
        cause = f"{act} in {line_text(line)} on device {by}, which is blocked by an earlier wait"
        advice = "on at least one side, send what the other side waits for before waiting for it"
    elif elsewhere is not None and was_raised:
        what = "copies" if of_copy else "signals"
        cause = (
            f"all {what} that arrived have already been waited for; on device {elsewhere[0]} it "
            f"is at {amount(elsewhere[1])}, which nothing has waited for yet"
        )
        advice = f"wait on each device for as many {what} as the others send to it"
    elif elsewhere is not None:
        what = "copy" if of_copy else "signal"
        others_went = "copies" if of_copy else "signals"
        cause = (
            f"on device {elsewhere[0]} it is at {amount(elsewhere[1])}: the {others_went} "
            "went there"
        )
        advice = f"pass the waiting device as device_id of the {what}"
    elif on_core is not None:
        cause = f"on core {on_core[0]} it is at {on_core[1]:,}: the signals went there"
        advice = f"pass the waiting core to the signal: core_index={core}"
    elif is_given:
        what = "copies" if of_copy else "signals"
        cause = (
            f"the {what} on it, here and in the kernel that returned it, add up to less than "
            "the waits"
        )
        advice = (
            "start a copy for each wait, with the same slices, in one of these kernels"
            if of_copy
            else "signal it once for every wait in one of these kernels"
        )
    elif of_copy and was_raised and count:
        missing = _plural(needed - count, "byte is", "bytes are")
        cause = f"{missing} missing: its copies transfer less than its waits take"
        cause += _under_way(under_way)
        advice = "wait with the descriptor that started the copy, or with one of the same slices"
    elif of_copy and was_raised and unstarted is not None:
        target, filled = unstarted
        cause = (
            f"no copy to {target} has been started on it; those to {listed(filled)} have all been "
            f"waited for{_under_way(under_way)}"
        )
        advice = "start the copy before the wait, on the same semaphore"
    elif of_copy and was_raised:
        at = f", in {line_text(earlier)}" if earlier else ""
        cause = f"all copies on it have already been waited for{at}: each start allows one wait"
        cause += _under_way(under_way)
        advice = "start a copy for this wait, too, or remove the wait: "
        advice += "wait once for each copy started, with the same slices and the same semaphore"
        if axes:
            dimension = " and ".join(map(str, axes))
            cause += f"; here, one core runs all of parallel grid dimension {dimension}"
            advice += "; a kernel that gives each core a part of the grid needs several cores"
    elif of_copy:
        cause = f"no copy has been started on it before this wait{_under_way(under_way)}"
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
    if under_way:
        facts[NOT_AWAITED] = ", ".join(under_way)
    seen = seen.with_values(facts)
    return seen.found(Fault.DEADLOCK, message, cause, advice)


def _under_way(names: Sequence[str]) -> str:
    if not names:
        return ""
    return f"; copies on {listed(names)} have not been waited for yet"


def _listed(tallies: Sequence[Tally]) -> str:
    return " and ".join(map(str, tallies))


def _plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def deadlock_of_lanes(
    seen: Sighting, *, semaphore: str, source: Point, axes: Sequence[int], of_copy: bool
) -> Finding:
    """Report a wait for an action of a grid point that another core may run.

    Args:
      source: grid point that started the copy or sent the signal.
      axes: parallel grid axes along which the two grid points differ.
    """
    dimension = " and ".join(map(str, axes))
    done = "the copy that it waits for was started" if of_copy else "it was signalled"
    return seen.with_values(of_axes(axes)).found(
        Fault.DEADLOCK,
        f"{semaphore} is waited for at grid point {seen.witness.grid_point}, but {done} at "
        f"{source}: the wait never ends if another core runs that grid point",
        f"{two_cores(dimension)}, and each core has its own semaphores and scratch",
        f'make grid dimension {dimension} "arbitrary", or start each copy and wait for it on '
        "the same core",
    )


def remote_copy_too_early(
    seen: Sighting, *, copy: tuple[str, str], what: str, sender: int, receiver: int,
    heard_from: tuple[int, ...] = (), has_barrier: bool = False,
    unheard: tuple[int, int] | None = None,
) -> Finding:  # fmt: skip
    """Report a copy to a device that may not have entered the kernel yet.

    Args:
      copy: source and destination.
      what: slice of the destination, with its shape.
      heard_from: devices whose signals the sender waited for beforehand.
      has_barrier: whether the kernel uses the barrier semaphore at all.
      unheard: sums of all signals and waits of the sender's barrier semaphore, if the receiver has
        signalled it too.
    """
    others = [device for device in heard_from if device != receiver]
    if others:
        names = ", ".join(map(str, others))
        known = f"device {sender} has waited only for signals from device {names}"
    else:
        known = f"device {sender} has not waited for a signal from another device"
    advice = (
        f"let device {receiver} also signal device {sender}, and wait for all signals"
        if has_barrier
        else "first signal the barrier semaphore (pltpu.get_barrier_semaphore) of each neighbour "
        "and wait for as many signals; this requires collective_id in compiler_params"
    )
    if unheard is not None:
        known += f", although device {receiver} signals it"
        advice = (
            "wait for all signals before the copy: the signals of the barrier semaphore on device "
            f"{sender} add up to {unheard[0]}, the waits to {unheard[1]}"
        )
    return seen.with_values({"sender": f"device {sender}", "receiver": f"device {receiver}"}).found(
        Fault.DATA_RACE,
        f"the copy of {copy[0]} from device {sender} writes {what} on device {receiver}, which "
        "may not have entered the kernel yet",
        f"{known}: until device {receiver} enters the kernel, its memory may be in use for "
        "something else",
        advice,
    )

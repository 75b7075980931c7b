"""Unbalanced semaphores and deadlocked waits: facts of `ordering/` as findings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.facts import line_text, listed
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.order import Amount, Stuck, Tally
from pallas_debug.findings.sighting import Sighting
from pallas_debug.machine.copies import Counter
from pallas_debug.machine.order import senders
from pallas_debug.machine.order.events import OrderTracker
from pallas_debug.machine.order.facts import EventPlace, StartedCopy
from pallas_debug.machine.order.ledger import (
    LineSum,
    SemaphoreLedger,
    SizeMismatch,
)
from pallas_debug.machine.sightings import (
    counter_text,
    shape_text,
    sighting,
    sighting_of,
    stuck_wait,
)
from pallas_debug.machine.threads import Blocked, Thread
from pallas_debug.model import Finding, SourceLine

CopyOn = tuple[int | None, tuple[str, Any]]
"""Identity of the step that starts a DMA, and the place of the semaphore that it signals."""


def place_of(counter: Counter | SemaphoreLedger) -> tuple[str, Any]:
    """Name and entry of a semaphore: a wait missing on one device is missing on all."""
    return counter.buffer.name, counter.entry


def counts(
    run: OrderTracker, raced: Collection[CopyOn] = ()
) -> Iterator[tuple[Finding, CopyOn | None]]:
    """Yield semaphores that are not zero at the end or, if no thread can run, the blocked waits.

    Semaphores that the kernel takes or returns may be awaited by another kernel. Each finding comes
    with its semaphore and the DMA that nothing waits for, if there is no wait for the DMAs of its
    line: a race with that DMA is the same fault.

    Args:
      raced: DMAs that take part in a race. Of the semaphores that one line leaves over, the first
        of these DMAs is named.
    """
    stuck = [run.tasks.threads[number] for number in sorted(run.blocked)]
    if stuck and not run.has_ended:
        if all(own.thread.blocked or own.thread.is_done for own in run.tasks.threads.values()):
            for finding in _deadlock(run, [own.thread for own in stuck]):
                yield finding, None
        return
    if run.has_ended:
        reported: set[tuple[Fault, object]] = set()
        raised = [
            ledger
            for ledger in (*run.left_over, *run.ledgers.values())
            if ledger.buffer.kind not in ("input", "output")
            and (ledger.near.count or ledger.copies)
        ]
        raised.sort(key=lambda ledger: not _is_raced(ledger, raced))
        for ledger in raised:
            finding = _left_over(run, ledger)
            known: set[tuple[Fault, object]] = {(finding.kind, finding.witness.line)}
            if finding.kind is Fault.SEMAPHORE_LEFT_OVER:  # on several devices
                known.add((finding.kind, ledger.name))
            if reported.isdisjoint(known):
                reported |= known
                yield finding, (ledger.unawaited, place_of(ledger))


def _is_raced(ledger: SemaphoreLedger, raced: Collection[CopyOn]) -> bool:
    place = place_of(ledger)
    return (ledger.unawaited, place) in raced or (None, place) in raced


def _left_over(run: OrderTracker, ledger: SemaphoreLedger) -> Finding:
    if ledger.mismatch is not None:
        return _mismatch(run, ledger, ledger.mismatch)
    if ledger.copies:
        return _not_awaited(run, ledger, ledger.copies[0])
    signals, waits = list(ledger.signals.values()), list(ledger.taken.values())
    device = ledger.buffer.device
    place = (waits or signals)[-1].first
    seen = sighting_of(
        run.launch,
        place,
        grid_point=None,
        operand=ledger.name,
        other=signals[0].first.step.site.line if waits and signals else None,
        values={"count": str(ledger.near.count), "waits": str(ledger.totals[1])},
    )
    raised, lowered = _tallies(signals, device), _tallies(waits, device)
    # A wait on a branch, which runs less often than the only signal.
    fewest = min(lowered, key=lambda wait: wait.points, default=None)
    is_branch = fewest is not None and len(raised) == 1 and raised[0].points > fewest.points
    return seen.of(
        Fault.SEMAPHORE_LEFT_OVER,
        semaphore=ledger.name,
        device=device or None,
        count=ledger.near.count,
        sums=ledger.totals,
        signals=" and ".join(map(str, raised)),
        waits=" and ".join(map(str, lowered)),
        fewest=line_text(fewest.line) if fewest is not None and is_branch else None,
        fewest_points=fewest and fewest.points,
        signalled_at=Amount(raised[0].points, "grid point") if raised else None,
    )


def _tallies(lines: Iterable[LineSum], device: int) -> list[Tally]:
    return [
        Tally(
            line=line.first.step.site.line,
            amount=line.amount,
            points=len(line.points),
            devices=() if line.devices == {device} else tuple(sorted(line.devices)),
        )
        for line in lines
        if line.first.step.site.line is not None
    ]


def _mismatch(run: OrderTracker, ledger: SemaphoreLedger, found: SizeMismatch) -> Finding:
    seen = sighting_of(
        run.launch,
        found.wait,
        operand=ledger.name,
        other=found.copy.place.step.site.line,
        values={"semaphore": ledger.name},
    )
    source, destination = found.copy.names
    copied, awaited = found.copy.nbytes, found.awaited
    bytes_of = {"copied bytes": str(copied), "awaited bytes": str(awaited)}
    return seen.with_values(bytes_of).of(
        Fault.WAIT_SIZE_MISMATCH,
        semaphore=ledger.name,
        copied=copied,
        awaited=awaited,
        rest=copied - awaited,
        more=awaited - copied,
        source=source,
        destination=destination,
        descriptor=found.descriptor,
    )


def of_copy(run: OrderTracker, copy: StartedCopy, **facts: Any) -> Sighting:
    """Position of the start of a DMA; the operand is its destination."""
    shape = shape_text(copy.destination)
    given = {"operand": copy.operand, "index": copy.names[1], "shape": shape, **facts}
    return sighting_of(run.launch, copy.place, **given)


def _not_awaited(run: OrderTracker, ledger: SemaphoreLedger, copy: StartedCopy) -> Finding:
    source, destination = copy.names
    given = {"source": source, "destination": destination, "semaphore": ledger.name}
    counted = {"starts": str(ledger.starts), "waits": str(ledger.waits)}
    return of_copy(run, copy, values=given | counted).of(
        Fault.DMA_NOT_AWAITED,
        **given,
        left=sum(item.left for item in ledger.copies),
        starts=Amount(ledger.starts, "copy is", "copies are"),
        waits=Amount(ledger.waits, "is", "are"),
    )


# Deadlocks


def _deadlock(run: OrderTracker, stuck: list[Thread]) -> Iterator[Finding]:
    thread = stuck[0]
    blocked = run.blocked[thread.number]
    ledger = run.ledger_of(blocked)
    of_copy = isinstance(blocked.step, ir.CopyWait)
    place = EventPlace.of(blocked.step, thread)
    mismatch = ledger.mismatch
    if mismatch is None and of_copy and ledger.copies:
        descriptor = run.descriptor(thread, blocked.step)
        mismatch = SizeMismatch(place, blocked.amount, ledger.copies[0], descriptor)
    if mismatch is not None:
        yield _mismatch(run, ledger, mismatch)
    signal = ledger.last_signal
    raised = bool(ledger.starts) if of_copy else signal is not None
    others = [stuck_wait(other, run.blocked[other.number]) for other in stuck[1:]]
    seen = sighting_of(
        run.launch,
        place,
        operand=ledger.name,
        other=signal.step.site.line if signal is not None else None,
    )
    signals, waits = ledger.totals
    is_known = not of_copy and ledger.buffer.kind != "input"  # another kernel may signal it, too
    yield deadlock(
        seen,
        blocked,
        ledger.name,
        was_raised=raised,
        device=ledger.buffer.device,
        core=ledger.buffer.core,
        signals=signals if is_known else None,
        waits=waits + blocked.amount if is_known else None,
        stuck=others,
        sender=senders.sender(run, ledger, stuck[1:]),
        elsewhere=senders.elsewhere(run, ledger),
        earlier=ledger.awaited_in,
        unstarted=_never_started(ledger, thread, blocked.step),
        under_way=senders.under_way(run, ledger) if of_copy else [],
    )


def deadlock(
    seen: Sighting,
    blocked: Blocked,
    semaphore: str,
    *,
    device: int,
    core: int,
    stuck: Sequence[Stuck],
    sender: tuple[int, SourceLine] | None = None,
    elsewhere: tuple[str, int] | None = None,
    earlier: EventPlace | None = None,
    under_way: Sequence[str] = (),
    **facts: Any,
) -> Finding:
    """Report a wait that never ends.

    Args:
      stuck: other threads that wait forever.
      sender: device and line that would end the wait, in a thread that is blocked before it.
      elsewhere: device or core on which the same semaphore is not zero, and its count there.
      earlier: wait that took the same copy.
      under_way: semaphores with copies that nothing has waited for yet.
    """
    of_copy = isinstance(blocked.step, ir.CopyWait)
    unit = ("byte",) if of_copy else ()
    count, needed = (Amount(n, *unit) for n in (blocked.counter.count, blocked.amount))
    line = None if earlier is None else earlier.step.site.line
    return seen.with_values({"count": str(count.number), "awaited": str(needed.number)}).of(
        Fault.DEADLOCK,
        semaphore=semaphore,
        count=count,
        needed=needed,
        of_copy=of_copy,
        device=device or None,
        core=core or None,
        stuck="; ".join(map(str, stuck)),
        sender=sender and (sender[0], line_text(sender[1])),
        elsewhere=elsewhere and (elsewhere[0], Amount(elsewhere[1], *unit)),
        act="the copy that it waits for is started" if of_copy else "it is signalled",
        those="copies" if of_copy else "signals",
        each="start a copy of the same slices" if of_copy else "signal it once",
        is_given=blocked.counter.buffer.kind == "input",
        missing=Amount(needed.number - count.number, "byte is", "bytes are"),
        earlier=line and line_text(line),
        under_way=listed(under_way) if under_way else None,
        **facts,
    )


def _never_started(ledger: SemaphoreLedger, thread: Thread, step: ir.MachineStep) -> str | None:
    """Destination of a wait that no DMA on its semaphore fills.

    A descriptor of a single array only gives the size of a wait.
    """
    if not isinstance(step, ir.CopyWait):
        return None
    source, target = thread.ref(step.source), thread.ref(step.destination)
    if source.buffer is target.buffer or target.name in ledger.filled or not ledger.filled:
        return None
    return target.name


def first_stuck(launch: Launch, threads: Sequence[Thread]) -> Finding:
    """Report that no thread can run, in a run whose order nothing observed."""
    first, *rest = [thread for thread in threads if thread.blocked is not None]
    blocked = first.blocked
    assert blocked is not None
    name = counter_text(blocked.counter)
    return deadlock(
        sighting(launch, first, blocked.step, operand=name),
        blocked,
        name,
        device=first.device,
        core=first.core,
        was_raised=blocked.counter.count > 0,
        stuck=[stuck_wait(thread, thread.blocked) for thread in rest if thread.blocked is not None],
    )

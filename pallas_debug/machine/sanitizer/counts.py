"""Unbalanced semaphores and deadlocked waits: facts of `ordering/` as findings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import semaphores
from pallas_debug.machine.copies import Counter
from pallas_debug.machine.sanitizer.ordering import senders
from pallas_debug.machine.sanitizer.ordering.events import OrderTracker
from pallas_debug.machine.sanitizer.ordering.facts import EventPlace, StartedCopy
from pallas_debug.machine.sanitizer.ordering.ledger import (
    LineSum,
    SemaphoreLedger,
    SizeMismatch,
)
from pallas_debug.machine.sanitizer.report import BARRIER, shape_text, sighting_of, stuck_wait
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding

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
    values = {"count": str(ledger.near.count), "waits": str(ledger.totals[1])}
    others = sorted({number for line in signals for number in line.devices} - {device})
    if others and ledger.name != BARRIER:
        values[semaphores.SIGNALLED_BY] = ", ".join(f"device {number}" for number in others)
    seen = sighting_of(
        run.launch,
        place,
        grid_point=None,
        operand=ledger.name,
        other=signals[0].first.step.site.line if waits and signals else None,
        values=values,
    )
    return semaphores.semaphore_left_over(
        seen,
        semaphore=ledger.name,
        count=ledger.near.count,
        is_awaited=bool(waits),
        totals=ledger.totals,
        device=device,
        signals=_tallies(signals, device),
        waits=_tallies(waits, device),
    )


def _tallies(lines: Iterable[LineSum], device: int) -> list[semaphores.Tally]:
    return [
        semaphores.Tally(
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
    return semaphores.wait_size_mismatch(
        seen,
        semaphore=ledger.name,
        copied=found.copy.nbytes,
        awaited=found.awaited,
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
    return semaphores.copy_not_awaited(
        of_copy(run, copy, values={"source": source, "destination": destination}),
        semaphore=ledger.name,
        source=source,
        destination=destination,
        left=sum(item.left for item in ledger.copies),
        starts=ledger.starts,
        waits=ledger.waits,
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
    earlier = ledger.awaited_in
    signals, waits = ledger.totals
    is_given = ledger.buffer.kind == "input"
    yield semaphores.deadlock(
        seen,
        semaphore=ledger.name,
        count=blocked.counter.count,
        needed=blocked.amount,
        of_copy=of_copy,
        was_raised=raised,
        is_given=is_given,
        totals=None if of_copy or is_given else (signals, waits + blocked.amount),
        device=ledger.buffer.device,
        others=len(others),
        stuck=others,
        sender=senders.sender(run, ledger, stuck[1:]),
        elsewhere=senders.elsewhere(run, ledger),
        on_core=senders.on_other_core(run, ledger),
        core=ledger.buffer.core,
        earlier=earlier.step.site.line if of_copy and earlier is not None else None,
        unstarted=_never_started(ledger, thread, blocked.step),
        under_way=senders.under_way(run, ledger) if of_copy else (),
        axes=()
        if earlier is None
        else run.launch.numbers(a for a in run.tasks.axes if earlier.point[a] != thread.point[a]),
    )


def _never_started(
    ledger: SemaphoreLedger, thread: Thread, step: ir.MachineStep
) -> tuple[str, tuple[str, ...]] | None:
    """Destination of a wait that no DMA on its semaphore fills, and those DMAs' destinations.

    A descriptor of a single array only gives the size of a wait.
    """
    if not isinstance(step, ir.CopyWait):
        return None
    source, target = thread.ref(step.source), thread.ref(step.destination)
    if source.buffer is target.buffer or target.name in ledger.filled or not ledger.filled:
        return None
    return target.name, tuple(ledger.filled)

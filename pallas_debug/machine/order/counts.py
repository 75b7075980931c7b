"""Unbalanced semaphores and deadlocked waits: facts of the ledgers as findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.order import Stuck
from pallas_debug.findings.sighting import Sighting
from pallas_debug.machine.order.events import OrderTracker
from pallas_debug.machine.order.ledger import (
    EventPlace,
    SemaphoreLedger,
    SizeMismatch,
    StartedCopy,
)
from pallas_debug.machine.order.reports import of_copy
from pallas_debug.machine.sightings import (
    counter_text,
    sighting,
    sighting_of,
    stuck_wait,
)
from pallas_debug.machine.threads import Blocked, Thread
from pallas_debug.model import Finding


def counts(run: OrderTracker) -> Iterator[Finding]:
    """Yield semaphores that are not zero at the end or, if no thread can run, the blocked waits.

    Semaphores that the kernel takes or returns may be awaited by another kernel. A DMA that takes
    part in a race is not also reported as not awaited.
    """
    if run.has_ended:
        yield from _left_over(run)
    elif run.blocked and all(
        own.thread.blocked or own.thread.is_done for own in run.tasks.threads.values()
    ):
        yield from _deadlock(run, [run.tasks.threads[n].thread for n in sorted(run.blocked)])


def _left_over(run: OrderTracker) -> Iterator[Finding]:
    reported = set()
    for ledger in (*run.left_over, *run.ledgers.values()):
        if ledger.buffer.kind in ("input", "output") or not ledger.is_raised:
            continue
        key: object = ledger.buffer.name  # the same on several devices
        if ledger.mismatch is not None:
            finding = _mismatch(run, ledger, ledger.mismatch)
        elif ledger.copies:
            line = ledger.copies[0].dma.step.site.line
            if (line, key) in run.detector.raced_copies:
                continue
            key, finding = line, _not_awaited(run, ledger, ledger.copies[0])
        else:
            finding = _raised(run, ledger)
        if (finding.kind, key) not in reported:
            reported.add((finding.kind, key))
            yield finding


def _raised(run: OrderTracker, ledger: SemaphoreLedger) -> Finding:
    signal, wait = ledger.last_signal, ledger.last_wait
    return sighting_of(
        run.launch,
        wait or signal,
        grid_point=None,
        operand=ledger.name,
        other=signal.step.site.line if wait and signal else None,
        values={"count": str(ledger.near.count), "waits": str(ledger.taken)},
    ).of(
        Fault.SEMAPHORE_LEFT_OVER,
        semaphore=ledger.name,
        device=ledger.buffer.device or None,
        count=ledger.near.count,
        signals=ledger.added,
        waits=ledger.taken,
    )


def _mismatch(run: OrderTracker, ledger: SemaphoreLedger, found: SizeMismatch) -> Finding:
    source, destination = found.copy.names
    copied, awaited = found.copy.nbytes, found.awaited
    bytes_of = {"copied bytes": str(copied), "awaited bytes": str(awaited)}
    return sighting_of(
        run.launch,
        found.wait,
        operand=ledger.name,
        other=found.copy.dma.step.site.line,
        values={"semaphore": ledger.name, **bytes_of},
    ).of(
        Fault.WAIT_SIZE_MISMATCH,
        semaphore=ledger.name,
        copied=copied,
        awaited=awaited,
        source=source,
        destination=destination,
        descriptor=found.descriptor,
    )


def _not_awaited(run: OrderTracker, ledger: SemaphoreLedger, copy: StartedCopy) -> Finding:
    source, destination = copy.names
    given = {"source": source, "destination": destination, "semaphore": ledger.name}
    counted = {"starts": str(ledger.starts), "waits": str(ledger.waits)}
    return of_copy(run.launch, copy, **given, **counted).of(
        Fault.DMA_NOT_AWAITED,
        **given,
        left=sum(item.left for item in ledger.copies),
        starts=ledger.starts,
        waits=ledger.waits,
    )


# Deadlocks


def _deadlock(run: OrderTracker, stuck: Sequence[Thread]) -> Iterator[Finding]:
    thread, *others = stuck
    blocked = run.blocked[thread.number]
    ledger = run.ledger(blocked.counter)
    of_copy = isinstance(blocked.step, ir.CopyWait)
    place = EventPlace.of(blocked.step, thread)
    mismatch = ledger.mismatch
    if mismatch is None and of_copy and ledger.copies:
        descriptor = run.descriptor(thread, blocked.step)
        mismatch = SizeMismatch(place, blocked.amount, ledger.copies[0], descriptor)
    if mismatch is not None:
        yield _mismatch(run, ledger, mismatch)
    is_known = not of_copy and ledger.buffer.kind != "input"  # another kernel may signal it, too
    last = ledger.last_wait if of_copy else ledger.last_signal
    yield _never_ends(
        sighting_of(run.launch, place, operand=ledger.name, other=last and last.step.site.line),
        blocked,
        [stuck_wait(other, run.blocked[other.number]) for other in others],
        is_started=bool(ledger.starts),
        signals=ledger.added if is_known else None,
        waits=ledger.taken + blocked.amount if is_known else None,
    )


def first_stuck(launch: Launch, threads: Sequence[Thread]) -> Finding:
    """Report that no thread can run, in a run whose order nothing observed."""
    stuck = [(thread, thread.blocked) for thread in threads if thread.blocked is not None]
    (first, blocked), *rest = stuck
    seen = sighting(launch, first, blocked.step, operand=counter_text(blocked.counter))
    return _never_ends(seen, blocked, [stuck_wait(*other) for other in rest])


def _never_ends(seen: Sighting, blocked: Blocked, stuck: Sequence[Stuck], **facts: Any) -> Finding:
    buffer, count, needed = blocked.counter.buffer, blocked.counter.count, blocked.amount
    of_copy = isinstance(blocked.step, ir.CopyWait)
    return seen.with_values({"count": str(count), "awaited": str(needed)}).of(
        Fault.DEADLOCK,
        semaphore=counter_text(blocked.counter),
        count=count,
        needed=needed,
        unit="bytes" if of_copy else None,
        missing=needed - count,
        of_copy=of_copy,
        device=buffer.device or None,
        core=buffer.core or None,
        stuck="; ".join(map(str, stuck)),
        those="copies" if of_copy else "signals",
        is_given=buffer.kind == "input",
        **facts,
    )

"""Findings about the order of a run: shared blocks, semaphores, deadlocks, results that differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.facts import element_text, number
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.order import Access, Race, Stuck
from pallas_debug.findings.sighting import Sighting
from pallas_debug.machine.machine import Machine, Stopped
from pallas_debug.machine.memory import Array
from pallas_debug.machine.numbers.observer import RepeatedArithmetic
from pallas_debug.machine.observer import ObserverGroup
from pallas_debug.machine.order.events import OrderTracker
from pallas_debug.machine.order.history import box_text
from pallas_debug.machine.order.ledger import EventPlace, SemaphoreLedger, SizeMismatch, StartedCopy
from pallas_debug.machine.order.races import of_copy
from pallas_debug.machine.order.tasks import BlockVisit
from pallas_debug.machine.sightings import (
    access_of,
    counter_text,
    shape_text,
    sighting,
    sighting_of,
    stuck_wait,
)
from pallas_debug.machine.threads import Blocked, Thread
from pallas_debug.model import Finding


def _counts(run: OrderTracker) -> Iterator[Finding]:
    """Yield semaphores that are not zero at the end or, if no thread can run, the blocked waits.

    Semaphores that the kernel takes or returns may be awaited by another kernel. A DMA that takes
    part in a race is not also reported as not awaited.
    """
    if run.has_ended:
        yield from _left_over(run)
    elif run.blocked and all(
        own.thread.blocked or own.thread.is_done for own in run.tasks.threads.values()
    ):
        yield _deadlock(run, [run.tasks.threads[n].thread for n in sorted(run.blocked)])


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
        last="signal" if wait and signal else None,
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
        is_early=awaited < copied,
        source=source,
        destination=destination,
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


def _deadlock(run: OrderTracker, stuck: Sequence[Thread]) -> Finding:
    thread, *others = stuck
    blocked = run.blocked[thread.number]
    ledger = run.ledger(blocked.counter)
    of_copy = isinstance(blocked.step, ir.CopyWait)
    place = EventPlace.of(blocked.step, thread)
    mismatch = ledger.mismatch
    if mismatch is None and of_copy and ledger.copies:
        mismatch = SizeMismatch(place, blocked.amount, ledger.copies[0])
    is_known = not of_copy and ledger.buffer.kind != "input"  # another kernel may signal it, too
    last = ledger.last_wait if of_copy else ledger.last_signal
    stuck_at = _never_ends(
        sighting_of(run.launch, place, operand=ledger.name, other=last and last.step.site.line),
        blocked,
        [stuck_wait(other, run.blocked[other.number]) for other in others],
        is_started=bool(ledger.starts),
        signals=ledger.added if is_known else None,
        waits=ledger.taken + blocked.amount if is_known else None,
        last=("wait" if of_copy else "signal") if last else None,
    )
    if mismatch is None:
        return stuck_at
    # A wait of another size leaves its semaphore too low for the next one.
    return replace(_mismatch(run, ledger, mismatch), consequences=(stuck_at,))


def first_stuck(launch: Launch, threads: Sequence[Thread]) -> Finding:
    """Report that no thread can run, in a run whose order nothing observed."""
    stuck = [(thread, thread.blocked) for thread in threads if thread.blocked is not None]
    (first, blocked), *rest = stuck
    seen = sighting(launch, first, blocked.step, operand=counter_text(blocked.counter))
    return _never_ends(seen, blocked, [stuck_wait(*other) for other in rest])


def _never_ends(seen: Sighting, blocked: Blocked, stuck: Sequence[Stuck], **facts: Any) -> Finding:
    buffer, count, needed = blocked.counter.buffer, blocked.counter.count, blocked.amount
    of_copy = isinstance(blocked.step, ir.CopyWait)
    return seen.of(
        Fault.DEADLOCK,
        semaphore=counter_text(blocked.counter),
        count=count,
        needed=needed,
        unit="bytes" if of_copy else None,
        of_copy=of_copy,
        those="copies" if of_copy else "signals",
        is_given=buffer.kind == "input",
        device=buffer.device or None,
        core=buffer.core or None,
        stuck="; ".join(map(str, stuck)),
        **facts,
    )


Point = tuple[int, ...]


Visits = Mapping[Any, Mapping[Point, BlockVisit]]
"""Visits of each block, by the coordinates of the grid points on the parallel axes."""


def _is_equal(visits: Mapping[Point, BlockVisit]) -> bool:
    """Return whether all of several visits write the same to a block."""
    first, *others = visits.values()
    return bool(others) and first.is_covered and all(visit.is_equal for visit in others)


def _shared(launch: Launch, axes: tuple[int, ...], all_visits: Visits) -> Iterator[Finding]:
    """Yield races for output blocks that several grid points of a parallel axis write.

    Args:
      axes: the parallel axes.
    """
    by_operand: dict[str, list[Mapping[Point, BlockVisit]]] = {}
    for visits in all_visits.values():
        if len(visits) > 1 and any(visit.store for visit in visits.values()):
            name = next(iter(visits.values())).window.operand.name
            by_operand.setdefault(name, []).append(visits)
    for blocks in by_operand.values():
        every = [visit for visits in blocks for visit in visits.values()]
        if all(map(_is_equal, blocks)):
            continue  # no order changes the result
        if any(visit.is_read for visit in every) and not any(v.reads_first for v in every):
            continue  # scratch of each core: its final content is not meant as a result
        count = sum(len(visits) - 1 for visits in blocks)
        yield _race(launch, axes, list(blocks[0].values()), count)


def _race(
    launch: Launch, axes: tuple[int, ...], visits: Sequence[BlockVisit], count: int
) -> Finding:
    later = [visit for visit in visits if visit.store is not None][:2][-1]
    earlier = next(visit for visit in visits if visit is not later)
    here, there, window = later.store, earlier.store, later.window
    assert here is not None
    name = window.operand.name
    box = tuple(range(part.start, part.stop) for part in window.bounds(later.block)[0])
    point = there.point if there else earlier.point
    race = Race(
        here=access_of(here),
        there=Access(writes=True, grid_point=point, is_stored=there is not None),
        axes=launch.numbers(axis for axis in axes if here.point[axis] != point[axis]),
    )
    return sighting_of(
        launch,
        here,
        source=window.operand.line or here.step.site.line,
        other=there and there.step.site.line,
        operand=name,
        index=box_text(name, box),
        shape=shape_text(window.array),
        count=count,
    ).of(Fault.DATA_RACE, what=f"block {later.block} of {name}", race=race)


DeviceResults = Sequence[Sequence[Array]]
"""Arrays that the kernel returns, for each device."""


class OrderSanitizer(OrderTracker):
    """Checks the order of a run."""

    def findings(self) -> list[Finding]:
        """Return the findings of the run so far, causes before consequences."""
        if self.is_in_part:  # later grid points may read, or write the same to, a shared block
            return list(self.found.values())
        shared = _shared(self.launch, self.tasks.axes, self.visits)
        return [*self.found.values(), *shared, *_counts(self)]

    def deadlock(self) -> list[Finding]:
        """Return blocked waits, after their causes; nothing if a thread can still run."""
        return [] if self.has_ended else list(_counts(self))

    def compared(
        self, arrays: Sequence[Sequence[Any]], results: DeviceResults, *, first: int = 0
    ) -> list[Finding]:
        """Run the kernel in other legal orders, if any may matter, and compare the results.

        After a race this is pointless: its two sides are known.

        Args:
          arrays: arrays of the call, for each device.
          results: results of the observed run.
          first: number of the first device in the mesh.
        """
        if self.detector.raced or not self.undecided:
            return []
        for backwards in (False, True):
            other = OrderSanitizer(self.launch, devices=len(arrays))
            machine = Machine(
                self.launch, arrays, observer=ObserverGroup([other, RepeatedArithmetic()]),
                first=first, eager=not backwards, backwards=backwards, compiles_loops=False,
                outside="nearest",
            )  # fmt: skip
            try:
                found = list(self._differing(results, machine.run()))[:1]
            except Stopped:
                found = other.deadlock()
            if found:
                return found
        return []

    def _differing(self, results: DeviceResults, others: DeviceResults) -> Iterator[Finding]:
        """Yield the first element of each result that another order changes."""
        outputs = [operand for operand in self.launch.operands if operand.kind == "output"]
        fact = next(iter(self.undecided.values()))
        for device, (own, changed) in enumerate(zip(results, others, strict=True)):
            for operand, a, b in zip(outputs, own, changed, strict=True):
                differs = (a != b) & ((a == a) | (b == b))  # not NaN in both
                if not differs.any():
                    continue
                index = tuple(int(i) for i in np.argwhere(differs)[0])
                one, two = (number(array[index].item()) for array in (a, b))
                on = {"device": str(device)} if len(results) > 1 else {}
                yield sighting_of(
                    self.launch,
                    fact.place,
                    operand=operand.name,
                    shape=f"{a.dtype}{list(a.shape)}",
                    values={**on, "one order": one, "other order": two},
                ).of(
                    Fault.NONDETERMINISTIC_RESULT,
                    element=element_text(operand.name, index),
                    one=one,
                    other_value=two,
                    first=fact.first,
                    second=fact.second,
                    differ=int(differs.sum()),
                    size=differs.size,
                    reads=fact.semaphore,
                )

"""Races, deadlocks and semaphores left over: the facts of `ordering/` as findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import order as wording
from pallas_debug.findings.wording import semaphores
from pallas_debug.machine.copies import Counter, DmaCopy
from pallas_debug.machine.machine import Machine, Stopped
from pallas_debug.machine.memory import Array, MemoryBuffer
from pallas_debug.machine.sanitizer.ordering import differences, senders
from pallas_debug.machine.sanitizer.ordering.events import OrderTracker
from pallas_debug.machine.sanitizer.ordering.facts import (
    BlockVisit,
    EarlyCopy,
    EventPlace,
    LaneWait,
    RaceFact,
)
from pallas_debug.machine.sanitizer.ordering.history import MemoryAccess
from pallas_debug.machine.sanitizer.ordering.lanes import is_far
from pallas_debug.machine.sanitizer.ordering.ledger import (
    LineSum,
    SemaphoreLedger,
    SizeMismatch,
    StartedCopy,
)
from pallas_debug.machine.sanitizer.ordering.regions import box_text, whole
from pallas_debug.machine.sanitizer.report import shape_text
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding, SourceLine, Witness


class OrderSanitizer(OrderTracker):
    """Judges the order of a run."""

    def findings(self) -> list[Finding]:
        """Word what the run has shown so far, causes before consequences."""
        worded = [(race, _race(self, race)) for race in self.detector.races.values()]
        found = [(race.when, finding) for race, finding in worded]
        found += [(early.when, _early(self, early)) for early in self.early.values()]
        found += [(wait.when, _of_lanes(self, wait)) for wait in self.lane_waits.values()]
        found += _shared_blocks(self)
        found.sort(key=lambda item: item[0])
        first = _first_of_each_wait(worded)
        causes, rest = [finding for _, finding in found if id(finding) not in first], []
        followers: dict[int, list[Finding]] = {}
        for _, finding in found:
            if id(finding) in first:
                followers.setdefault(id(first[id(finding)]), []).append(finding)
        never_awaited = {
            (id(access.copy.step), _place(access.counter)): first.get(id(race), race)
            for fact, race in worded
            for access in (fact.later, fact.earlier)
            if access.copy is not None
        }
        for finding, key in _counts(self):
            race = never_awaited.get(key) if key is not None else None
            if race is None:
                rest.append(finding)
            else:
                followers.setdefault(id(race), []).append(finding)
        return [
            replace(one, consequences=(*one.consequences, *followers.get(id(one), ())))
            for one in causes
        ] + rest

    def deadlock(self) -> list[Finding]:
        """Word who waits for what, after what led there; nothing if something can still run."""
        return [finding for finding, _ in _counts(self)] if not self.has_ended else []

    def compared(
        self, arrays: Sequence[Sequence[Any]], results: Sequence[Sequence[Array]], *, first: int = 0
    ) -> list[Finding]:
        """Run the kernel in other legal orders, if any may matter, and compare the results.

        Races that were found make it pointless: their two sides are known.

        Args:
          arrays: for each device, the arrays of the call.
          results: of the run that was observed.
          first: number of the first device in the mesh.
        """
        if self.detector.races or not self.undecided:
            return []
        for backwards in (False, True):
            other = OrderSanitizer(self.launch, devices=len(arrays))
            machine = Machine(
                self.launch, arrays, observer=other, first=first, eager=not backwards,
                backwards=backwards, stray="nearest",
            )  # fmt: skip
            try:
                found = differences.found(self, other, results, machine.run())
            except Stopped:
                found = other.deadlock()
            if found:
                return found
        return []


def _sighting(run: OrderTracker, **facts: Any) -> Sighting:
    count = facts.pop("count", 1)
    return Sighting(kernel=run.launch.name, engine="machine", witness=Witness(**facts), count=count)


def _at(place: EventPlace) -> dict[str, Any]:
    return {
        "source": place.step.site.line,
        "grid_point": place.point,
        "loop": place.iterations,
    }


# Races


def _race(run: OrderTracker, race: RaceFact) -> Finding:
    here, there = _sides(race)
    buffer = here.buffer
    name = _name(here)
    region = _first(here.boxes, name, buffer)
    overlap = box_text(name, race.overlap)
    sees_all = here.boxes == (race.overlap,) or len(here.boxes) > 1
    seen = _sighting(
        run,
        source=_line(here),
        other=_line(there),
        grid_point=here.point,
        loop=here.iterations,
        operand=name,
        index=region,
        shape=shape_text(buffer),
        count=race.count,
    )
    return wording.data_race(
        seen,
        what=f"{region}, {shape_text(buffer)},",
        here=_access(run, here),
        there=_access(run, there, is_next=there is race.later and there.is_of_pipeline),
        was_filled=race.earlier.was_unread or race.later.was_unread or race.overtakes,
        axes=race.axes,
        overlap=None if sees_all and len(here.boxes) == 1 else overlap,
        waited=race.waited,
        alike=race.alike,
        heard_cores=_heard(run, race),
    )


def _first_of_each_wait(worded: Iterable[tuple[RaceFact, Finding]]) -> dict[int, Finding]:
    """For races with a DMA that another one raced with before, that one, by identity.

    They lack the same wait: for what the DMA writes, or for what it reads.
    """
    first: dict[tuple[DmaCopy, bool], Finding] = {}
    found = {}
    for race, finding in sorted(worded, key=lambda item: item[0].when):
        copy = race.earlier.copy
        if copy is not None:
            cause = first.setdefault((copy, race.earlier.writes), finding)
            if cause is not finding:
                found[id(finding)] = cause
    return found


def _sides(race: RaceFact) -> tuple[MemoryAccess, MemoryAccess]:
    """Order the two sides, the likely culprit first: the one that has a line, at least."""
    earlier, later = race.earlier, race.later
    if _between_cores(race, earlier.buffer):
        return race.second, earlier if race.second is later else later
    if earlier.is_of_pipeline or later.is_of_pipeline:
        return (later, earlier) if earlier.is_of_pipeline else (earlier, later)
    if (earlier.copy is None) == (later.copy is None):
        return later, earlier
    copy, core = (earlier, later) if earlier.copy is not None else (later, earlier)
    is_remote = copy.writes and copy.buffer.device != copy.thread
    is_cause = copy.was_unread or (copy is later and copy.was_filled)
    if copy.writes and not core.writes:
        return (copy, core) if is_cause else (core, copy)
    return (copy, core) if is_remote else (core, copy)


def _between_cores(race: RaceFact, buffer: MemoryBuffer) -> bool:
    """Whether two threads access memory that the cores of a device share."""
    return race.earlier.thread != race.later.thread and is_far(buffer)


def _heard(run: OrderTracker, race: RaceFact) -> frozenset[int] | None:
    """Cores whose signals the second side has waited for; None if it is on the same core."""
    threads = run.tasks.threads
    one, other = (threads[side.thread].thread for side in (race.earlier, race.later))
    if not _between_cores(race, race.earlier.buffer) or one.device != other.device:
        return None
    return frozenset(threads[n].thread.core for n in race.heard if n in threads)


def _access(run: OrderTracker, access: MemoryAccess, *, is_next: bool = False) -> wording.Access:
    thread = run.tasks.threads[access.thread].thread
    buffer = access.buffer
    names, semaphore, sender = access.names, None, None
    if access.copy is not None:
        semaphore = run.ledger(access.counter).name
        sender = thread.device if buffer.device != thread.device else None
    elif access.block is not None:
        window = "its window"
        block = f"block {access.block}"
        to_window = access.writes == (buffer.kind == "window")
        names = (block, window) if to_window else (window, block)
    return wording.Access(
        writes=access.writes,
        grid_point=access.point,
        loop=access.iterations,
        device=buffer.device,
        core=thread.core,
        copy=names,
        semaphore=semaphore,
        from_device=sender,
        is_next=is_next,
    )


def _line(access: MemoryAccess) -> SourceLine | None:
    return None if access.step is None else access.step.site.line


def _name(access: MemoryAccess) -> str:
    """Name of the buffer as the access calls it."""
    if access.names is None:
        return access.buffer.name
    name = access.names[access.writes]
    is_sliced = bool(access.buffer.content.shape) and name.endswith("]")
    return name.rpartition("[")[0] if is_sliced else name  # the name may have an index: refs[1]


def _first(boxes: Any, name: str, buffer: MemoryBuffer) -> str:
    return box_text(name, boxes[0] if boxes else whole(buffer.content.shape))


def _shared_blocks(run: OrderTracker) -> Iterator[tuple[int, Finding]]:
    """Output blocks that grid points of several lanes write."""
    by_operand: dict[str, list[list[BlockVisit]]] = {}
    for lanes in run.visits.values():
        if len(lanes) > 1 and any(visit.store for visit in lanes.values()):
            visits = list(lanes.values())
            by_operand.setdefault(visits[0].window.operand.name, []).append(visits)
    for name, blocks in by_operand.items():
        every = [visit for visits in blocks for visit in visits]
        if any(visit.is_read for visit in every) and not any(v.reads_first for v in every):
            continue  # scratch of each lane: whatever the last one leaves is not meant as a result
        visits = blocks[0]
        written = [visit for visit in visits if visit.store is not None]
        later = written[1] if len(written) > 1 else written[0]
        earlier = next(visit for visit in visits if visit is not later)
        assert later.store is not None
        axes = run.tasks.axes
        there = earlier.store
        region = later.window.bounds(later.block)[0]
        box = tuple(range(part.start, part.stop) for part in region)
        shape = shape_text(later.window.array)
        store = later.store.step.site.line
        blocks_from = run.launch.block_line(later.window.operand)
        seen = _sighting(
            run,
            source=blocks_from or store,
            other=there and there.step.site.line,
            grid_point=later.store.point,
            loop=later.store.iterations,
            operand=name,
            index=box_text(name, box),
            shape=shape,
            count=sum(len(found) - 1 for found in blocks),
        )
        point = there.point if there else earlier.point
        finding = wording.data_race(
            seen,
            what=f"block {later.block} of {name}, {shape},",
            here=wording.Access(
                writes=True, grid_point=later.store.point, loop=later.store.iterations
            ),
            there=wording.Access(writes=True, grid_point=point, is_stored=there is not None),
            axes=tuple(a for a in axes if later.store.point[a] != point[a]),
        )
        yield later.when, finding


def _early(run: OrderTracker, early: EarlyCopy) -> Finding:
    seen = _sighting(
        run,
        **_at(early.place),
        operand=early.operand,
        index=early.names[1],
        shape=shape_text(early.destination),
        count=early.count,
    )
    return wording.remote_copy_too_early(
        seen,
        copy=early.names,
        what=f"{early.names[1]}, {shape_text(early.destination)},",
        sender=early.place.device,
        receiver=early.destination.device,
        heard_from=early.heard,
        has_barrier=run.has_barrier,
    )


def _of_lanes(run: OrderTracker, wait: LaneWait) -> Finding:
    line = wait.source.step.site.line
    seen = _sighting(run, **_at(wait.wait), operand=wait.semaphore, other=line, count=wait.count)
    return semaphores.deadlock_of_lanes(
        seen, semaphore=wait.semaphore, source=wait.source.point, axes=wait.axes,
        of_copy=wait.of_copy,
    )  # fmt: skip


# Counts


_CopyOn = tuple[int, tuple[int, Any]]
"""The step that starts a DMA, by its identity, and the place of the semaphore that it signals."""


def _place(counter: Counter | SemaphoreLedger) -> tuple[int, Any]:
    """Buffer and entry of a semaphore: the ledger of one whose scope has ended is gone."""
    return counter.buffer.number, counter.entry


def _counts(run: OrderTracker) -> Iterator[tuple[Finding, _CopyOn | None]]:
    """Semaphores that are not zero at the end; or, if nothing can run, who waits for what.

    Those that the kernel takes or returns may be awaited by another. With a finding comes the DMA
    that nothing waits for, if no wait is for what its line starts: a race with it is one fault.
    """
    stuck = [run.tasks.threads[number] for number in sorted(run.blocked)]
    if stuck and not run.has_ended:
        if all(own.thread.blocked or own.thread.is_done for own in run.tasks.threads.values()):
            for finding in _deadlock(run, [own.thread for own in stuck]):
                yield finding, None
        return
    if run.has_ended:
        reported = set()
        for ledger in (*run.left_over, *run.ledgers.values()):
            is_shared = ledger.buffer.kind in ("input", "output")
            if not is_shared and (ledger.near.count or ledger.copies):
                finding = _left_over(run, ledger)
                key = finding.kind, finding.witness.line
                if key not in reported:
                    reported.add(key)
                    step = ledger.unawaited
                    yield finding, None if step is None else (step, _place(ledger))


def _left_over(run: OrderTracker, ledger: SemaphoreLedger) -> Finding:
    if ledger.mismatch is not None:
        return _mismatch(run, ledger, ledger.mismatch)
    if ledger.copies:
        return _not_awaited(run, ledger, ledger.copies[0])
    signals, waits = list(ledger.signals.values()), list(ledger.taken.values())
    device = ledger.buffer.device
    place = (waits or signals)[-1].first
    seen = _sighting(
        run,
        source=place.step.site.line,
        loop=place.iterations,
        operand=ledger.name,
        other=signals[0].first.step.site.line if waits and signals else None,
        values={"count": str(ledger.near.count)},
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
    seen = _sighting(
        run,
        **_at(found.wait),
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


def _not_awaited(run: OrderTracker, ledger: SemaphoreLedger, copy: StartedCopy) -> Finding:
    source, destination = copy.names
    values = {"source": source, "destination": destination}
    seen = _sighting(
        run,
        **_at(copy.place),
        operand=copy.operand,
        index=destination,
        shape=shape_text(copy.destination),
        values=values,
    )
    return semaphores.copy_not_awaited(
        seen,
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
    mismatch = ledger.mismatch
    if mismatch is None and of_copy and ledger.copies:
        place = EventPlace(blocked.step, thread.device, thread.point, thread.iterations)
        descriptor = run.descriptor(thread, blocked.step)
        mismatch = SizeMismatch(place, blocked.amount, ledger.copies[0], descriptor)
    if mismatch is not None:
        yield _mismatch(run, ledger, mismatch)
    signal = ledger.last_signal
    raised = bool(ledger.starts) if of_copy else signal is not None
    others = [
        semaphores.Stuck(
            semaphore=run.ledger_of(wait).name,
            count=int(wait.semaphore.content[wait.entry]),
            needed=wait.amount,
            line=wait.step.site.line,
            device=other.device,
            core=other.core,
            grid_point=other.point,
        )
        for other in stuck[1:]
        for wait in [run.blocked[other.number]]
    ]
    seen = _sighting(
        run,
        source=blocked.step.site.line,
        grid_point=thread.point,
        loop=thread.iterations,
        operand=ledger.name,
        other=signal.step.site.line if signal is not None else None,
    )
    earlier = ledger.awaited_in
    signals, waits = ledger.totals
    is_given = ledger.buffer.kind == "input"
    yield semaphores.deadlock(
        seen,
        semaphore=ledger.name,
        count=int(blocked.semaphore.content[blocked.entry]),
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
        axes=()
        if earlier is None
        else [a for a in run.tasks.axes if earlier.point[a] != thread.point[a]],
    )

"""Races, deadlocks and semaphores left over: the facts of `ordering/` as findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.findings.facts import two_cores
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.hints import HintKind
from pallas_debug.findings.order import Access, Race, of_axes
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.machine import Machine, Stopped
from pallas_debug.machine.memory import Array, MemoryBuffer
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.order import differences
from pallas_debug.machine.order.counts import CopyOn, counts, of_copy, place_of
from pallas_debug.machine.order.events import OrderTracker
from pallas_debug.machine.order.facts import (
    BlockVisit,
    EarlyCopy,
    LaneWait,
    OverlappingCopy,
    RaceFact,
)
from pallas_debug.machine.order.history import MemoryAccess
from pallas_debug.machine.order.regions import box_text, whole
from pallas_debug.machine.order.tasks import is_far
from pallas_debug.machine.sanitizer.composite import ObserverGroup
from pallas_debug.machine.sightings import BARRIER, access_of, shape_text, sighting_of
from pallas_debug.model import Finding, Hint, SourceLine

Point = tuple[int, ...]


class OrderSanitizer(OrderTracker):
    """Checks the order of a run."""

    def findings(self) -> list[Finding]:
        """Return the findings of the run so far, causes before consequences."""
        worded = [(race, _race(self, race)) for race in self.detector.races.values()]
        found = [(race.when, finding) for race, finding in worded]
        entering = [(copy.when, _early(self, copy)) for copy in self.early.values()]
        found += entering
        early = {id(finding) for _, finding in entering}
        found += [(copy.when, _overlapping(self, copy)) for copy in self.overlapping.values()]
        found += [(wait.when, _of_lanes(self, wait)) for wait in self.lane_waits.values()]
        found += _shared_blocks(self)
        found.sort(key=lambda item: item[0])
        first = _first_of_each_wait(worded)
        causes, rest = [finding for _, finding in found if id(finding) not in first], []
        followers: dict[int, list[Finding]] = {}
        for _, finding in found:
            if id(finding) in first:
                followers.setdefault(id(first[id(finding)]), []).append(finding)
        of_copy = _races_of_copies(self, worded, first)
        unheard = next((finding for _, finding in found if id(finding) in early), None)
        for finding, key in counts(self, of_copy):
            race = None
            races: Sequence[Finding] = ()
            if key is not None:
                races = of_copy.get(key, ()) or of_copy.get((None, key[1]), ())
            if races:
                race, *others = races
                for other in others:  # they lack the same wait
                    causes = [cause for cause in causes if cause is not other]
                    moved = [other, *followers.pop(id(other), ())]
                    followers.setdefault(id(race), []).extend(moved)
            if finding.kind is Fault.SEMAPHORE_LEFT_OVER and finding.operand == BARRIER:
                race = unheard
            if race is None:
                rest.append(finding)
            else:
                followers.setdefault(id(race), []).append(finding)
        return [_followed(one, followers.get(id(one), ())) for one in causes] + rest

    def hints(self) -> list[Hint]:
        """Return unordered writes of equal values, which no order changes."""
        found = [
            _equal(self, _name(later), later.step, earlier.point, later.point)
            for earlier, later in self.detector.equal.values()
        ]
        for lanes in self.visits.values():
            first, *others = lanes.values()
            if first.is_covered and others and all(visit.is_equal for visit in others):
                store = others[0].store
                assert store is not None
                name = first.window.operand.name
                found.append(_equal(self, name, store.step, first.point, store.point))
        return found

    def deadlock(self) -> list[Finding]:
        """Return blocked waits, after their causes; nothing if a thread can still run."""
        return [finding for finding, _ in counts(self)] if not self.has_ended else []

    def compared(
        self, arrays: Sequence[Sequence[Any]], results: Sequence[Sequence[Array]], *,
        first: int = 0, beside: Sequence[MachineObserver] = (),
    ) -> list[Finding]:  # fmt: skip
        """Run the kernel in other legal orders, if any may matter, and compare the results.

        After a race this is pointless: its two sides are known.

        Args:
          arrays: arrays of the call, for each device.
          results: results of the observed run.
          first: number of the first device in the mesh.
          beside: further observers of these runs.
        """
        if self.detector.races or not self.undecided:
            return []
        for backwards in (False, True):
            other = OrderSanitizer(self.launch, devices=len(arrays))
            machine = Machine(
                self.launch, arrays, observer=ObserverGroup([other, *beside]), first=first,
                eager=not backwards, backwards=backwards, compiles_loops=False, outside="nearest",
            )  # fmt: skip
            try:
                found = differences.found(self, other, results, machine.run())
            except Stopped:
                found = other.deadlock()
            if found:
                return found
        return []


def _equal(
    run: OrderTracker, name: str, step: ir.MachineStep | None, first: Point, second: Point
) -> Hint:
    return Hint(
        kind=HintKind.SEVERAL_WRITERS,
        kernel=run.launch.name,
        message=f"grid points {first} and {second} write equal values to one part of {name}, in an "
        "order that nothing guarantees: no order changes the result",
        source=None if step is None else step.site.line,
        operand=name,
        grid_point=second,
    )


# Races


def _followed(race: Finding, by: Sequence[Finding]) -> Finding:
    """Add consequences to a race, such as a copy that nothing waits for."""
    return replace(race, consequences=(*race.consequences, *by))


def _races_of_copies(
    run: OrderTracker, worded: Iterable[tuple[RaceFact, Finding]], first: Mapping[int, Finding]
) -> dict[CopyOn, list[Finding]]:
    """Group races by the step that starts a DMA and the semaphore that it signals, in order.

    A wait that is missing for one DMA of another device is missing for all DMAs that signal the
    semaphore: the next wait takes what an earlier DMA has delivered. So races with such a DMA are
    also listed without a step.

    Args:
      first: replacements for other races with a DMA; see `_first_of_each_wait`.
    """
    found: dict[CopyOn, list[Finding]] = {}
    for fact, race in sorted(worded, key=lambda item: item[0].when):
        for access in (fact.later, fact.earlier):
            if access.copy is None:
                continue
            steps = [id(access.copy.step)]
            sender = run.tasks.threads[access.thread].thread.device
            is_remote = access.writes and access.buffer.device != sender
            for step in (*steps, None) if is_remote else steps:
                races = found.setdefault((step, place_of(access.counter)), [])
                if all(first.get(id(race), race) is not known for known in races):
                    races.append(first.get(id(race), race))
    return found


def _race(run: OrderTracker, race: RaceFact) -> Finding:
    here, there = _sides(race)
    buffer = here.buffer
    name = _name(here)
    region = box_text(name, here.boxes[0] if here.boxes else whole(buffer.content.shape))
    overlap = box_text(name, race.overlap)
    sees_all = here.boxes == (race.overlap,) or len(here.boxes) > 1
    facts = Race(
        here=_access(run, here),
        there=_access(run, there, is_next=there is race.later and there.is_of_pipeline),
        was_filled=race.earlier.was_unread or race.later.was_unread or race.overtakes,
        axes=run.launch.numbers(race.axes),
        overlap=None if sees_all and len(here.boxes) == 1 else overlap,
        waited=race.waited,
        alike=race.alike,
        heard=_heard(run, race),
        is_gpu=run.launch.is_gpu,
    )
    seen = sighting_of(
        run.launch,
        None,
        source=_line(here),
        other=_line(there),
        grid_point=here.point,
        loop=here.iterations,
        operand=name,
        index=region,
        shape=shape_text(buffer),
        count=race.count,
        values=facts.facts,
    )
    return seen.of(Fault.DATA_RACE, what=f"{region}, {shape_text(buffer)},", race=facts)


def _first_of_each_wait(worded: Iterable[tuple[RaceFact, Finding]]) -> dict[int, Finding]:
    """Map later races with a DMA, by identity, to the first race with the same DMA.

    They lack the same wait: a DMA to another device has two semaphores, one for the source and one
    for the destination.
    """
    first: dict[tuple[DmaCopy, object], Finding] = {}
    found = {}
    for race, finding in sorted(worded, key=lambda item: item[0].when):
        copy = race.earlier.copy
        if copy is not None:
            cause = first.setdefault((copy, place_of(race.earlier.counter)), finding)
            if cause is not finding:
                found[id(finding)] = cause
    return found


def _sides(race: RaceFact) -> tuple[MemoryAccess, MemoryAccess]:
    """Order the two sides, the likely culprit first: at least, the side that has a line."""
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
    """Return whether two threads access memory that the cores of a device share."""
    return race.earlier.thread != race.later.thread and is_far(buffer)


def _heard(run: OrderTracker, race: RaceFact) -> frozenset[int] | None:
    """Cores whose signals the second side has waited for; None if it is on the same core."""
    threads = run.tasks.threads
    one, other = (threads[side.thread].thread for side in (race.earlier, race.later))
    if not _between_cores(race, race.earlier.buffer) or one.device != other.device:
        return None
    return frozenset(threads[n].thread.core for n in race.heard if n in threads)


def _access(run: OrderTracker, access: MemoryAccess, *, is_next: bool = False) -> Access:
    thread = run.tasks.threads[access.thread].thread
    buffer = access.buffer
    names, semaphore, sender = access.names, None, None
    is_to_self = False
    if access.copy is not None:
        semaphore = run.ledger(access.counter).name
        sender = thread.device if buffer.device != thread.device else None
        is_remote = access.copy.sent is not None and len(run.launch.mesh) > 0
        is_to_self = is_remote and access.copy.destination.buffer.device == thread.device
    elif access.block is not None:
        window = "its window"
        block = f"block {access.block}"
        to_window = access.writes == (buffer.kind == "window")
        names = (block, window) if to_window else (window, block)
    return Access(
        writes=access.writes,
        grid_point=access.point,
        loop=access.iterations,
        device=buffer.device,
        core=thread.core,
        copy=names,
        semaphore=semaphore,
        from_device=sender,
        is_to_self=is_to_self,
        is_next=is_next,
    )


def _line(access: MemoryAccess) -> SourceLine | None:
    return None if access.step is None else access.step.site.line


def _name(access: MemoryAccess) -> str:
    """Return the buffer's name in the access."""
    if access.names is None:
        return access.operand or access.buffer.name
    name = access.names[access.writes]
    is_sliced = bool(access.buffer.content.shape) and name.endswith("]")
    return name.rpartition("[")[0] if is_sliced else name  # the name may have an index: refs[1]


def _shared_blocks(run: OrderTracker) -> Iterator[tuple[int, Finding]]:
    """Yield output blocks that are written by grid points of several lanes."""
    by_operand: dict[str, list[list[BlockVisit]]] = {}
    for lanes in run.visits.values():
        if len(lanes) > 1 and any(visit.store for visit in lanes.values()):
            visits = list(lanes.values())
            by_operand.setdefault(visits[0].window.operand.name, []).append(visits)
    for name, blocks in by_operand.items():
        every = [visit for visits in blocks for visit in visits]
        if all(first.is_covered and all(v.is_equal for v in others) for first, *others in blocks):
            continue  # equal values, a hint
        if any(visit.is_read for visit in every) and not any(v.reads_first for v in every):
            continue  # scratch of each lane: its final content is not meant as a result
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
        seen = sighting_of(
            run.launch,
            later.store,
            source=run.launch.block_line(later.window.operand) or later.store.step.site.line,
            other=there and there.step.site.line,
            operand=name,
            index=box_text(name, box),
            shape=shape,
            count=sum(len(found) - 1 for found in blocks),
        )
        point = there.point if there else earlier.point
        race = Race(
            here=access_of(later.store),
            there=Access(writes=True, grid_point=point, is_stored=there is not None),
            axes=run.launch.numbers(a for a in axes if later.store.point[a] != point[a]),
        )
        what = f"block {later.block} of {name}, {shape},"
        finding = seen.with_values(race.facts).of(Fault.DATA_RACE, what=what, race=race)
        yield later.when, finding


def _overlapping(run: OrderTracker, found: OverlappingCopy) -> Finding:
    copy = found.copy
    overlap = box_text(copy.operand, found.overlap)
    source, destination = copy.names
    seen = of_copy(run, copy, count=found.count, values={"overlap": overlap})
    return seen.of(Fault.DATA_RACE, source=source, destination=destination, overlap=overlap)


def _early(run: OrderTracker, early: EarlyCopy) -> Finding:
    copy = early.copy
    sender, receiver = copy.place.device, copy.destination.device
    devices = {"sender": f"device {sender}", "receiver": f"device {receiver}"}
    others = [str(device) for device in early.heard if device != receiver]
    unheard = _unheard(run, sender, receiver)
    heard = f"only for signals from device {', '.join(others)}" if others else "for no other device"
    if unheard is not None:
        heard += f", although device {receiver} signals it"
    return of_copy(run, copy, count=early.count, values=devices).of(
        Fault.DATA_RACE,
        source=copy.names[0],
        what=f"{copy.names[1]}, {shape_text(copy.destination)},",
        sender=sender,
        receiver=receiver,
        heard=heard,
        has_barrier=run.has_barrier,
        unheard=unheard,
    )


def _unheard(run: OrderTracker, sender: int, receiver: int) -> tuple[int, int] | None:
    """Sum signals and waits of the sender's barrier semaphore, if the receiver signalled it."""
    for ledger in run.ledgers.values():
        if ledger.buffer.kind == "barrier" and ledger.buffer.device == sender:
            return ledger.totals if receiver in ledger.signallers else None
    return None


def _of_lanes(run: OrderTracker, wait: LaneWait) -> Finding:
    line = wait.source.step.site.line
    axes = run.launch.numbers(wait.axes)
    dimensions = " and ".join(map(str, axes))
    seen = sighting_of(
        run.launch, wait.wait, operand=wait.semaphore, other=line, count=wait.count,
        values=of_axes(axes),
    )  # fmt: skip
    return seen.of(
        Fault.DEADLOCK,
        semaphore=wait.semaphore,
        started=wait.source.point,
        done="the copy that it waits for was started" if wait.of_copy else "it was signalled",
        axes=dimensions,
        cores=two_cores(dimensions),
    )

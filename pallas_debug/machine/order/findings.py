"""Races, deadlocks and semaphores left over: the facts about the order of a run as findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.findings.facts import two_cores
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.hints import HintKind
from pallas_debug.findings.order import Access, Race, of_axes
from pallas_debug.machine.machine import Machine, Stopped
from pallas_debug.machine.memory import Array
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.order import differences
from pallas_debug.machine.order.counts import counts, of_copy
from pallas_debug.machine.order.events import OrderTracker
from pallas_debug.machine.order.facts import (
    BlockVisit,
    CrossCoreWait,
    EarlyCopy,
    OrderFact,
    OverlappingCopy,
    RaceFact,
)
from pallas_debug.machine.order.history import MemoryAccess
from pallas_debug.machine.order.regions import box_text, whole
from pallas_debug.machine.sanitizer.composite import ObserverGroup
from pallas_debug.machine.sightings import access_of, shape_text, sighting_of
from pallas_debug.model import Finding, Hint, SourceLine

Point = tuple[int, ...]


class OrderSanitizer(OrderTracker):
    """Checks the order of a run."""

    def findings(self) -> list[Finding]:
        """Return the findings of the run so far, causes before consequences."""
        found = [_finding(self, fact) for fact in self.detector.facts.values()]
        return [*found, *_shared_blocks(self), *counts(self)]

    def hints(self) -> list[Hint]:
        """Return unordered writes of equal values, which no order changes."""
        found = [
            _equal(self, _name(later), later.step, earlier.point, later.point)
            for earlier, later in self.detector.equal.values()
        ]
        for visits in self.visits.values():
            first, *others = visits.values()
            if first.is_covered and others and all(visit.is_equal for visit in others):
                store = others[0].store
                assert store is not None
                name = first.window.operand.name
                found.append(_equal(self, name, store.step, first.point, store.point))
        return found

    def deadlock(self) -> list[Finding]:
        """Return blocked waits, after their causes; nothing if a thread can still run."""
        return [] if self.has_ended else list(counts(self))

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
        if any(self.detector.races) or not self.undecided:
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


def _finding(run: OrderTracker, fact: OrderFact) -> Finding:
    if isinstance(fact, RaceFact):
        return _race(run, fact)
    if isinstance(fact, OverlappingCopy):
        return _overlapping(run, fact)
    if isinstance(fact, EarlyCopy):
        return _early(run, fact)
    assert isinstance(fact, CrossCoreWait)
    return _crosses(run, fact)


# Races


def _race(run: OrderTracker, race: RaceFact) -> Finding:
    here, there = _sides(run, race)
    name = _name(here)
    region = box_text(name, here.boxes[0] if here.boxes else whole(here.buffer.content.shape))
    facts = Race(
        here=_access(run, here),
        there=_access(run, there, is_next=race.later.is_of_pipeline),
        clobbers=race.clobbers,
        axes=run.launch.numbers(race.axes),
        overlap=None if here.boxes == (race.overlap,) else box_text(name, race.overlap),
        waited=race.waited,
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
        shape=shape_text(here.buffer),
        count=race.count,
        values=facts.facts,
    )
    return seen.of(Fault.DATA_RACE, what=f"{region}, {shape_text(here.buffer)},", race=facts)


def _sides(run: OrderTracker, race: RaceFact) -> tuple[MemoryAccess, MemoryAccess]:
    """Order the two sides: the line to change first, and the pipeline, which has none, last."""
    earlier, later = race.earlier, race.later
    if later.is_of_pipeline:
        return earlier, later
    if earlier.is_of_pipeline:
        return later, earlier
    if (earlier.copy is None) == (later.copy is None):  # of two threads, the reader has to wait
        reads = earlier.thread != later.thread and not earlier.writes
        return (earlier, later) if reads else (later, earlier)
    copy, core = (earlier, later) if earlier.copy is not None else (later, earlier)
    is_sent = copy.writes and _sender(run, copy) != copy.buffer.device
    return (copy, core) if (is_sent if core.writes else race.clobbers) else (core, copy)


def _sender(run: OrderTracker, access: MemoryAccess) -> int:
    """Return the device that makes an access, or starts its DMA."""
    return run.tasks.threads[access.thread].thread.device


def _access(run: OrderTracker, access: MemoryAccess, *, is_next: bool = False) -> Access:
    names, semaphore = access.names, None
    sender, device = _sender(run, access), access.buffer.device
    if access.copy is not None:
        semaphore = run.ledger(access.counter).name
    elif access.block is not None:
        names = "its window", f"block {access.block}"
        if access.writes == (access.buffer.kind == "window"):
            names = names[1], names[0]
    return Access(
        writes=access.writes,
        grid_point=access.point,
        loop=access.iterations,
        device=device,
        core=run.tasks.threads[access.thread].thread.core,
        copy=names,
        semaphore=semaphore,
        from_device=sender if sender != device else None,
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


def _shared_blocks(run: OrderTracker) -> Iterator[Finding]:
    """Yield output blocks that several grid points of a parallel axis write."""
    by_operand: dict[str, list[list[BlockVisit]]] = {}
    for of_block in run.visits.values():
        visits = list(of_block.values())
        if len(visits) > 1 and any(visit.store for visit in visits):
            by_operand.setdefault(visits[0].window.operand.name, []).append(visits)
    for name, blocks in by_operand.items():
        every = [visit for visits in blocks for visit in visits]
        if all(first.is_covered and all(v.is_equal for v in others) for first, *others in blocks):
            continue  # equal values, a hint
        if any(visit.is_read for visit in every) and not any(v.reads_first for v in every):
            continue  # scratch of each core: its final content is not meant as a result
        visits = blocks[0]
        written = [visit for visit in visits if visit.store is not None]
        later = written[1] if len(written) > 1 else written[0]
        earlier = next(visit for visit in visits if visit is not later)
        assert later.store is not None
        there = earlier.store
        region = later.window.bounds(later.block)[0]
        box = tuple(range(part.start, part.stop) for part in region)
        shape = shape_text(later.window.array)
        point = there.point if there else earlier.point
        race = Race(
            here=access_of(later.store),
            there=Access(writes=True, grid_point=point, is_stored=there is not None),
            axes=run.launch.numbers(a for a in run.tasks.axes if later.store.point[a] != point[a]),
        )
        yield sighting_of(
            run.launch,
            later.store,
            source=run.launch.block_line(later.window.operand) or later.store.step.site.line,
            other=there and there.step.site.line,
            operand=name,
            index=box_text(name, box),
            shape=shape,
            count=sum(len(found) - 1 for found in blocks),
            values=race.facts,
        ).of(Fault.DATA_RACE, what=f"block {later.block} of {name}, {shape},", race=race)


# Copies and waits


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
    return of_copy(run, copy, count=early.count, values=devices).of(
        Fault.DATA_RACE,
        source=copy.names[0],
        what=f"{copy.names[1]}, {shape_text(copy.destination)},",
        sender=sender,
        receiver=receiver,
    )


def _crosses(run: OrderTracker, wait: CrossCoreWait) -> Finding:
    axes = run.launch.numbers(wait.axes)
    dimensions = " and ".join(map(str, axes))
    return sighting_of(
        run.launch,
        wait.wait,
        operand=wait.semaphore,
        other=wait.source.step.site.line,
        count=wait.count,
        values=of_axes(axes),
    ).of(
        Fault.DEADLOCK,
        semaphore=wait.semaphore,
        started=wait.source.point,
        done="the copy that it waits for was started" if wait.of_copy else "it was signalled",
        axes=dimensions,
        cores=two_cores(dimensions),
    )

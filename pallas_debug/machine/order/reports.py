"""Findings about races, and about DMAs and waits in an order that nothing guarantees."""

from __future__ import annotations

from typing import Any

from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.facts import two_cores
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.order import Access, Race, of_axes
from pallas_debug.findings.sighting import Sighting
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.order.history import MemoryAccess
from pallas_debug.machine.order.ledger import EventPlace, SemaphoreLedger, StartedCopy
from pallas_debug.machine.order.regions import Box, box_text, whole
from pallas_debug.machine.order.tasks import OrderTasks
from pallas_debug.machine.sightings import counter_text, shape_text, sighting_of
from pallas_debug.model import Finding, SourceLine


def race(
    launch: Launch, tasks: OrderTasks, earlier: MemoryAccess, later: MemoryAccess, overlap: Box,
    axes: tuple[int, ...],
) -> Finding:  # fmt: skip
    """Report two unordered accesses, of which this run made one before the other.

    Args:
      overlap: elements that both access.
      axes: parallel axes along which their grid points differ.
    """
    waited, clobbers = _waits(tasks, earlier, later)
    here, there = _sides(tasks, earlier, later, clobbers)
    name = name_in(here)
    region = box_text(name, here.boxes[0] if here.boxes else whole(here.buffer.content.shape))
    facts = Race(
        here=_access(tasks, here),
        there=_access(tasks, there, is_next=later.is_of_pipeline),
        clobbers=clobbers,
        axes=launch.numbers(axes),
        overlap=None if here.boxes == (overlap,) else box_text(name, overlap),
        waited=waited,
        is_gpu=launch.is_gpu,
    )
    shape = shape_text(here.buffer)
    return sighting_of(
        launch,
        None,
        source=_line(here),
        other=_line(there),
        grid_point=here.point,
        loop=here.iterations,
        operand=name,
        index=region,
        shape=shape,
        values=facts.facts,
    ).of(Fault.DATA_RACE, what=f"{region}, {shape},", race=facts)


def _waits(
    tasks: OrderTasks, earlier: MemoryAccess, later: MemoryAccess
) -> tuple[tuple[str, ...] | None, bool]:
    """Return what was waited for between the start of a DMA and the other access.

    Returns:
      Names of the semaphores; None if no DMA takes part, or two of several threads. And whether the
      DMA replaces data that the other side reads.
    """
    user, dma = (earlier, later) if earlier.copy is None else (later, earlier)
    if dma.copy is None or (user.copy is not None and user.thread != dma.thread):
        return None, False
    since = dma.when if dma is earlier else 0
    waits = tasks.threads[user.thread].waits
    found = tuple(dict.fromkeys(name for when, name in waits if since < when < user.when))
    was_awaited = dma is later and counter_text(dma.counter) in found
    return found, not user.writes and (dma.clobbers or was_awaited)


def _sides(
    tasks: OrderTasks, earlier: MemoryAccess, later: MemoryAccess, clobbers: bool
) -> tuple[MemoryAccess, MemoryAccess]:
    """Order the two sides: the line to change first, and the pipeline, which has none, last."""
    if later.is_of_pipeline:
        return earlier, later
    if earlier.is_of_pipeline:
        return later, earlier
    if (earlier.copy is None) == (later.copy is None):  # of two threads, the reader has to wait
        reads = earlier.thread != later.thread and not earlier.writes
        return (earlier, later) if reads else (later, earlier)
    copy, core = (earlier, later) if earlier.copy is not None else (later, earlier)
    is_sent = copy.writes and tasks.threads[copy.thread].thread.device != copy.buffer.device
    return (copy, core) if (is_sent if core.writes else clobbers) else (core, copy)


def _access(tasks: OrderTasks, access: MemoryAccess, *, is_next: bool = False) -> Access:
    thread, device = tasks.threads[access.thread].thread, access.buffer.device
    names = access.names
    if access.block is not None:
        names = "its window", f"block {access.block}"
        if access.writes == (access.buffer.kind == "window"):
            names = names[1], names[0]
    return Access(
        writes=access.writes,
        grid_point=access.point,
        loop=access.iterations,
        device=device,
        core=thread.core,
        copy=names,
        semaphore=None if access.copy is None else counter_text(access.counter),
        from_device=thread.device if thread.device != device else None,
        is_next=is_next,
    )


def _line(access: MemoryAccess) -> SourceLine | None:
    return None if access.step is None else access.step.site.line


def name_in(access: MemoryAccess) -> str:
    """Return the buffer's name in the access."""
    if access.names is None:
        return access.operand or access.buffer.name
    name = access.names[access.writes]
    is_sliced = bool(access.buffer.content.shape) and name.endswith("]")
    return name.rpartition("[")[0] if is_sliced else name  # the name may have an index: refs[1]


def of_copy(launch: Launch, copy: StartedCopy, **values: str) -> Sighting:
    """Position of the start of a DMA; the operand is its destination."""
    shape = shape_text(copy.dma.destination.buffer)
    given: dict[str, Any] = {"operand": copy.operand, "index": copy.names[1], "shape": shape}
    return sighting_of(launch, copy.dma, values=values, **given)


def overlapping(launch: Launch, copy: StartedCopy, elements: Box) -> Finding:
    """Report a DMA that writes elements of its own source."""
    source, destination = copy.names
    overlap = box_text(copy.operand, elements)
    return of_copy(launch, copy, overlap=overlap).of(
        Fault.DATA_RACE, source=source, destination=destination, overlap=overlap
    )


def early(launch: Launch, copy: StartedCopy, sender: int, receiver: int) -> Finding:
    """Report a DMA to a device that may not have entered the kernel yet."""
    return of_copy(launch, copy, sender=f"device {sender}", receiver=f"device {receiver}").of(
        Fault.DATA_RACE,
        source=copy.names[0],
        what=f"{copy.names[1]}, {shape_text(copy.dma.destination.buffer)},",
        sender=sender,
        receiver=receiver,
    )


def across_cores(
    launch: Launch, wait: EventPlace, ledger: SemaphoreLedger, source: DmaCopy | EventPlace,
    axes: tuple[int, ...],
) -> Finding:  # fmt: skip
    """Report a wait that only returns if a grid point of a parallel axis runs on the same core.

    Args:
      source: DMA or signal of that grid point, which ends the wait.
      axes: parallel axes along which their grid points differ.
    """
    numbers = launch.numbers(axes)
    dimensions = " and ".join(map(str, numbers))
    other = source.step.site.line
    is_copy = isinstance(source, DmaCopy)
    return sighting_of(launch, wait, operand=ledger.name, other=other, values=of_axes(numbers)).of(
        Fault.DEADLOCK,
        semaphore=ledger.name,
        started=source.point,
        done="the copy that it waits for was started" if is_copy else "it was signalled",
        axes=dimensions,
        cores=two_cores(dimensions),
    )

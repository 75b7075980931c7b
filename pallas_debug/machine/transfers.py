"""Execution of steps with DMAs and semaphores. Each returns False if its thread has to wait."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine import places
from pallas_debug.machine.copies import Counter, DmaCopy, SizesDiffer
from pallas_debug.machine.memory import (
    Indexed,
    MemoryRegion,
    Ref,
    access,
    chosen,
    concrete,
    resolve,
    size,
)
from pallas_debug.machine.threads import Blocked, ProgramFrame, Thread

if TYPE_CHECKING:
    from pallas_debug.machine.machine import Machine


def _counter(frame: ProgramFrame, place: ir.RefPlace) -> Counter:
    region = access(frame.registers, place)
    assert region.index is not None
    if region.shape and math.prod(region.shape) != 1:
        raise NotImplementedError("a semaphore array where a single semaphore is expected")
    entry = tuple(e.start if isinstance(e, slice) else e for e in region.index)
    return Counter(region.buffer, entry)


def copy_start(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.CopyStart) -> None:
    source = access(frame.registers, step.source, copies=True)
    destination = access(frame.registers, step.destination, copies=True)
    nbytes = source.nbytes
    registers = frame.registers
    for at, other in ((step.source, step.destination), (step.destination, step.source)):
        rows = chosen(at.view, registers)
        if rows is not None:  # the others are not copied but counted
            whole = access(frame.registers, other)
            nbytes = whole.nbytes
            rest = (slice(0, n, 1) for n in whole.shape[1:])
            narrowed = (*concrete(other.view, registers), Indexed((rows, *rest)))
            ref = registers[other.ref.number]
            region = resolve(Ref(ref.buffer, (*ref.view, *narrowed)), (), registers)
            source, destination = (
                (source, region) if other is step.destination else (region, destination)
            )
    received = _counter(frame, step.received)
    sent = None if step.sent is None else _counter(frame, step.sent)
    if step.device is not None:
        number = places.device_number(machine, thread, step.device, frame.registers)
        core = places.core_number(
            machine, thread, step.device, None, frame.registers, received.buffer.core
        )
        destination = _elsewhere(machine, frame, step.destination, number, core)
        received = Counter(places.elsewhere(machine, received.buffer, number, core), received.entry)
    if math.prod(source.shape) != math.prod(destination.shape):
        raise SizesDiffer(source, destination)
    copy = DmaCopy(
        number=machine.num_copies,
        step=step,
        thread=thread.number,
        point=thread.point,
        iterations=thread.iterations,
        source=source,
        destination=destination,
        received=received,
        sent=sent,
        nbytes=nbytes,
        adds=step.adds,
    )
    machine.num_copies += 1
    machine.copies.append(copy)
    if machine.observer is not None:
        machine.observer.copy_starts(thread, copy)
    if machine.eager:
        machine.complete(copy)


def _elsewhere(
    machine: Machine, frame: ProgramFrame, place: ir.RefPlace, device: int, core: int
) -> MemoryRegion:
    ref = frame.registers[place.ref.number]
    remote = Ref(places.elsewhere(machine, ref.buffer, device, core), ref.view)
    return resolve(remote, place.view, frame.registers, copies=True)


def copy_wait(
    machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.CopyWait
) -> bool | None:
    counter = _counter(frame, step.received)
    registers = frame.registers
    is_part = chosen(step.destination.view, registers) is not None
    amount = size(step.source if is_part else step.destination, registers)
    return _wait(machine, thread, step, counter, amount, amount)


def wait(
    machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.SemaphoreWait
) -> bool | None:
    counter = _counter(frame, step.place)
    amount = int(frame.registers[step.amount.number])
    return _wait(machine, thread, step, counter, amount, amount if step.decrements else 0)


def _wait(
    machine: Machine,
    thread: Thread,
    step: ir.MachineStep,
    counter: Counter,
    amount: int,
    lowers: int,
) -> bool | None:
    if not machine.reach(counter, amount):
        if thread.blocked is None:
            thread.blocked = Blocked(step, counter, amount)
            if machine.observer is not None:
                machine.observer.blocks(thread, thread.blocked)
        return False
    thread.blocked = None
    counter.add(-lowers)
    if machine.observer is not None:
        machine.observer.waited(thread, step, counter, lowers)
    return None


def signal(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.SemaphoreSignal) -> None:
    counter = _counter(frame, step.place)
    if step.device is not None or step.core is not None:
        number = thread.device
        if step.device is not None:
            number = places.device_number(machine, thread, step.device, frame.registers)
        core = places.core_number(
            machine, thread, step.device, step.core, frame.registers, counter.buffer.core
        )
        counter = Counter(places.elsewhere(machine, counter.buffer, number, core), counter.entry)
    amount = int(frame.registers[step.amount.number])
    counter.add(amount)
    if machine.observer is not None:
        machine.observer.signals(thread, step, counter, amount)


def read_semaphore(
    machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.ReadSemaphore
) -> bool | None:
    counter = _counter(frame, step.place)
    if len(machine.threads) > 1 and thread.polled == (id(step), counter.count):
        thread.polled = None  # polled again: let other threads run, then read it
        return False
    for copy in [c for c in machine.copies if c.signals(counter)]:
        # A loop that polls until the DMA is done has to end.
        if copy.was_seen:
            machine.complete(copy)
        copy.was_seen = True
    count = counter.count
    if machine.observer is not None:
        machine.observer.reads_semaphore(thread, step, counter, count)
    thread.polled = (id(step), count)
    frame.registers[step.output.number] = np.int32(count)
    return None


def barrier(
    machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.BarrierSemaphore
) -> None:
    device = machine.devices[thread.device]
    if not device.barrier:
        type_ = ir.RefType((), np.dtype(np.int64), "semaphore", "barrier")
        for other in machine.devices:
            made = []
            for core in sorted({t.core for t in machine.threads if t.device == other.number}):
                made.append(
                    machine.allocate(
                        type_, "barrier semaphore", "barrier", device=other.number,
                        scope=("barrier",),
                    )
                )  # fmt: skip
                made[-1].core = core
            other.barrier = tuple(made)
    own = next(buffer for buffer in device.barrier if buffer.core == thread.core)
    frame.registers[step.output.number] = Ref(own)


def subcore_barrier(
    machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.SubcoreBarrier
) -> bool | None:
    """Execute a barrier: signal all subcores of the SparseCore, and wait for as many signals."""
    device = machine.devices[thread.device]
    own = device.barriers.get(thread.core)
    if own is None:
        raise NotImplementedError("a barrier of subcores on another core")
    cores = machine.sharing(thread)
    if not thread.has_signalled:
        thread.has_signalled = True
        for core in cores:
            counter = Counter(device.barriers[core], ())
            counter.add(1)
            if machine.observer is not None:
                machine.observer.signals(thread, step, counter, 1)
    counter = Counter(own, ())
    if counter.count < len(cores):
        if thread.blocked is None:
            thread.blocked = Blocked(step, counter, len(cores))
            if machine.observer is not None:
                machine.observer.blocks(thread, thread.blocked)
        return False
    thread.blocked, thread.has_signalled = None, False
    counter.add(-len(cores))
    if machine.observer is not None:
        machine.observer.waited(thread, step, counter, len(cores))
    return None


def fetch_add(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.FetchAdd) -> None:
    ref = frame.registers[step.place.ref.number]
    core = machine.sharing(thread)[int(frame.registers[step.subcore.number])]
    there = Ref(places.elsewhere(machine, ref.buffer, thread.device, core), ref.view)
    region = resolve(there, step.place.view, frame.registers)
    before = region.read()
    value = np.asarray(before + np.asarray(frame.registers[step.value.number]), before.dtype)
    if machine.observer is not None:
        machine.observer.loads(thread, step, region, before)
        machine.observer.stores(thread, step, region, value)
    region.write(value)
    frame.registers[step.output.number] = before.reshape(())[()]


BY_KIND: dict[type, Any] = {
    ir.CopyStart: copy_start,
    ir.CopyWait: copy_wait,
    ir.SemaphoreWait: wait,
    ir.SemaphoreSignal: signal,
    ir.ReadSemaphore: read_semaphore,
    ir.BarrierSemaphore: barrier,
    ir.SubcoreBarrier: subcore_barrier,
    ir.FetchAdd: fetch_add,
}

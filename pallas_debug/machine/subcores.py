"""Cooperation of the subcores of a SparseCore: barriers, and additions to each other's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine import places
from pallas_debug.machine.copies import Counter
from pallas_debug.machine.memory import Ref, resolve
from pallas_debug.machine.threads import Blocked, ProgramFrame, Thread

if TYPE_CHECKING:
    from pallas_debug.machine.machine import Machine


def barrier(
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


BY_KIND = {ir.SubcoreBarrier: barrier, ir.FetchAdd: fetch_add}

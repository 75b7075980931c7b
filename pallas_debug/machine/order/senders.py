"""Possible senders for a wait that never ends: devices, cores and steps that signal a semaphore."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.memory import Ref
from pallas_debug.machine.order.events import OrderTracker
from pallas_debug.machine.order.ledger import SemaphoreLedger
from pallas_debug.machine.threads import ProgramFrame, Thread
from pallas_debug.model import SourceLine


def elsewhere(run: OrderTracker, ledger: SemaphoreLedger) -> tuple[str, int] | None:
    """Return another device or core on which the same semaphore is not zero, and its count there.

    One that also waits for more of the semaphore is skipped: its count was meant for it.
    """
    awaited = {id(run.ledger_of(blocked)) for blocked in run.blocked.values()}
    here = ledger.buffer
    for other in run.ledgers.values():
        there = other.buffer
        is_same = there.name == here.name and other.entry == ledger.entry and other is not ledger
        if is_same and other.near.count and id(other) not in awaited:
            if there.device != here.device:
                return f"device {there.device}", other.near.count
            return f"core {there.core}", other.near.count
    return None


def under_way(run: OrderTracker, ledger: SemaphoreLedger) -> list[str]:
    """Return other semaphores of the core with copies that nothing has waited for."""
    own = ledger.buffer
    return [
        other.name
        for other in run.ledgers.values()
        if other.copies and (other.buffer.device, other.buffer.core) == (own.device, own.core)
        if other is not ledger
    ]


def sender(
    run: OrderTracker, ledger: SemaphoreLedger, stuck: list[Thread]
) -> tuple[int, SourceLine] | None:
    """Device and line that would end a wait, in another thread that is blocked before it."""
    for thread in stuck:
        for frame in thread.frames:
            for step in frame.program.steps[frame.position :]:
                place = None
                if isinstance(step, ir.SemaphoreSignal):
                    place = step.semaphore
                elif isinstance(step, ir.CopyStart):
                    place = step.received
                line = step.site.line
                if place is None or line is None or getattr(step, "device", None) is None:
                    continue
                ref = frame.registers[place.ref.number]
                if not isinstance(ref, Ref) or ref.buffer.name != ledger.buffer.name:
                    continue
                if _target(run, frame, step) in (None, ledger.buffer.device):
                    return thread.device, line
    return None


def _target(run: OrderTracker, frame: ProgramFrame, step: ir.MachineStep) -> int | None:
    """Device that a step is about to signal or copy to; None if it is not known yet."""
    device = getattr(step, "device", None)
    if not isinstance(device, ir.DeviceId):
        return None
    given = device.coordinates
    mesh = run.launch.mesh
    registers = frame.registers
    if device.number is not None:
        number = registers[device.number.number]
        return None if number is None else int(number)
    if len(mesh) != 1 or given is None or len(given) != 1:
        return None
    (only,) = given.values() if isinstance(given, Mapping) else given
    value = registers[only.number]
    return None if value is None or np.size(value) != 1 else int(np.ravel(value)[0])

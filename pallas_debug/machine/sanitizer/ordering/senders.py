"""Possible senders for a wait that never ends: devices, cores and steps that signal a semaphore."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.memory import Ref
from pallas_debug.machine.sanitizer.ordering.events import OrderTracker
from pallas_debug.machine.sanitizer.ordering.ledger import SemaphoreLedger
from pallas_debug.machine.threads import ProgramFrame, Thread
from pallas_debug.model import SourceLine


def elsewhere(run: OrderTracker, ledger: SemaphoreLedger) -> tuple[int, int] | None:
    """Return a device on which the same semaphore is not zero, and its count there.

    A device that also waits for more of the semaphore is skipped: its count was meant for it.
    """
    awaited = {id(run.ledger_of(blocked)) for blocked in run.blocked.values()}
    for other in run.ledgers.values():
        is_twin = other.buffer.name == ledger.buffer.name and other.entry == ledger.entry
        is_away = is_twin and other.buffer.device != ledger.buffer.device
        if is_away and other.near.count and id(other) not in awaited:
            return other.buffer.device, other.near.count
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


def on_other_core(run: OrderTracker, ledger: SemaphoreLedger) -> tuple[int, int] | None:
    """Return a core on which the same semaphore is not zero, and its count there."""
    for other in run.ledgers.values():
        one, twin = ledger.buffer, other.buffer
        is_twin = (twin.name, twin.device, other.entry) == (one.name, one.device, ledger.entry)
        if is_twin and twin.core != one.core and other.near.count:
            return twin.core, other.near.count
    return None


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

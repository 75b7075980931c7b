"""Devices of a run: the position of each, and the one whose values are shown."""

from __future__ import annotations

from collections.abc import Sequence

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.debugger.driver import Driver
from pallas_debug.machine.debugger.scope import NameScope
from pallas_debug.machine.threads import Thread
from pallas_debug.model import SourceLine
from pallas_debug.stepping.conditions import ConditionFailed
from pallas_debug.stepping.track import DeviceStatus, StepPlace


def next_step(thread: Thread) -> ir.MachineStep | None:
    """The step that a thread executes next; None between programs and grid points."""
    if not thread.frames:
        return None
    frame = thread.frames[-1]
    steps = frame.program.steps
    return steps[frame.position] if frame.position < len(steps) else None


def statuses(driver: Driver, scope: NameScope) -> Sequence[DeviceStatus]:
    """Position of each device."""
    machine = driver.machine
    return [_status(driver, scope, _thread_of(driver, d.number)) for d in machine.devices]


def show(driver: Driver, scope: NameScope, number: int) -> DeviceStatus:
    """Show the values of a device until the next step is executed.

    Raises:
      ConditionFailed: there is no such device.
    """
    count = len(driver.machine.devices)
    if number >= count:
        known = "one device, 0" if count == 1 else f"devices 0 to {count - 1}"
        raise ConditionFailed(f"there is no device {number}: the kernel runs on {known}")
    scope.shown = _thread_of(driver, number)
    return _status(driver, scope, scope.shown)


def _thread_of(driver: Driver, device: int) -> Thread:
    """Return the core of a device that executes the next step, or the first that has not ended."""
    if driver.thread.device == device:
        return driver.thread
    own = [thread for thread in driver.machine.threads if thread.device == device]
    return next((thread for thread in own if not thread.is_done), own[0])


def place_of(
    driver: Driver, thread: Thread, stack: Sequence[SourceLine], *, ended: bool
) -> StepPlace:
    """Return the place of a thread, at the last of these lines."""
    return StepPlace(
        tick=driver.tick,
        kernel=driver.machine.launch.name,
        thread=thread.number,
        device=thread.device,
        point=thread.point,
        grid=thread.grid,
        iterations=thread.iterations,
        line=stack[-1] if stack else None,
        calls=tuple(stack[:-1]),
        ended=ended,
        devices=len(driver.machine.devices),
    )


def _status(driver: Driver, scope: NameScope, thread: Thread) -> DeviceStatus:
    step = next_step(thread)
    blocked = thread.blocked
    waits = None
    count = 0 if blocked is None else blocked.counter.count
    if blocked is not None and not thread.is_done and count < blocked.amount:
        waits = f"{blocked.counter} is {count}, but {blocked.amount} is awaited"
    line = () if step is None or step.site.line is None else (step.site.line,)
    place = place_of(driver, thread, line, ended=thread.is_done)
    return DeviceStatus(
        place=place,
        waits=waits,
        is_shown=thread is scope.thread,
        is_next=thread is driver.thread and not driver.ended,
    )

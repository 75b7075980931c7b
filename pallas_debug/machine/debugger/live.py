"""The run of a kernel that is stepped through: lines, devices, values, searches backwards."""

from __future__ import annotations

import linecache
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.debugger.driver import (
    MAX_BYTES,
    Driver,
    MemoryWrite,
    RunFault,
    Snapshot,
    Snapshots,
    StepEvents,
)
from pallas_debug.machine.debugger.scope import NameScope, lines_of
from pallas_debug.machine.debugger.writers import written_by
from pallas_debug.machine.machine import Machine
from pallas_debug.machine.memory import MemoryRegion
from pallas_debug.machine.sightings import index_text
from pallas_debug.machine.threads import Thread
from pallas_debug.model import SourceLine
from pallas_debug.stepping.conditions import ConditionFailed
from pallas_debug.stepping.track import (
    DeviceStatus,
    ElementWriter,
    FlyingCopy,
    NamedValue,
    StepPlace,
    WatchedElements,
    WatchHit,
    names_of,
    same_bits,
)


def next_step(thread: Thread) -> ir.MachineStep | None:
    """The step that a thread executes next; None between programs and grid points."""
    if not thread.frames:
        return None
    frame = thread.frames[-1]
    steps = frame.program.steps
    return steps[frame.position] if frame.position < len(steps) else None


SNAPSHOT_AFTER = 0.02
"""Seconds of execution between snapshots: roughly the time that a step back takes."""

SNAPSHOT_AT_POINT_AFTER = 0.005
"""Seconds of execution between snapshots at the beginning of a grid point."""

Stack = tuple[tuple[Any, ...], tuple[tuple[str, int], ...]]
"""Thread, grid point, iterations, and the lines that lead to a step, outermost first."""

MachineFactory = Callable[[StepEvents], Machine]

_T = TypeVar("_T")

Look = Callable[[bool], _T | None]
"""Called before each step of a replay, with False, and after it, with True; returns a match."""


class LiveRun:
    """The run of a kernel at one of its steps. Implements `Track`.

    Attributes:
      driver: the machine, and the number of the step.
      fault: why the run cannot continue from here; None if it can, as far as is known.
      stops: places to stop before the next step: numbers of lines in its stack, outermost first.
        The last is the step's own line. The others belong to calls that begin with this step.
      level: number of the line in the stack at which the run is stopped; one of `stops`.
      printed: prints of the kernel, each recorded once, however often the step is replayed.
    """

    def __init__(self, factory: MachineFactory, *, max_bytes: int = MAX_BYTES) -> None:
        self.events = StepEvents()
        with np.errstate(all="ignore"):
            self.driver = Driver(factory(self.events), self.events)
        self.snapshots = Snapshots(self.driver, max_bytes)
        self.printed: list[str] = []
        self.interrupted = False
        self._fault: tuple[int, str] | None = None
        self._furthest = 0
        self._snapshot_due = 0.0
        self._stack: Stack = ((), ())
        self._marks: dict[int, tuple[Stack, tuple[int, ...]]] = {}
        self.stops: tuple[int, ...] = ()
        self.level = 0
        self.scope = NameScope(self.driver)
        self._take()
        self._rest()
        while not self.stops and self.advance():
            pass
        self.level = min(self.stops, default=0)
        self.start = self.driver.tick, self.level

    @property
    def machine(self) -> Machine:
        return self.driver.machine

    @property
    def fault(self) -> str | None:
        if self._fault is not None and self._fault[0] == self.driver.tick:
            return self._fault[1]
        return None

    # Steps of the machine

    def _rest(self) -> None:
        self._snapshot_due = time.perf_counter()

    def advance(self) -> bool:
        """Execute one step; return False at the end of the run and at a fault.

        At a fault, restore the machine to its state before the step.
        """
        driver = self.driver
        if driver.ended or self.fault is not None:
            return False
        self.scope.shown = None
        before = driver.tick
        try:
            with np.errstate(all="ignore"):
                driver.advance()
        except RunFault as fault:
            self._fault = before, str(fault)
            driver.tick = before
            self.go_to(before)
            return False
        self._arrive()
        if driver.tick > self._furthest:
            self._furthest = driver.tick
            self.printed += self.events.printed
        elapsed = time.perf_counter() - self._snapshot_due
        if elapsed > SNAPSHOT_AFTER or (
            self.events.begins_point and elapsed > SNAPSHOT_AT_POINT_AFTER
        ):
            self._take()
            self._rest()
        return True

    def _take(self) -> None:
        self._marks[self.driver.tick] = self._stack, self.stops
        self.snapshots.take()

    def _restore(self, snapshot: Snapshot) -> None:
        self.snapshots.restore(snapshot)
        self._stack, self.stops = self._marks[snapshot.tick]
        self._rest()

    def go_to(self, tick: int, level: int | None = None) -> None:
        """Go to a step that was reached before; stop at its own line unless a level is given."""
        here, self.scope.shown = self.driver.tick, None
        snapshot = self.snapshots.before(tick)
        if here > tick or snapshot.tick > here or self._fault_was_here(here):
            self._restore(snapshot)
        while self.driver.tick < tick and self.advance():
            pass
        self.level = len(self._stack[1]) - 1 if level is None else level

    def _fault_was_here(self, tick: int) -> bool:
        """Return whether the machine's state is that of a step that failed."""
        return self._fault is not None and self._fault[0] == tick and self.driver.is_broken

    def _arrive(self) -> None:
        """Find the lines that begin with the next step."""
        step = self.step
        self.stops = ()
        if step is None or step.site.line is None or self.driver.ended:
            return
        thread = self.driver.thread
        stack = tuple(line.place for line in (*step.site.calls, step.site.line))
        here: Stack = ((thread.number, thread.point, thread.iterations), stack)
        (before, old), self._stack = self._stack, here
        if before[:2] != here[0][:2]:
            old = ()
        common = 0
        while common < min(len(old), len(stack)) and old[common] == stack[common]:
            common += 1
        last = len(stack) - 1
        if common > last and before != here[0]:
            self.stops = (last,)
        elif common <= last:
            self.stops = tuple(range(common, len(stack)))
        # Otherwise it is the same line, or the line of a call that has returned.

    # Lines

    @property
    def step(self) -> ir.MachineStep | None:
        """Step that is executed next; None between programs and grid points."""
        return next_step(self.driver.thread)

    @property
    def place(self) -> StepPlace:
        driver = self.driver
        thread = driver.thread if not driver.ended else self.machine.threads[0]
        step = None if driver.ended else next_step(thread)
        stack: tuple[SourceLine, ...] = ()
        if step is not None and step.site.line is not None:
            stack = (*step.site.calls, step.site.line)[: self.level + 1]
        return self._place_of(thread, stack, ended=driver.ended)

    def _place_of(self, thread: Thread, stack: Sequence[SourceLine], *, ended: bool) -> StepPlace:
        """Return the place of a thread, at the last of these lines."""
        return StepPlace(
            tick=self.driver.tick,
            kernel=self.machine.launch.name,
            thread=thread.number,
            device=thread.device,
            point=thread.point,
            grid=thread.grid,
            iterations=thread.iterations,
            line=stack[-1] if stack else None,
            calls=tuple(stack[:-1]),
            ended=ended,
            devices=len(self.machine.devices),
        )

    def devices(self) -> Sequence[DeviceStatus]:
        return [self._status(self._thread_of(device.number)) for device in self.machine.devices]

    def show_device(self, number: int) -> DeviceStatus:
        count = len(self.machine.devices)
        if number >= count:
            known = "one device, 0" if count == 1 else f"devices 0 to {count - 1}"
            raise ConditionFailed(f"there is no device {number}: the kernel runs on {known}")
        self.scope.shown = self._thread_of(number)
        return self._status(self.scope.shown)

    def _thread_of(self, device: int) -> Thread:
        """Return the core of a device that executes the next step, or the first one running."""
        if self.driver.thread.device == device:
            return self.driver.thread
        own = [thread for thread in self.machine.threads if thread.device == device]
        return next((thread for thread in own if not thread.is_done), own[0])

    def _status(self, thread: Thread) -> DeviceStatus:
        step, blocked, waits = next_step(thread), thread.blocked, None
        count = 0 if blocked is None else blocked.counter.count
        if blocked is not None and not thread.is_done and count < blocked.amount:
            waits = f"{blocked.counter} is {count}, but {blocked.amount} is awaited"
        line = () if step is None or step.site.line is None else (step.site.line,)
        return DeviceStatus(
            place=self._place_of(thread, line, ended=thread.is_done),
            waits=waits,
            is_shown=thread is self.scope.thread,
            is_next=thread is self.driver.thread and not self.driver.ended,
        )

    def forward(
        self, until: Callable[[StepPlace], bool], watched: Sequence[WatchedElements] = ()
    ) -> bool | WatchHit:
        watches = [ValueWatch(self, item) for item in watched]
        while True:
            for level in self.stops:
                if level > self.level:
                    self.level = level
                    if until(self.place):
                        return True
            step = self.step
            if self.interrupted or not self.advance():
                return False
            self.level = -1
            for watch in watches:
                hit = watch.after(None if step is None else step.site.line)
                if hit is not None:
                    self.level = len(self._stack[1]) - 1
                    return hit

    def backward(
        self, until: Callable[[StepPlace], bool], watched: Sequence[WatchedElements] = ()
    ) -> bool | WatchHit:
        here, at = self.driver.tick, self.level
        for level in reversed(self.stops):
            if level < at:
                self.level = level
                if until(self.place):
                    return True
        line, change = self._search(here, lambda: partial(self._line, until)), None
        if watched and not self.interrupted:
            self.go_to(here, at)
            change = self._search(here, partial(self._changes, watched))
        if self.interrupted:
            self.go_to(here, at)
            return False
        is_change = change is not None and (line is None or change[0] >= line[0])
        found = change if is_change else line
        if found is None or found[0] < self.start[0]:
            self.go_to(*self.start)
            return False
        if change is not None and is_change:
            self.go_to(change[0])
            return change[1]
        self.go_to(*found)
        return True

    def who(self, element: WatchedElements) -> Sequence[ElementWriter]:
        buffer = self.scope.memory(element.name)
        if buffer is None:
            raise ConditionFailed(
                f"`{element.name}` is not an operand, scratch or semaphore: writers are known "
                "only for memory"
            )
        shape = buffer.content.shape
        found = element.expression.positions(shape, names_of(self))
        if found.size != 1:
            raise ConditionFailed(
                f"`{element.expression.text}` has {found.size:,} elements: name one, as in "
                f"{element.name}[{', '.join('0' * len(shape))}]"
            )
        index = tuple(int(i) for i in np.unravel_index(int(found.reshape(())), shape))
        here, at, shown = self.driver.tick, self.level, self.scope.shown
        try:
            return list(written_by(self, buffer, index, element.name))
        finally:
            self.go_to(here, at)
            self.scope.shown = shown

    def last_write(self, wrote: Callable[[MemoryWrite], bool]) -> int | None:
        """Return the last earlier step with a write matching `wrote`; moves the current place."""

        def look(is_after: bool) -> bool | None:
            return (is_after and any(map(wrote, self.events.writes))) or None

        found = self._search(self.driver.tick, lambda: look)
        return None if found is None else found[0]

    def _line(self, until: Callable[[StepPlace], bool], is_after: bool) -> int | None:
        """Return the innermost level of the next step's lines at which a condition is true."""
        found = None
        for level in () if is_after else self.stops:
            self.level = level
            if until(self.place):
                found = level
        return found

    def _changes(self, watched: Sequence[WatchedElements]) -> Look[WatchHit]:
        """Return what looks for changes of watched values."""
        watches = [ValueWatch(self, item) for item in watched]
        line: SourceLine | None = None

        def look(is_after: bool) -> WatchHit | None:
            nonlocal line
            if not is_after:
                line = None if self.step is None else self.step.site.line
                return None
            hits = [hit for watch in watches if (hit := watch.after(line)) is not None]
            return hits[-1] if hits else None

        return look

    def _search(self, end: int, begin: Callable[[], Look[_T]]) -> tuple[int, _T] | None:
        """Return the last step before `end` with a match, and the match; replays to find it.

        Args:
          begin: called at the beginning of each replay.
        """
        start = end
        while start > 0:
            snapshot = self.snapshots.before(start - 1)
            start = snapshot.tick
            self._restore(snapshot)
            look, found = begin(), None
            while (tick := self.driver.tick) < end:
                match = look(False)
                found = found if match is None else (tick, match)
                if self.interrupted:
                    return None
                if not self.advance():
                    break
                match = look(True)
                found = found if match is None else (tick, match)
            if found is not None:
                return found
            end = start
        return None

    # Values

    def values(self) -> Sequence[NamedValue]:
        return self.scope.values()

    def value(self, name: str) -> np.ndarray[Any, Any] | None:
        value: np.ndarray[Any, Any] | None = self.scope.value(name)
        return value

    def copies(self) -> Sequence[FlyingCopy]:
        return [
            FlyingCopy(
                number=copy.number,
                source=self._region(copy.source),
                destination=self._region(copy.destination),
                nbytes=copy.nbytes,
                point=copy.point,
                line=copy.step.site.line,
            )
            for copy in self.machine.copies
        ]

    def _region(self, region: MemoryRegion) -> str:
        on = f" on device {region.buffer.device}" if len(self.machine.devices) > 1 else ""
        return region_text(region) + on

    def lines(self, file: str) -> Sequence[str]:
        return [line.rstrip("\n") for line in linecache.getlines(file)]

    def executable(self, file: str) -> frozenset[int]:
        lines = lines_of(self.machine.launch)
        return frozenset(line.line for line in lines if line.file == file)


class ValueWatch:
    """A watched value during a run: reevaluated when memory that it depends on is written."""

    def __init__(self, run: LiveRun, watched: WatchedElements) -> None:
        self.run = run
        self.watched = watched
        self.value = self._value()

    def _value(self) -> Any:
        try:
            value = np.array(self.watched.expression.evaluate(names_of(self.run)), copy=True)
        except ConditionFailed:
            return None  # a variable that is not assigned yet
        return value

    def after(self, line: SourceLine | None) -> WatchHit | None:
        """Return the change made by the step just executed, if any; `line` is the step's line."""
        run, name = self.run, self.watched.name
        buffer = run.scope.memory(name)
        stores = [w for w in run.events.writes if w.buffer is buffer]
        if buffer is not None and not stores and not run.events.begins_point:
            return None
        before, after = self.value, self._value()
        self.value = after
        if after is None:
            return None  # the variable ends with its function or its grid point
        if before is not None and same_bits(before, after):
            return None
        wrote = line if any(w.how == "store" for w in stores) or buffer is None else None
        return WatchHit(watched=self.watched, before=before, after=after, wrote=wrote)


def region_text(region: MemoryRegion) -> str:
    """Unparse a region: `k_ref[0:8, 3]`."""
    name = region.buffer.name
    if region.index is None or region.is_whole:
        return name if region.is_whole else f"{name} (a view)"
    return index_text(name, region.index)

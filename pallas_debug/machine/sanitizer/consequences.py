"""Consequences: faults that use an element that another fault touched.

If a run found several faults, the kernel runs once more. Each element of memory then carries the
numbers of the faults that touched it, as origins do in MemorySanitizer (Stepanov and Serebryany,
CGO 2015). Registers need none: a slice of the program tells from which loads and computations they
come. A fault whose operands, indices or conditions carry the number of another one follows from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.findings.faults import Fault
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion, OutOfBounds
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sanitizer.again import KernelCall
from pallas_debug.machine.slices import Follows, Slicer
from pallas_debug.machine.threads import Blocked, Thread
from pallas_debug.model import Finding

MAX_FAULTS = 62
"""Maximum number of faults that are followed: each is a bit of a number."""

ABSENT = (Fault.OUTPUT_NOT_WRITTEN, Fault.SEMAPHORE_LEFT_OVER, Fault.DMA_NOT_AWAITED)
"""Faults of what does not happen: no element is touched by them, so that nothing follows."""

Point = tuple[int, ...]
Slices = tuple[slice, ...]
Place = tuple[tuple[str, int], Point, Point]
"""File and line, grid point, and loop iterations."""


def folded(
    call: KernelCall, found: Sequence[Finding], limits: Sequence[MachineObserver] = ()
) -> tuple[Finding, ...]:
    """Attach faults to the earlier ones that they follow from.

    Args:
      limits: observers that end the further run if it takes too long; what it has shown until then
        counts.
    """
    if len(found) < 2:
        return tuple(found)
    tracker = OriginTracker(found[:MAX_FAULTS])
    call.run(tracker, *limits)
    parents = {n: min(causes) for n, causes in tracker.causes.items() if min(causes) < n}
    consequences: dict[int, list[Finding]] = {}
    for number in parents:
        root = number
        while root in parents:
            root = parents[root]
        finding = found[number]
        consequences.setdefault(root, []).extend(
            (replace(finding, consequences=()), *finding.consequences)
        )
    return tuple(
        replace(finding, consequences=(*finding.consequences, *consequences.get(number, ())))
        for number, finding in enumerate(found)
        if number not in parents
    )


class OriginTracker(MachineObserver):
    """Follows the faults of an earlier run, known by their places.

    Attributes:
      causes: numbers of the faults that each fault follows from.
    """

    evaluates = True

    def __init__(self, faults: Sequence[Finding]) -> None:
        self.causes: dict[int, set[int]] = {}
        self._faults: dict[Place, list[int]] = {}
        for number, fault in enumerate(faults):
            if fault.witness.line is not None and fault.kind not in ABSENT:
                place = fault.witness.line, fault.grid_point or (), fault.loop
                self._faults.setdefault(place, []).append(number)
        self._lines = {place[0] for place in self._faults}
        self._slicer = Slicer(Follows.ALL)
        self._marks: dict[int, np.ndarray[Any, Any]] = {}
        self._touched: dict[tuple[int, int], int] = {}

    # Faults at a step

    def _at(self, thread: Thread, step: ir.MachineStep, used: int = 0) -> int:
        """Return the faults that a step's results carry: of what it uses, and its own."""
        if self._touched:
            results = {reg.number for reg in ir.results(step)}
            for number in {*ir.registers(step)} - results:
                for other in self._slicer.of_frames(thread.frames, ir.Reg(number)).steps:
                    used |= self._touched.get((thread.number, other), 0)
        faults = used | self._own(step, thread.point, thread.iterations, used)
        if faults:
            self._touched[thread.number, id(step)] = faults
        else:
            self._touched.pop((thread.number, id(step)), None)
        return faults

    def _own(self, step: ir.MachineStep, point: Point, iterations: Point, used: int) -> int:
        """Note what the faults at a step follow from; return their numbers."""
        sites = [step.site, *getattr(getattr(step, "unit", None), "sites", ())]
        lines = {site.line.place for site in sites if site.line is not None}
        own = 0
        for line in lines & self._lines:
            for number in self._faults.get((line, tuple(point), tuple(iterations)), ()):
                own |= 1 << number
                others = {n for n in range(MAX_FAULTS) if n != number and used >> n & 1}
                if others:
                    self.causes.setdefault(number, set()).update(others)
        return own

    # Elements

    def _in(self, region: MemoryRegion) -> int:
        marks = self._marks.get(region.buffer.number)
        if marks is None:
            return 0
        found = 0
        for index in region.ranges():
            found |= int(np.bitwise_or.reduce(np.ravel(marks[index]), initial=0))
        return found

    def _mark(self, buffer: MemoryBuffer, index: Any, faults: Any, *, adds: bool = False) -> None:
        marks = self._marks.get(buffer.number)
        if marks is None:
            if not np.any(faults):
                return
            marks = self._marks[buffer.number] = np.zeros(buffer.content.shape, np.int64)
        marks[index] = marks[index] | faults if adds else faults

    def allocated(self, buffer: MemoryBuffer, thread: Thread | None) -> None:
        self._marks.pop(buffer.number, None)

    # Events

    def evaluate(self, thread: Thread, step: ir.Compute, values: Sequence[Any]) -> Sequence[Any]:
        self._at(thread, step)
        return step.evaluate(*values)

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        self._at(thread, step, self._in(region))

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        faults = self._at(thread, step)
        is_partial = getattr(step, "mask", None) is not None or getattr(step, "adds", False)
        for index in region.ranges():
            self._mark(region.buffer, index, faults, adds=is_partial)

    def copy_starts(self, thread: Thread, copy: DmaCopy) -> None:
        self._at(thread, copy.step)

    def copy_ends(self, copy: DmaCopy) -> None:
        used = self._in(copy.source) | self._touched.get((copy.thread, id(copy.step)), 0)
        faults = used | self._own(copy.step, copy.point, copy.iterations, used)
        for index in copy.destination.ranges():
            self._mark(copy.destination.buffer, index, faults, adds=copy.adds)

    def fetches(self, thread: Thread, window: Window, block: Point) -> None:
        outer, inner = window.bounds(block)
        self._moves(window.array, outer, window.slots[window.filled], inner)

    def writes_back(self, thread: Thread, window: Window, block: Point) -> None:
        outer, inner = window.bounds(block)
        self._moves(window.current, inner, window.array, outer)

    def _moves(self, source: MemoryBuffer, at: Slices, target: MemoryBuffer, to: Slices) -> None:
        marks = self._marks.get(source.number)
        sizes = tuple(n.stop - n.start for n in to)
        self._mark(target, to, 0 if marks is None else marks[at].reshape(sizes))

    def branches(self, thread: Thread, step: ir.Branch, chosen: int) -> None:
        self._at(thread, step)

    def blocks(self, thread: Thread, blocked: Blocked) -> None:
        self._at(thread, blocked.step)

    def leaves(self, thread: Thread, step: ir.MachineStep, error: OutOfBounds) -> None:
        self._at(thread, step)

"""Hints from a run: what looks unintended, although a correct program may do it.

The observers read the shadow of a `MemoryTracker`, and handle each event before it does. A write is
unread if nothing has loaded, copied or written back any of its elements. If all of them are
replaced, the write was for nothing; if an output keeps some, it has several writers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.programs import program as ir
from pallas_debug.findings.hints import HintKind
from pallas_debug.machine.copies import DmaCopy
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryRegion
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.shadow import shadow
from pallas_debug.machine.shadow.shadow import WriteRecord, differing
from pallas_debug.machine.shadow.tracking import MemoryTracker
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Hint, SourceLine


class CarriedMemory(MachineObserver):
    """Notes the first such read of each buffer.

    With several outputs, the block is another one once the blocks of all of them have changed.
    """

    follows_loops = False

    def __init__(self, memory: MemoryTracker) -> None:
        self._memory = memory
        self._found: dict[str, Hint] = {}

    def hints(self) -> list[Hint]:
        return list(self._found.values())

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        buffer, state = region.buffer, self._memory.threads[thread.number]
        since = min(state.starts, default=0)
        found = self._memory.shadows.get(buffer.number)
        if found is None or found.operand not in ("scratch", "scoped"):
            return
        if buffer.name in self._found or found.least(region) >= since:
            return
        mask = found.where(region, lambda numbers: (numbers > shadow.GIVEN) & (numbers < since))
        if not mask.any():
            return
        element = shadow.first_in(mask)
        writer = self._memory.writes[int(found.numbers[element])]
        line = writer.step.site.line
        outputs = " and ".join(window.operand.name for window in state.outputs)
        self._found[buffer.name] = Hint(
            kind=HintKind.CARRIED,
            kernel=self._memory.launch.name,
            message=f"{buffer.name} still holds what grid point {writer.point} wrote for another "
            f"block of {outputs}" + (f" (line {line.line})" if line else ""),
            source=step.site.line,
            other=line,
            operand=buffer.name,
            grid_point=thread.point,
        )


Point = tuple[int, ...]


class ReplacedWrites(MachineObserver):
    """Notes the first replaced write of each line."""

    follows_loops = False

    def __init__(self, memory: MemoryTracker) -> None:
        self._memory = memory
        self._read = np.zeros(1 << 10, bool)
        self._found: dict[object, Hint] = {}

    def hints(self) -> list[Hint]:
        return list(self._found.values())

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any) -> None:
        self._reads(region)

    def copy_ends(self, copy: DmaCopy) -> None:
        self._reads(copy.source)
        if copy.adds:
            self._reads(copy.destination)
        self._writes(copy.destination, copy.step.site.line, copy.point, copy.source.read())

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        if not isinstance(step, ir.StoreStep) or step.adds or step.output is not None:
            self._reads(region)
        if getattr(step, "mask", None) is None:
            self._writes(region, step.site.line, thread.point, value)

    def writes_back(self, thread: Thread, window: Window, block: Point) -> None:
        outer, inner = window.bounds(block)
        slot, array = window.current, window.array
        old = array.content[outer]
        mine, numbers = (self._memory.shadows[b.number].numbers for b in (slot, array))
        mine, numbers = mine[inner].reshape(old.shape), numbers[outer]
        changed = differing(old, slot.content[inner].reshape(old.shape))
        mask = (numbers > shadow.GIVEN) & (mine > shadow.GIVEN) & changed
        if mask.any():
            spot = shadow.first_in(mask)
            here, there = (self._memory.writes[int(n[spot])] for n in (mine, numbers))
            self._several(window.operand.name, there, here.step.site.line, here.point)
        self._reads(MemoryRegion(slot, inner))

    def _reads(self, region: MemoryRegion) -> None:
        found = self._memory.shadows.get(region.buffer.number)
        if found is None:
            return
        self._grow()
        if found.dense is None:
            self._read[max(found.whole, 0)] = True
            return
        for index in region.ranges():
            self._read[np.maximum(found.dense[index], 0)] = True

    def _grow(self) -> None:
        if self._memory.count >= len(self._read):
            added = np.zeros(self._memory.count + len(self._read), bool)
            self._read = np.concatenate([self._read, added])

    def _writes(
        self, region: MemoryRegion, line: SourceLine | None, point: Point, value: Any
    ) -> None:
        name, found = region.buffer.name, self._memory.shadows.get(region.buffer.number)
        if found is None or found.operand not in ("scratch", "scoped", "output"):
            return
        numbers = found.of(region)
        if numbers is None:
            return
        self._grow()
        unread = (numbers > shadow.GIVEN) & ~self._read[np.maximum(numbers, 0)]
        for number in np.unique(numbers[unread]).tolist() if unread.any() else ():
            before, replaced = self._memory.writes[number], numbers == number
            if (found.numbers == number).sum() == replaced.sum():
                verb = "stored to" if before.copy is None else "copied to"
                where = f"at grid point {before.point} " if before.point else ""
                by = f" in line {line.line}" if line else ""
                at = f" at grid point {point}" if point else ""
                message = f"is {verb} {name} {where}is replaced{by}{at} before anything reads it"
                self._note(HintKind.UNREAD_WRITE, name, before, line, f"what {message}")
            elif region.buffer.kind == "output":
                old, new = region.read(), np.asarray(value)
                new = np.broadcast_to(new, old.shape) if new.size == 1 else new.reshape(old.shape)
                if (differing(old, new.astype(old.dtype)) & replaced).any():
                    self._several(name, before, line, point)

    def _several(self, name: str, lost: WriteRecord, line: SourceLine | None, point: Point) -> None:
        if lost.point != point:
            self._note(
                HintKind.SEVERAL_WRITERS, name, lost, line,
                f"grid points {lost.point} and {point} write different values to one element of "
                f"{name}, and the last one wins",
            )  # fmt: skip

    def _note(
        self, kind: HintKind, name: str, lost: WriteRecord, by: SourceLine | None, message: str
    ) -> None:
        self._found.setdefault(
            (kind, id(lost.step)),
            Hint(
                kind=kind, kernel=self._memory.launch.name, message=message,
                source=lost.step.site.line, other=by, operand=name, grid_point=lost.point,
            ),
        )  # fmt: skip


BITS = {"bfloat16": 8, "float16": 11}


class LowPrecisionSums(MachineObserver):
    """Notes the first such store of each line; sums in registers are not followed."""

    follows_loops = False

    def __init__(self, memory: MemoryTracker) -> None:
        self._memory = memory
        programs = memory.launch.body.all()
        self._sums = {id(step) for program in programs for step in _sums(program)}
        self._found: dict[int, Hint] = {}

    def hints(self) -> list[Hint]:
        return list(self._found.values())

    def stores(
        self, thread: Thread, step: ir.MachineStep, region: MemoryRegion, value: Any
    ) -> None:
        buffer, dtype = region.buffer, region.buffer.content.dtype.name
        if id(step) not in self._sums or id(step) in self._found or dtype not in BITS:
            return
        numbers = self._memory.shadows[buffer.number].of(region)
        before = None if numbers is None else self._memory.writes.get(int(np.max(numbers)))
        if before is None or before.step is not step:
            return
        self._found[id(step)] = Hint(
            kind=HintKind.LOW_PRECISION_SUM,
            kernel=self._memory.launch.name,
            message=f"{buffer.name} is a sum in {dtype}, which keeps {BITS[dtype]} bits of it",
            source=step.site.line,
            operand=buffer.name,
            grid_point=thread.point,
        )


def _sums(program: ir.KernelProgram) -> list[ir.StoreStep]:
    """Stores of a sum of what was loaded from the same place."""
    loads: dict[int, ir.LoadStep] = {}
    found = []
    for step in program.steps:
        if isinstance(step, ir.LoadStep):
            loads[step.output.number] = step
        elif isinstance(step, ir.StoreStep):
            maker = program.maker(step.value.number)
            same = {n for n, load in loads.items() if load.place == step.place}
            if step.adds or (isinstance(maker, ir.Compute) and _adds(maker, step.value, same)):
                found.append(step)
    return found


def _adds(step: ir.Compute, value: ir.Reg, loaded: set[int]) -> bool:
    """Return whether a value is computed from a sum of loaded values and others."""
    if step.unit is None:
        return False
    pairs = zip(step.inputs, step.unit.invars, strict=True)
    derived, sums = {variable for reg, variable in pairs if reg.number in loaded}, set[Any]()
    for eqn in step.unit.eqns:
        used = derived.intersection(nested.variables(eqn.invars))
        derived.update(eqn.outvars if used else ())
        if used and (eqn.primitive.name in ("add", "add_any", "sub") or used & sums):
            sums.update(eqn.outvars)
    return step.unit.outvars[[r.number for r in step.outputs].index(value.number)] in sums

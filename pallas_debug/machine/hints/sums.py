"""Hint "low-precision sum": a store adds again to what it has stored before, in 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.programs import program as ir
from pallas_debug.findings.hints import HintKind
from pallas_debug.machine.memory import MemoryRegion
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.shadow.tracking import MemoryTracker
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Hint

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

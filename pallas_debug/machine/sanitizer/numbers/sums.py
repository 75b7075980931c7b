"""Sums in 16-bit floats that are accumulated in memory, compared with float32 shadows.

Before the run, the program is searched for places where a view of a buffer is loaded, a unit adds
to it, and the result is stored to the same view. During the run, the unit is also computed from the
shadow of the loaded values (`arithmetic.precision`); any other store sets the shadow to the stored
values. Sums that are carried between iterations in registers are not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.arithmetic import numerics, precision
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.machine.sanitizer.ordering.regions import in_buffer
from pallas_debug.machine.threads import Thread

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SumLoss:
    """A sum that is further from its shadow than is allowed, at its worst element.

    Attributes:
      element: index in the buffer.
      largest: largest magnitude in the shadow.
    """

    dtype: str
    element: tuple[int, ...]
    result: float
    exact: float
    largest: float


@dataclass(frozen=True)
class _Accumulation:
    """A unit that adds to loaded values.

    Attributes:
      sources: positions of the loaded inputs, in the unit's order.
      run: computes the outputs from the inputs, and from shadows of `sources`.
    """

    sources: tuple[int, ...]
    run: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


@dataclass(eq=False)
class SumShadows:
    """Shadows of the buffers of a run.

    Attributes:
      is_active: whether the kernel has such sums.
    """

    is_active: bool = False
    _units: dict[int, _Accumulation] = field(default_factory=dict)
    _loads: set[int] = field(default_factory=set)
    _stores: set[int] = field(default_factory=set)
    _reported: set[int] = field(default_factory=set)
    _shadows: dict[int, Array] = field(default_factory=dict)
    _loaded: dict[tuple[int, int], MemoryRegion] = field(default_factory=dict)
    _made: dict[tuple[int, int], Array] = field(default_factory=dict)

    def search(self, program: ir.KernelProgram) -> None:
        """Search a program for sums before the run; not the programs of its steps."""
        loads: dict[int, ir.LoadStep] = {}
        made: dict[int, tuple[ir.Compute, int]] = {}
        sources: dict[int, tuple[ir.Compute, set[int]]] = {}
        for step in program.steps:
            if isinstance(step, ir.LoadStep):
                loads[step.output.number] = step
            elif isinstance(step, ir.Compute):
                made.update({reg.number: (step, k) for k, reg in enumerate(step.outputs)})
            elif isinstance(step, ir.StoreStep):
                if step.adds:
                    self._stores.add(id(step))
                elif step.value.number in made:
                    unit, target = made[step.value.number]
                    for source, reg in enumerate(unit.inputs):
                        load = loads.get(reg.number)
                        if load is not None and _accumulates(load, unit, source, target, step):
                            self._loads.add(id(load))
                            self._stores.add(id(step))
                            sources.setdefault(id(unit), (unit, set()))[1].add(source)
        for number, (unit, positions) in sources.items():
            order = tuple(sorted(positions))
            roots = {unit.unit.invars[source] for source in order}
            self._units[number] = _Accumulation(order, precision.shadowed(unit.unit, roots))
        self.is_active = bool(self._stores)

    # Events

    def loads(self, thread: Thread, step: ir.MachineStep, region: MemoryRegion) -> None:
        if id(step) in self._loads:
            assert isinstance(step, ir.LoadStep)
            self._loaded[thread.number, step.output.number] = region

    def evaluated(self, thread: Thread, step: ir.Compute, values: Sequence[Any]) -> None:
        accumulation = self._units.get(id(step))
        if accumulation is None:
            return
        shadows = []
        for source in accumulation.sources:
            region = self._loaded[thread.number, step.inputs[source].number]
            shadow = self._shadows.get(region.buffer.number)
            if shadow is None or region.index is None:
                shadows.append(np.asarray(values[source]).astype(np.float32))
            else:
                shadows.append(shadow[region.index])
        results = accumulation.run(values, shadows)
        for reg, result in zip(step.outputs, results, strict=True):
            self._made[thread.number, reg.number] = result

    def stores(
        self, thread: Thread, step: ir.StoreStep, region: MemoryRegion, value: Any
    ) -> SumLoss | None:
        """Update a shadow; return a loss that is greater than allowed, once per step."""
        buffer = region.buffer
        if buffer.content.dtype.name not in precision.NARROW:
            return None
        is_sum = id(step) in self._stores
        if region.index is None or not (is_sum or buffer.number in self._shadows):
            self.forget(buffer)
            return None
        if buffer.number not in self._shadows:
            self._shadows[buffer.number] = buffer.content.astype(np.float32)
        shadow = self._shadows[buffer.number]
        if not is_sum:
            shadow[region.index] = np.asarray(value).astype(np.float32)
            return None
        registers = thread.frames[-1].registers
        if step.adds:
            total = shadow[region.index] + np.asarray(registers[step.value.number]).astype("f4")
        else:
            total = np.asarray(self._made[thread.number, step.value.number])
        if step.mask is not None:
            total = np.where(registers[step.mask.number], total, shadow[region.index])
        shadow[region.index] = total
        error, element, largest = precision.loss(value, shadow[region.index])
        if error <= numerics.SUM_BOUND or id(step) in self._reported:
            return None
        self._reported.add(id(step))
        return SumLoss(
            dtype=buffer.content.dtype.name,
            element=in_buffer(region, element) or element,
            result=float(np.asarray(value)[element]),
            exact=float(shadow[region.index][element]),
            largest=largest,
        )

    def forget(self, buffer: MemoryBuffer) -> None:
        """Drop the shadow of a buffer that was written otherwise, or is new."""
        if self._shadows:
            self._shadows.pop(buffer.number, None)


def _accumulates(
    load: ir.LoadStep, unit: ir.Compute, source: int, target: int, store: ir.StoreStep
) -> bool:
    equations = unit.unit
    return (
        load.mask is None
        and load.place == store.place
        and precision.is_narrow(equations, source)
        and precision.accumulates(
            equations.eqns, equations.invars[source], equations.outvars[target]
        )
    )

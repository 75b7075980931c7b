"""Undefined elements of loads on a GPU: those for which the mask is false, without an `other`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.faults import Fault
from pallas_debug.machine.memory import Array
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sanitizer.again import KernelCall
from pallas_debug.machine.shadow.shadow import differing
from pallas_debug.machine.sightings import shape_text, sighting_of
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding
from pallas_debug.stepping import unwritten

MAX_RUNS = 8
"""Maximum number of further runs that search for the loads that matter."""


@dataclass(eq=False, slots=True)
class UndefinedLoad:
    """A load with undefined elements.

    Attributes:
      undefined: number of undefined elements of the first such load, of `total`.
    """

    step: ir.LoadStep
    point: tuple[int, ...]
    iterations: tuple[int, ...]
    operand: str
    shape: str
    undefined: int
    total: int
    count: int = 1


class UndefinedElements(MachineObserver):
    """Reports loads whose undefined elements the results depend on."""

    def __init__(self, launch: Launch, call: KernelCall) -> None:
        self._launch = launch
        self._call = call
        self._loads: dict[int, UndefinedLoad] = {}

    def undefined(self, thread: Thread, step: ir.MachineStep, value: Array, where: Array) -> None:
        known = self._loads.get(id(step))
        if known is not None:
            known.count += 1
            return
        assert isinstance(step, ir.LoadStep)
        ref = thread.ref(step.place)
        self._loads[id(step)] = UndefinedLoad(
            step, thread.point, thread.iterations, ref.name, shape_text(ref.buffer),
            int(where.sum()), int(where.size),
        )  # fmt: skip

    def findings(self) -> list[Finding]:
        """Run the kernel again with other values for the undefined elements."""
        if not self._loads or self.is_in_part:
            return []
        first = self._call.run(_Others(()))
        if not self._matters(first, list(self._loads)):
            return []
        each = [[number] for number in list(self._loads)[:MAX_RUNS]]
        found = [one for (one,) in each if len(self._loads) == 1 or self._matters(first, [one])]
        return [self._finding(self._loads[number]) for number in found or list(self._loads)[:1]]

    def _matters(self, first: Sequence[Sequence[Array]], numbers: Collection[int]) -> bool:
        again = self._call.run(_Others(numbers))
        pairs = zip(first, again, strict=True)
        return any(
            differing(one, other).any()
            for ones, others in pairs
            for one, other in zip(ones, others, strict=True)
        )

    def _finding(self, load: UndefinedLoad) -> Finding:
        seen = sighting_of(
            self._launch,
            None,
            source=load.step.site.line,
            grid_point=load.point,
            loop=load.iterations,
            operand=load.operand,
            shape=load.shape,
            count=load.count,
        )
        if load.step.mask is None:
            return seen.of(Fault.PADDING_READ)
        return seen.of(Fault.UNINITIALIZED_READ, undefined=load.undefined, total=load.total)


class _Others(MachineObserver):
    """Gives undefined elements of some loads other values."""

    def __init__(self, numbers: Collection[int]) -> None:
        self._numbers = frozenset(numbers)

    def undefined(self, thread: Thread, step: ir.MachineStep, value: Array, where: Array) -> None:
        if id(step) in self._numbers:
            value[where] = unwritten.memory((), value.dtype, "number")[()]

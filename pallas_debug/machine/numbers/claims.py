"""False claims in a kernel: hints to the compiler, and checks by its author."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs import units
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.facts import number
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.sighting import Sighting
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.sightings import sighting
from pallas_debug.machine.threads import ProgramFrame, Thread
from pallas_debug.model import Finding


class ClaimsObserver(MachineObserver):
    """Checks `pl.multiple_of`, `pl.debug_check` and `checkify.check`."""

    follows_loops = False

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._found: dict[tuple[int, int], tuple[Sighting, Fault, dict[str, Any]]] = {}

    def findings(self) -> list[Finding]:
        """Return the findings, one per line of code, in the order in which they were first seen."""
        return [seen.of(kind, **facts) for seen, kind, facts in self._found.values()]

    def multiple_of(self, thread: Thread, step: ir.MultipleOf, value: Any) -> None:
        given = np.asarray(value)
        for divisor in step.divisors:
            wrong = given[given % divisor != 0]
            if wrong.size:
                first = int(wrong.flat[0])
                self._note(
                    sighting(self._launch, thread, step),
                    (id(step), divisor),
                    Fault.FALSE_HINT,
                    value=first,
                    divisor=divisor,
                    of_pipeline=step.of_pipeline,
                )

    def checks(self, thread: Thread, step: ir.CheckStep, values: Sequence[Any]) -> None:
        message = step.message(values)
        if message is None:
            return
        seen = sighting(self._launch, thread, step)
        facts = {"message": message.removesuffix(" (`check` failed)")}
        compared = _compared(thread.frames[-1], step)
        if compared is not None:
            left, right = number(compared.left.item()), number(compared.right.item())
            false = {"condition": f"{left} {compared.sign} {right}"}
            if compared.element:
                false["element"] = str(list(compared.element))
            seen, facts = seen.with_values(false), facts | false
        self._note(seen, (id(step), 0), Fault.CHECK_FAILED, **facts)

    def _note(self, seen: Sighting, place: tuple[int, int], kind: Fault, **facts: Any) -> None:
        first, *_, facts = self._found.get(place, (replace(seen, count=0), kind, facts))
        self._found[place] = replace(first, count=first.count + 1), kind, facts


def _compared(frame: ProgramFrame, step: ir.CheckStep) -> units.FalseComparison | None:
    """Return the comparison that is false, if the condition is a comparison."""
    registers = frame.registers
    for failed in step.inputs:
        value = np.asarray(registers[failed.number])
        if value.dtype != bool or not value.any():
            continue
        for maker in frame.program.steps:
            if isinstance(maker, ir.Compute) and failed in maker.outputs:
                values = [registers[reg.number] for reg in maker.inputs]
                if any(value is None for value in values):
                    return None  # large values are dropped after their last use
                return units.false_comparison(maker, failed, values)
    return None

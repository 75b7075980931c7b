"""Hint "carried": scratch written while one output block was current is read for another."""

from __future__ import annotations

from typing import Any

from pallas_debug.bridge.programs import program as ir
from pallas_debug.findings.hints import HintKind
from pallas_debug.machine.memory import MemoryRegion
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.shadow import shadow
from pallas_debug.machine.shadow.tracking import MemoryTracker
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Hint


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

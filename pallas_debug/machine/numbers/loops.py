"""Endless loops.

For a `while_loop`, the values that its condition depends on are compared with those of an earlier
iteration. If they are equal, and the condition depends on nothing else, the loop is endless. Any
other loop is stopped at a limit, which is higher for loops that count up to a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.bridge.programs.loops import LoopChunk
from pallas_debug.findings.faults import Fault
from pallas_debug.machine.machine import Stopped
from pallas_debug.machine.observer import MachineObserver, max_iterations
from pallas_debug.machine.sightings import sighting
from pallas_debug.machine.slices import Follows, Slicer
from pallas_debug.machine.threads import ProgramFrame, Thread
from pallas_debug.model import Finding

FIRST_COMPARED = 4
"""First iteration with which later ones are compared; then the 8th, the 16th and so on."""

_CHANGES = (
    *(ir.StoreStep, ir.CopyStart, ir.CopyWait, ir.SemaphoreSignal, ir.SemaphoreWait),
    *(ir.Seed, ir.RandomBits, ir.Callback),
)
_READS = (ir.LoadStep, ir.StoreStep)
_KNOWN = (
    *(ir.Compute, ir.LoadStep, ir.StoreStep, ir.GridId, ir.AxisIndex, ir.MultipleOf),
    *(ir.Branch, ir.ScanLoop),
)


@dataclass(frozen=True)
class _Condition:
    """Values that the condition of a loop depends on.

    Attributes:
      carried: positions of the values in the carry.
      names: names of these values.
      is_closed: whether the number of iterations depends only on these values.
      unchanged: names of those that the body returns unchanged.
    """

    carried: tuple[int, ...]
    names: tuple[str, ...]
    is_closed: bool
    unchanged: tuple[str, ...]


class LoopObserver(MachineObserver):
    """Stops endless loops."""

    follows_loops = False

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._findings: list[Finding] = []
        self._conditions: dict[int, _Condition] = {}
        self._before: dict[tuple[int, int], tuple[int, list[bytes]]] = {}

    def findings(self) -> list[Finding]:
        return self._findings

    def iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        if iteration < FIRST_COMPARED or not isinstance(step, ir.WhileLoop):
            return
        condition = self._conditions.get(id(step))
        if condition is None:
            # Another core or device could change the memory that the loop reads.
            condition = _condition_of(step, is_alone=not self._launch.mesh)
            self._conditions[id(step)] = condition
        if condition.is_closed:
            place = thread.number, len(thread.frames)
            values = _carried(thread.frames[-1], step, condition)
            known = self._before.get(place)
            if known is None or iteration & (iteration - 1) == 0:
                self._before[place] = iteration, [value.tobytes() for value in values]
            else:
                since, before = known
                if all(v.tobytes() == b for v, b in zip(values, before, strict=True)):
                    self._stop(thread, step, condition, iteration, since)
        if iteration >= max_iterations(step):
            self._stop(thread, step, condition, iteration, None)

    def runs_chunk(self, thread: Thread, step: ir.Loop, chunk: LoopChunk) -> None:
        self._before.pop((thread.number, len(thread.frames) + 1), None)

    def index_map_iterates(self, thread: Thread, step: ir.MachineStep, iteration: int) -> None:
        self.iterates(thread, step, iteration)

    def _stop(
        self,
        thread: Thread,
        step: ir.WhileLoop,
        condition: _Condition,
        iteration: int,
        since: int | None,
    ) -> NoReturn:
        values = _carried(thread.frames[-1], step, condition)
        shown = {
            name: str(value)
            for name, value in zip(condition.names, values, strict=True)
            if value.ndim == 0
        }
        seen = sighting(self._launch, thread, step, values=shown)
        self._findings.append(
            seen.of(
                Fault.ENDLESS_LOOP,
                count=iteration,
                since=since,
                state=", ".join(f"{name} = {value}" for name, value in shown.items()),
                names=", ".join(shown) or "the values it reads",
                unchanged=list(condition.unchanged),
            )
        )
        raise Stopped("endless loop", thread)


def _carried(
    frame: ProgramFrame, step: ir.WhileLoop, condition: _Condition
) -> list[np.ndarray[Any, Any]]:
    regs = step.body.inputs[len(step.constants) :]
    return [np.asarray(frame.registers[regs[i].number]) for i in condition.carried]


def _condition_of(step: ir.WhileLoop, *, is_alone: bool) -> _Condition:
    found = Slicer(Follows.ALL).inside(step, {})
    names, unchanged = {}, []
    regs = step.condition.inputs[len(step.condition_constants) :]
    first = len(step.constants)
    for i in sorted(found.carried):
        names[i] = step.condition.names.get(regs[i].number) or f"value {i}"
        if step.body.outputs[i] == step.body.inputs[first + i]:
            unchanged.append(names[i])
    steps = [inner for inner, _ in found.steps.values()]
    reads = any(isinstance(inner, _READS) for inner in steps)
    changes = any(isinstance(inner, _CHANGES) for inner in step.body.all_steps())
    is_closed = all(isinstance(inner, _KNOWN) for inner in steps)
    is_closed = is_closed and not (reads and (changes or not is_alone))
    return _Condition(tuple(names), tuple(names.values()), is_closed, tuple(unchanged))

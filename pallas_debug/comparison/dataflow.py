"""Loads from which the value of a store was computed, found by following registers backwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pallas_debug.bridge.programs import made_of
from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.threads import ProgramFrame


@dataclass(frozen=True, slots=True)
class _Behind:
    """Dependencies of registers of a program.

    Attributes:
      loads: steps that load, by identity, in this program and in programs that its steps run.
      inputs: positions among the program's arguments.
    """

    loads: frozenset[int] = frozenset()
    inputs: frozenset[int] = frozenset()

    def __or__(self, other: _Behind) -> _Behind:
        return _Behind(self.loads | other.loads, self.inputs | other.inputs)


class Dataflow:
    """Backward slices of the programs of one kernel, each computed once.

    Only data is followed, not the conditions under which a step is executed, nor indices.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[int, ...]], _Behind] = {}

    def loads(self, frames: Sequence[ProgramFrame], value: ir.Reg) -> frozenset[int]:
        """Identities of the loads on which a register of the innermost frame depends."""
        found = _Behind()
        wanted = [value]
        for depth in range(len(frames) - 1, -1, -1):
            frame = frames[depth]
            here = self.behind(frame.program, wanted)
            if frame.caller is None:
                return found.loads | here.loads
            outer, loads = self._outside(frame, here.inputs)
            found = _Behind(found.loads | here.loads | loads)
            wanted = outer
        return found.loads

    def behind(self, program: ir.KernelProgram, wanted: Sequence[ir.Reg]) -> _Behind:
        """Dependencies of registers of a program."""
        key = id(program), tuple(reg.number for reg in wanted)
        if key not in self._known:
            self._known[key] = self._slice(program, wanted)
        return self._known[key]

    def _slice(self, program: ir.KernelProgram, wanted: Sequence[ir.Reg]) -> _Behind:
        needed = {reg.number for reg in wanted}
        loads: set[int] = set()
        for step in reversed(program.steps):
            found, inputs = self._step(program, step, needed)
            loads |= found
            needed |= {reg.number for reg in inputs}
        positions = {i for i, reg in enumerate(program.inputs) if reg.number in needed}
        return _Behind(frozenset(loads), frozenset(positions))

    def _step(
        self, program: ir.KernelProgram, step: ir.MachineStep, needed: set[int]
    ) -> tuple[frozenset[int], Sequence[ir.Reg]]:
        """Loads and registers behind the needed outputs of a step."""
        match step:
            case ir.LoadStep() if step.output.number in needed:
                return frozenset({id(step)}), [step.other] if step.other is not None else []
            case ir.StoreStep() if step.output is not None and step.output.number in needed:
                return frozenset({id(step)}), []
            case ir.Compute():
                return frozenset(), made_of.registers_behind(step, needed)
            case ir.MultipleOf() if step.output.number in needed:
                return frozenset(), [step.value]
            case ir.MatrixPop() if step.output.number in needed:
                return frozenset(), [
                    other.value
                    for other in program.steps
                    if isinstance(other, (ir.MatrixPush, ir.MatrixMultiply))
                ]
            case ir.Branch():
                return self._inner(step.branches, step.outputs, step.inputs, needed)
            case ir.Scoped():
                return self._inner([step.body], step.outputs, step.inputs, needed)
            case ir.WhileLoop() | ir.ScanLoop():
                return self._loop(step, needed)
        return frozenset(), []

    def _inner(
        self,
        programs: Sequence[ir.KernelProgram],
        outputs: Sequence[ir.Reg],
        inputs: Sequence[ir.Reg],
        needed: set[int],
    ) -> tuple[frozenset[int], Sequence[ir.Reg]]:
        numbers = [i for i, reg in enumerate(outputs) if reg.number in needed]
        if not numbers:
            return frozenset(), []
        found = _Behind()
        for program in programs:
            found |= self.behind(program, [program.outputs[i] for i in numbers])
        return found.loads, [inputs[i] for i in found.inputs if i < len(inputs)]

    def _loop(self, step: ir.Loop, needed: set[int]) -> tuple[frozenset[int], Sequence[ir.Reg]]:
        numbers = {i for i, reg in enumerate(step.outputs) if reg.number in needed}
        if not numbers:
            return frozenset(), []
        _, given = ir.inner_programs(step)[-1]
        found = self._carried(step, numbers)
        initial = [step.carry[i] for i in sorted(numbers) if i < len(step.carry)]
        return found.loads, [*initial, *(given[i] for i in found.inputs)]

    def _carried(self, step: ir.Loop, numbers: set[int]) -> _Behind:
        """Dependencies of the outputs of a loop's body, through any number of iterations."""
        constants = len(step.constants)
        found = _Behind()
        waiting, done = set(numbers), set[int]()
        while waiting:
            number = waiting.pop()
            done.add(number)
            found |= self.behind(step.body, [step.body.outputs[number]])
            carried = {i - constants for i in found.inputs if i >= constants}
            waiting |= {i for i in carried if i < len(step.carry)} - done
        return found

    def _outside(
        self, frame: ProgramFrame, positions: frozenset[int]
    ) -> tuple[list[ir.Reg], frozenset[int]]:
        """Registers of the enclosing frame behind arguments, and loads of earlier iterations."""
        step = frame.caller
        if isinstance(step, (ir.Branch, ir.Scoped)):
            return [step.inputs[i] for i in positions if i < len(step.inputs)], frozenset()
        if not isinstance(step, ir.Loop) or frame.stage == "condition":
            return [], frozenset()
        _, given = ir.inner_programs(step)[-1]
        constants = len(step.constants)
        carried = {i - constants for i in positions if 0 <= i - constants < len(step.carry)}
        found = self._carried(step, carried)
        return [given[i] for i in (positions | found.inputs) if i < len(given)], found.loads

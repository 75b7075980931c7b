"""Loads from which the value of a store was computed, found by following registers backwards.

A load is *aligned* if each element of the value depends only on its element at the same position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.walk.origins import ELEMENTWISE
from pallas_debug.machine.threads import ProgramFrame


@dataclass(slots=True)
class _Behind:
    """Dependencies of registers of a program, each with whether all ways to it are aligned.

    Attributes:
      loads: steps that load, by identity, in this program and in programs that its steps run.
      inputs: positions among the program's arguments.
    """

    loads: dict[int, bool] = field(default_factory=dict)
    inputs: dict[int, bool] = field(default_factory=dict)

    def add(self, other: _Behind) -> None:
        _add(self.loads, other.loads)
        _add(self.inputs, other.inputs)


def _add(known: dict[Any, bool], other: Mapping[Any, bool]) -> None:
    for key, is_aligned in other.items():
        known[key] = known.get(key, True) and is_aligned


class Dataflow:
    """Backward slices of the programs of one kernel, each computed once.

    Only data is followed, not the conditions under which a step is executed, nor indices.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[tuple[int, bool], ...]], _Behind] = {}

    def loads(self, frames: Sequence[ProgramFrame], value: ir.Reg) -> dict[int, bool]:
        """Loads on which a register of the innermost frame depends, with their alignment."""
        found: dict[int, bool] = {}
        wanted = {value.number: True}
        for frame in reversed(frames):
            here = self._behind(frame.program, wanted)
            _add(found, here.loads)
            if frame.caller is None:
                break
            wanted = self._outside(frame, here.inputs, found)
        return found

    def _behind(self, program: ir.KernelProgram, wanted: Mapping[int, bool]) -> _Behind:
        """Dependencies of registers of a program."""
        key = id(program), tuple(sorted(wanted.items()))
        if key not in self._known:
            self._known[key] = self._slice(program, wanted)
        return self._known[key]

    def _slice(self, program: ir.KernelProgram, wanted: Mapping[int, bool]) -> _Behind:
        needed = dict(wanted)
        found = _Behind()
        for step in reversed(program.steps):
            loads, registers = self._step(program, step, needed)
            _add(found.loads, loads)
            _add(needed, registers)
        found.inputs = {
            i: needed[reg.number] for i, reg in enumerate(program.inputs) if reg.number in needed
        }
        return found

    def _step(
        self, program: ir.KernelProgram, step: ir.MachineStep, needed: Mapping[int, bool]
    ) -> tuple[Mapping[int, bool], Mapping[int, bool]]:
        """Loads and registers behind the needed outputs of a step."""
        match step:
            case ir.LoadStep() if step.output.number in needed:
                is_aligned = needed[step.output.number]
                other = {} if step.other is None else {step.other.number: is_aligned}
                return {id(step): is_aligned}, other
            case ir.StoreStep() if step.output is not None and step.output.number in needed:
                return {id(step): needed[step.output.number]}, {}
            case ir.Compute():
                return {}, _through(step, needed)
            case ir.MultipleOf() if step.output.number in needed:
                return {}, {step.value.number: needed[step.output.number]}
            case ir.MatrixPop() if step.output.number in needed:
                kinds = (ir.MatrixPush, ir.MatrixMultiply)
                return {}, {s.value.number: False for s in program.steps if isinstance(s, kinds)}
            case ir.Branch():
                return self._inner(step.branches, step.outputs, step.inputs, needed)
            case ir.Scoped():
                return self._inner([step.body], step.outputs, step.inputs, needed)
            case ir.WhileLoop() | ir.ScanLoop():
                numbers = {i: needed[r.number] for i, r in _needed(step.outputs, needed)}
                found, inputs = self._loop(step, numbers)
                carry = {step.carry[i].number: a for i, a in numbers.items() if i < len(step.carry)}
                _add(inputs, carry)
                return found, inputs
        return {}, {}

    def _inner(
        self,
        programs: Sequence[ir.KernelProgram],
        outputs: Sequence[ir.Reg],
        inputs: Sequence[ir.Reg],
        needed: Mapping[int, bool],
    ) -> tuple[Mapping[int, bool], Mapping[int, bool]]:
        numbers = {i: needed[reg.number] for i, reg in _needed(outputs, needed)}
        found = _Behind()
        for program in programs if numbers else ():
            found.add(self._behind(program, _registers(program.outputs, numbers)))
        return found.loads, _registers(inputs, found.inputs)

    def _loop(
        self, step: ir.Loop, numbers: Mapping[int, bool]
    ) -> tuple[Mapping[int, bool], dict[int, bool]]:
        """Loads and registers behind outputs of a loop's body, through any number of iterations."""
        constants = len(step.constants)
        found = _Behind()
        waiting, done = dict(numbers), set[int]()
        while waiting:
            number, is_aligned = waiting.popitem()
            done.add(number)
            # An element of a stacked output is in one iteration's value, at another position.
            is_aligned = is_aligned and number < len(step.carry)
            found.add(self._behind(step.body, {step.body.outputs[number].number: is_aligned}))
            for i, aligned in found.inputs.items():
                if 0 <= i - constants < len(step.carry) and i - constants not in done:
                    waiting[i - constants] = aligned
        return found.loads, _given(step, found.inputs)

    def _outside(
        self, frame: ProgramFrame, positions: Mapping[int, bool], found: dict[int, bool]
    ) -> dict[int, bool]:
        """Registers of the enclosing frame behind arguments; adds loads of earlier iterations."""
        step = frame.caller
        if isinstance(step, (ir.Branch, ir.Scoped)):
            return _registers(step.inputs, positions)
        if not isinstance(step, ir.Loop) or frame.stage == "condition":
            return {}
        constants = len(step.constants)
        carried = {
            i - constants: aligned
            for i, aligned in positions.items()
            if 0 <= i - constants < len(step.carry)
        }
        loads, registers = self._loop(step, carried)
        _add(found, loads)
        _add(registers, _given(step, positions))
        return registers


def _needed(outputs: Sequence[ir.Reg], needed: Mapping[int, bool]) -> Iterable[tuple[int, ir.Reg]]:
    return ((i, reg) for i, reg in enumerate(outputs) if reg.number in needed)


def _registers(registers: Sequence[ir.Reg], positions: Mapping[int, bool]) -> dict[int, bool]:
    found: dict[int, bool] = {}
    for i, is_aligned in positions.items():
        if i < len(registers):
            _add(found, {registers[i].number: is_aligned})
    return found


def _given(step: ir.Loop, positions: Mapping[int, bool]) -> dict[int, bool]:
    """Registers that are a loop's inputs; of a stacked one, an iteration gets only a slice."""
    first = len(step.constants) + len(step.carry)
    given = ir.inner_programs(step)[-1][1]
    return _registers(given, {i: aligned and i < first for i, aligned in positions.items()})


def _through(step: ir.Compute, needed: Mapping[int, bool]) -> dict[int, bool]:
    """Inputs of a unit behind its needed outputs."""
    numbers = list(_needed(step.outputs, needed))
    if step.unit is None:
        return {reg.number: False for reg in step.inputs} if numbers else {}
    known: dict[Any, bool] = {}
    for i, reg in numbers:
        _add(known, {step.unit.outvars[i]: needed[reg.number]})
    for eqn in reversed(step.unit.eqns):
        made = [known[variable] for variable in eqn.outvars if variable in known]
        for variable in nested.variables(eqn.invars) if made else ():
            _add(known, {variable: all(made) and _is_aligned(eqn, variable)})
    found: dict[int, bool] = {}
    for reg, variable in zip(step.inputs, step.unit.invars, strict=True):
        if variable in known:
            _add(found, {reg.number: known[variable]})
    return found


def _is_aligned(eqn: Any, operand: Any) -> bool:
    """Return whether each element of a result depends only on the operand's at its position."""
    before, after = operand.aval.shape, eqn.outvars[0].aval.shape
    if eqn.primitive.name == "broadcast_in_dim":
        return len(before) == len(after) and eqn.params["broadcast_dimensions"] == (
            tuple(range(len(after)))
        )
    return eqn.primitive.name in ELEMENTWISE and before in (after, ())

"""Backward slices of a kernel's program: the steps from which a register was computed.

A slice follows registers through branches, scopes and any number of iterations of loops, not
through memory: it ends at the steps that read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.primitives import TABLE
from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.threads import ProgramFrame


class Follows(Enum):
    """Dependencies that a slice follows."""

    VALUES = auto()
    """Numbers of which a value consists, in code that certainly ran: no booleans of a unit, which
    only decide between numbers, no branches, and no loops that may have no iterations."""

    DATA = auto()
    """All operands of units, and results of branches and loops."""

    ALL = auto()
    """Also indices, masks, and the conditions of branches and loops."""


Needed = dict[int, bool]
"""Registers, or positions among a program's arguments or results, each with whether it is
*aligned*: each element of the value depends only on its element at the same position."""


@dataclass(slots=True)
class BackwardSlice:
    """Steps and arguments that registers of a program depend on.

    Attributes:
      steps: steps of the program and of those within it by identity, and whether they are aligned.
      inputs: positions among the program's arguments.
      refs: registers of the program with the references that these steps load from.
    """

    steps: dict[int, tuple[ir.MachineStep, bool]] = field(default_factory=dict)
    inputs: Needed = field(default_factory=dict)
    refs: set[int] = field(default_factory=set)

    @property
    def loads(self) -> list[ir.LoadStep]:
        return [step for step, _ in self.steps.values() if isinstance(step, ir.LoadStep)]

    def add(self, step: ir.MachineStep, *, is_aligned: bool) -> None:
        _, known = self.steps.get(id(step), (step, True))
        self.steps[id(step)] = step, known and is_aligned

    def add_all(self, other: BackwardSlice) -> None:
        for step, is_aligned in other.steps.values():
            self.add(step, is_aligned=is_aligned)


@dataclass(slots=True)
class InnerSlice(BackwardSlice):
    """Steps and registers that results of a branch, scope or loop depend on.

    Attributes:
      registers: registers of the program that contains the step; so are `refs`.
      carried: positions in the carry of a loop, of this and earlier iterations.
    """

    registers: Needed = field(default_factory=dict)
    carried: Needed = field(default_factory=dict)


class Slicer:
    """Slices of the programs of a kernel, each computed once."""

    def __init__(self, follows: Follows) -> None:
        self._follows = follows
        self._known: dict[tuple[int, tuple[tuple[int, bool], ...]], BackwardSlice] = {}

    def behind(self, program: ir.KernelProgram, wanted: Mapping[int, bool]) -> BackwardSlice:
        """Return what registers of a program depend on."""
        key = id(program), tuple(sorted(wanted.items()))
        if key not in self._known:
            self._known[key] = self._slice(program, wanted)
        return self._known[key]

    def inside(self, step: ir.MachineStep, results: Mapping[int, bool]) -> InnerSlice:
        """Return what results of a branch, scope or loop depend on, through all iterations.

        Args:
          results: positions among the results of the programs within the step.
        """
        found = InnerSlice()
        carry = getattr(step, "carry", ())
        pending, done = dict(results), None
        while pending != done:
            done = dict(pending)
            for program, given in ir.inner_programs(step):
                wanted = self._wanted(step, program, done)
                if wanted is None:
                    continue
                behind = self.behind(program, wanted)
                found.add_all(behind)
                registers, carried = _given(step, given, behind.inputs)
                _add_all(found.registers, registers)
                _add_all(pending, carried)
                places = {r.number: i for i, r in enumerate(program.inputs[: len(given)])}
                found.refs |= {given[places[n]].number for n in behind.refs if n in places}
        # Of a stacked result, each element is in the value of one iteration, at another position.
        found.carried = {i: aligned for i, aligned in pending.items() if i < len(carry)}
        _add_all(found.registers, {carry[i].number: a for i, a in found.carried.items()})
        return found

    def outside(self, frame: ProgramFrame, inputs: Mapping[int, bool]) -> InnerSlice:
        """Return what arguments of a frame depend on: registers of the enclosing one.

        Args:
          inputs: positions among the arguments; the result has what earlier iterations did to them.
        """
        step = frame.caller
        assert step is not None
        given = next(regs for program, regs in ir.inner_programs(step) if program is frame.program)
        registers, carried = _given(step, given, inputs)
        certain = self._follows is Follows.VALUES
        is_followed = carried and (frame.iteration or not certain)
        found = self.inside(step, carried) if is_followed else InnerSlice()
        _add_all(found.registers, registers)
        return found

    def of_frames(self, frames: Sequence[ProgramFrame], value: ir.Reg) -> BackwardSlice:
        """Return what a register of the innermost frame depends on, through all frames."""
        found, wanted = BackwardSlice(), {value.number: True}
        for frame in reversed(frames):
            behind = self.behind(frame.program, wanted)
            found.add_all(behind)
            if frame.caller is not None:
                outside = self.outside(frame, behind.inputs)
                found.add_all(outside)
                wanted = outside.registers
        return found

    def _slice(self, program: ir.KernelProgram, wanted: Mapping[int, bool]) -> BackwardSlice:
        needed, found = dict(wanted), BackwardSlice()
        for step in reversed(program.steps):
            results = {
                i: needed[reg.number]
                for i, reg in enumerate(ir.results(step))
                if reg.number in needed
            }
            if results:
                found.add(step, is_aligned=all(results.values()))
                _add_all(needed, self._step(step, results, found))
        inputs = enumerate(program.inputs)
        found.inputs = {i: needed[reg.number] for i, reg in inputs if reg.number in needed}
        return found

    def _step(self, step: ir.MachineStep, results: Needed, found: BackwardSlice) -> Needed:
        """Registers that results of a step depend on; adds the steps within it."""
        if isinstance(step, ir.Compute) and step.unit is not None:
            return self._unit(step, results)
        if ir.inner_programs(step):
            return self._inner(step, results, found)
        if isinstance(step, ir.LoadStep):
            found.refs.add(step.place.ref.number)
        if self._follows is Follows.ALL:
            return dict.fromkeys(ir.registers(step), False)
        match step:
            case ir.Compute():
                return {reg.number: False for reg in step.inputs}
            case ir.LoadStep() if step.other is not None:
                return {step.other.number: results[0]}
            case ir.MultipleOf():
                return {step.value.number: results[0]}
        return {}

    def _inner(self, step: ir.MachineStep, results: Needed, found: BackwardSlice) -> Needed:
        if self._follows is Follows.VALUES and not (isinstance(step, ir.ScanLoop) and step.length):
            return {}
        inner = self.inside(step, results)
        found.add_all(inner)
        found.refs |= inner.refs
        if self._follows is Follows.ALL and isinstance(step, ir.Branch):
            _add(inner.registers, step.index.number, is_aligned=False)
        return inner.registers

    def _wanted(
        self, step: ir.MachineStep, program: ir.KernelProgram, results: Needed
    ) -> Needed | None:
        """Registers of a program within a step; None for a condition that is not followed."""
        if isinstance(step, ir.WhileLoop) and program is step.condition:
            is_followed = self._follows is Follows.ALL
            return {program.outputs[0].number: False} if is_followed else None
        count = len(step.carry) if isinstance(step, ir.Loop) else len(program.outputs)
        wanted: Needed = {}
        for i, is_aligned in results.items():
            _add(wanted, program.outputs[i].number, is_aligned=is_aligned and i < count)
        return wanted

    def _unit(self, step: ir.Compute, results: Needed) -> Needed:
        known: dict[Any, bool] = {}
        for i, is_aligned in results.items():
            _add(known, step.unit.outvars[i], is_aligned=is_aligned)
        self._equations(step.unit.eqns, known)
        found: Needed = {}
        for reg, variable in zip(step.inputs, step.unit.invars, strict=True):
            if variable in known:
                _add(found, reg.number, is_aligned=known[variable])
        return found

    def _equations(self, eqns: Sequence[Any], known: dict[Any, bool]) -> None:
        """Add the variables that known ones were computed from."""
        for eqn in reversed(eqns):
            made = {i: known[out] for i, out in enumerate(eqn.outvars) if out in known}
            called = nested.inlined(eqn) if made else None
            if called is not None:  # `jnp.where` and others are calls
                inner: dict[Any, bool] = {}
                for i, is_aligned in made.items():
                    for variable in nested.variables(called[0].outvars[i : i + 1]):
                        _add(inner, variable, is_aligned=is_aligned)
                self._equations(called[0].eqns, inner)
                for atom, variable in zip(eqn.invars, called[0].invars, strict=True):
                    if variable in inner and nested.variables([atom]):
                        _add(known, atom, is_aligned=inner[variable])
                continue
            for variable in nested.variables(eqn.invars) if made else ():
                if self._follows is not Follows.VALUES or variable.aval.dtype != bool:
                    is_aligned = all(made.values()) and _is_aligned(eqn, variable)
                    _add(known, variable, is_aligned=is_aligned)


def _add(known: dict[Any, bool], key: Any, *, is_aligned: bool) -> None:
    known[key] = known.get(key, True) and is_aligned


def _add_all(known: Needed, other: Mapping[int, bool]) -> None:
    for key, is_aligned in other.items():
        _add(known, key, is_aligned=is_aligned)


def _given(
    step: ir.MachineStep, given: Sequence[ir.Reg], inputs: Mapping[int, bool]
) -> tuple[Needed, Needed]:
    """Registers that a step passes as arguments, and positions of its carry among these."""
    carry, stacked = getattr(step, "carry", ()), getattr(step, "stacked", ())
    end = len(given) - len(stacked)
    registers: Needed = {}
    carried: Needed = {}
    for i, is_aligned in inputs.items():
        if i < len(given):
            # Of a stacked argument, an iteration gets only a slice.
            _add(registers, given[i].number, is_aligned=is_aligned and i < end)
        if end - len(carry) <= i < end:
            carried[i - end + len(carry)] = is_aligned
    return registers, carried


def _is_aligned(eqn: Any, operand: Any) -> bool:
    """Return whether each element of a result depends only on the operand's at its position."""
    before, after = operand.aval.shape, eqn.outvars[0].aval.shape
    if eqn.primitive.name == "broadcast_in_dim":
        return len(before) == len(after) and eqn.params["broadcast_dimensions"] == (
            tuple(range(len(after)))
        )
    row = TABLE.get(eqn.primitive.name)
    return row is not None and row.is_by_element and before in (after, ())

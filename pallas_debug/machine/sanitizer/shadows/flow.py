"""Flow of values between operands: which outputs may contain values from a scratch buffer."""

from __future__ import annotations

from collections.abc import Sequence

from pallas_debug.bridge.programs import made_of
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch

Names = frozenset[str]

_NONE: Names = frozenset()

_COMPUTED = ""
"""Placeholder name for a value that was computed, not only moved."""

MAX_ROUNDS = 16
"""Maximum number of passes over a loop's body to reach a fixed point of its carry."""


class ValueFlow:
    """Possible destinations of the values of operands and scratch buffers, by name.

    A static approximation: every branch is taken, and indices and conditions carry no values.

    Attributes:
      direct: pairs of names; values of the first are stored or copied to the second. The first is
        empty for computed values.
      copied: names of the sources of a copy, by identity of the step.
    """

    def __init__(self, launch: Launch) -> None:
        self.direct: set[tuple[str, str]] = set()
        self.copied: dict[int, Names] = {}
        given = [
            (frozenset([operand.name]), _NONE)
            for _, operand in zip(launch.body.inputs, launch.operands, strict=True)
        ]
        self._walk(launch.body, given)

    def stores_to_others(self, source: str, target: str) -> bool:
        """Return whether values of one operand may be stored or copied to another."""
        return source != target and (source, target) in self.direct

    def reached(self, name: str) -> Names:
        """Names of operands that may contain values computed from an operand, also indirectly."""
        found: set[str] = set()
        left = [name]
        while left:
            source = left.pop()
            for one, target in self.direct:
                if one == source and target not in found:
                    found.add(target)
                    left.append(target)
        return frozenset(found)

    def is_state(self, name: str) -> bool:
        """Return whether an operand's values may be computed from earlier ones of some operand."""
        names = {name, *(source for source, _ in self.direct if name in self.reached(source))}
        return any(one in self.reached(one) for one in names)

    def is_moved(self, name: str) -> bool:
        """Return whether an operand's values are only copied, not used in a computation."""
        return not any((_COMPUTED, target) in self.direct for target in self.reached(name))

    def _walk(
        self, program: ir.KernelProgram, given: Sequence[tuple[Names, Names]]
    ) -> list[tuple[Names, Names]]:
        """Follow a program; per value, it takes and returns names referred to, and of origin."""
        refers: dict[int, Names] = {}
        made_of: dict[int, Names] = {}

        def known(reg: ir.Reg) -> tuple[Names, Names]:
            return refers.get(reg.number, _NONE), made_of.get(reg.number, _NONE)

        def learn(reg: ir.Reg, names: Names, values: Names) -> None:
            refers[reg.number] = refers.get(reg.number, _NONE) | names
            made_of[reg.number] = made_of.get(reg.number, _NONE) | values

        def union(regs: Sequence[ir.Reg]) -> Names:
            return _NONE.union(*(known(reg)[1] for reg in regs))

        def flows(sources: Names, targets: Names) -> None:
            self.direct.update((a, b) for a in sources for b in targets)

        for reg, (names, values) in zip(program.inputs, given, strict=False):
            learn(reg, names, values)
        for step in program.steps:
            match step:
                case ir.Compute():
                    for reg, inputs in zip(step.outputs, _sources(step), strict=True):
                        learn(reg, _NONE, union(inputs) | {_COMPUTED})
                case ir.LoadStep():
                    held = known(step.place.ref)[0]
                    learn(step.output, _NONE, held | (union([step.other]) if step.other else _NONE))
                case ir.StoreStep():
                    flows(known(step.value)[1], known(step.place.ref)[0])
                    if step.output is not None:
                        learn(step.output, _NONE, known(step.place.ref)[0])
                case ir.AtomicStep():
                    held = known(step.place.ref)[0]
                    flows(union(step.values), held)
                    if step.output is not None:
                        learn(step.output, _NONE, held)
                case ir.CopyStart():
                    sources = known(step.source.ref)[0]
                    self.copied[id(step)] = self.copied.get(id(step), _NONE) | sources
                    flows(sources, known(step.destination.ref)[0])
                case ir.SelectRef():
                    for place in step.places:
                        learn(step.output, known(place.ref)[0], _NONE)
                case ir.NewRef():
                    learn(step.output, frozenset([step.name]), _NONE)
                case ir.ScanLoop() | ir.WhileLoop() | ir.Branch() | ir.Scoped():
                    for reg, (names, values) in zip(
                        step.outputs, self._inner(step, known), strict=False
                    ):
                        learn(reg, names, values)
                case _:
                    pass
        return [known(reg) for reg in program.outputs]

    def _inner(self, step: ir.MachineStep, known: object) -> list[tuple[Names, Names]]:
        """Follow the programs that a step runs."""
        assert callable(known)
        programs = ir.inner_programs(step)
        given = [[known(reg) for reg in regs] for _, regs in programs]
        if isinstance(step, ir.Scoped):
            given[0] += [(frozenset([name]), _NONE) for name in step.names]
        if isinstance(step, (ir.Branch, ir.Scoped)):
            results = [
                self._walk(inner, args) for (inner, _), args in zip(programs, given, strict=True)
            ]
            return [_join(values) for values in zip(*results, strict=True)]
        # For a loop, the carry comes after the constants, and its results are the first ones.
        (body, _), start = programs[-1], given[-1]
        assert isinstance(step, ir.Loop)
        constants, carried = len(step.constants), len(step.carry)
        made: list[tuple[Names, Names]] = []
        for _ in range(MAX_ROUNDS):
            made = self._walk(body, start)
            carry = [
                _join(pair)
                for pair in zip(start[constants : constants + carried], made[:carried], strict=True)
            ]
            again = [*start[:constants], *carry, *start[constants + carried :]]
            if again == start:
                break
            start = again
        return [*start[constants : constants + carried], *made[carried:]]


def _sources(step: ir.Compute) -> list[list[ir.Reg]]:
    """Inputs from which each output is computed."""
    if step.unit is None:
        return [list(step.inputs) for _ in step.outputs]
    return [[step.inputs[i] for i in behind] for behind in made_of.inputs_behind(step.unit)]


def _join(values: Sequence[tuple[Names, Names]]) -> tuple[Names, Names]:
    return _NONE.union(*(a for a, _ in values)), _NONE.union(*(b for _, b in values))

"""Grid axes on which the values of a program depend: along the others, each step repeats them."""

from __future__ import annotations

import math

from pallas_debug.profile.advice.pipelines import depends
from pallas_debug.profile.advice.program import LOADS, STORES, ProgramOperation
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.blocks import BlockMap

GridAxes = frozenset[int]

_OTHERS = ("scf.", "tpu.trace", "tpu.prng", "tpu.sem", "tpu.device", "func.", "cf.")


def axes_of_values(
    subject: AdviceSubject, blocks: BlockMap, *, of_inputs: bool = False
) -> dict[int, GridAxes]:
    """Return the axes on which the results of operations depend, by line.

    Operations of which this is not known are left out, and so are those that depend on a loop.

    Args:
      of_inputs: whether to include values computed from inputs, which depend on the axes along
        which the input's block changes.
    """
    program = subject.program
    if len(program.counters) != len(blocks.grid):
        return {}
    indices = {
        name: frozenset((axis,) if blocks.grid[axis] > 1 else ())
        for axis, name in enumerate(program.counters)
    }
    changing = {name for loop in program.loops for name in (loop.counter, *loop.carried)}
    inputs = _axes_of_inputs(subject, blocks) if of_inputs else {}
    arguments = set(program.arguments)
    known: dict[int, GridAxes] = {}
    for operation in program.operations:
        is_load = operation.name in LOADS
        if operation.name in STORES or operation.name.startswith(_OTHERS):
            continue
        memory = operation.operands[:1] if is_load else ()
        others = operation.operands[len(memory) :]
        if not changing.isdisjoint(others) or not arguments.isdisjoint(others):
            continue
        if is_load and memory[0] not in inputs:
            continue
        parts = [inputs[name] for name in memory]
        for name in others:
            if name in indices:
                parts.append(indices[name])
            elif (made := program.producer(name, operation.line)) and made.line in known:
                parts.append(known[made.line])
            else:
                break  # not known, such as a region's argument
        else:
            known[operation.line] = frozenset[int]().union(*parts)
    return known


def _axes_of_inputs(subject: AdviceSubject, blocks: BlockMap) -> dict[str, GridAxes]:
    """Return the axes along which the blocks of inputs change, by the program's parameter."""
    program = subject.program
    written = {o for store in program.named(*STORES) for o in store.operands}
    found = {}
    for name in program.arguments:
        operand = subject.operand(name)
        block = next((b for b in blocks.pipelined if operand and b.name == operand.name), None)
        if block is None or block.kind != "input" or name in written:
            continue
        changes = [depends(block, axis) for axis in range(len(blocks.grid))]
        if None not in changes:
            found[name] = frozenset(axis for axis, changed in enumerate(changes) if changed)
    return found


def repeated_operations(
    subject: AdviceSubject, known: dict[int, GridAxes], axes: GridAxes
) -> list[ProgramOperation]:
    """Return vector operations that run in each step and depend on these axes at most."""
    program = subject.program
    return [
        operation
        for operation in program.operations
        if known.get(operation.line, axes | {-1}) <= axes
        and "vector<" in operation.text
        and not program.loops_around(operation.line)
        and not program.is_conditional(operation.line)
    ]


def steps_of_each(blocks: BlockMap, axes: GridAxes) -> int:
    """Return the number of consecutive steps with the same values."""
    return math.prod(blocks.grid[max(axes, default=-1) + 1 :])

"""Values that loops carry, iteration by iteration: what an index was computed from in earlier ones.

The registers of an iteration are gone when the next one begins. They are computed again from the
initial carry, as far as scalars decide about it, and only if that leads to the values that the loop
really carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.memory import OutOfBounds, access
from pallas_debug.machine.threads import ProgramFrame

MAX_ITERATIONS = 256
"""Maximum number of iterations that are computed again."""


def iterations_before(frame: ProgramFrame, outer: ProgramFrame) -> list[ProgramFrame]:
    """Return frames of the earlier iterations of a loop, oldest first.

    Args:
      frame: current iteration.
      outer: the frame of the loop's step.

    Returns:
      The frames; empty if there are none, or too many, or if they cannot be computed.
    """
    loop = frame.caller
    if not isinstance(loop, ir.Loop) or frame.stage != "body":
        return []
    first = len(loop.constants)
    now = [frame.registers[reg.number] for reg in loop.body.inputs[first : first + len(loop.carry)]]
    return _computed(loop, outer, frame.iteration, now, frame)


def iterations_of(loop: ir.Loop, outer: ProgramFrame) -> list[ProgramFrame]:
    """Return frames of the iterations of a loop that has ended, as `iterations_before`."""
    now = [outer.registers[reg.number] for reg in loop.outputs[: len(loop.carry)]]
    count = loop.length if isinstance(loop, ir.ScanLoop) else MAX_ITERATIONS
    return _computed(loop, outer, count, now, None)


def carry_of(loop: ir.Loop, number: int) -> int | None:
    """Position of a register of the body in the carry; None if it is not carried."""
    position = next((i for i, r in enumerate(loop.body.inputs) if r.number == number), None)
    at = -1 if position is None else position - len(loop.constants)
    return at if 0 <= at < len(loop.carry) else None


def _computed(
    loop: ir.Loop, outer: ProgramFrame, count: int, now: Sequence[Any], current: ProgramFrame | None
) -> list[ProgramFrame]:
    if not 0 < count <= MAX_ITERATIONS:
        return []
    carry = [outer.registers[reg.number] for reg in loop.carry]
    found: list[ProgramFrame] = []
    while len(found) < count:
        if current is None and not _goes_on(loop, outer, carry):
            break
        found.append(_iteration(loop, outer, carry, len(found), current))
        after = loop.body.outputs[: len(loop.carry)]
        carry = [found[-1].registers[reg.number] for reg in after]
    is_same = [np.array_equal(a, b) for a, b in zip(carry, now, strict=True) if np.ndim(b) == 0]
    return found if is_same and all(is_same) else []


def _goes_on(loop: ir.Loop, outer: ProgramFrame, carry: Sequence[Any]) -> bool:
    """Return whether the condition of a loop holds."""
    if isinstance(loop, ir.ScanLoop):
        return True
    given = [outer.registers[reg.number] for reg in loop.condition_constants]
    frame = _frame(loop.condition, [*given, *carry], loop, "condition", 0)
    _run(frame, None)
    return bool(frame.registers[loop.condition.outputs[0].number])


def _iteration(
    loop: ir.Loop, outer: ProgramFrame, carry: Sequence[Any], iteration: int,
    current: ProgramFrame | None,
) -> ProgramFrame:  # fmt: skip
    given = [outer.registers[reg.number] for reg in loop.constants]
    slices = []
    if isinstance(loop, ir.ScanLoop):
        index = loop.length - 1 - iteration if loop.reverse else iteration
        slices = [np.asarray(outer.registers[reg.number])[index] for reg in loop.stacked]
    frame = _frame(loop.body, [*given, *carry, *slices], loop, "body", iteration)
    _run(frame, current)
    return frame


def _frame(
    program: ir.KernelProgram, given: Sequence[Any], loop: ir.Loop, stage: str, iteration: int
) -> ProgramFrame:
    registers = list(program.template)
    for reg, value in zip(program.inputs, given, strict=True):
        registers[reg.number] = value
    return ProgramFrame(program, registers, caller=loop, stage=stage, iteration=iteration)


def _run(frame: ProgramFrame, current: ProgramFrame | None) -> None:
    """Execute the steps on scalars; leave their results None if they are not known."""
    for step in frame.program.steps:
        _step(step, frame.registers, current)


def _step(step: ir.MachineStep, registers: list[Any], current: ProgramFrame | None) -> None:
    match step:
        case ir.Compute():
            given = [registers[reg.number] for reg in step.inputs]
            if any(value is None or np.ndim(value) for value in given):
                return
            for reg, value in zip(step.outputs, step.evaluate(*given), strict=True):
                registers[reg.number] = value
        case ir.MultipleOf():
            registers[step.output.number] = registers[step.value.number]
        case ir.LoadStep() if step.mask is None:
            try:
                value = access(registers, step.place).read()
            except (OutOfBounds, TypeError):
                return  # an index is not known
            if value.ndim == 0:
                registers[step.output.number] = value[()]
        case ir.GridId() | ir.AxisIndex() if current is not None:
            registers[step.output.number] = current.registers[step.output.number]

"""Matrix units: execution of the steps that name their registers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.errors import MachineError
from pallas_debug.machine.memory import resolve

if TYPE_CHECKING:
    from pallas_debug.machine.machine import Machine
    from pallas_debug.machine.threads import ProgramFrame, Thread

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class MatrixUnit:
    """A matrix unit of a core.

    Attributes:
      staged: right-hand sides by staging register.
      loaded: right-hand side in use.
      accumulators: accumulators by address, on chips where they are not refs.
      results: queued results, oldest first, on chips that queue them.
    """

    staged: dict[int, Array] = field(default_factory=dict)
    loaded: Array | None = None
    accumulators: dict[int, Array] = field(default_factory=dict)
    results: deque[Array] = field(default_factory=deque)


def _unit(thread: Thread, number: int) -> MatrixUnit:
    unit: MatrixUnit = thread.matrix_units.setdefault(number, MatrixUnit())
    return unit


def push(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.MatrixPush) -> None:
    unit = _unit(thread, step.unit)
    if step.register in unit.staged:
        raise MachineError(
            f"staging register {step.register} of matrix unit {step.unit} is pushed to again "
            "before `load_staged_rhs` has taken its contents",
            where=step.site.line,
        )
    value = np.asarray(frame.registers[step.value.number])
    unit.staged[step.register] = value.T if step.transposed else value


def multiply(
    machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.MatrixMultiply
) -> None:
    unit = _unit(thread, step.unit)
    if step.register is not None:
        unit.loaded = unit.staged.pop(step.register, None)
    if unit.loaded is None:
        where = "" if step.register is None else f" staging register {step.register} of"
        raise MachineError(
            f"nothing has been pushed to{where} matrix unit {step.unit}", where=step.site.line
        )
    left = np.asarray(frame.registers[step.value.number])
    kind: Any = np.int32 if left.dtype.kind in "iu" or "int" in left.dtype.name else np.float32
    product = np.matmul(left.astype(kind), unit.loaded.astype(left.dtype).astype(kind))
    if isinstance(step.target, ir.RefPlace):
        ref = frame.registers[step.target.ref.number]
        region = resolve(ref, step.target.view, frame.registers)
        before = region.read()
        if machine.observer is not None:
            machine.observer.stores(thread, step, region, before + product)
        region.write(before + product)
    elif step.target is None:
        unit.results.append(product)
    else:
        unit.accumulators[step.target] = unit.accumulators.get(step.target, 0) + product


def pop(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.MatrixPop) -> None:
    unit = _unit(thread, step.unit)
    if isinstance(step.target, ir.RefPlace):
        ref = frame.registers[step.target.ref.number]
        region = resolve(ref, step.target.view, frame.registers)
        value = region.read()
        if machine.observer is not None:
            machine.observer.loads(thread, step, region, value)
        region.write(np.zeros_like(value))
    elif step.target is None:
        if not unit.results:
            raise MachineError(
                f"matrix unit {step.unit} has no result to pop", where=step.site.line
            )
        value = unit.results.popleft()
    else:
        if step.target not in unit.accumulators:
            raise MachineError(
                f"nothing has been accumulated at address {step.target} of matrix unit {step.unit}",
                where=step.site.line,
            )
        value = unit.accumulators.pop(step.target)
    if value.shape != step.shape:
        raise MachineError(
            f"a result of shape {list(value.shape)} is popped with shape {list(step.shape)}",
            where=step.site.line,
        )
    frame.registers[step.output.number] = value.astype(step.dtype)


BY_KIND: dict[type, Any] = {
    ir.MatrixPush: push,
    ir.MatrixMultiply: multiply,
    ir.MatrixPop: pop,
}

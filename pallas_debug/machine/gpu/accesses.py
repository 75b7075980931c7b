"""Loads, stores and atomic updates of a GPU's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine.gpu.pointers import Selection, select
from pallas_debug.machine.memory import Array, Ref
from pallas_debug.machine.threads import ProgramFrame, Thread
from pallas_debug.stepping import unwritten

if TYPE_CHECKING:
    from pallas_debug.machine.machine import Machine


def is_atomic(step: ir.MachineStep | None) -> bool:
    """Return whether a step that accesses a GPU's memory updates each element indivisibly."""
    return isinstance(step, ir.AtomicStep) or (isinstance(step, ir.StoreStep) and step.adds)


def load(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.LoadStep) -> None:
    """Load elements; those outside the mask are undefined unless the load has an `other`."""
    registers = frame.registers
    found, ref = _selected(machine, frame, step)
    value = None
    if found.region is not None:
        value = found.region.read()
        if machine.observer is not None:
            machine.observer.loads(thread, step, found.region, value)
    other = None if step.other is None else registers[step.other.number]
    whole = _filled(machine, ref, found, value, other)
    if other is None and found.part is not None and machine.observer is not None:
        where = np.ones(found.shape, bool)
        where[found.part] = False
        if where.any():
            whole = np.array(whole)
            machine.observer.undefined(thread, step, whole, where)
            whole = whole[()] if whole.ndim == 0 else whole
    registers[step.output.number] = whole


def store(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.StoreStep) -> None:
    """Store elements, and return their previous values if the step has an output."""
    if step.adds:
        update(machine, thread, frame, step)
        return
    registers = frame.registers
    found, ref = _selected(machine, frame, step)
    region = found.region
    if step.output is not None:
        before = None if region is None else region.read()
        if region is not None and machine.observer is not None:
            machine.observer.loads(thread, step, region, before)
        registers[step.output.number] = _filled(machine, ref, found, before)
    if region is None:
        return
    value = found.of(registers[step.value.number])
    if machine.fill == "mark":
        value = unwritten.written(value)
    if machine.observer is not None:
        machine.observer.stores(thread, step, region, value)
    region.write(value)


def update(
    machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.AtomicStep | ir.StoreStep
) -> None:
    """Update elements atomically: several updates of one element are made one after another."""
    registers = frame.registers
    found, ref = _selected(machine, frame, step)
    region = found.region
    if region is None:
        if step.output is not None:
            registers[step.output.number] = _filled(machine, ref, found, None)
        return
    before = region.read()
    if machine.observer is not None:
        machine.observer.loads(thread, step, region, before)
    given: tuple[ir.Reg, ...]
    if isinstance(step, ir.AtomicStep):
        function, given = step.update, step.values
    else:
        function, given = np.add, (step.value,)
    values = [found.of(registers[reg.number]) for reg in given]
    numbers = _numbers(region.index, region.buffer.content.shape)
    if numbers is None:
        after = np.asarray(function(before, *values)).astype(before.dtype)
    else:
        before, after = _in_turn(function, before, values, numbers)
    if machine.fill == "mark":
        after = unwritten.written(after)
    if machine.observer is not None:
        machine.observer.stores(thread, step, region, after)
    region.write(after)
    if step.output is not None:
        registers[step.output.number] = _filled(machine, ref, found, before)


def _selected(
    machine: Machine, frame: ProgramFrame, step: ir.LoadStep | ir.StoreStep | ir.AtomicStep
) -> tuple[Selection, Ref]:
    registers = frame.registers
    ref: Ref = registers[step.place.ref.number]
    mask = None if step.mask is None else np.asarray(registers[step.mask.number])
    clips = machine.launch.clipped.get(ref.name) or (False,) * ref.buffer.content.ndim
    return select(ref, step.place, registers, mask, clips), ref


def _filled(
    machine: Machine, ref: Ref, found: Selection, value: Array | None, other: Any = None
) -> Any:
    """Return a value of the access's shape, undefined or `other` where nothing was accessed."""
    if found.part is None:
        assert value is not None
        return value[()] if value.ndim == 0 else value
    dtype = ref.buffer.content.dtype
    if other is None:
        whole = unwritten.memory(found.shape, dtype, machine.fill)
    else:
        whole = np.array(np.broadcast_to(np.asarray(other).astype(dtype), found.shape))
    if value is not None:
        whole = found.put(whole, value)
    return whole[()] if whole.ndim == 0 else whole


def _numbers(index: Any, of_array: tuple[int, ...]) -> Array | None:
    """Numbers of the elements that an index selects, if it selects one of them twice."""
    if not any(isinstance(entry, np.ndarray) for entry in index or ()):
        return None
    flat = np.arange(int(np.prod(of_array))).reshape(of_array)[index]
    return None if len(np.unique(flat)) == flat.size else flat.ravel()


def _in_turn(
    function: Callable[..., Any], before: Array, values: list[Array], numbers: Array
) -> tuple[Array, Array]:
    """Update elements one by one; return each before and after its update."""
    shape, dtype = before.shape, before.dtype
    old, new = before.ravel().copy(), before.ravel().copy()
    given = [np.broadcast_to(value, shape).ravel() for value in values]
    latest: dict[int, Any] = {}
    for i, number in enumerate(numbers.tolist()):
        old[i] = latest.get(number, old[i])
        new[i] = np.asarray(function(old[i], *(value[i] for value in given))).astype(dtype)
        latest[number] = new[i]
    final = np.array([latest[number] for number in numbers.tolist()], dtype)
    return old.reshape(shape), final.reshape(shape)

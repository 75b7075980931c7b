"""Execution of each kind of step. Each function returns False if its thread has to wait."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.machine import loops, places, transfers
from pallas_debug.machine.gpu import accesses
from pallas_debug.machine.memory import MemoryBuffer, OutOfBounds, Ref, access, concrete
from pallas_debug.machine.threads import ProgramFrame, Thread
from pallas_debug.stepping import unwritten

if TYPE_CHECKING:
    from pallas_debug.machine.machine import Machine


def compute(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.Compute) -> None:
    registers = frame.registers
    values = [registers[reg.number] for reg in step.inputs]
    observer = machine.observer
    if observer is not None and observer.evaluates:
        results = observer.evaluate(thread, step, values)
    else:
        results = step.evaluate(*values)
    for reg, value in zip(step.outputs, results, strict=True):
        registers[reg.number] = value


def load(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.LoadStep) -> None:
    registers = frame.registers
    if registers[step.place.ref.number].buffer.type.space == "gmem":
        accesses.load(machine, thread, frame, step)
        return
    if step.mask is not None:
        _masked_load(machine, thread, frame, step)
        return
    try:
        region = access(frame.registers, step.place)
    except OutOfBounds as error:
        value = _outside_value(machine, thread, error)
        if value is None:
            raise
        if machine.observer is not None:
            machine.observer.reads_outside(thread, step, error)
        registers[step.output.number] = value
        return
    value = region.read()
    if machine.observer is not None:
        machine.observer.loads(thread, step, region, value)
    registers[step.output.number] = value[()] if value.ndim == 0 else value


def _outside_value(machine: Machine, thread: Thread, error: OutOfBounds) -> Any:
    """Value of a scalar read outside its table; None if the run cannot continue."""
    if machine.outside is None or thread.index_map_of or error.recast:
        return None
    content = error.buffer.content
    if error.buffer.type.space != "smem" or error.shape != content.shape or not content.size:
        return None
    if not all(isinstance(entry, int) for entry in error.index):
        return None
    place = error.buffer.number, *(int(entry) for entry in error.index)  # type: ignore[arg-type]
    number = machine.outside_reads.setdefault(place, len(machine.outside_reads) + 1)
    if machine.outside == "zero":
        return content.dtype.type(0)
    if machine.outside == "count":
        return np.asarray(number % 127).astype(content.dtype)[()]
    if machine.outside == "number":
        return unwritten.memory((), content.dtype, "number")[()]
    limits = zip(error.index, error.shape, strict=True)
    return content[tuple(min(max(int(at), 0), n - 1) for at, n in limits)]  # type: ignore[arg-type]


def _masked_load(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.LoadStep) -> None:
    registers = frame.registers
    assert step.mask is not None
    region = access(frame.registers, step.place)
    mask = np.asarray(registers[step.mask.number])
    value = region.read()
    if machine.observer is not None:
        machine.observer.loads(thread, step, region, value)
    other = 0 if step.other is None else np.asarray(registers[step.other.number])
    registers[step.output.number] = np.where(mask, value, np.asarray(other, value.dtype))


def store(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.StoreStep) -> None:
    registers = frame.registers
    if registers[step.place.ref.number].buffer.type.space == "gmem":
        accesses.store(machine, thread, frame, step)
        return
    region = access(frame.registers, step.place)
    value = np.asarray(registers[step.value.number])
    before = None
    if step.output is not None or step.adds or step.mask is not None:
        before = region.read()
    if step.output is not None:
        assert before is not None
        if machine.observer is not None:
            machine.observer.loads(thread, step, region, before)
        registers[step.output.number] = before[()] if before.ndim == 0 else before
    if step.adds:
        assert before is not None
        if machine.observer is not None:
            machine.observer.loads(thread, step, region, before)
        value = np.asarray(before + value).astype(before.dtype)
        if any(isinstance(entry, np.ndarray) for entry in region.index or ()):
            value = region.sums(np.asarray(registers[step.value.number]))
    if machine.fill == "mark":
        value = unwritten.written(value)
    if step.mask is not None:
        assert before is not None
        value = np.where(np.asarray(registers[step.mask.number]), value, before)
    if machine.observer is not None:
        machine.observer.stores(thread, step, region, value)
    region.write(value)


# Control flow


def branch(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.Branch) -> None:
    index = int(frame.registers[step.index.number])
    chosen = min(max(index, 0), len(step.branches) - 1)
    if machine.observer is not None:
        machine.observer.branches(thread, step, chosen)
    args = [frame.registers[reg.number] for reg in step.inputs]
    machine.enter(thread, step.branches[chosen], args, caller=step, stage="branch")


def while_(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.WhileLoop) -> None:
    carry = [frame.registers[reg.number] for reg in step.carry]
    _condition(machine, thread, frame, step, carry, 0)


def _condition(
    machine: Machine,
    thread: Thread,
    frame: ProgramFrame,
    step: ir.WhileLoop,
    carry: list[Any],
    iteration: int,
) -> None:
    ran = loops.advance(machine, thread, frame, step, carry, iteration)
    if ran is not None:
        carry, iteration, has_ended = ran
        if has_ended:
            for reg, value in zip(step.outputs, carry, strict=True):
                frame.registers[reg.number] = value
            return
    constants = [frame.registers[reg.number] for reg in step.condition_constants]
    machine.enter(
        thread, step.condition, [*constants, *carry],
        caller=step, stage="condition", carry=carry, iteration=iteration,
    )  # fmt: skip


def scan(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.ScanLoop) -> None:
    carry = [frame.registers[reg.number] for reg in step.carry]
    stacked: list[list[Any]] = [[] for _ in step.outputs[len(carry) :]]
    _iterate(machine, thread, frame, step, carry, stacked, 0)


def _iterate(
    machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.ScanLoop, carry: list[Any],
    stacked: list[list[Any]], iteration: int,
) -> None:  # fmt: skip
    ran = None
    if iteration < step.length:
        ran = loops.advance(machine, thread, frame, step, carry, iteration)
    if ran is not None:
        carry, iteration, _ = ran
    if iteration == step.length:
        _finish_scan(frame, step, carry, stacked)
        return
    index = step.length - 1 - iteration if step.reverse else iteration
    constants = [frame.registers[reg.number] for reg in step.constants]
    slices = [np.asarray(frame.registers[reg.number])[index] for reg in step.stacked]
    machine.enter(
        thread, step.body, [*constants, *carry, *slices],
        caller=step, stage="body", iteration=iteration, stacked=stacked,
    )  # fmt: skip
    if machine.observer is not None:
        machine.observer.iterates(thread, step, iteration)


def _finish_scan(
    frame: ProgramFrame, step: ir.ScanLoop, carry: list[Any], stacked: list[list[Any]]
) -> None:
    results = list(carry)
    for values in stacked:
        ordered = values[::-1] if step.reverse else values
        results.append(np.stack([np.asarray(v) for v in ordered]) if ordered else None)
    for reg, value in zip(step.outputs, results, strict=True):
        frame.registers[reg.number] = value


def scoped(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.Scoped) -> None:
    buffers = [
        _shared(machine, thread, step, number)
        if step.collective and set(step.collective) & set(machine.launch.cores)
        else _allocated(machine, thread, type_, name, _scope(thread, step, number))
        for number, (type_, name) in enumerate(zip(step.buffers, step.names, strict=True))
    ]
    inputs = [frame.registers[reg.number] for reg in step.inputs]
    machine.enter(
        thread, step.body, [*inputs, *map(Ref, buffers)],
        caller=step, stage="scope", buffers=buffers,
    )  # fmt: skip


def _scope(thread: Thread, step: ir.MachineStep, number: int = 0) -> tuple[Any, ...]:
    """Identity of a buffer of a scope; its first three elements are equal on all cores."""
    return (id(step), number, thread.iterations, thread.core, thread.point)


def _shared(machine: Machine, thread: Thread, step: ir.Scoped, number: int) -> MemoryBuffer:
    """Return a buffer of a scope that all cores along some axes share."""
    mesh = machine.launch.meshes[thread.mesh]
    axes = [axis for axis in mesh.axes if axis in step.collective]
    if not axes or axes != list(mesh.axes)[-len(axes) :]:
        raise NotImplementedError(f"memory that all cores of {step.collective[0]} share")
    group = thread.point[: -len(axes)]
    scope = (id(step), number, thread.iterations, "shared", thread.mesh, group)
    for buffer in machine.buffers:
        if buffer.device == thread.device and buffer.scope == scope:
            return buffer
    buffer = machine.allocate(
        step.buffers[number], step.names[number], "scoped", thread, scope=scope
    )
    buffer.users = math.prod(mesh.axes[axis] for axis in axes)
    return buffer


def _allocated(
    machine: Machine, thread: Thread, type_: ir.RefType, name: str, scope: tuple[Any, ...]
) -> MemoryBuffer:
    return places.claimed(machine, thread, scope) or machine.allocate(
        type_, name, "scoped", thread, scope=scope
    )


def returned(machine: Machine, thread: Thread, frame: ProgramFrame) -> None:
    """Handle the end of a program: pass its results to the step that runs it."""
    results = [frame.registers[reg.number] for reg in frame.program.outputs]
    step = frame.caller
    if step is None:
        return  # the kernel's body: the grid continues
    outer = thread.frames[-1]
    match frame.stage:
        case "branch" | "scope":
            assert isinstance(step, (ir.Branch, ir.Scoped))
            for reg, value in zip(step.outputs, results, strict=True):
                outer.registers[reg.number] = value
            for buffer in frame.buffers:
                machine.free(buffer, thread)
        case "condition":
            assert isinstance(step, ir.WhileLoop)
            if bool(results[0]):
                constants = [outer.registers[reg.number] for reg in step.constants]
                machine.enter(
                    thread, step.body, [*constants, *frame.carry],
                    caller=step, stage="body", iteration=frame.iteration,
                )  # fmt: skip
                if machine.observer is not None:
                    machine.observer.iterates(thread, step, frame.iteration)
            else:
                if frame.iteration == 0 and machine.observer is not None:
                    machine.observer.skips(thread, step)
                for reg, value in zip(step.outputs, frame.carry, strict=True):
                    outer.registers[reg.number] = value
        case "body" if isinstance(step, ir.WhileLoop):
            _condition(machine, thread, outer, step, results, frame.iteration + 1)
        case "body":
            assert isinstance(step, ir.ScanLoop)
            count = len(step.carry)
            for values, value in zip(frame.stacked, results[count:], strict=True):
                values.append(value)
            _iterate(
                machine, thread, outer, step, results[:count], frame.stacked, frame.iteration + 1
            )


def new_ref(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.NewRef) -> None:
    lasting = machine.devices[thread.device].lasting
    buffer = lasting.get(step) if step.lasts else None
    if buffer is None:
        scope = _scope(thread, step)
        if step.lasts:
            scope = (*scope[:2], (), thread.core, ())
        buffer = _allocated(machine, thread, step.type, step.name, scope)
        if step.lasts:
            lasting[step] = buffer
    frame.registers[step.output.number] = Ref(buffer)


def select_ref(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.SelectRef) -> None:
    last = len(step.places) - 1
    index = int(frame.registers[step.index.number])
    place = step.places[index if 0 <= index < last else last]  # like Mosaic's chain of conditions
    ref = frame.registers[place.ref.number]
    view = (*ref.view, *concrete(place.view, frame.registers))
    frame.registers[step.output.number] = Ref(ref.buffer, view, ref.output)


# Other steps


def grid_id(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.GridId) -> None:
    frame.registers[step.output.number] = identity(machine, thread, step)


def axis_index(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.AxisIndex) -> None:
    frame.registers[step.output.number] = identity(machine, thread, step)


def identity(machine: Machine, thread: Thread, step: ir.GridId | ir.AxisIndex) -> np.int32:
    """Position of a thread in the grid or along an axis, or the size of that axis."""
    if isinstance(step, ir.GridId):
        numbers = thread.grid if step.is_size else thread.point
        return np.int32(numbers[machine.launch.axes[step.axis]])
    coordinates = machine.devices[thread.device].coordinates
    names = machine.launch.axis_names
    found = 0
    for name in step.names:
        if name in coordinates:
            found = found * machine.launch.mesh[name] + coordinates[name]
        else:
            if machine.launch.meshes:
                axis = list(machine.launch.meshes[thread.mesh].axes).index(name)
            else:
                axis = machine.launch.axes[names.index(name)]
            found = found * thread.grid[axis] + thread.point[axis]
    return np.int32(found)


def hint(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.MultipleOf) -> None:
    value = frame.registers[step.value.number]
    if machine.observer is not None:
        machine.observer.multiple_of(thread, step, value)
    frame.registers[step.output.number] = value


def seed(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.Seed) -> None:
    numbers: list[int] = []
    for reg in step.inputs:
        value = np.asarray(frame.registers[reg.number])
        words = value["words"].flat if value.dtype == ir.KEY else value.flat
        numbers += [int(word) & 0xFFFFFFFF for word in words]
    thread.generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(numbers)))
    if machine.observer is not None:
        machine.observer.seeds(thread, step, numbers)


def random_bits(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.RandomBits) -> None:
    if thread.generator is None:
        thread.generator = np.random.Generator(np.random.Philox(0))
    bits = thread.generator.integers(0, 1 << 32, step.shape, dtype=np.uint32)
    frame.registers[step.output.number] = bits.view(np.int32)
    if machine.observer is not None:
        machine.observer.draws(thread, step)


def prints(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.PrintStep) -> None:
    if machine.observer is not None:
        values = [frame.registers[reg.number] for reg in step.inputs]
        machine.observer.prints(thread, step, values)


def check(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.CheckStep) -> None:
    if machine.observer is not None:
        values = [frame.registers[reg.number] for reg in step.inputs]
        machine.observer.checks(thread, step, values)


def callback(machine: Machine, thread: Thread, frame: ProgramFrame, step: ir.Callback) -> None:
    if machine.calls_back:
        step.function(*(frame.registers[reg.number] for reg in step.inputs))


BY_KIND: dict[type, Any] = {
    ir.Compute: compute,
    ir.LoadStep: load,
    ir.StoreStep: store,
    ir.AtomicStep: accesses.update,
    ir.Branch: branch,
    ir.WhileLoop: while_,
    ir.ScanLoop: scan,
    ir.Scoped: scoped,
    ir.NewRef: new_ref,
    ir.SelectRef: select_ref,
    ir.GridId: grid_id,
    ir.AxisIndex: axis_index,
    ir.MultipleOf: hint,
    ir.Seed: seed,
    ir.RandomBits: random_bits,
    ir.PrintStep: prints,
    ir.CheckStep: check,
    ir.Callback: callback,
    **transfers.BY_KIND,
}

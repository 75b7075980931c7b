"""Static queries about a kernel's programs: stores to an operand, dependencies of a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pallas_debug.bridge.programs import made_of
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine.memory import MemoryBuffer, Ref
from pallas_debug.machine.threads import ProgramFrame
from pallas_debug.model import SourceLine


@dataclass(frozen=True, eq=False)
class StoreSite:
    """A store or copy to an operand.

    Attributes:
      conditions: identities of the enclosing conditions.
    """

    operand: str
    step: ir.MachineStep
    conditions: frozenset[int]


def order_of(program: ir.KernelProgram) -> dict[int, int]:
    """Position of each step in program order, by identity."""
    found: dict[int, int] = {}
    _number(program, found)
    return found


def _number(program: ir.KernelProgram, found: dict[int, int]) -> None:
    for step in program.steps:
        for inner, _ in ir.inner_programs(step):
            _number(inner, found)
        found[id(step)] = len(found)


def stores_of(launch: Launch) -> list[StoreSite]:
    """Return all stores and copies to operands, in program order."""
    names = {
        reg.number: frozenset([operand.name])
        for reg, operand in zip(launch.body.inputs, launch.operands, strict=True)
    }
    return list(_stores(launch.body, names, frozenset()))


_Names = dict[int, frozenset[str]]


def _stores(
    program: ir.KernelProgram, names: _Names, conditions: frozenset[int]
) -> Iterator[StoreSite]:
    for step in program.steps:
        place = None
        if isinstance(step, ir.StoreStep):
            place = step.place
        elif isinstance(step, ir.CopyStart):
            place = step.destination
        elif isinstance(step, ir.SelectRef):
            found = [names.get(place.ref.number, frozenset()) for place in step.places]
            names[step.output.number] = frozenset[str]().union(*found)
        if place is not None:
            for name in sorted(names.get(place.ref.number, ())):
                yield StoreSite(name, step, conditions)
        for inner, given in ir.inner_programs(step):
            own = {
                reg.number: names[outer.number]
                for reg, outer in zip(inner.inputs, given, strict=False)
                if outer.number in names
            }
            around = conditions | {id(step)} if isinstance(step, ir.Branch) else conditions
            yield from _stores(inner, own, around)


def depends_on(frames: Sequence[ProgramFrame], number: int, buffer: MemoryBuffer) -> bool:
    """Return whether a register of the innermost frame was computed from a buffer's contents."""
    return any(found is buffer for found in sources(frames, number))


def depends_on_data(frames: Sequence[ProgramFrame]) -> bool:
    """Return whether any condition around the current step depends on values in memory."""
    return next(data_conditions(frames), None) is not None


def deciding(frames: Sequence[ProgramFrame]) -> Iterator[MemoryBuffer]:
    """Yield the buffers whose contents decide about the conditions around the current step."""
    for depth, frame in enumerate(frames):
        if depth and isinstance(frame.caller, ir.Branch):
            yield from _sources(frames, depth - 1, frame.caller.index.number, set())


def data_conditions(frames: Sequence[ProgramFrame]) -> Iterator[ir.Branch]:
    """Yield the conditions around the current step that depend on values in memory."""
    for depth, frame in enumerate(frames):
        if not depth or not isinstance(frame.caller, ir.Branch):
            continue
        if any(True for _ in _sources(frames, depth - 1, frame.caller.index.number, set())):
            yield frame.caller


def repeats_on_data(frames: Sequence[ProgramFrame]) -> bool:
    """Return whether values in memory decide when a loop around the current step ends."""
    return any(
        _ends_on_data(frames, depth, frame.caller)
        for depth, frame in enumerate(frames)
        if isinstance(frame.caller, ir.WhileLoop) and frame.stage == "body"
    )


def _ends_on_data(frames: Sequence[ProgramFrame], depth: int, loop: ir.WhileLoop) -> bool:
    """Return whether a loop's condition, or the carry that it sees, depends on values in memory.

    Args:
      depth: position of the frame of the loop's body.
    """
    constants = len(loop.condition_constants)
    given = (*loop.condition_constants, *loop.carry)
    used = _inputs_behind(loop.condition, [loop.condition.outputs[0].number])
    if used is None:
        return True
    for position in used:
        if any(True for _ in _sources(frames, depth - 1, given[position].number, set())):
            return True
        if position >= constants:
            after = loop.body.outputs[position - constants].number
            if _inputs_behind(loop.body, [after]) is None:
                return True
    return False


def _inputs_behind(program: ir.KernelProgram, numbers: list[int]) -> set[int] | None:
    """Positions of a program's inputs behind some registers; None if it loads any from memory."""
    pending, found = list(dict.fromkeys(numbers)), set[int]()
    for number in pending:
        step = program.maker(number)
        if isinstance(step, ir.Compute):
            behind = made_of.registers_behind(step, (number,))
            pending += [reg.number for reg in behind if reg.number not in pending]
        elif isinstance(step, ir.MultipleOf):
            pending.append(step.value.number)
        elif step is None:
            found |= {i for i, reg in enumerate(program.inputs) if reg.number == number}
        elif not isinstance(step, (ir.GridId, ir.AxisIndex)):
            return None
    return found


def sources(frames: Sequence[ProgramFrame], number: int) -> Iterator[MemoryBuffer]:
    """Yield the buffers from whose contents a register of the innermost frame was computed."""
    return _sources(frames, len(frames) - 1, number, set())


def _sources(
    frames: Sequence[ProgramFrame], depth: int, number: int, seen: set[tuple[int, int]]
) -> Iterator[MemoryBuffer]:
    if (depth, number) in seen:
        return
    seen.add((depth, number))
    frame = frames[depth]
    step = frame.program.maker(number)
    if step is None:
        for reg in _given(frame, number) if depth else ():
            yield from _sources(frames, depth - 1, reg.number, seen)
    elif isinstance(step, (ir.LoadStep, ir.StoreStep, ir.AtomicStep)):
        ref = frame.registers[step.place.ref.number]
        if isinstance(ref, Ref):
            yield ref.buffer
    elif isinstance(step, ir.Compute):
        for reg in made_of.registers_behind(step, (number,)):
            yield from _sources(frames, depth, reg.number, seen)
    else:
        for _, given in ir.inner_programs(step):
            for reg in given:
                value = frame.registers[reg.number]
                if isinstance(value, Ref):
                    yield value.buffer
                else:
                    yield from _sources(frames, depth, reg.number, seen)


def is_sum(program: ir.KernelProgram, store: ir.StoreStep) -> bool:
    """Return whether a store's value is a sum that nothing else in its program uses."""
    number = store.value.number
    reader: ir.MachineStep = store
    while True:
        if any(reg.number == number for reg in program.outputs):
            return False
        if any(step is not reader and number in registers_of(step) for step in program.steps):
            return False
        step = program.maker(number)
        if not isinstance(step, ir.Compute) or step.unit is None:
            return False
        position = next(i for i, reg in enumerate(step.outputs) if reg.number == number)
        found = made_of.sum_behind(step.unit, position)
        if not isinstance(found, int) or isinstance(found, bool):
            return bool(found)
        number, reader = step.inputs[found].number, step


def is_scaled(launch: Launch, store: ir.StoreStep) -> bool:
    """Return whether a store scales the previous contents of its buffer, like a decaying state."""
    program = _program_of(launch, store)
    if program is None:
        return False
    _, scaled = _followed(program, frozenset([store.place.ref.number]), set(), set())
    return store.value.number in scaled


def _program_of(launch: Launch, step: ir.MachineStep) -> ir.KernelProgram | None:
    """The program in the kernel's body that has a step."""
    programs = launch.body.all()
    return next((p for p in programs if any(one is step for one in p.steps)), None)


def _followed(
    program: ir.KernelProgram, refs: frozenset[int], derived: set[int], scaled: set[int]
) -> tuple[set[int], set[int]]:
    """Follow what is loaded through some references: the registers that derive from it, and those
    in which it is multiplied by something else.
    """
    for step in program.steps:
        if isinstance(step, ir.LoadStep) and step.place.ref.number in refs:
            derived.add(step.output.number)
        elif isinstance(step, ir.Compute) and step.unit is not None:
            given = {i for i, reg in enumerate(step.inputs) if reg.number in derived}
            kept = {i for i, reg in enumerate(step.inputs) if reg.number in scaled}
            behind = made_of.inputs_behind(step.unit)
            products = made_of.scaled_from(step.unit, given)
            for reg, sources, is_product in zip(step.outputs, behind, products, strict=True):
                derived.update([reg.number] if sources & given else [])
                scaled.update([reg.number] if is_product or sources & kept else [])
        elif isinstance(step, ir.Loop):
            body, given_regs = ir.inner_programs(step)[-1]
            numbers = [reg.number for reg in given_regs]
            inner = [reg.number for reg in body.inputs]
            own = frozenset(i for i, n in zip(inner, numbers, strict=False) if n in refs)
            first = len(step.constants)
            sets = [
                {i for i, n in zip(inner, numbers, strict=False) if n in known}
                for known in (derived, scaled)
            ]
            for _ in range(2):  # through the carry
                _followed(body, own, *sets)
                carried = zip(inner[first:], body.outputs[: len(step.carry)], strict=False)
                for i, reg in carried:
                    for known in sets:
                        known.update([i] if reg.number in known else [])
            for reg, out in zip(step.outputs, body.outputs, strict=False):
                derived.update([reg.number] if out.number in sets[0] else [])
                scaled.update([reg.number] if out.number in sets[1] else [])
    return derived, scaled


def decided_by_position(launch: Launch, branch: ir.Branch) -> bool:
    """Return whether only the grid point decides about a condition, and nothing in memory."""
    program = _program_of(launch, branch)
    return program is not None and _inputs_behind(program, [branch.index.number]) == set()


def choice_in(launch: Launch, step: ir.MachineStep) -> SourceLine | None:
    """Line of the `jnp.where` with which an update keeps or drops the buffer's content, if any."""
    program = _program_of(launch, step) if isinstance(step, ir.StoreStep) else None
    if program is None or not isinstance(step, ir.StoreStep):
        return None
    site = _choice(program, step)
    return None if site is None else site.line


def _choice(program: ir.KernelProgram, store: ir.StoreStep) -> ir.StepSite | None:
    """The first choice, on the way to a store, between the buffer's content and anything else."""
    kept: set[int] = set()
    pending = [store.value.number]
    for number in pending:
        maker = program.maker(number)
        behind = made_of.registers_behind(maker, (number,)) if isinstance(maker, ir.Compute) else ()
        pending += [reg.number for reg in behind if reg.number not in pending]
    for step in program.steps:
        if isinstance(step, ir.LoadStep) and step.place.ref.number == store.place.ref.number:
            kept.add(step.output.number)
        elif isinstance(step, ir.Compute):
            used = [reg.number for reg in step.outputs if reg.number in pending]
            site = made_of.choice_behind(step, kept) if used else None
            if site is not None:
                return site
            behind = made_of.registers_behind(step, used)
            kept.update(used if any(reg.number in kept for reg in behind) else ())
    return None


def is_total(frames: Sequence[ProgramFrame], number: int) -> bool:
    """Return whether a register of the innermost frame is computed only from reductions."""
    return _is_total(frames, len(frames) - 1, number)


def _is_total(frames: Sequence[ProgramFrame], depth: int, number: int) -> bool:
    frame = frames[depth]
    step = frame.program.maker(number)
    if step is None:
        given = _given(frame, number) if depth and not _is_carried(frame, number) else []
        return bool(given) and all(_is_total(frames, depth - 1, reg.number) for reg in given)
    if not isinstance(step, ir.Compute) or step.unit is None:
        return False
    position = next(i for i, reg in enumerate(step.outputs) if reg.number == number)
    return any(
        all(_is_total(frames, depth, step.inputs[i].number) for i in needed)
        for needed in made_of.totals_behind(step.unit, position)
    )


def _is_carried(frame: ProgramFrame, number: int) -> bool:
    """Return whether an input of a loop's body is carried or per iteration, not a constant."""
    position = _position(frame, number)
    if position is None or not isinstance(frame.caller, ir.Loop):
        return False
    return position >= len(frame.caller.constants)


def registers_of(value: Any) -> set[int]:
    """Numbers of registers that a step reads or writes, without those of its programs."""
    if isinstance(value, ir.Reg):
        return {value.number}
    if isinstance(value, (tuple, list)):
        return set[int]().union(*map(registers_of, value))
    if isinstance(value, Mapping):
        return registers_of(tuple(value.values()))
    if isinstance(value, ir.MachineStep):
        names = [part.name for part in fields(value) if part.name not in ("output", "outputs")]
        return registers_of([getattr(value, name) for name in names])
    if isinstance(value, (ir.RefPlace, ir.Index, ir.Slice, ir.RowChoice, ir.DeviceId)):
        return registers_of([getattr(value, part.name) for part in fields(value)])
    return set()


def _given(frame: ProgramFrame, number: int) -> list[ir.Reg]:
    """Registers of the enclosing frame from which an input of a frame comes."""
    position = _position(frame, number)
    if position is None or frame.caller is None:
        return []
    return [
        given[position]
        for program, given in ir.inner_programs(frame.caller)
        if program is frame.program and position < len(given)
    ]


def _position(frame: ProgramFrame, number: int) -> int | None:
    """Position of a register among a frame's inputs; None for a literal."""
    return next((i for i, reg in enumerate(frame.program.inputs) if reg.number == number), None)


def conditions(frames: Sequence[ProgramFrame]) -> tuple[ir.Branch, ...]:
    """Conditions around the current step, outermost first."""
    return tuple(frame.caller for frame in frames if isinstance(frame.caller, ir.Branch))

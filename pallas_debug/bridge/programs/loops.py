"""Loops of a kernel compiled as one jax program, instead of being interpreted step by step.

A body is compiled if it only computes, loads and stores: no branches, copies, semaphores, prints or
scopes.
The program works on copies of the buffers and runs a chunk of iterations. It notes the positions of
each access. If one of them was out of bounds, or a hint false, its results are discarded, and the
machine interprets the chunk, which reports the fault with all its details.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_debug.bridge.programs import numerics
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.units import Unit

CHUNK = 4096
"""Iterations per call of a compiled loop; between calls, limits and ctrl+c are checked."""


@dataclass(frozen=True)
class BufferView:
    """A reference as a compiled loop sees it: a buffer, and the indexers of the reference.

    Attributes:
      slot: position of the buffer among those of the loop.
      parts: indexers, each with a position, or start and size, along each axis.
    """

    slot: int
    shape: tuple[int, ...]
    parts: tuple[tuple[tuple[int, int] | int, ...], ...] = ()


@dataclass(frozen=True)
class LoopAccess:
    """An access of a compiled loop's body.

    Attributes:
      slot: position of its buffer among those of the loop.
      sizes: elements along each axis of the buffer.
      dropped: axes that the value does not have.
    """

    step: ir.LoadStep | ir.StoreStep
    slot: int
    sizes: tuple[int, ...]
    dropped: tuple[int, ...]


@dataclass(frozen=True)
class LoopChunk:
    """Result of a chunk.

    Attributes:
      iterations: number of iterations that ran.
      is_done: whether the loop has ended.
      is_rejected: whether an access was out of bounds, a hint false, or a test of the arithmetic
        fired; nothing else is valid then.
      places: by iteration and access, its first position along each axis of the buffer.
    """

    iterations: int
    is_done: bool
    is_rejected: bool
    carry: list[Any]
    contents: list[np.ndarray[Any, Any]]
    places: np.ndarray[Any, Any]


class NotCompiled(Exception):
    """A loop that cannot be compiled, because of what its references or accesses are."""


def is_compilable(step: ir.Loop) -> bool:
    """Return whether the machine may run a loop as one program, by the kinds of its steps."""
    if isinstance(step, ir.ScanLoop):
        is_bounded = not step.stacked and len(step.outputs) == len(step.carry)
    else:
        steps = step.condition.all_steps()
        reads = any(isinstance(s, ir.LoadStep | ir.StoreStep) for s in steps)
        is_bounded = step.is_counted and not reads
    programs = (program for program, _ in ir.inner_programs(step))
    return is_bounded and all(_is_plain(inner) for p in programs for inner in p.steps)


def _is_plain(step: ir.MachineStep) -> bool:
    match step:
        case ir.Compute():
            return isinstance(step.unit, Unit)
        case ir.LoadStep() | ir.StoreStep():
            return not getattr(step, "adds", False) and all(
                isinstance(part, ir.Index)
                and all(
                    isinstance(e, int | ir.Reg)
                    or (isinstance(e, ir.Slice) and isinstance(e.size, int) and e.stride == 1)
                    for e in part.entries
                )
                for part in step.place.view
            )
        case ir.MultipleOf() | ir.GridId() | ir.AxisIndex():
            return True
    return False


def identities(step: ir.Loop) -> list[ir.GridId | ir.AxisIndex]:
    """Steps of a loop whose results depend only on the grid point and the device."""
    steps = (inner for program, _ in ir.inner_programs(step) for inner in program.all_steps())
    return [inner for inner in steps if isinstance(inner, ir.GridId | ir.AxisIndex)]


class CompiledLoop:
    """A loop compiled for references to certain buffers.

    Args:
      step: a loop that `is_compilable`.
      constants: values of the body's constants, with `BufferView`s for references; only the types
        of the others matter.
      is_tested: whether the arithmetic is tested, as the sanitizer does.

    Raises:
      NotCompiled: an access is not a box of a buffer, or a reference is not a constant.
    """

    def __init__(self, step: ir.Loop, constants: Sequence[Any], *, is_tested: bool = False) -> None:
        self.step = step
        self._is_tested = is_tested
        self._views = [v if isinstance(v, BufferView) else None for v in constants]
        steps = [s for s in step.body.all_steps() if isinstance(s, ir.LoadStep | ir.StoreStep)]
        self._rows = {id(access): i for i, access in enumerate(steps)}
        self._accesses: dict[int, LoopAccess] = {}
        self._run = jax.jit(self._traced)

    @property
    def accesses(self) -> list[LoopAccess]:
        """Accesses of the body, in the order of `LoopChunk.places`; known after a run."""
        return [self._accesses[i] for i in range(len(self._rows))]

    def run(
        self,
        constants: Sequence[Any],
        condition_constants: Sequence[Any],
        carry: Sequence[Any],
        numbers: Sequence[Any],
        contents: Sequence[Any],
        first: int,
    ) -> LoopChunk:
        """Run a chunk of iterations.

        Args:
          numbers: results of `identities`.
          contents: arrays of the buffers.
          first: number of the first iteration.
        """
        plain = [None if v is not None else c for v, c in zip(self._views, constants, strict=True)]
        count, is_done, carry, memory, places = self._run(
            plain, list(condition_constants), list(carry), list(numbers), list(contents), first
        )
        return LoopChunk(
            iterations=int(count),
            is_done=bool(is_done),
            is_rejected=bool(memory.is_rejected),
            carry=list(carry),
            contents=[np.asarray(c) for c in memory.contents],
            places=np.asarray(places)[: int(count)],
        )

    def _traced(
        self,
        constants: list[Any],
        condition_constants: list[Any],
        carry: list[Any],
        numbers: list[Any],
        contents: list[Any],
        first: Any,
    ) -> Any:
        step = self.step
        given = [
            constant if view is None else view
            for view, constant in zip(self._views, constants, strict=True)
        ]
        known = dict(zip(map(id, identities(step)), numbers, strict=True))
        rank = max(map(jnp.ndim, contents), default=0)
        no_places = jnp.zeros((len(self._rows), rank), jnp.int32)
        start = LoopMemory([jnp.asarray(c) for c in contents], no_places, jnp.bool_(False))

        def goes_on(values: Sequence[Any], count: Any) -> Any:
            if isinstance(step, ir.ScanLoop):
                return jnp.asarray(first + count < step.length)
            trace = LoopRun(start, known, self._rows)
            (result,) = trace.run(step.condition, [*condition_constants, *values])
            return jnp.asarray(result)

        def condition(loop: Any) -> Any:
            count, goes, _, memory, _ = loop
            return (count < CHUNK) & ~memory.is_rejected & goes

        def iterate(loop: Any) -> Any:
            count, _, values, memory, places = loop
            memory = memory._replace(places=no_places)
            trace = LoopRun(memory, known, self._rows, is_tested=self._is_tested)
            results = [jnp.asarray(r) for r in trace.run(step.body, [*given, *values])]
            self._accesses = trace.accesses
            if any(
                (r.shape, r.dtype) != (v.shape, v.dtype)
                for r, v in zip(results, values, strict=True)
            ):
                raise NotCompiled("a carried value changes its type")
            places = places.at[count].set(trace.memory.places)
            return count + 1, goes_on(results, count + 1), results, trace.memory, places

        carry = [jnp.asarray(value) for value in carry]
        places = jnp.zeros((CHUNK, *no_places.shape), jnp.int32)
        begin = jnp.int32(0), goes_on(carry, 0), carry, start, places
        count, goes, *rest = jax.lax.while_loop(condition, iterate, begin)
        return count, ~goes, *rest


class LoopMemory(NamedTuple):
    """The part of a loop's state that its accesses change.

    Attributes:
      contents: contents of the buffers.
      places: accesses of this iteration, as in `LoopChunk`.
      is_rejected: whether the chunk is.
    """

    contents: list[Any]
    places: Any
    is_rejected: Any


class LoopRun:
    """Evaluation of a program on traced values.

    Attributes:
      accesses: accesses by their row among the places.

    Args:
      numbers: results of `GridId` and `AxisIndex`, by identity of the step.
      rows: rows of the accesses among the places, by identity of the step.
    """

    def __init__(
        self, memory: LoopMemory, numbers: dict[int, Any], rows: dict[int, int], *,
        is_tested: bool = False,
    ) -> None:  # fmt: skip
        self.memory = memory
        self.accesses: dict[int, LoopAccess] = {}
        self._numbers = numbers
        self._rows = rows
        self._is_tested = is_tested

    def run(self, program: ir.KernelProgram, args: Sequence[Any]) -> list[Any]:
        registers = list(program.template)
        for reg, value in zip(program.inputs, args, strict=True):
            registers[reg.number] = value
        for step in program.steps:
            self._step(step, registers)
        return [registers[reg.number] for reg in program.outputs]

    def _reject_if(self, test: Any) -> None:
        if test is False:
            return
        is_rejected = self.memory.is_rejected | jnp.any(test)
        self.memory = self.memory._replace(is_rejected=is_rejected)

    def _step(self, step: ir.MachineStep, registers: list[Any]) -> None:
        match step:
            case ir.Compute():
                values = [registers[reg.number] for reg in step.inputs]
                if self._is_tested:
                    results, flags = numerics.WatchedUnit(step.unit).traced(*values)
                    self._reject_if(flags)
                else:
                    results = step.unit.traced(*values)
                # Units round their results, as in a run step by step: XLA would fuse them.
                results = jax.lax.optimization_barrier(results)
                for reg, value in zip(step.outputs, results, strict=True):
                    registers[reg.number] = value
            case ir.LoadStep():
                access, at = self._box(step, registers)
                value = self._read(access, at)
                if step.mask is not None:
                    other = 0 if step.other is None else registers[step.other.number]
                    mask = registers[step.mask.number]
                    value = jnp.where(mask, value, jnp.asarray(other, value.dtype))
                registers[step.output.number] = value
            case ir.StoreStep():
                self._store(step, registers)
            case ir.MultipleOf():
                value = registers[step.value.number]
                for divisor in step.divisors:
                    self._reject_if(jnp.asarray(value) % divisor != 0)
                registers[step.output.number] = value
            case ir.GridId() | ir.AxisIndex():
                registers[step.output.number] = self._numbers[id(step)]
            case _:
                raise AssertionError(type(step).__name__)

    def _box(
        self, step: ir.LoadStep | ir.StoreStep, registers: list[Any]
    ) -> tuple[LoopAccess, list[Any]]:
        """Note an access; return it, and its first position along each axis."""
        view = registers[step.place.ref.number]
        if not isinstance(view, BufferView):
            raise NotCompiled("a reference that is not a constant")
        parts = [*view.parts, *(tuple(self._entries(part, registers)) for part in step.place.view)]
        starts: list[Any] = [0] * len(view.shape)
        sizes, axes, dropped = list(view.shape), list(range(len(view.shape))), []
        for part in parts:
            kept = []
            for axis, entry in zip(axes, part, strict=True):
                if isinstance(entry, tuple):
                    start, size = entry
                    kept.append(axis)
                else:
                    start, size = entry, 1
                    dropped.append(axis)
                    if jnp.ndim(start):
                        raise NotCompiled("an array as an index")
                # In 64 bits if it is known; a position past 2^31 would be out of bounds anyway.
                self._reject_if((start < 0) | (start + size > sizes[axis]))
                starts[axis] = starts[axis] + start
                sizes[axis] = size
            axes = kept
        access = LoopAccess(step, view.slot, tuple(sizes), tuple(sorted(dropped)))
        at = [jnp.asarray(s, jnp.int32) for s in starts]
        row = self._rows[id(step)]
        self.accesses[row] = access
        if at:
            places = self.memory.places.at[row, : len(at)].set(jnp.stack(at))
            self.memory = self.memory._replace(places=places)
        return access, at

    @staticmethod
    def _entries(part: Any, registers: list[Any]) -> Iterator[Any]:
        for entry in part.entries:
            if isinstance(entry, ir.Slice):
                start = entry.start
                yield (registers[start.number] if isinstance(start, ir.Reg) else start, entry.size)
            elif isinstance(entry, ir.Reg):
                value = registers[entry.number]
                if isinstance(value, BufferView):
                    raise NotCompiled("a reference as an index")
                yield value
            else:
                yield entry

    def _read(self, access: LoopAccess, at: list[Any]) -> Any:
        found = jax.lax.dynamic_slice(self.memory.contents[access.slot], at, access.sizes)
        return jax.lax.squeeze(found, access.dropped)

    def _store(self, step: ir.StoreStep, registers: list[Any]) -> None:
        access, at = self._box(step, registers)
        before = None
        if step.output is not None or step.mask is not None:
            before = self._read(access, at)
        if step.output is not None:
            registers[step.output.number] = before
        contents = list(self.memory.contents)
        content = contents[access.slot]
        value = jnp.asarray(registers[step.value.number])
        if value.dtype != content.dtype:
            value = jax.lax.optimization_barrier(value.astype(content.dtype))
        if step.mask is not None:
            value = jnp.where(registers[step.mask.number], value, before)
        shape = [n for axis, n in enumerate(access.sizes) if axis not in access.dropped]
        value = jnp.broadcast_to(value, shape).reshape(access.sizes)
        contents[access.slot] = jax.lax.dynamic_update_slice(content, value, at)
        self.memory = self.memory._replace(contents=contents)

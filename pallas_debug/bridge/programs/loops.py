"""Loops of a kernel compiled as one jax program, instead of being interpreted step by step.

A body is compiled if it only computes, loads and stores: no copies, semaphores, prints or scopes.
The program works on copies of the buffers and runs a chunk of iterations. It notes the positions of
each access, and whether one of them was out of bounds or a hint was false; then its results are
discarded, and the machine interprets the chunk, which reports the fault with all its details.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.arithmetic import numerics
from pallas_debug.bridge.programs.units import Unit

CHUNK = 4096
"""Iterations per call of a compiled loop; between calls, limits and ctrl+c are checked."""

Loop = ir.ScanLoop | ir.WhileLoop


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
      is_faulty: whether an access was out of bounds or a hint false; nothing else is valid then.
      is_suspicious: whether a test of the arithmetic fired, if it was tested.
      starts: for each access, the first position along each axis of the buffer, by iteration.
      ran: for each access, whether it ran, by iteration; it does not in a branch not taken.
    """

    iterations: int
    is_done: bool
    is_faulty: bool
    is_suspicious: bool
    carry: list[Any]
    contents: list[np.ndarray[Any, Any]]
    starts: list[np.ndarray[Any, Any]]
    ran: list[np.ndarray[Any, Any]]


class NotCompiled(Exception):
    """A loop that cannot be compiled, because of what its references or accesses are."""


def is_compilable(step: Loop) -> bool:
    """Return whether the machine may run a loop as one program, by the kinds of its steps."""
    if isinstance(step, ir.ScanLoop):
        return not step.stacked and len(step.outputs) == len(step.carry) and _is_plain(step.body)
    return step.is_counted and _is_plain(step.body) and _is_plain(step.condition)


def _is_plain(program: ir.KernelProgram) -> bool:
    return all(map(_is_plain_step, program.steps))


def _is_plain_step(step: ir.MachineStep) -> bool:
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
        case ir.Branch():
            return all(map(_is_plain, step.branches))
    return False


def identities(step: Loop) -> list[ir.GridId | ir.AxisIndex]:
    """Steps of a loop whose results depend only on the grid point and the device."""
    found: list[ir.GridId | ir.AxisIndex] = []

    def search(program: ir.KernelProgram) -> None:
        for inner in program.steps:
            if isinstance(inner, ir.GridId | ir.AxisIndex):
                found.append(inner)
            for branch in inner.branches if isinstance(inner, ir.Branch) else ():
                search(branch)

    search(step.body)
    if isinstance(step, ir.WhileLoop):
        search(step.condition)
    return found


class CompiledLoop:
    """A loop compiled for references to certain buffers.

    Args:
      step: a loop that `is_compilable`.
      constants: values of the body's constants, with `BufferView`s for references; only the types
        of the others matter.
      condition_constants: likewise, for the condition of a `while_loop`.
      is_tested: whether the arithmetic is tested, as the sanitizer does.

    Raises:
      NotCompiled: an access is not a box of a buffer, or a reference is not a constant.
    """

    def __init__(
        self, step: Loop, constants: Sequence[Any], condition_constants: Sequence[Any] = (), *,
        is_tested: bool = False,
    ) -> None:  # fmt: skip
        self.step = step
        self._is_tested = is_tested
        self.accesses: list[LoopAccess] = []
        self._views = [v if isinstance(v, BufferView) else None for v in constants]
        self._condition_views = [
            v if isinstance(v, BufferView) else None for v in condition_constants
        ]
        self._run = jax.jit(self._traced, donate_argnums=())

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
        others = [
            None if v is not None else c
            for v, c in zip(self._condition_views, condition_constants, strict=True)
        ]
        results = self._run(plain, others, list(carry), list(numbers), list(contents), first)
        count, is_done, is_faulty, is_suspicious, carry, contents, starts, ran = results
        return LoopChunk(
            int(count),
            bool(is_done),
            bool(is_faulty),
            bool(is_suspicious),
            list(carry),
            [np.asarray(c) for c in contents],
            [np.asarray(s)[: int(count)] for s in starts],
            [np.asarray(r)[: int(count)] for r in ran],
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
        given = [v if v is not None else c for v, c in zip(self._views, constants, strict=True)]
        others = [
            v if v is not None else c
            for v, c in zip(self._condition_views, condition_constants, strict=True)
        ]
        known = dict(zip(map(id, identities(step)), numbers, strict=True))
        self.accesses = []

        def body(values: list[Any], state: list[Any]) -> tuple[list[Any], _Trace]:
            trace = _Trace(state, known, is_tested=self._is_tested)
            return trace.run(step.body, [*given, *values]), trace

        def goes_on(values: list[Any], state: list[Any], count: Any) -> Any:
            if isinstance(step, ir.ScanLoop):
                return first + count < step.length
            trace = _Trace(list(state), known, is_condition=True)
            (result,) = trace.run(step.condition, [*others, *values])
            return result

        # The accesses have to be known before the arrays for their positions are made.
        probe: list[_Trace] = []

        def probing(values: list[Any], state: list[Any]) -> Any:
            results, trace = body(values, state)
            probe.append(trace)
            return results

        shapes = jax.eval_shape(probing, carry, contents)
        if any(
            (a.shape, a.dtype) != (jnp.shape(c), jnp.result_type(c))
            for a, c in zip(shapes, carry, strict=True)
        ):
            raise NotCompiled("a carried value changes its type")
        self.accesses = [access for access, _, _ in probe[0].accesses]
        starts = [jnp.zeros((CHUNK, len(a.sizes)), jnp.int32) for a in self.accesses]
        ran = [jnp.zeros((CHUNK,), bool) for _ in self.accesses]

        def condition(loop: Any) -> Any:
            count, _, is_faulty, is_suspicious, goes, *_ = loop
            return (count < CHUNK) & ~is_faulty & ~is_suspicious & goes

        def iterate(loop: Any) -> Any:
            count, values, is_faulty, is_suspicious, _, state, starts, ran = loop
            results, trace = body(values, list(state))
            for i, (_, at, is_run) in enumerate(trace.accesses):
                starts[i] = (
                    starts[i].at[count].set(jnp.stack(at) if at else jnp.zeros(0, jnp.int32))
                )
                ran[i] = ran[i].at[count].set(is_run)
            results = [
                jnp.asarray(r, jnp.result_type(v)) for r, v in zip(results, values, strict=True)
            ]
            goes = goes_on(results, trace.state, count + 1)
            is_faulty |= trace.is_faulty
            is_suspicious |= trace.is_suspicious
            return count + 1, results, is_faulty, is_suspicious, goes, trace.state, starts, ran

        carry = [jnp.asarray(value) for value in carry]
        begin = (
            jnp.int32(0), carry, jnp.bool_(False), jnp.bool_(False),
            jnp.asarray(goes_on(carry, contents, 0)), [jnp.asarray(c) for c in contents], starts,
            ran,
        )  # fmt: skip
        count, values, is_faulty, is_suspicious, goes, state, starts, ran = jax.lax.while_loop(
            condition, iterate, begin
        )
        return count, ~goes, is_faulty, is_suspicious, values, state, starts, ran


class _Trace:
    """Evaluation of a program on traced values.

    Attributes:
      state: contents of the buffers.
      is_faulty: whether an access was out of bounds or a hint false.
      is_suspicious: whether a test of the arithmetic fired.
      accesses: accesses in the order of the program, their positions, and whether they run.
    """

    def __init__(
        self, state: list[Any], numbers: dict[int, Any], *, is_condition: bool = False,
        is_tested: bool = False,
    ) -> None:  # fmt: skip
        self.state = list(state)
        self.is_faulty: Any = jnp.bool_(False)
        self.is_suspicious: Any = jnp.bool_(False)
        self.accesses: list[tuple[LoopAccess, list[Any], Any]] = []
        self._numbers = numbers
        self._is_condition = is_condition
        self._is_tested = is_tested

    def run(self, program: ir.KernelProgram, args: Sequence[Any]) -> list[Any]:
        registers = list(program.template)
        for reg, value in zip(program.inputs, args, strict=True):
            registers[reg.number] = value
        for step in program.steps:
            self._step(step, registers)
        return [registers[reg.number] for reg in program.outputs]

    def _step(self, step: ir.MachineStep, registers: list[Any]) -> None:
        match step:
            case ir.Compute():
                values = [registers[reg.number] for reg in step.inputs]
                if self._is_tested:
                    results, flags = numerics.instrumented(step.unit).traced(*values)
                    self.is_suspicious |= jnp.any(flags)
                else:
                    results = step.unit.traced(*values)
                for reg, value in zip(step.outputs, results, strict=True):
                    registers[reg.number] = value
            case ir.LoadStep():
                value = self._load(step, registers)
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
                    self.is_faulty |= jnp.any(jnp.asarray(value) % divisor != 0)
                registers[step.output.number] = value
            case ir.GridId() | ir.AxisIndex():
                registers[step.output.number] = self._numbers[id(step)]
            case ir.Branch():
                self._branch(step, registers)
            case _:
                raise AssertionError(type(step).__name__)

    def _box(
        self, step: ir.LoadStep | ir.StoreStep, registers: list[Any]
    ) -> tuple[LoopAccess, list[Any]]:
        """Return an access and its first position along each axis; note whether it is faulty."""
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
                self.is_faulty |= jnp.asarray((start < 0) | (start + size > sizes[axis]))
                starts[axis] = starts[axis] + start
                sizes[axis] = size
            axes = kept
        access = LoopAccess(step, view.slot, tuple(sizes), tuple(sorted(dropped)))
        at = [jnp.asarray(s, jnp.int32) for s in starts]
        if self._is_condition:
            raise NotCompiled("a condition that reads memory")
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
        found = jax.lax.dynamic_slice(self.state[access.slot], at, access.sizes)
        return jax.lax.squeeze(found, access.dropped)

    def _load(self, step: ir.LoadStep | ir.StoreStep, registers: list[Any]) -> Any:
        access, at = self._box(step, registers)
        self.accesses.append((access, at, jnp.bool_(True)))
        return self._read(access, at)

    def _store(self, step: ir.StoreStep, registers: list[Any]) -> None:
        access, at = self._box(step, registers)
        self.accesses.append((access, at, jnp.bool_(True)))
        before = None
        if step.output is not None or step.mask is not None:
            before = self._read(access, at)
        if step.output is not None:
            registers[step.output.number] = before
        content = self.state[access.slot]
        value = jnp.asarray(registers[step.value.number]).astype(content.dtype)
        if step.mask is not None:
            value = jnp.where(registers[step.mask.number], value, before)
        shape = [n for axis, n in enumerate(access.sizes) if axis not in access.dropped]
        value = jnp.broadcast_to(value, shape).reshape(access.sizes)
        self.state[access.slot] = jax.lax.dynamic_update_slice(content, value, at)

    def _branch(self, step: ir.Branch, registers: list[Any]) -> None:
        given = [registers[reg.number] for reg in step.inputs]
        views = [v if isinstance(v, BufferView) else None for v in given]
        plain = [jnp.int32(0) if v is not None else g for v, g in zip(views, given, strict=True)]
        found: list[list[tuple[LoopAccess, list[Any], Any]]] = [[] for _ in step.branches]

        def function(number: int) -> Callable[..., Any]:
            def run(values: list[Any], state: list[Any]) -> Any:
                inner = _Trace(
                    state, self._numbers, is_condition=self._is_condition, is_tested=self._is_tested
                )
                args = [v if v is not None else a for v, a in zip(views, values, strict=True)]
                results = inner.run(step.branches[number], args)
                found[number] = inner.accesses
                places = [(at, is_run) for _, at, is_run in inner.accesses]
                bad = inner.is_faulty, inner.is_suspicious
                return [jnp.asarray(r) for r in results], inner.state, bad, places

            return run

        # Each branch returns its accesses in its own place, and zeros for those of the others.
        shapes = [
            jax.eval_shape(function(i), plain, self.state)[3] for i in range(len(step.branches))
        ]

        def padded(number: int) -> Callable[..., Any]:
            def run(values: list[Any], state: list[Any]) -> Any:
                results, after, bad, own = function(number)(values, state)
                places = [
                    own
                    if i == number
                    else jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), other)
                    for i, other in enumerate(shapes)
                ]
                return results, after, bad, places

            return run

        index = jnp.clip(
            jnp.asarray(registers[step.index.number]).astype(jnp.int32), 0, len(step.branches) - 1
        )
        results, self.state, (is_faulty, is_suspicious), places = jax.lax.switch(
            index, [padded(i) for i in range(len(step.branches))], plain, self.state
        )
        self.is_faulty |= is_faulty
        self.is_suspicious |= is_suspicious
        for accesses, of_branch in zip(found, places, strict=True):
            for (access, _, _), (at, is_run) in zip(accesses, of_branch, strict=True):
                self.accesses.append((access, list(at), is_run))
        for reg, value in zip(step.outputs, results, strict=True):
            registers[reg.number] = value

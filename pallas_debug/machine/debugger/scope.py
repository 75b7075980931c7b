"""Names in the user's code for the values of equations.

jax does not record any. The lines of an equation are known, with the calls that lead to it: if its
line is in `m_new = jnp.maximum(m_prev, s_max)`, the statement's last equation is `m_new`.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.machine.debugger.driver import Driver
from pallas_debug.machine.grid import Window
from pallas_debug.machine.memory import MemoryBuffer, Ref
from pallas_debug.machine.threads import ProgramFrame, Thread
from pallas_debug.model import SourceLine
from pallas_debug.stepping.track import NamedValue


@dataclass(frozen=True, slots=True)
class _Assignment:
    first: int
    last: int
    names: tuple[str, ...]
    is_for: bool  # whether the value is the result of a `fori_loop`
    unpacks: str | None  # name of the variable that is unpacked


@dataclass(frozen=True, slots=True)
class RegisterName:
    """A name for a register.

    Attributes:
      calls: places of the calls that lead to the function that assigns the name.
      position: position of the step that computes the register.
    """

    name: str
    register: int
    calls: tuple[tuple[str, int], ...]
    position: int


@functools.lru_cache(maxsize=64)
def _assignments(file: str) -> tuple[_Assignment, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found = []
    for node in ast.walk(tree):
        targets: Sequence[ast.expr] = ()
        if isinstance(node, ast.Assign):
            targets = node.targets[-1:]
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            targets = [node.target]
        for target in targets:
            names = _names(target)
            if names:
                first = target.lineno
                last = getattr(node, "end_lineno", None) or first
                found.append(_Assignment(first, last, names, _is_for(node), _unpacked(node)))
    return tuple(sorted(found, key=lambda a: (a.last - a.first, a.first)))


def _names(target: ast.expr) -> tuple[str, ...]:
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, ast.Tuple | ast.List):
        names = tuple(part.id if isinstance(part, ast.Name) else "_" for part in target.elts)
        return names if any(name != "_" for name in names) else ()
    return ()


def assignment(line: SourceLine) -> _Assignment | None:
    """Return the smallest assignment that includes a line."""
    return next((a for a in _assignments(line.file) if a.first <= line.line <= a.last), None)


def register_names(program: ir.KernelProgram, depth: int) -> Iterator[RegisterName]:
    """Yield the names of the registers of a program, in step order.

    Args:
      depth: number of calls that lead to the program's own lines.
    """
    stacks = [_stack(step) for step in program.steps]
    for position, step in enumerate(program.steps):
        regs = ir.results(step)
        stack = stacks[position]
        following = stacks[position + 1] if position + 1 < len(stacks) else ()
        if not regs:
            continue
        for level in range(depth, len(stack)):
            found = assignment(stack[level])
            if found is None or _goes_on(stack, following, level, found):
                continue
            calls = tuple(line.place for line in stack[:level])
            own = _counters(step) if found.is_for else 0
            if len(regs) - own != len(found.names):
                continue  # e.g. because unused results were dropped
            for name, reg in zip(found.names, regs[own:], strict=True):
                if name != "_":
                    yield RegisterName(name, reg.number, calls, position)


def _unpacked(node: ast.AST) -> str | None:
    value = getattr(node, "value", None)
    return value.id if isinstance(value, ast.Name) else None


_PART = re.compile(r"(\w+)\[(\d+)\]")


def argument_names(program: ir.KernelProgram) -> dict[int, str]:
    """Names of a program's arguments, by register.

    jax calls the elements of a tuple `carry[0]`, `carry[1]`: `total, last = carry` names them, if
    the program has an operation near that line.
    """
    found = {}
    lines = [step.site.line for step in program.steps if step.site.line is not None]
    for number, name in program.names.items():
        part = _PART.fullmatch(name)
        if part is None:
            found[number] = name
            continue
        position = int(part[2])
        near = [
            (abs(item.first - line.line), item)
            for line in lines
            for item in _assignments(line.file)
            if item.unpacks == part[1] and position < len(item.names)
        ]
        if near:
            found[number] = min(near, key=lambda pair: pair[0])[1].names[position]
    return found


def _is_for(node: ast.AST) -> bool:
    called = getattr(getattr(node, "value", None), "func", None)
    return getattr(called, "attr", getattr(called, "id", None)) == "fori_loop"


def _counters(step: ir.MachineStep) -> int:
    """Number of values that jax adds to a `fori_loop` carry: index, and end if not static."""
    return {ir.ScanLoop: 1, ir.WhileLoop: 2}.get(type(step), 0)


def _goes_on(
    stack: tuple[SourceLine, ...],
    following: tuple[SourceLine, ...],
    level: int,
    statement: _Assignment,
) -> bool:
    """Return whether the next step belongs to the same statement of the same call."""
    if len(following) <= level or following[:level] != stack[:level]:
        return False
    line = following[level]
    return line.file == stack[level].file and statement.first <= line.line <= statement.last


def _stack(step: ir.MachineStep) -> tuple[SourceLine, ...]:
    site = step.site
    return site.calls if site.line is None else (*site.calls, site.line)


def lines_of(launch: Launch) -> frozenset[SourceLine]:
    """Lines with an operation of a kernel, or a call that leads to one."""
    return frozenset(
        line
        for body in (launch.body, *(mesh.body for mesh in launch.meshes))
        for program in body.all()
        for step in program.steps
        for line in (*step.site.calls, step.site.line)
        if line is not None
    )


Array = np.ndarray[Any, Any]

AXES = "ijklmnop"
"""Names of the grid's axes, unless shadowed by a variable of the same name."""

_CALL = re.compile(r"(program_id|num_programs|whole)\((.+)\)")


class NameScope:
    """Names that are in scope at the current step of a run.

    Attributes:
      shown: thread whose values are shown; None for the one that executes the next step.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.shown: Thread | None = None
        self._names: dict[int, tuple[RegisterName, ...]] = {}
        self._argument_names: dict[int, dict[int, str]] = {}

    @property
    def thread(self) -> Thread:
        if self.shown is not None:
            return self.shown
        driver = self.driver
        return driver.machine.threads[0] if driver.ended else driver.thread

    # Operands and memory

    def operands(self) -> dict[str, Window | Ref]:
        walk = self.thread.walk
        launch = self.driver.machine.launch
        return {
            operand.name: item for operand, item in zip(launch.operands, walk.refs, strict=True)
        }

    def _scoped(self) -> dict[str, MemoryBuffer]:
        return {
            buffer.name: buffer
            for frame in self.thread.frames
            for buffer in frame.buffers
            if not buffer.is_freed
        }

    def buffers(self, name: str) -> list[MemoryBuffer]:
        """Buffers that a name refers to: for a block, the buffer in use."""
        item = self.operands().get(name)
        if isinstance(item, Window):
            return [item.current]
        if item is not None:
            return [item.buffer]
        scoped = self._scoped().get(name)
        return [] if scoped is None else [scoped]

    def memory(self, name: str) -> MemoryBuffer | None:
        """The buffer that a name, or `whole(name)`, refers to; None for a variable."""
        called = _CALL.fullmatch(name)
        if called is None:
            return next(iter(self.buffers(name)), None)
        item = self.operands().get(called[2]) if called[1] == "whole" else None
        if item is None:
            return None
        return item.array if isinstance(item, Window) else item.buffer

    def values(self) -> Sequence[NamedValue]:
        found: dict[str, NamedValue] = {}
        launch = self.driver.machine.launch
        for operand, item in zip(launch.operands, self.thread.walk.refs, strict=True):
            buffer = item.current if isinstance(item, Window) else item.buffer
            found[operand.name] = NamedValue(
                name=operand.name,
                kind="semaphore" if buffer.type.semaphore is not None else operand.kind,
                dtype=buffer.content.dtype.name,
                shape=buffer.content.shape,
                block=item.block if isinstance(item, Window) else None,
                whole=operand.array if isinstance(item, Window) else None,
            )
        for name, buffer in self._scoped().items():
            kind = "semaphore" if buffer.type.semaphore is not None else "scoped"
            found[name] = _named(name, kind, buffer.content)
        for name, value in self._variables().items():
            if name not in found:
                found[name] = _named(name, "variable", value)
        return list(found.values())

    def value(self, name: str) -> Any:
        """Evaluate a name, or `program_id(0)`, `num_programs(0)`, `whole(name)`.

        Returns:
          The value; None if the name has none.
        """
        called = _CALL.fullmatch(name)
        if called is not None:
            return self._called(called[1], called[2])
        variable = self._variables().get(name)
        if variable is not None:
            return np.asarray(variable)
        buffers = self.buffers(name)
        if buffers:
            return buffers[0].content
        thread = self.thread
        if name == "iteration":
            return np.asarray(thread.iterations[-1]) if thread.iterations else None
        axis = AXES.find(name) if len(name) == 1 else -1
        return self._axis(thread.point, axis)

    def _axis(self, numbers: tuple[int, ...], axis: int) -> Any:
        """Index by an axis as the kernel counts them: without axes added by `vmap`."""
        own = self.driver.machine.launch.axes
        return np.asarray(numbers[own[axis]]) if 0 <= axis < len(own) and numbers else None

    def _called(self, function: str, argument: str) -> Any:
        if function == "whole":
            return self.whole(argument)
        numbers = self.thread.point if function == "program_id" else self.thread.grid
        return self._axis(numbers, int(argument) if argument.isdigit() else -1)

    def whole(self, name: str) -> Array | None:
        item = self.operands().get(name)
        if item is None:
            return None
        return item.array.content if isinstance(item, Window) else item.buffer.content

    # Variables

    def _variables(self) -> dict[str, Any]:
        """Values of the user's variables in the functions on the call stack."""
        found: dict[str, Any] = {}
        thread = self.thread
        calls = self._calls()
        for frame in thread.frames:
            for number, name in self._arguments(frame).items():
                value = frame.registers[number]
                if name.isidentifier() and value is not None and not isinstance(value, Ref):
                    found[name] = value
            for item in self._of(frame):
                if item.position >= frame.position or item.calls != calls[: len(item.calls)]:
                    continue
                value = frame.registers[item.register]
                if value is not None and not isinstance(value, Ref):
                    found[item.name] = value
        return found

    def _calls(self) -> tuple[tuple[str, int], ...]:
        """Places of the calls that lead to the current step."""
        for frame in reversed(self.thread.frames):
            steps = frame.program.steps
            step = steps[frame.position] if frame.position < len(steps) else None
            if step is not None:
                return tuple(line.place for line in step.site.calls)
        return ()

    def _arguments(self, frame: ProgramFrame) -> dict[int, str]:
        known = self._argument_names.get(id(frame.program))
        if known is None:
            known = argument_names(frame.program)
            self._argument_names[id(frame.program)] = known
        return known

    def _of(self, frame: ProgramFrame) -> tuple[RegisterName, ...]:
        known = self._names.get(id(frame.program))
        if known is None:
            depth = 0 if frame.caller is None else len(frame.caller.site.calls) + 1
            known = tuple(register_names(frame.program, depth))
            self._names[id(frame.program)] = known
        return known


def _named(name: str, kind: str, value: Any) -> NamedValue:
    return NamedValue(name=name, kind=kind, dtype=np.dtype(value.dtype).name, shape=value.shape)

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

from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.model import SourceLine


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
    return next(
        (a for a in _assignments(line.file) if a.first <= line.line <= a.last),
        None,
    )


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

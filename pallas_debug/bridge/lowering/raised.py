"""Conversion of exceptions from jax or user code to a `Failure` with the user's line."""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import linecache
import re
import traceback
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax._src import source_info_util
from jax.experimental import pallas as pl

from pallas_debug.bridge import patches
from pallas_debug.bridge.jaxprs import lines
from pallas_debug.bridge.lowering import lower
from pallas_debug.errors import JaxAssertionError, KernelFault
from pallas_debug.findings.explain import explained
from pallas_debug.model import Failure, SourceLine

_VALUE_NEEDED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""Errors of Python code that needs the value of a traced array, raised at its line."""

_OF_THE_FUNCTION = re.compile(
    r"at (?P<file>\S+):(?P<line>\d+) (?P<what>captures constants|should return None)"
)
"""Location of the kernel function in jax errors about the function itself."""

_PARAMETERS = re.compile(r"(?P<name>\S+)\(\) (?:takes|missing) ")
"""Python's words for a call that does not fit a function."""


def failure(error: BaseException) -> Failure:
    """Convert an exception raised while a function was traced, lowered or run.

    The line is that of jax's current equation if there was one, else the innermost line outside jax
    and this library. Exceptions raised within `with_all_frames` carry more information.
    """
    found = lower.failure_of(error)
    if isinstance(error, JaxAssertionError):
        return explained(replace(found, message=error.headline, source=error.where))
    if not found.message and isinstance(error, AssertionError):
        found = replace(found, message=_assertion(error))
    if function := _miscalled(error):
        said = f"{found.message}, while jax called the kernel"
        at = _source_line(function.__code__, function.__code__.co_firstlineno)
        return explained(replace(found, message=said, source=at))
    if isinstance(error, _VALUE_NEEDED):  # the message names the `def` of the kernel
        return explained(replace(found, source=_innermost(error) or found.source))
    line = _misused(error, found.message) or found.source or _innermost(error)
    return explained(replace(found, source=line))


def in_a_line(error: BaseException) -> str:
    """Class and headline of an exception; of one that a callback raised, what follows its frames.

    jax wraps such an exception and its traceback in one of its own. A fault that stopped a kernel
    is named without the class of the exception that carried it.
    """
    found = failure(error)
    first, _, rest = found.message.partition("\n")
    if first.endswith("Traceback (most recent call last):"):
        lines = [line for line in rest.splitlines() if line.strip() and not line.startswith(" ")]
        return (lines or [first])[0].removeprefix(f"{KernelFault.__name__}: ")
    return f"{type(error).__name__}: {found.headline}"


def is_of_user(error: BaseException) -> bool:
    """Whether the user's own code raised an exception, rather than jax or another library."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return False
    file = frames[-1][0].f_code.co_filename
    return source_info_util.is_user_filename(file) and not file.startswith(lines.OURS)


def _assertion(error: AssertionError) -> str:
    """Text of an assertion without a message."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames or is_of_user(error):
        return ""
    frame, number = frames[-1]
    asserted = linecache.getline(frame.f_code.co_filename, number).strip()
    said = f"an assertion of jax's failed: `{asserted}` in {frame.f_code.co_name}"
    names = {inner.f_code.co_name for inner, _ in frames}
    if "_pallas_call_jvp_rule" in names:
        return f"{said}, while jax differentiates the kernel"
    return said if "_trace_kernel_to_jaxpr" in names else f"{said}, outside of a kernel"


def with_all_frames() -> contextlib.AbstractContextManager[None]:
    """Keep jax's own frames in its tracebacks, in the whole process."""
    return patches.installed(patches.FRAMES)


def quietly() -> contextlib.AbstractContextManager[None]:
    """Keep jax from logging every callback exception with its stack."""
    return patches.installed(patches.QUIET)


def _misused(error: BaseException, message: str) -> SourceLine | None:
    """Line at fault where jax only names the whole call or function.

    For an invalid block or index map, the line of the `BlockSpec` that jax was processing; for a
    captured constant, its first use; for a kernel that returns a value, the return.
    """
    named = _OF_THE_FUNCTION.search(message)
    spec, function = None, None
    frame = error.__traceback__
    while frame is not None:
        is_jax = not source_info_util.is_user_filename(frame.tb_frame.f_code.co_filename)
        for value in list(frame.tb_frame.f_locals.values()):
            if is_jax and isinstance(value, pl.BlockSpec):
                spec = value
            elif named and isinstance(value, types.FunctionType) and _stands_at(value, named):
                function = value
        frame = frame.tb_next
    if function is not None and named is not None:
        is_capture = named["what"] == "captures constants"
        at = _use_of_a_constant(function) if is_capture else _return(function)
        return None if at is None else _source_line(function.__code__, at)
    index_map = inspect.unwrap(spec.index_map) if spec is not None and spec.index_map else None
    if isinstance(index_map, types.FunctionType) and not named:
        return _source_line(index_map.__code__, index_map.__code__.co_firstlineno)
    return None


def _miscalled(error: BaseException) -> types.FunctionType | None:
    """The kernel function, if it does not take the references that jax called it with."""
    called = _PARAMETERS.match(str(error)) if type(error) is TypeError else None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = {frame.f_code.co_name for frame in frames}
    if called is None or "_trace_kernel_to_jaxpr" not in names or is_of_user(error):
        return None
    for value in frames[-1].f_locals.values():
        while isinstance(value, functools.partial):
            value = value.func
        if isinstance(value, types.FunctionType) and value.__qualname__ == called["name"]:
            return value
    return None


def _stands_at(function: types.FunctionType, named: re.Match[str]) -> bool:
    code = function.__code__
    return (code.co_filename, code.co_firstlineno) == (named["file"], int(named["line"]))


def _use_of_a_constant(function: types.FunctionType) -> int | None:
    arrays = (jax.Array, np.ndarray)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    free = {name for name, cell in cells if isinstance(_content(cell), arrays)}
    free |= {n for n, v in function.__globals__.items() if isinstance(v, arrays)}
    return next((line for line, i in _instructions(function) if i.argval in free), None)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty: the function was defined before the variable was assigned
        return None


def _return(function: types.FunctionType) -> int | None:
    before = None
    for line, instruction in _instructions(function):
        is_none = before is not None and (before.opname, before.argval) == ("LOAD_CONST", None)
        if instruction.opname == "RETURN_VALUE" and not is_none:
            return line
        before = instruction
    return None


def _instructions(function: types.FunctionType) -> Iterator[tuple[int, dis.Instruction]]:
    line = function.__code__.co_firstlineno
    for instruction in dis.get_instructions(function):
        if instruction.positions is not None and instruction.positions.lineno is not None:
            line = instruction.positions.lineno
        yield line, instruction


def _source_line(code: types.CodeType, line: int) -> SourceLine:
    text = linecache.getline(code.co_filename, line).strip() or None
    return SourceLine(file=code.co_filename, line=line, function=code.co_name, text=text)


def _innermost(error: BaseException) -> SourceLine | None:
    found = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        file = code.co_filename
        if source_info_util.is_user_filename(file) and not file.startswith((lines.OURS, "<")):
            found = (file, number, code.co_name)
    if found is None:
        return None
    file, line, function = found
    text = linecache.getline(file, line).strip() or None
    return SourceLine(file=file, line=line, function=function, text=text)

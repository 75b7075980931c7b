"""Conversion of exceptions from jax or user code to a `Failure` with the user's line."""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import linecache
import os
import re
import sysconfig
import traceback
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import EnumType
from pathlib import PurePath
from typing import Any

import jax
import numpy as np
from jax.experimental import pallas as pl

from pallas_debug import tracebacks
from pallas_debug.bridge import patches
from pallas_debug.bridge.jaxcompat import jax_core, source_info_util, util
from pallas_debug.bridge.jaxprs import lines
from pallas_debug.bridge.lowering import lower
from pallas_debug.errors import JaxAssertionError, KernelFault
from pallas_debug.explain import explained
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

_SHAPE_NEEDED = "Shapes must be 1D sequences of concrete values"
"""Beginning of jax's message about a traced value in a shape."""

_INDEXING = str(PurePath("jax/_src/state/indexing.py"))

_CALLING = str(PurePath("jax/_src/pallas/pallas_call.py"))

_OF_KERNELS = ("pallas_call kernel", "pallas_core_map", "mpmd_map")
"""Values of `DebugInfo.traced_for` while jax traces the body of a kernel."""

_IMMUTABLE = "JAX arrays are immutable and do not support in-place item assignment"

_MASKED = re.compile(
    r"Ref shape: (?P<shape>\([\d, ]*\))\..* Transforms: \(NDIndexer\(indices=\(ShapedArray\("
    r"(?P<mask>bool\[[\d,]*\])"
)

_PYTHON = sysconfig.get_path("stdlib") + os.sep
"""Directory of Python's standard library."""

_PARAMETERS = re.compile(r"(?P<name>\S+)\(\) (?:takes|missing) ")
"""Python's messages for a call that does not fit a function."""


def failure(error: BaseException) -> Failure:
    """Convert an exception raised while a function was traced, lowered or run.

    The line is the line of jax's current equation if there was one, otherwise the innermost line
    outside jax and this library. Exceptions raised within `with_all_frames` carry more information.
    """
    found = lower.failure_of(error)
    if isinstance(error, SyntaxError):
        return replace(found, message=error.msg, source=_uncompiled(error))
    if isinstance(error, JaxAssertionError):
        return explained(replace(found, message=error.headline, source=error.where))
    if not str(error) and isinstance(error, AssertionError):
        found = replace(found, message=_assertion(error))
    misuses = (
        _not_by_pallas,
        _miscalled,
        _mismapped,
        _sliced,
        _masked,
        _swapped,
        _leaked,
        _lacking,
        _in_a_dict,
    )
    misuse = next(filter(None, (look(error) for look in misuses)), None)
    if misuse is not None:
        _, end, rest = found.message.partition("\n")
        source = misuse.source or found.source or _innermost(error)
        return explained(replace(found, message=f"{misuse.message}{end}{rest}", source=source))
    if isinstance(error, _VALUE_NEEDED) or found.message.startswith(_SHAPE_NEEDED):
        # The message names the `def` of the kernel.
        return explained(replace(found, source=_innermost(error) or found.source))
    line = _misused(error, found.message) or found.source or _innermost(error)
    if raiser(error) not in ("", "jax"):  # a line in another package says little about the call
        line = _innermost(error, of_packages=False) or line
    return explained(replace(found, source=line))


@dataclass(frozen=True)
class _Misuse:
    """A mistake that jax's message does not name.

    Attributes:
      message: in place of its first line.
      source: the line at fault; None for that of jax.
    """

    message: str
    source: SourceLine | None = None


def in_a_line(error: BaseException) -> str:
    """Class and headline of an exception; of a callback's exception, the text after its frames.

    jax wraps such an exception and its traceback in its own exception. A fault that stopped a
    kernel is shown without the class of the exception that carried it.
    """
    found = failure(error)
    first, _, rest = found.message.partition("\n")
    if first.endswith("Traceback (most recent call last):"):
        lines = [line for line in rest.splitlines() if line.strip() and not line.startswith(" ")]
        return (lines or [first])[0].removeprefix(f"{KernelFault.__name__}: ")
    return f"{type(error).__name__}: {found.headline}"


def raiser(error: BaseException) -> str:
    """Name of the package whose code raised an exception; empty for the user's own.

    The standard library raises exceptions on behalf of its callers, such as those of an enum.
    """
    if isinstance(error, SyntaxError):
        return ""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = next((frame for frame in reversed(frames) if not _is_of_python(frame)), None)
    if last is None or not _is_users(last):
        return "jax"
    if not _is_installed(last):
        return ""
    return str(last.f_globals.get("__name__", "another package")).partition(".")[0]


def kernel_of(error: BaseException) -> str | None:
    """Name of the kernel that jax was tracing; None if the exception came from outside a kernel.

    For an exception raised within `with_all_frames`.
    """
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if source_info_util.is_user_filename(frame.f_code.co_filename):
            continue
        values = frame.f_locals
        if frame.f_code.co_filename.endswith(_CALLING) and callable(values.get("kernel")):
            found = values.get("name") or util.fun_name(values["kernel"])
        for value in list(values.values()):
            if isinstance(value, jax_core.DebugInfo) and value.traced_for in _OF_KERNELS:
                found = value.func_name
    return None if found is None else str(found)


def _is_of_python(frame: types.FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith((_PYTHON, "<frozen ")) and not _is_installed(frame)


def _is_installed(frame: types.FrameType) -> bool:
    """Return whether a frame is in an installed package."""
    return tracebacks.is_installed(frame.f_code.co_filename)


def _uncompiled(error: SyntaxError) -> SourceLine | None:
    """The line that Python could not compile."""
    if error.filename is None or error.lineno is None:
        return None
    text = (error.text or linecache.getline(error.filename, error.lineno)).strip()
    return SourceLine(file=error.filename, line=error.lineno, text=text or None)


def _lacking(error: BaseException) -> _Misuse | None:
    """Error for a missing member of a jax enum, of which Python 3.11 only reports the name."""
    if not isinstance(error, AttributeError) or not isinstance(error.obj, EnumType):
        return None
    if error.obj.__module__.partition(".")[0] != "jax":
        return None
    return _Misuse(f"type object {error.obj.__name__!r} has no attribute {error.name!r}")


def _in_a_dict(error: BaseException) -> _Misuse | None:
    """Error for compiler parameters in a dict, which jax cannot hash as it lowers the call."""
    if not isinstance(error, TypeError):
        return None
    equations = (frame.f_locals.get("eqn") for frame, _ in traceback.walk_tb(error.__traceback__))
    if any(isinstance(getattr(e, "params", {}).get("compiler_params"), dict) for e in equations):
        return _Misuse("pallas_call() got a dict as compiler_params")
    return None


def _assertion(error: AssertionError) -> str:
    """Text of an assertion without a message."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames or not raiser(error):
        return ""
    frame, number = frames[-1]
    asserted = linecache.getline(frame.f_code.co_filename, number).strip()
    message = f"an assertion of jax's failed: `{asserted}` in {frame.f_code.co_name}"
    names = {inner.f_code.co_name for inner, _ in frames}
    if "_pallas_call_jvp_rule" in names:
        return f"{message}, while jax differentiates the kernel"
    return message if "_trace_kernel_to_jaxpr" in names else f"{message}, outside of a kernel"


def with_all_frames() -> contextlib.AbstractContextManager[None]:
    """Keep jax's own frames in its tracebacks, in the whole process."""
    return patches.installed(patches.FRAMES)


def _misused(error: BaseException, message: str) -> SourceLine | None:
    """Line at fault where jax only names the whole call or function.

    For an invalid block or index map, the line of the `BlockSpec` that jax was processing; for a
    captured constant, its first use; for a kernel that returns a value, the return.
    """
    named = _OF_THE_FUNCTION.search(message)
    function = _function(error, named) if named else None
    spec = None if message.startswith("Grid must be") else _spec(error)
    if function is not None and named is not None:
        is_capture = named["what"] == "captures constants"
        at = _use_of_a_constant(function) if is_capture else _return(function)
        return None if at is None else _source_line(function.__code__, at)
    index_map = inspect.unwrap(spec.index_map) if spec is not None and spec.index_map else None
    if isinstance(index_map, types.FunctionType) and not named:
        return _definition(index_map)
    return None


def _values(error: BaseException) -> Iterator[tuple[types.FrameType, Any]]:
    """Local values of the frames of an exception, outermost first."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        yield from ((frame, value) for value in list(frame.f_locals.values()))


def _spec(error: BaseException) -> pl.BlockSpec | None:
    """The innermost block spec that jax was processing."""
    found = None
    for frame, value in _values(error):
        is_jax = not source_info_util.is_user_filename(frame.f_code.co_filename)
        if is_jax and isinstance(value, pl.BlockSpec):
            found = value
    return found


def _function(error: BaseException, named: re.Match[str]) -> types.FunctionType | None:
    """The kernel function at the location that a message names."""
    found = None
    for _, value in _values(error):
        if isinstance(value, types.FunctionType) and _is_at(value, named):
            found = value
    return found


def _miscalled(error: BaseException) -> _Misuse | None:
    """A kernel function that does not accept the references with which jax called it."""
    called = _PARAMETERS.match(str(error)) if type(error) is TypeError else None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [frame.f_code.co_name for frame in frames]
    if called is None or "_trace_kernel_to_jaxpr" not in names:
        return None
    if any(_is_users(frame) for frame in frames[names.index("_trace_kernel_to_jaxpr") :]):
        return None  # the kernel had begun
    for value in frames[-1].f_locals.values():
        while isinstance(value, functools.partial):
            value = value.func
        if isinstance(value, types.FunctionType) and value.__qualname__ == called["name"]:
            return _Misuse(f"{error}, while jax called the kernel", _definition(value))
    return None


def _mismapped(error: BaseException) -> _Misuse | None:
    """An index map that does not accept the indices with which jax called it."""
    called = _PARAMETERS.match(str(error)) if type(error) is TypeError else None
    spec = _spec(error) if called is not None else None
    index_map = inspect.unwrap(spec.index_map) if spec is not None and spec.index_map else None
    if called is None or not isinstance(index_map, types.FunctionType):
        return None
    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    if _is_users(last) or index_map.__qualname__ != called["name"]:
        return None  # the index map had begun
    return _Misuse(f"{error}, while jax called the index map", _definition(index_map))


def _not_by_pallas(error: BaseException) -> _Misuse | None:
    """A kernel function that is called with arrays: the call of `pallas_call` was meant."""
    theirs = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if _is_users(frame)]
    is_store = isinstance(error, TypeError) and str(error).startswith(_IMMUTABLE)
    is_grid = isinstance(error, AssertionError) and not str(error)
    if not theirs or not (is_store or is_grid):
        return None
    code = theirs[0].f_code
    names = code.co_varnames[: code.co_argcount]
    if not any(name.endswith("_ref") for name in names) or code.co_name == "<module>":
        return None
    return _Misuse(f"{code.co_name} is a kernel, and was called with arrays", _innermost(error))


def _sliced(error: BaseException) -> _Misuse | None:
    """A traced value as a bound of Python's `start:stop`, which jax compares with other values."""
    if not isinstance(error, jax.errors.TracerBoolConversionError):
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = max((i for i, frame in enumerate(frames) if _is_users(frame)), default=-1)
    after = [frame.f_code.co_filename for frame in frames[last + 1 :]]
    if not any(file.endswith(_INDEXING) for file in after):
        return None
    return _Misuse(
        "the bounds of a slice are traced, and start:stop takes numbers", _innermost(error)
    )


def _masked(error: BaseException) -> _Misuse | None:
    """A store with a mask as an index, for which jax only says that the shapes differ."""
    found = _MASKED.search(str(error)) if type(error) is ValueError else None
    if found is None:
        return None
    return _Misuse(f"a reference of shape {found['shape']} is indexed by {found['mask']}")


def _swapped(error: BaseException) -> _Misuse | None:
    """A `BlockSpec` whose shape is a function: the index map was given first."""
    spec = _spec(error) if isinstance(error, (TypeError, ValueError)) else None
    shape: Any = None if spec is None else spec.block_shape
    if not isinstance(shape, types.FunctionType):
        return None
    return _Misuse(f"the shape of a block is a function: {error}", _definition(shape))


def _leaked(error: BaseException) -> _Misuse | None:
    """A captured constant that no outer variable holds, but that an inner function assigns."""
    named = _OF_THE_FUNCTION.search(str(error))
    function = _function(error, named) if named else None
    if function is None or named is None or named["what"] != "captures constants":
        return None
    if _use_of_a_constant(function) is not None:
        return None
    inner = [c for c in function.__code__.co_consts if isinstance(c, types.CodeType)]
    for code in inner:
        for instruction in dis.get_instructions(code):
            is_cell = instruction.argval in function.__code__.co_cellvars
            if instruction.opname == "STORE_DEREF" and is_cell and instruction.positions:
                line = instruction.positions.lineno or code.co_firstlineno
                message = (
                    f"the kernel uses {instruction.argval}, which a function within it assigned"
                )
                return _Misuse(message, _source_line(code, line))
    return None


def _is_users(frame: types.FrameType) -> bool:
    file = frame.f_code.co_filename
    return source_info_util.is_user_filename(file) and not file.startswith((lines.OURS, "<"))


def _is_at(function: types.FunctionType, named: re.Match[str]) -> bool:
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


def _definition(function: types.FunctionType) -> SourceLine:
    return _source_line(function.__code__, function.__code__.co_firstlineno)


def _source_line(code: types.CodeType, line: int) -> SourceLine:
    text = linecache.getline(code.co_filename, line).strip() or None
    return SourceLine(file=code.co_filename, line=line, function=code.co_name, text=text)


def _innermost(error: BaseException, *, of_packages: bool = True) -> SourceLine | None:
    """The innermost line that is not in jax, or not in any installed package."""
    found = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        if _is_users(frame) and (of_packages or not _is_installed(frame)):
            found = _source_line(frame.f_code, number)
    return found

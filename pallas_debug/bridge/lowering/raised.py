"""Conversion of exceptions from jax or user code to a `Failure` with the user's line."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import os
import re
import sysconfig
import traceback
import types
from dataclasses import replace
from enum import EnumType
from pathlib import PurePath

import jax

from pallas_debug import tracebacks
from pallas_debug.bridge import platform
from pallas_debug.bridge.jaxcompat import jax_core, source_info_util, util
from pallas_debug.bridge.jaxprs import lines
from pallas_debug.bridge.lowering import lower
from pallas_debug.errors import JaxAssertionError, KernelFault
from pallas_debug.explain import explained
from pallas_debug.model import Failure, SourceLine

_KERNEL, _BLOCK = "_trace_kernel_to_jaxpr", "to_block_mapping"
"""Functions of jax that call the kernel, and the index map of a block."""

_MESSAGES: tuple[tuple[type[Exception], str, str, str], ...] = (
    (TypeError, r".*\(\) (takes|missing) .*", _KERNEL, r"\g<0>, while jax called the kernel"),
    (TypeError, r".*\(\) (takes|missing) .*", _BLOCK, r"\g<0>, while jax called the index map"),
    (TypeError, r".*'function'.*", _BLOCK, r"the shape of a block is a function: \g<0>"),
    (
        TypeError,
        r"unhashable type: 'dict'",
        "jaxpr_subcomp",
        "pallas_call() got a dict as compiler_params",
    ),
    (
        jax.errors.TracerBoolConversionError,
        r".*",
        "from_slice",
        "the bounds of a slice are traced, and start:stop takes numbers",
    ),
    (
        ValueError,
        r".*Ref shape: (\([\d, ]*\))\..* Transforms: \(NDIndexer\(indices=\(ShapedArray\("
        r"(bool\[[\d,]*\]).*",
        "_swap_abstract_eval",
        r"a reference of shape \1 is indexed by \2",
    ),
)
"""Mistakes that jax's message does not name.

Class and first line of the exception, a function of jax that the user's last line led to, and the
line to show instead.
"""

_VALUE_NEEDED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""Errors of Python code that needs the value of a traced array, raised at its line."""

_SHAPE_NEEDED = "Shapes must be 1D sequences of concrete values"
"""Beginning of jax's message about a traced value in a shape."""

_OF_THE_KERNEL = re.compile(
    r"The kernel function in .* (?P<name>\S+) at (?P<file>\S+):(?P<line>\d+) "
)
"""Location of the kernel function in jax's errors about the function itself."""

_CALLING = str(PurePath("jax/_src/pallas/pallas_call.py"))

_OF_KERNELS = ("pallas_call kernel", "pallas_core_map", "mpmd_map")
"""Values of `DebugInfo.traced_for` while jax traces the body of a kernel."""

_PYTHON = sysconfig.get_path("stdlib") + os.sep
"""Directory of Python's standard library."""


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
    found = replace(found, message=_message(error, found.message))
    if isinstance(error, _VALUE_NEEDED) or found.message.startswith(_SHAPE_NEEDED):
        # The message names the `def` of the kernel.
        return explained(replace(found, source=_innermost(error) or found.source))
    line = _named(error, found.message) or found.source or _innermost(error)
    if raiser(error) not in ("", "jax"):  # a line in another package says little about the call
        line = _innermost(error, of_packages=False) or line
    return explained(replace(found, source=line))


def _message(error: BaseException, message: str) -> str:
    """The message of an exception, with what its first line does not say."""
    frames = _frames(error)
    names = [frame.f_code.co_name for frame in frames]
    last = max((i for i, frame in enumerate(frames) if _is_users(frame)), default=-1)
    first, end, rest = message.partition("\n")
    for kind, pattern, function, shown in _MESSAGES:
        found = re.fullmatch(pattern, first) if type(error) is kind else None
        if found is not None and function in names[last + 1 :]:
            return found.expand(shown) + end + rest
    if isinstance(error, AttributeError) and isinstance(error.obj, EnumType):
        # Python 3.11 only reports the name.
        return f"type object {error.obj.__name__!r} has no attribute {error.name!r}"
    if not isinstance(error, AssertionError) or str(error):
        return message
    if not raiser(error):  # the user's own
        return ""
    if "_pallas_call_jvp_rule" in names:
        return f"{message}, while jax differentiates the kernel"
    return message if _KERNEL in names else f"{message}, outside of a kernel"


def _named(error: BaseException, message: str) -> SourceLine | None:
    """Line of the kernel that a message names, or of the index map that jax was processing."""
    if found := _OF_THE_KERNEL.match(message):
        return lines.line_of(found["file"], int(found["line"]), found["name"])
    specs = [f.f_locals.get("self") for f in _frames(error) if f.f_code.co_name == _BLOCK]
    for name in ("index_map", "block_shape"):  # the shape is a function if the two are swapped
        function = inspect.unwrap(getattr(specs[-1], name, None)) if specs else None  # type: ignore[arg-type]
        if isinstance(function, types.FunctionType):
            code = function.__code__
            return lines.line_of(code.co_filename, code.co_firstlineno, code.co_name)
    return None


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
    last = next((frame for frame in reversed(_frames(error)) if not _is_of_python(frame)), None)
    if last is None or not _is_users(last):
        return "jax"
    if not tracebacks.is_installed(last.f_code.co_filename):
        return ""
    return str(last.f_globals.get("__name__", "another package")).partition(".")[0]


def kernel_of(error: BaseException) -> str | None:
    """Name of the kernel that jax was tracing; None if the exception came from outside a kernel.

    For an exception raised within `with_all_frames`.
    """
    found = None
    for frame in _frames(error):
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
    return file.startswith((_PYTHON, "<frozen ")) and not tracebacks.is_installed(file)


def _uncompiled(error: SyntaxError) -> SourceLine | None:
    """The line that Python could not compile."""
    if error.filename is None or error.lineno is None:
        return None
    text = (error.text or linecache.getline(error.filename, error.lineno)).strip()
    return SourceLine(file=error.filename, line=error.lineno, text=text or None)


def with_all_frames() -> contextlib.AbstractContextManager[None]:
    """Keep jax's own frames in its tracebacks, in the whole process."""
    return platform.with_setting("jax_traceback_filtering", "off")


def _is_users(frame: types.FrameType) -> bool:
    file = frame.f_code.co_filename
    return source_info_util.is_user_filename(file) and not file.startswith((lines.OURS, "<"))


def _frames(error: BaseException) -> list[types.FrameType]:
    """Frames of an exception, outermost first."""
    return [frame for frame, _ in traceback.walk_tb(error.__traceback__)]


def _innermost(error: BaseException, *, of_packages: bool = True) -> SourceLine | None:
    """The innermost line that is not in jax, or not in any installed package."""
    found = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        if _is_users(frame) and (of_packages or not tracebacks.is_installed(code.co_filename)):
            found = lines.line_of(code.co_filename, number, code.co_name)
    return found

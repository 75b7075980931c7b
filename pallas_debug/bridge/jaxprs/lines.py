"""Source lines in the user's code, of jaxpr equations and of functions."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import os
import re
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pallas_debug.bridge.jaxcompat import source_info_util
from pallas_debug.model import SourceLine

OURS = str(Path(__file__).parents[2]) + os.sep
"""Directory of our own files, none of whose lines are the user's."""

_PIPELINE = str(Path("jax", "_src", "pallas", "mosaic", "pipeline.py"))

_INTERNAL = str(Path("jax", "_src"))

_FUNCTION = re.compile(r"(?P<function>.*?) at (?P<file>.+):(?P<line>\d+)")


def source_of(eqn: Any, calls: Sequence[Any] = ()) -> SourceLine | None:
    """Innermost line of `eqn` outside jax, or of the innermost of its calls that has one."""
    found = (of_traceback(e.source_info.traceback) for e in (eqn, *reversed(calls)))
    return next((line for line in found if line is not None), None)


def of_traceback(traceback: Any) -> SourceLine | None:
    """Innermost line of a traceback outside jax and our own code."""
    frame = source_info_util.user_frame(traceback)
    if frame is not None and frame.file_name.startswith(OURS):  # such as a gradient that we take
        frames = source_info_util.user_frames(traceback)
        frame = next((one for one in frames if not one.file_name.startswith(OURS)), None)
    if frame is None:
        return None
    return line_of(frame.file_name, frame.start_line, frame.function_name)


def stack_of(eqn: Any) -> tuple[SourceLine, ...]:
    """Lines of the frames outside jax that led to an equation within its jaxpr, outermost first.

    jax keeps no frames outside of the function that it traced to the jaxpr: a kernel, a branch, the
    body of a loop.
    """
    frames = source_info_util.user_frames(eqn.source_info.traceback)
    return tuple(line_of(f.file_name, f.start_line, f.function_name) for f in frames)[::-1]


def around(equations: Iterable[Any]) -> SourceLine | None:
    """First line of the function outside jax that the first of these equations comes from.

    For a kernel that jax wraps in a function of its own, as `plgpu.kernel` does.
    """
    body = next((stack[0] for stack in map(stack_of, equations) if stack), None)
    if body is None:
        return None
    starts = [
        min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        for node in ast.walk(tree(body.file))
        if isinstance(node, ast.FunctionDef)
        and node.name == body.function
        and node.lineno <= body.line <= (node.end_lineno or 0)
    ]
    return line_of(body.file, max(starts), body.function) if starts else body


@functools.lru_cache(maxsize=64)
def tree(file: str) -> ast.Module:
    """The parsed text of a file; empty if it cannot be parsed."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def calling() -> frozenset[tuple[str, int]]:
    """Files and lines of the user's frames that lead to the kernel being lowered.

    jax keeps no traceback for an eager call, which is lowered as it is made.
    """
    frames = source_info_util.user_frames(source_info_util.current().traceback)
    kept = frozenset((frame.file_name, frame.start_line) for frame in frames)
    return kept or frozenset(_running(sys._getframe(1)))


def _running(frame: types.FrameType | None) -> Iterator[tuple[str, int]]:
    while frame is not None:
        code = frame.f_code
        is_ours = code.co_filename.startswith(OURS)
        if not is_ours and source_info_util.is_user_filename(code.co_filename):
            # Where the call begins; an instruction takes two bytes.
            here = itertools.islice(code.co_positions(), frame.f_lasti // 2, None)
            start, *_ = next(here, (None,))
            yield code.co_filename, start or frame.f_lineno
        frame = frame.f_back


def of_caller() -> SourceLine | None:
    """Line of the call being lowered, if jax keeps its traceback."""
    return of_traceback(source_info_util._source_info_context.context.traceback)


def is_internal(line: SourceLine) -> bool:
    """Return whether a line is in jax's implementation, such as that of `emit_pipeline`."""
    return f"{os.sep}{_INTERNAL}{os.sep}" in line.file


def is_of_pipeline(eqn: Any) -> bool:
    """Return whether jax's `emit_pipeline` made an equation, and not a function that it calls."""
    for frame in eqn.source_info.traceback.frames:
        if source_info_util.is_user_filename(frame.file_name):
            return False
        if frame.file_name.endswith(_PIPELINE):
            return True
    return False


def of_function(debug_info: Any) -> SourceLine | None:
    match = _FUNCTION.fullmatch(debug_info.func_src_info or "")
    return line_of(match["file"], int(match["line"]), match["function"]) if match else None


def line_of(file: str, line: int, function: str | None = None) -> SourceLine:
    """A line, with its text if the file is readable."""
    text = linecache.getline(file, line).strip() or None
    name = function.rpartition(".")[2] if function else None
    return SourceLine(file=file, line=line, function=name, text=text)

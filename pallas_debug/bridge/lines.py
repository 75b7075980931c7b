"""The user's line behind an equation of a jaxpr, and behind a function."""

from __future__ import annotations

import linecache
import re
from typing import Any

from jax._src import source_info_util

from pallas_debug.model import SourceLine

_FUNCTION = re.compile(r"(?P<function>.*?) at (?P<file>.+):(?P<line>\d+)")


def source_of(eqn: Any) -> SourceLine | None:
    """The innermost line of `eqn` that is not jax's own, with its text."""
    return of_traceback(eqn.source_info.traceback)


def of_traceback(traceback: Any) -> SourceLine | None:
    """The innermost line of a traceback that is not jax's own."""
    frame = source_info_util.user_frame(traceback)
    if frame is None:
        return None
    return line_of(frame.file_name, frame.start_line, frame.function_name)


def of_call(keyword: str) -> SourceLine | None:
    """The line of the call that is being lowered; that of one of its keywords where it has it."""
    traceback = source_info_util.current().traceback
    frame = source_info_util.user_frame(traceback)
    if frame is None:
        return None
    for number in range(frame.start_line, max(frame.end_line, frame.start_line) + 1):
        if re.match(rf"\s*{keyword}\s*=", linecache.getline(frame.file_name, number)):
            return line_of(frame.file_name, number, frame.function_name)
    return line_of(frame.file_name, frame.start_line, frame.function_name)


def source_at(eqn: Any, place: Any) -> SourceLine | None:
    """The line of `eqn`, or of the innermost call around it that has one (`rewrite.Place`)."""
    found = (source_of(e) for e in (eqn, *reversed(place.calls)))
    return next((line for line in found if line is not None), None)


def of_function(debug_info: Any) -> SourceLine | None:
    """Where a traced function begins."""
    match = _FUNCTION.fullmatch(debug_info.func_src_info or "")
    return line_of(match["file"], int(match["line"]), match["function"]) if match else None


def line_of(file: str, line: int, function: str | None = None) -> SourceLine:
    """A line with its text, where the file can be read."""
    text = linecache.getline(file, line).strip() or None
    name = function.rpartition(".")[2] if function else None
    return SourceLine(file=file, line=line, function=name, text=text)

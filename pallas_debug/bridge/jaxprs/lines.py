"""Source lines in the user's code, of jaxpr equations and of functions."""

from __future__ import annotations

import itertools
import linecache
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jax._src import source_info_util

from pallas_debug.model import SourceLine

OURS = str(Path(__file__).parents[2]) + os.sep
"""Directory of our own files, none of whose lines are the user's."""

_FUNCTION = re.compile(r"(?P<function>.*?) at (?P<file>.+):(?P<line>\d+)")


def source_of(eqn: Any) -> SourceLine | None:
    """Innermost line of `eqn` outside jax, with its text."""
    return of_traceback(eqn.source_info.traceback)


def of_traceback(traceback: Any) -> SourceLine | None:
    """Innermost line of a traceback outside jax."""
    frame = source_info_util.user_frame(traceback)
    if frame is None:
        return None
    return line_of(frame.file_name, frame.start_line, frame.function_name)


class Frame(NamedTuple):
    """An active call in the user's code: its line range in a file."""

    file: str
    start: int
    end: int
    function: str


def calling() -> list[Frame]:
    """The user's frames that lead to the kernel being lowered, innermost first.

    jax keeps no traceback for an eager call, which is lowered as it is made.
    """
    traceback = source_info_util.current().traceback
    kept = [
        Frame(f.file_name, f.start_line, max(f.end_line, f.start_line), f.function_name)
        for f in source_info_util.user_frames(traceback)
    ]
    return kept or list(_running(sys._getframe(1)))


def _running(frame: types.FrameType | None) -> Iterator[Frame]:
    while frame is not None:
        code = frame.f_code
        is_ours = code.co_filename.startswith(OURS)
        if not is_ours and source_info_util.is_user_filename(code.co_filename):
            # An instruction takes two bytes.
            here = itertools.islice(code.co_positions(), frame.f_lasti // 2, None)
            start, end, *_ = next(here, (None, None))
            start = start or frame.f_lineno
            yield Frame(code.co_filename, start, max(end or start, start), code.co_qualname)
        frame = frame.f_back


def of_call(keyword: str) -> SourceLine | None:
    """Line of the call being lowered, or of one of its keywords if found there."""
    frame = next(iter(calling()), None)
    if frame is None:
        return None
    for number in range(frame.start, frame.end + 1):
        if re.match(rf"\s*{keyword}\s*=", linecache.getline(frame.file, number)):
            return line_of(frame.file, number, frame.function)
    return line_of(frame.file, frame.start, frame.function)


def source_at(eqn: Any, place: Any) -> SourceLine | None:
    """Line of `eqn`, or of the innermost enclosing call that has one (`rewrite.ProgramPoint`)."""
    found = (source_of(e) for e in (eqn, *reversed(place.calls)))
    return next((line for line in found if line is not None), None)


def of_function(debug_info: Any) -> SourceLine | None:
    match = _FUNCTION.fullmatch(debug_info.func_src_info or "")
    return line_of(match["file"], int(match["line"]), match["function"]) if match else None


def line_of(file: str, line: int, function: str | None = None) -> SourceLine:
    """A line, with its text if the file is readable."""
    text = linecache.getline(file, line).strip() or None
    name = function.rpartition(".")[2] if function else None
    return SourceLine(file=file, line=line, function=name, text=text)

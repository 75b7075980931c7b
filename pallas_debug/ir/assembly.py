"""Instructions of PTX and of SASS, NVIDIA's machine code, and the Python lines behind them.

A line applies until the next one: `.loc 1 155 5` in PTX, whose files are numbered at its end, and
`//## File "rows.py", line 155` in what nvdisasm prints. LLVM writes line 0 where it merged
instructions of several lines; ptxas gives these the line before, and so does this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from pallas_debug.model import SourceLine

AssemblyKind = Literal["ptx", "sass"]

IS_PTX = re.compile(r"^\.version \d", re.MULTILINE)
IS_SASS = re.compile(r"^[ \t]*+\.elftype\s", re.MULTILINE)

_PTX = re.compile(r"\t+(?:@!?%\w+\s+)?(?P<name>[a-z]\w*(?:(?:\.|::)\w+)*)(?=[ \t;])")
_SASS = re.compile(
    r"\s+/\*[0-9a-f]{4,}\*/\s+(?:\{ )?(?:@!?U?P(?:\d+|T)\s+)?(?P<name>[A-Z][A-Z0-9]*(?:\.\w+)*)"
)
_FILE = re.compile(r'\s*\.file\s+(?P<number>\d+)\s+"(?P<path>(?:[^"\\]|\\.)*)"')
_LOC = re.compile(
    r"\s*\.loc\s+(?P<file>\d+) (?P<line>\d+) \d+"
    r"(?:, function_name [^,]*, inlined_at (?P<at>\d+) (?P<at_line>\d+))?"
)
_PLACE = re.compile(r'File "(?P<path>[^"]*)", line (?P<line>\d+)')


def name_of(text: str, kind: AssemblyKind) -> str | None:
    """Name of a line's instruction: `wgmma.mma_async.sync.aligned.m64n128k16`, `HGMMA`."""
    found = (_PTX if kind == "ptx" else _SASS).match(text)
    return None if found is None else found["name"]


def places(lines: Sequence[str], kind: AssemblyKind) -> list[tuple[SourceLine, ...]]:
    """Python lines of each line, innermost function first; none for one that is no instruction."""
    states = _of_ptx(lines) if kind == "ptx" else _of_sass(lines)
    return [
        state if name_of(text, kind) is not None else ()
        for text, state in zip(lines, states, strict=True)
    ]


def _of_ptx(lines: Sequence[str]) -> Iterator[tuple[SourceLine, ...]]:
    files = {m["number"]: m["path"] for text in lines if (m := _FILE.match(text))}
    now: tuple[SourceLine, ...] = ()
    for text in lines:
        if (found := _LOC.match(text)) and int(found["line"]):
            at = [(found["file"], found["line"]), (found["at"], found["at_line"])]
            now = tuple(
                SourceLine(file=files[file], line=int(line))
                for file, line in at
                if file in files and int(line) > 0
            )
        yield now


def _of_sass(lines: Sequence[str]) -> Iterator[tuple[SourceLine, ...]]:
    now: tuple[SourceLine, ...] = ()
    for text in lines:
        if "//## File" in text:
            now = tuple(
                SourceLine(file=found["path"], line=int(found["line"]))
                for found in _PLACE.finditer(text)
                if int(found["line"]) > 0
            )
        yield now

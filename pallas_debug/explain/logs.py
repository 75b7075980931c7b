"""Extraction of kernel errors from logs of any size: each once, with count, lines and kernel.

A message begins at a line with a mark of the catalogue and spans several lines; lines of several
processes may interleave. Memory holds the open message of each process and one record per distinct
error.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pallas_debug.explain import recognise
from pallas_debug.explain.catalogue import CATALOGUE
from pallas_debug.explain.details import applied, kernel_name
from pallas_debug.model import Explanation

BEFORE = 200
"""Lines before an error that are searched for a word that ties it to a kernel."""
LONGEST = 120
"""Maximum lines of a message; a table of allocations has about 70."""
MAX_LINE = 1 << 14
"""Maximum characters of a line; the rest is ignored."""
MAX_MESSAGE = 1 << 17
"""Maximum characters of a message, over all its lines."""
MAX_PLACES = 10
MAX_DISTINCT = 1000

_PREFIX = re.compile(
    r"(?:\[(?:gw|rank|worker|host|proc\w*)?[ :=-]?\d+\]|\([^()]*\bpid=\d+[^()]*\)"
    r"|[\w.-]+[ \t]+\|)[ \t:]?(?:\[ *\d+%\] )?"
)
"""Prefixes of launchers: pytest-xdist, mpirun, ray, docker compose."""
_DECORATION = re.compile(r"(?:E {2,}|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+\] )")
"""Pytest's margin, or the prefix of libtpu's log."""
_START = re.compile(
    r"(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Warning)\b(?::|$)"
    r"|(?:INTERNAL|INVALID_ARGUMENT|RESOURCE_EXHAUSTED|UNIMPLEMENTED|NOT_FOUND|ABORTED): "
    r"|Traceback \(most recent call last\)|RACE DETECTED|Semaphore \d+ has|(?:FAILED|ERROR) \S+::"
)
_ERROR = re.compile(r"(?<![\w.])(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception): ")
_OURS = re.compile(r"Mosaic failed to compile|MosaicError|Pallas|pallas|LoweringException|libtpu")
"""Must match for an unrecognised error to count as one of a kernel."""
_ERROR_MARKS = ("Error: ", "Exception: ", "Mosaic failed to compile")


@dataclass(frozen=True, kw_only=True)
class Occurrence:
    """A distinct error of a log.

    Attributes:
      explanation: None if no entry recognises it.
      text: first occurrence, at most `LONGEST` lines.
      lines: first lines where it occurs, counted from 1.
    """

    explanation: Explanation | None
    text: str
    kernel: str | None = None
    count: int = 1
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Scan:
    """Errors of a log.

    Attributes:
      others: number of errors that are not about kernels.
      dropped: number of distinct errors beyond the first `MAX_DISTINCT`.
    """

    lines: int
    occurrences: tuple[Occurrence, ...] = ()
    others: int = 0
    dropped: int = 0


def read(lines: Iterable[str]) -> Scan:
    """Collect the kernel errors of a log, each once, in the order of their first lines.

    Args:
      lines: lines of the log, with or without newlines.
    """
    reader, number = _Reader(CATALOGUE), 0
    for number, line in enumerate(lines, 1):
        reader.take(number, _undecorated(line[:MAX_LINE]))
    reader.close()
    return Scan(
        lines=number,
        occurrences=tuple(sorted(reader.found.values(), key=lambda found: found.lines[0])),
        others=reader.others,
        dropped=reader.dropped,
    )


class _Reader:
    """State after some lines: the open message, and the last lines before it."""

    def __init__(self, catalogue: tuple[Explanation, ...]) -> None:
        self._catalogue = catalogue
        self._marks = {mark for entry in catalogue for mark in entry.marks}.union(_ERROR_MARKS)
        self._message: list[tuple[int, str]] = []
        self._before: deque[str] = deque(maxlen=BEFORE)
        self.found: dict[tuple[str, str | None], Occurrence] = {}
        self.others = self.dropped = 0

    def take(self, number: int, line: str) -> None:
        if self._message and (len(self._message) == LONGEST or _START.match(line)):
            self.close()
        if self._message:
            self._message.append((number, line))
        elif any(mark in line for mark in self._marks):
            self._message = [(number, line)]
        else:
            self._before.append(line)

    def close(self) -> None:
        """End the open message; if it is not an error, look at its other lines."""
        while self._message:
            lines, self._message = self._message, []
            if self._examine(lines):
                self._before.extend(line for _, line in lines)
                return
            self._before.append(lines[0][1])
            for number, line in lines[1:]:
                self.take(number, line)

    def _examine(self, lines: Sequence[tuple[int, str]]) -> bool:
        """Record the error that a message reports; return whether it reports one."""
        number, line = lines[0]
        message = "\n".join(line for _, line in lines)[:MAX_MESSAGE]
        entry = recognise.first(message, self._catalogue)
        if entry is None and any(map(recognise.CONTEXT.search, self._before)):
            entry = recognise.first(message, self._catalogue, in_context=True)
        if entry is None and not (_ERROR.search(line) or "Mosaic failed" in line):
            return False
        if entry is None and not _OURS.search(_frames(self._before) + message):
            self.others += 1
        elif entry is not None or "CpuCallback error" not in line:
            # jax wraps exceptions of callbacks (jax#26102), and prints them below
            self._add(entry, message, number)
        return True

    def _add(self, entry: Explanation | None, message: str, number: int) -> None:
        kernel = kernel_name(message)
        key = (entry.id if entry else message.partition("\n")[0], kernel)
        known = self.found.get(key)
        if known is None:
            if len(self.found) >= MAX_DISTINCT:
                self.dropped += 1
                return
            explanation = None if entry is None else applied(entry, message)
            known = Occurrence(explanation=explanation, text=message, kernel=kernel, count=0)
        self.found[key] = replace(
            known,
            count=known.count + 1,
            lines=(*known.lines, number)[:MAX_PLACES],
        )


def _frames(before: Iterable[str]) -> str:
    """The traceback that ends at the last of these lines; empty if there is none."""
    frames: list[str] = []
    for line in reversed([*before]):
        frames.insert(0, line)
        if line.startswith("Traceback (most recent call last)"):
            return "\n".join([*frames, ""])
        if not line.startswith((" ", "~")):
            break
    return ""


def _undecorated(line: str) -> str:
    """Return a line without what launchers, pytest and libtpu put before it."""
    line = line.rstrip("\r\n")
    for pattern in (_PREFIX, _DECORATION):
        if found := pattern.match(line):
            line = line[found.end() :]
    return line

"""Extraction of kernel errors from logs of any size: each once, with count, lines and kernel.

The log is read in pieces of a few megabytes. Each piece is searched for the marks of the catalogue,
which is cheap; only lines around a mark are examined. A message spans several lines, and lines of
several processes may interleave. Memory holds one record per distinct error.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import accumulate

from pallas_debug.explain import plugins, recognise
from pallas_debug.explain.catalogue import CATALOGUE
from pallas_debug.explain.details import applied, kernel_name
from pallas_debug.model import Explanation

PIECE = 1 << 22
"""Characters of the log held at a time, not counting carried-over lines."""
BEFORE = 200
"""Lines before an error that are searched for a word that ties it to a kernel."""
AFTER = 240
"""Maximum lines, over all processes, from the start of a message to its end."""
LONGEST = 120
"""Maximum lines of a message; a table of allocations has about 70."""
MAX_LINE = 1 << 14
"""Maximum characters of a line; the rest is ignored."""
MAX_MESSAGE = 1 << 17
"""Maximum characters of a message, over all its lines."""
MAX_PLACES = 10
MAX_DISTINCT = 1000

_PREFIX = re.compile(
    r"(?P<worker>\[(?:gw|rank|worker|host|proc\w*)?[ :=-]?\d+\]|\([^()]*\bpid=\d+[^()]*\)"
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
      workers: prefixes of the processes that printed it; empty for a plain log.
    """

    explanation: Explanation | None
    text: str
    kernel: str | None = None
    count: int = 1
    lines: tuple[int, ...] = ()
    workers: tuple[str, ...] = ()


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
    reader = _Reader(catalogue=(*plugins.explanations(), *CATALOGUE))
    held: list[str] = []
    size = 0
    for line in lines:
        line = line[:MAX_LINE]
        held.append(line if line.endswith("\n") else line + "\n")
        size += len(line)
        if size >= PIECE:
            reader.piece(held, last=False)
            held, size = [], 0
    reader.piece(held, last=True)
    return Scan(
        lines=reader.done - 1,
        occurrences=tuple(sorted(reader.found.values(), key=lambda found: found.lines[0])),
        others=reader.others,
        dropped=reader.dropped,
    )


@dataclass
class _Reader:
    """State after some pieces; `held` are the lines that the next piece still needs."""

    catalogue: tuple[Explanation, ...]
    held: list[str] = field(default_factory=list)
    first: int = 1  # number of the first held line
    done: int = 1  # number of the first line not examined yet
    found: dict[tuple[str, str | None], Occurrence] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)  # end of each worker's last message
    others: int = 0
    dropped: int = 0

    def piece(self, lines: list[str], *, last: bool) -> None:
        held = self.held + lines
        end = self.first + len(held)
        stop = end if last else max(self.done, end - AFTER)
        for index in self._marked(held):
            if self.done <= self.first + index < stop:
                self._examine(held, index)
        keep = max(0, stop - self.first - BEFORE)
        self.held, self.first, self.done = held[keep:], self.first + keep, stop

    def _marked(self, held: list[str]) -> list[int]:
        """Indices of the lines that contain a mark.

        Searching for one of some 200 marks takes a millisecond per megabyte. Most are skipped
        because an inner word of the mark does not occur in this piece.
        """
        if any(entry.pattern and not entry.marks for entry in self.catalogue):
            return list(range(len(held)))
        text = "".join(held)
        ends = list(accumulate(map(len, held)))
        words = set(text.split())
        marks = {mark for entry in self.catalogue for mark in entry.marks}
        indices: set[int] = set()
        for mark in marks.union(_ERROR_MARKS):
            if not words.issuperset(mark.split()[1:-1]):
                continue
            at = text.find(mark)
            while at >= 0:
                index = bisect.bisect_right(ends, at)
                indices.add(index)
                at = text.find(mark, ends[index])
        return sorted(indices)

    def _examine(self, held: list[str], index: int) -> None:
        """Record the error whose message starts at a line, if one does."""
        worker, line = _split(held[index])
        number = self.first + index
        if number < self.ends.get(worker, 0):
            return
        before = [
            text
            for whose, text in map(_split, held[max(0, index - BEFORE) : index])
            if whose == worker
        ]
        message, end = _message(held, index, worker)
        entry = recognise.first(message, self.catalogue)
        if entry is None and any(map(recognise.CONTEXT.search, before)):
            entry = recognise.first(message, self.catalogue, in_context=True)
        if entry is not None and not entry.marks and not re.search(entry.pattern, line):
            return  # without marks every line is examined: the matching one comes later
        if entry is None and not (_ERROR.search(line) or "Mosaic failed" in line):
            return
        self.ends[worker] = self.first + end
        if entry is None and not _OURS.search(_frames(before) + message):
            self.others += 1
        elif entry is not None or "CpuCallback error" not in line:
            # jax wraps exceptions of callbacks, and prints them below
            self._add(entry, message, number, worker)

    def _add(self, entry: Explanation | None, message: str, number: int, worker: str) -> None:
        kernel = kernel_name(message)
        key = (entry.id if entry else message.partition("\n")[0], kernel)
        known = self.found.get(key)
        if known is None:
            if len(self.found) >= MAX_DISTINCT:
                self.dropped += 1
                return
            explanation = None if entry is None else applied(entry, message)
            known = Occurrence(explanation=explanation, text=message, kernel=kernel, count=0)
        workers = dict.fromkeys((*known.workers, *filter(None, [worker])))
        self.found[key] = replace(
            known,
            count=known.count + 1,
            lines=(*known.lines, number)[:MAX_PLACES],
            workers=tuple(workers)[:MAX_PLACES],
        )


def _frames(before: list[str]) -> str:
    """The traceback that ends at the last of these lines; empty if there is none."""
    for index in reversed(range(len(before))):
        if before[index].startswith("Traceback (most recent call last)"):
            return "\n".join([*before[index:], ""])
        if not before[index].startswith((" ", "~")):
            break
    return ""


def _message(held: list[str], index: int, worker: str) -> tuple[str, int]:
    """Lines of a message without their prefixes, and the index after the last."""
    lines = [_split(held[index])[1]]
    end = index + 1
    left = MAX_MESSAGE - len(lines[0])
    for offset, raw in enumerate(held[index + 1 : index + AFTER], index + 1):
        whose, line = _split(raw)
        if whose != worker:
            continue
        if len(lines) == LONGEST or _START.match(line):
            break
        end = offset + 1
        left -= len(line) + 1
        if left < 0:
            break
        lines.append(line)
    return "\n".join(lines), end


def _split(line: str) -> tuple[str, str]:
    """Split a line into the launcher's prefix and the rest."""
    line = line.rstrip("\r\n")
    prefix = _PREFIX.match(line)
    worker = ""
    if prefix is not None:
        worker, line = prefix["worker"].rstrip("| \t"), line[prefix.end() :]
    decoration = _DECORATION.match(line)
    return worker, line[decoration.end() :] if decoration is not None else line

"""Sources of lines for the panes, in memory or in files of any size, and filters such as folds.

A pane requests only the lines on the screen. Files are read by `ir/text.py`, which indexes them
step by step, so that keys are handled in between.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress

from pallas_debug.ir.operations import Region
from pallas_debug.tui.model.document import Document, Growth

MAX_LINE = 10_000
"""Maximum part of a line to read at a time: bytes in a file, characters in memory."""

STEP = 1 << 21
"""Bytes to index at a time, which takes 1 ms."""

MAX_PIECE = 1 << 22
"""Maximum number of bytes of a long line to search at a time."""

OVERLAP = 1 << 12
"""Bytes by which two parts of a line overlap, as a match may span both."""

CONTEXT = 2
"""Number of lines to show around each hit."""


class Lines:
    """Lines in memory. Line numbers start at 0.

    Attributes:
      unit: unit that `text` and `length` count.
      size: total bytes.
    """

    unit = "characters"

    def __init__(self, lines: Sequence[str] = ()) -> None:
        self._lines = lines
        self._size = sum(map(len, lines)) + len(lines)

    @property
    def count(self) -> int:
        """Number of lines found so far."""
        return len(self._lines)

    @property
    def size(self) -> int:
        return self._size

    @property
    def indexed(self) -> int:
        """Number of bytes whose lines have been found; equals `size` at the end."""
        return self.size

    def text(self, line: int, start: int = 0, stop: int = MAX_LINE) -> str:
        """Return part of a line."""
        return self._lines[line][start:stop]

    def length(self, line: int) -> int:
        return len(self._lines[line])

    def window(self, line: int, start: int, stop: int) -> tuple[str, int]:
        """Return part of a line, and the length of the line."""
        whole = self._lines[line]
        return whole[start:stop], len(whole)

    def index(self) -> bool:
        """Find more lines, for a few milliseconds; return whether all have been found."""
        return True

    def grow(self) -> Growth:
        """Return how the text has changed since the last call."""
        return "same"

    def whole(self) -> Sequence[str]:
        """Return all lines of a small text."""
        return self._lines

    def pieces(self, line: int, size: int) -> Iterator[bytes]:
        """Yield all lines from `line` on in pieces of about `size` bytes that end with a line.

        A line longer than `MAX_PIECE` is split into several parts that overlap by `OVERLAP` bytes.
        """
        while line < len(self._lines):
            step = max(size * len(self._lines) // max(self._size, 1), 1)
            part = self._lines[line : line + step]
            yield ("\n".join(part) + "\n").encode(errors="replace")
            line += step


class DocumentLines(Lines):
    """Lines of a file; empty once it can no longer be read, which `grow` reports."""

    unit = "bytes"

    def __init__(self, document: Document) -> None:
        super().__init__()
        self._document = document

    @property
    def count(self) -> int:
        return self._document.line_count

    @property
    def size(self) -> int:
        return self._document.size

    @property
    def indexed(self) -> int:
        return self._document.indexed

    def text(self, line: int, start: int = 0, stop: int = MAX_LINE) -> str:
        with suppress(OSError):
            return self._document.line_slice(line, start, stop)
        return ""

    def length(self, line: int) -> int:
        with suppress(OSError):
            return self._document.line_size(line)
        return 0

    def window(self, line: int, start: int, stop: int) -> tuple[str, int]:
        with suppress(OSError):
            return self._document.line_window(line, start, stop)
        return "", 0

    def index(self) -> bool:
        with suppress(OSError):
            return self._document.index(STEP)
        return True

    def grow(self) -> Growth:
        return self._document.grow()

    def whole(self) -> Sequence[str]:
        with suppress(OSError):
            return self._document.lines(0, 1 << 62)
        return []

    def pieces(self, line: int, size: int) -> Iterator[bytes]:
        with suppress(OSError):
            offset = self._document.offset(line)
            while data := self._document.chunk(offset, size, MAX_PIECE):
                offset += len(data)
                if not data.endswith(b"\n") and offset < self._document.size:
                    offset -= min(OVERLAP, len(data) // 2)
                yield data


class Folds:
    """Regions of lines that can be folded into their first line.

    A line that ends one region and starts the next (`} else {`) stays visible.

    Args:
      folded: first lines of the regions to fold initially.
    """

    def __init__(self, regions: Sequence[Region] = (), *, folded: Iterable[int] = ()) -> None:
        opened = {region.start for region in regions}
        self._stops: dict[int, int] = {}
        self._regions = regions
        for region in regions:
            stop = region.stop - (region.stop in opened)
            if stop > region.start:
                self._stops[region.start] = max(stop, self._stops.get(region.start, 0))
        self._fold(self._stops.keys() & folded)

    @property
    def folded(self) -> Set[int]:
        """First lines of the folded regions."""
        return self._folded

    def hidden(self, line: int) -> int:
        """Return the number of lines folded into a line."""
        return self._stops[line] - line if line in self._folded else 0

    def around(self, line: int) -> Region | None:
        """Return the innermost region that contains a line, including its ends."""
        found = None
        for region in self._regions:  # ordered by first line
            if region.start > line:
                break
            if region.stop >= line and region.start in self._stops:
                found = region
        return found

    def toggle(self, line: int) -> int | None:
        """Fold or unfold the innermost region around a line; return its first line."""
        if line in self._stops:
            start = line
        else:
            region = self.around(line)
            if region is None:
                return None
            start = region.start
        self._fold(self._folded ^ {start})
        return start

    def fold_all(self) -> None:
        self._fold(set(self._stops))

    def unfold_all(self) -> None:
        self._fold(set())

    def reveal(self, line: int) -> bool:
        """Unfold the regions that hide a line; return whether there were any."""
        hiding = {start for start in self._folded if start < line <= self._stops[start]}
        if hiding:
            self._fold(self._folded - hiding)
        return bool(hiding)

    def row_of(self, line: int) -> int:
        """Return the row of a line; for a hidden line, the row of the line it is folded into."""
        at = bisect.bisect_left(self._starts, line) - 1
        if at < 0:
            return line
        start = self._starts[at]
        before = self._hidden[at - 1] if at else 0
        size = self._hidden[at] - before
        return start - before if line <= start + size else line - self._hidden[at]

    def line_of(self, row: int) -> int:
        """Return the line shown in a row."""
        at = bisect.bisect_left(self._rows, row) - 1
        return row + (self._hidden[at] if at >= 0 else 0)

    def rows(self, count: int) -> int:
        """Return the number of rows of a text with `count` lines."""
        return count - (self._hidden[-1] if self._hidden else 0)

    def _fold(self, folded: Set[int]) -> None:
        """Fold these regions, and find the outermost ones and the lines hidden up to each."""
        self._folded = folded
        self._starts: list[int] = []
        self._rows: list[int] = []
        self._hidden: list[int] = []
        end = hidden = 0
        for start in sorted(folded):
            if self._starts and start <= end:
                continue
            end = self._stops[start]
            self._starts.append(start)
            self._rows.append(start - hidden)
            hidden += end - start
            self._hidden.append(hidden)


class HitLines:
    """Filter that shows only lines with a hit and their context. Hits are added in order."""

    def __init__(self, context: int = CONTEXT) -> None:
        self._context = context
        self._hits: Sequence[int] = ()
        self._clear()

    def _clear(self) -> None:
        self._known = 0
        # Visible stretches: first line, line after the last, row of the first.
        self._starts, self._stops, self._rows = array("Q"), array("Q"), array("Q")

    def extend(self, hits: Sequence[int]) -> None:
        """Add the hits found since the last call, or start over for the hits of a new search."""
        if hits is not self._hits or len(hits) < self._known:
            self._clear()
            self._hits = hits
        starts, stops, rows = self._starts, self._stops, self._rows
        for hit in hits[self._known :]:
            first, last = max(hit - self._context, 0), hit + self._context + 1
            if stops and first <= stops[-1]:
                stops[-1] = last
            else:
                rows.append(rows[-1] + stops[-1] - starts[-1] if stops else 0)
                starts.append(first)
                stops.append(last)
        self._known = len(hits)

    def rows(self, count: int) -> int:
        """Return the number of rows of a text with `count` lines."""
        if not self._starts:
            return 0
        return self._rows[-1] + max(min(self._stops[-1], count) - self._starts[-1], 0)

    def __contains__(self, line: int) -> bool:
        at = bisect.bisect_right(self._starts, line) - 1
        return at >= 0 and line < self._stops[at]

    def opens(self, line: int) -> bool:
        """Return whether lines are omitted immediately before this line."""
        at = bisect.bisect_left(self._starts, line)
        return line > 0 and at < len(self._starts) and self._starts[at] == line

    def row_of(self, line: int) -> int:
        """Return the row of a line; for a hidden line, the row of the visible line before it."""
        at = bisect.bisect_right(self._starts, line) - 1
        if at < 0:
            return 0
        return self._rows[at] + min(line, self._stops[at] - 1) - self._starts[at]

    def line_of(self, row: int) -> int:
        """Return the line shown in a row."""
        at = bisect.bisect_right(self._rows, row) - 1
        return row if at < 0 else self._starts[at] + row - self._rows[at]

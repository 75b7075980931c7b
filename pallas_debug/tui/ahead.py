"""What stands on the screen while the program behind it is loaded: kernels, or the text's start.

Loading Textual takes longer than listing 10,000 kernels. So the list is there at once, and keys
that are typed meanwhile wait unseen. Imports neither Textual nor rich.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import shutil
import sys
import termios
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pallas_debug.store.layout import RUNS

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J", "\x1b[?25h\x1b[?1049l"
_LONGEST = 1 << 16
"""Bytes of a text that are looked at."""

_FILES = 32
"""Files that a compile has at most, or nearly so."""

_ECHO = 3
"""Where `termios` has the local modes."""


class Ahead:
    """The screen from now until the app draws its own, or until something is wrong."""

    def __init__(self) -> None:
        self._modes: list[Any] | None = None
        self._is_shown = False

    @contextlib.contextmanager
    def showing(self, roots: Sequence[Path]) -> Iterator[None]:
        """Show what there is in `roots`; what is raised within finds the screen as it was."""
        self._show(roots)
        try:
            yield
        finally:
            if self._is_shown:
                self._write(_LEAVE)
            self.hand_over()

    def hand_over(self) -> None:
        """The app draws from here on."""
        self._is_shown = False
        if self._modes is not None:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._modes)
            self._modes = None

    def _show(self, roots: Sequence[Path]) -> None:
        if os.environ.get("TERM", "dumb") == "dumb":
            return
        with contextlib.suppress(OSError, termios.error):
            lines = _lines(roots)
            modes = termios.tcgetattr(sys.stdin.fileno())
            self._modes = list(modes)
            modes[_ECHO] &= ~(termios.ECHO | termios.ICANON)
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, modes)
            self._is_shown = True
            self._write(_ENTER + "\r\n".join(lines))

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _lines(roots: Sequence[Path]) -> list[str]:
    """As many as there are rows, each no longer than the screen is wide."""
    columns, rows = shutil.get_terminal_size()
    title = " " + " and ".join(map(str, roots))
    found = _of_file(roots[0]) if roots[0].is_file() else _of_directories(roots, rows)
    lines = itertools.chain([title], itertools.islice(found, max(rows - 2, 0)))
    return [
        "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)[:columns]
        for line in lines
    ]


def _of_file(path: Path) -> list[str]:
    with path.open("rb") as file:
        return file.read(_LONGEST).decode(errors="replace").split("\n")


def _of_directories(roots: Sequence[Path], rows: int) -> list[str]:
    names: list[str] = []
    for root in roots:
        folders: list[str] = []
        files: list[str] = []
        with os.scandir(root) as entries:
            for entry in entries:
                (folders if entry.is_dir() else files).append(entry.name)
        names += (name for name in folders if name != RUNS and not name.startswith("."))
        if not folders and files:
            return [f"  {name}" for name in _of_raw_dumps(root, files, rows)]
    return [f"  {name}" for name in sorted(set(names))]


def _of_raw_dumps(root: Path, files: list[str], rows: int) -> list[str]:
    """The first kernels: the files of a compile have its time at the beginning of their names."""
    from pallas_debug.store import raw  # with nothing to load that is not needed for kernels

    first = heapq.nsmallest(rows * _FILES, files)
    return [compile_.kernel for compile_ in raw.compiles_in(root, first)][:rows]

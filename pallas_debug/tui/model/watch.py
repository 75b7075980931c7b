"""Watch for new kernels and passes in directories that are being written.

Modification times show whether a directory must be listed again. Of the kernels, only the
displayed one is checked. Object stores are not watched.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pallas_debug.store.files import is_file
from pallas_debug.store.layout import KERNEL
from pallas_debug.tui.model.browser import Browser, Entry

MAX_DEPTH = 2
"""Levels of folders to check below a kernel's folder: its targets, and their passes."""

MAX_FOLDERS = 100
"""Maximum number of folders to check in each folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DumpChange:
    """Changes in the directories.

    Attributes:
      entries: the new list of kernels; None if it may not have changed.
      is_changed: whether the folder of the displayed kernel changed.
    """

    entries: list[Entry] | None
    is_changed: bool


class Watch:
    """Checks the directories for changes."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._roots = _times(browser.roots)
        self._shown: Entry | None = None
        self._below: tuple[float, ...] = ()

    def look(self, entry: Entry | None, folder: Path | None) -> DumpChange:
        """Check the directories, and the folder of the displayed kernel. Runs in a worker.

        The first check of a kernel finds no change.
        """
        roots, self._roots = self._roots, _times(self._browser.roots)
        entries = self._browser.listed() if roots != self._roots else None
        before, self._below = self._below, _times(self._folders(folder))
        was, self._shown = self._shown, entry
        return DumpChange(entries=entries, is_changed=was == entry and before != self._below)

    def _folders(self, folder: Path | None) -> Iterator[Path]:
        """Yield a kernel's folder and its subfolders; for raw dumps, only the common folder."""
        if folder is None:
            return
        is_root = folder in self._browser.roots
        is_raw = is_root and not is_file(folder / KERNEL)
        yield from _folders(folder, 0 if is_raw else MAX_DEPTH)


def _times(paths: Iterable[Path]) -> tuple[float, ...]:
    return tuple(map(_time, paths))


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    yield folder
    if not depth:
        return
    try:
        with os.scandir(folder) as entries:
            inner = sorted(e.path for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:
        return
    for path in inner[:MAX_FOLDERS]:
        yield from _folders(Path(path), depth - 1)

"""Watch for new kernels and passes in directories that are being written.

Modification times show whether a directory must be listed again. Of the kernels, only the
displayed one is checked. Object stores are not watched.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pallas_debug.store.files import is_file
from pallas_debug.store.layout import KERNEL
from pallas_debug.tui.model.browser import Browser, Entry


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
        self._shown: tuple[Entry | None, list[int]] = (None, [])

    def look(self, entry: Entry | None, folder: Path | None) -> DumpChange:
        """Check the directories, and the folder of the displayed kernel. Runs in a worker.

        The first check of a kernel finds no change.
        """
        roots, self._roots = self._roots, _times(self._browser.roots)
        entries = self._browser.listed() if roots != self._roots else None
        before, self._shown = self._shown, (entry, _times(self._folders(folder)))
        return DumpChange(entries=entries, is_changed=before[0] == entry and before != self._shown)

    def _folders(self, folder: Path | None) -> list[Path]:
        """Return a kernel's folder, its targets and their passes; of raw dumps, only the folder."""
        if folder is None:
            return []
        found = [folder]
        is_raw = folder in self._browser.roots and not is_file(folder / KERNEL)
        with suppress(OSError):
            for pattern in () if is_raw else ("*/", "*/*/"):
                found += sorted(folder.glob(pattern))
        return found


def _times(paths: Iterable[Path]) -> list[int]:
    found = []
    for path in paths:
        with suppress(OSError):
            found.append(path.stat().st_mtime_ns)
    return found

"""Directories that are being written while one looks at them: what has come since.

A directory's time of change says whether it has to be listed again; nothing is read of kernels
that are not shown. The cursor stays where it was, but while one follows: then the newest is shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pallas_debug.report import plural
from pallas_debug.tui.model import Browser, Entry

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp

SECONDS = 1.0
"""Between two looks."""

_DEEP = 2
"""Folders below a kernel's: a target's, and its passes'."""


class Watch:
    """What has changed in the directories since the last look.

    Attributes:
      new: kernels that have come since the watch began, or since `seen`.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._known = set(browser.entries)
        self._roots = self._times(browser.roots)
        self._shown: Entry | None = None
        self._below: tuple[float, ...] = ()
        self.new: list[Entry] = []

    def listing_changed(self) -> bool:
        """List the directories again if they have changed; whether there are other kernels."""
        times = self._times(self._browser.roots)
        if times == self._roots:
            return False
        self._roots = times
        if not self._browser.refresh():
            return False
        entries = set(self._browser.entries)
        self.new = [e for e in self.new if e in entries]
        self.new += sorted(entries - self._known, key=self._age)
        self._known = entries
        return True

    def kernel_changed(self, entry: Entry, folder: Path) -> bool:
        """Whether there is other than there was in the folder of the kernel that is shown.

        The first look at a kernel finds nothing.
        """
        times = self._times(_folders(folder))
        before, self._below = self._below, times
        if entry != self._shown:
            self._shown = entry
            return False
        return before != times

    def seen(self) -> None:
        """The new kernels are known."""
        self.new = []

    def _age(self, entry: Entry) -> float:
        return _time(self._browser.roots[entry.dump] / entry.name)

    def _times(self, paths: Sequence[Path] | Iterator[Path]) -> tuple[float, ...]:
        return tuple(map(_time, paths))


def look(app: BrowseApp) -> None:
    """Show what has come since the last look. A single file is looked at by its pane."""
    if app.is_file or not app.query("#kernels"):  # it is one, or the app ends
        return
    entry = app.entry
    if app.watched.listing_changed():
        _show_kernels(app, entry)
    elif entry is not None and app.watched.kernel_changed(entry, app.browser.stored(entry).folder):
        _show_steps(app, entry)


def _show_kernels(app: BrowseApp, entry: Entry | None) -> None:
    new = app.watched.new
    app.kernels.reload()
    if new and app.following:
        app.go_to_kernel(new[-1])
        app.watched.seen()
    elif app.entry != entry:
        app.show_kernel()
    if new and not app.following:
        app.say(f"{plural(len(new), 'new kernel')}; F follows")


def _show_steps(app: BrowseApp, entry: Entry) -> None:
    before, at, line = app.steps.all_steps, app.steps.current, app.text.cursor
    app.browser.forget(entry)
    if app.browser.steps(entry, app.wanted_target) == before:
        app.kernels.refresh()
        return
    app.show_kernel()
    labels = {step.label for step in before}
    new = [step for step in app.steps.all_steps if step.label not in labels]
    if new and app.following:
        app.go_to_step(next((s for s in reversed(new) if s.changed), new[-1]))
        return
    if at is not None:
        app.go_to_step(at)
        app.text.go_to(line)
    if new:
        app.say(f"new: {plural(len(new), 'pass')}; F follows")


def _time(path: Path) -> float:
    """When a path changed last; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _folders(folder: Path, depth: int = _DEEP) -> Iterator[Path]:
    yield folder
    try:
        with os.scandir(folder) as entries:
            inner = sorted(e.path for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:
        return
    for path in inner[:100]:
        if depth:
            yield from _folders(Path(path), depth - 1)

"""Directories that are being written while one looks at them: what has come since.

A directory's time of change says whether it has to be listed again; nothing is read of kernels
that are not shown. The cursor stays where it was, but while one follows: then the newest is shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pallas_debug.report import plural
from pallas_debug.store.layout import KERNEL
from pallas_debug.tui.model import Browser, Entry

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp

SECONDS = 1.0
"""Between two looks."""

_DEEP = 2
"""Folders below a kernel's that are looked at: a target's, and its passes'."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """What a look has found.

    Attributes:
      entries: the kernels there are, where the directories have changed.
      new: those of them that were not known, the oldest first.
      is_changed: whether there is other than there was in the folder of the kernel that is shown.
    """

    entries: list[Entry] | None
    new: list[Entry]
    is_changed: bool


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
        self._is_looking = False
        self.new: list[Entry] = []

    def begin(self) -> bool:
        """Whether one may look: not while another look is under way."""
        if self._is_looking:
            return False
        self._is_looking = True
        return True

    def look(self, entry: Entry | None, folder: Path | None) -> _Seen:
        """Look at the directories, and at the folder of the kernel that is shown. In a thread.

        The first look at a kernel finds nothing.
        """
        entries, new = None, []
        times = self._times(self._browser.roots)
        if times != self._roots:
            self._roots = times
            entries = self._browser.listed()
            new = sorted(set(entries) - self._known, key=self._age)
        before, self._below = self._below, self._times(self._folders(folder))
        was, self._shown = self._shown, entry
        return _Seen(entries=entries, new=new, is_changed=was == entry and before != self._below)

    def take(self, found: _Seen) -> bool:
        """Take over what was found; whether there are other kernels."""
        self._is_looking = False
        if found.entries is None or not self._browser.take(found.entries):
            return False
        self._known = set(found.entries)
        self.new = [e for e in self.new if e in self._known] + found.new
        return True

    def seen(self) -> None:
        """The new kernels are known."""
        self.new = []

    def _age(self, entry: Entry) -> float:
        return _time(self._browser.roots[entry.dump] / entry.name)

    def _times(self, paths: Iterable[Path]) -> tuple[float, ...]:
        return tuple(map(_time, paths))

    def _folders(self, folder: Path | None) -> Iterator[Path]:
        """That of a kernel, and those in it; of raw dumps just the one that holds them all."""
        if folder is None:
            return
        is_raw = folder in self._browser.roots and not (folder / KERNEL).is_file()
        yield from _folders(folder, 0 if is_raw else _DEEP)


def look(app: BrowseApp) -> None:
    """Show what has come since the last look, which is taken aside: there may be many files.

    A single file is looked at by its pane.
    """
    if app.is_file or not app.query("#kernels"):  # it is one, or the app ends
        return
    watch, entry = app.watched, app.entry
    if not watch.begin():
        return
    folder = app.browser.stored(entry).folder if entry is not None else None

    def aside() -> None:
        app.call_later(_show, app, watch.look(entry, folder), entry)

    app.run_worker(aside, thread=True, group="follow")


def _show(app: BrowseApp, found: _Seen, entry: Entry | None) -> None:
    are_others = app.watched.take(found)
    if not app.query("#kernels"):
        return
    if are_others:
        _show_kernels(app, app.entry)
    if found.is_changed and entry is not None and entry == app.entry:
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


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    yield folder
    if not depth:
        return
    try:
        with os.scandir(folder) as entries:
            inner = sorted(e.path for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:
        return
    for path in inner[:100]:
        yield from _folders(Path(path), depth - 1)

"""Where `browse` opens: at what was asked for, else where one was, else at what failed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from textual.dom import DOMNode

from pallas_debug.errors import UsageError
from pallas_debug.model import Kernel, RunRecord
from pallas_debug.store import StoredKernel, StoredText
from pallas_debug.store.files import DumpFile
from pallas_debug.tui.model import Browser, Entry, Place, Step, kernel_name
from pallas_debug.tui.state import Spot, spot_of

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp

LISTED = 20
"""Names that a message lists at most."""

_TOGGLES: dict[str, tuple[str, str]] = {
    "text.locations": ("text", "folded"),
    "text.wrap": ("text", "wrap"),
    "diff.noise": ("", "noise"),
    "pass.hide_same": ("steps", "only_changed"),
    "source.show": ("", "sourcing"),
    "pane.zoom": ("", "zoomed"),
}
"""What is switched by an action, and remembered: a part of the app, and an attribute of it."""

_PANES = ("kernels", "steps", "text")


def find_kernel(browser: Browser, wanted: str) -> Entry:
    """The kernel by its folder's name, its own name, or a unique start of either.

    Raises:
      UsageError: none matches, or several do; the message lists them.
    """
    entries = browser.entries
    tests: list[Callable[[str], bool]] = [
        lambda name: name == wanted,
        lambda name: kernel_name(name) == wanted,
        lambda name: name.startswith(wanted),
    ]
    where = " and ".join(map(str, browser.roots))
    for test in tests:
        found = [e for e in entries if test(e.name)]
        first = [e for e in found if e.dump == found[0].dump]
        if len(first) == 1:  # the same in both directories is one kernel
            return first[0]
        if found:
            listed = _listed(e.name for e in first)
            raise UsageError(f"{wanted!r} names several kernels in {where}: {listed}")
    raise UsageError(f"no kernel {wanted!r} in {where}; there are: {_listed(_names(entries))}")


def check_target(browser: Browser, entry: Entry, wanted: str) -> None:
    """Raises:
    UsageError: the kernel was not compiled for the target; the message lists those that it was.
    """
    known = [c.target for c in browser.stored(entry).compilations]
    if wanted not in known:
        listed = ", ".join(known) or "none"
        raise UsageError(f"{entry.name} has no target {wanted!r}; there are: {listed}")


def matching(steps: Sequence[Step], wanted: str) -> list[Step]:
    """The steps that are meant by a label, a name, a pass's number, or a part of a name."""
    wanted = wanted.strip()
    number = int(wanted) if wanted.isdecimal() and len(wanted) < 10 else None
    exact = [s for s in steps if wanted in (s.label, s.name)]
    exact = exact or [s for s in steps if s.pass_ is not None and s.pass_.number == number]
    return exact or [s for s in steps if wanted and wanted in s.label]


def find_step(steps: Sequence[Step], wanted: str) -> Step:
    """The one step that is meant.

    Raises:
      UsageError: none is, or several are; the message lists them.
    """
    found = matching(steps, wanted)
    if len(found) == 1:
        return found[0]
    several = "; several match" if found else ""
    listed = _listed(s.label for s in found or steps)
    raise UsageError(f"no stage or pass {wanted!r}{several}: {listed}")


def asked_for(
    browser: Browser,
    remembered: Spot | None,
    *,
    kernel: str | None = None,
    target: str | None = None,
    step: str | None = None,
    line: int | None = None,
) -> Spot | None:
    """Where to open.

    Args:
      remembered: where one was last, which counts as far as nothing else is asked for.
      line: counted from 1.

    Raises:
      UsageError: there is no such kernel, target or pass.
    """
    if (kernel, target, step, line) == (None, None, None, None):
        return remembered
    if not browser.entries:
        raise UsageError(f"no kernels in {' and '.join(map(str, browser.roots))}")
    spot = remembered or spot_of(browser.roots)
    entry = _entry_of(browser, spot) or browser.entries[0]
    if kernel is not None:
        entry = find_kernel(browser, kernel)
    if (entry.dump, entry.name) != (spot.dump, spot.kernel):
        spot = replace(spot, target=None, step=None, line=None)
    if target is not None:
        check_target(browser, entry, target)
    target = target or spot.target
    label = spot.step
    if step is not None:
        label = find_step(browser.steps(entry, target), step).label
        spot = replace(spot, line=None)
    wants_text = step is not None or line is not None
    return replace(
        spot,
        dump=entry.dump,
        kernel=entry.name,
        target=target,
        step=label,
        line=line or spot.line,
        focus="text" if wants_text else "kernels",
    )


def restore(app: BrowseApp, spot: Spot) -> None:
    """Show what was shown, as far as it is still there."""
    for name, (part, attribute) in _TOGGLES.items():
        if name in spot.toggles:
            setattr(_part(app, part), attribute, spot.toggles[name])
    entry = _entry_of(app.browser, spot)
    if entry is None:
        return
    app.wanted_target = spot.target
    app.go_to_kernel(entry)
    step = next((s for s in app.steps.all_steps if s.label == spot.step), None)
    if step is not None:
        app.go_to_step(step)
    if spot.line is not None and (step is not None or spot.step is None):
        app.text.go_to(spot.line - 1)
    if spot.focus in _PANES:
        app.screen.set_focus(app.query_one(f"#{spot.focus}"))


def current(app: BrowseApp) -> Spot:
    """Where one is, to come back to."""
    place = app.place
    spot = spot_of(app.browser.roots)
    toggles = {n: bool(getattr(_part(app, p), a)) for n, (p, a) in _TOGGLES.items()}
    if place is None:
        return replace(spot, toggles=toggles)
    focus = next((name for name in _PANES if getattr(app, name) is app.focused), None)
    return replace(
        spot,
        dump=place.entry.dump,
        kernel=place.entry.name,
        target=app.wanted_target,
        step=place.step.label,
        line=None if app.diffing else app.text.cursor + 1,
        focus=focus,
        toggles=toggles,
    )


class SingleFile(Browser):
    """One text, of no kernel: what the app shows of it is the text."""

    def __init__(self, file: Path) -> None:
        self._file = file
        super().__init__()
        self.roots = (file,)

    def listed(self) -> list[Entry]:
        return [Entry(0, self._file.name)]

    def glance(self, entry: Entry) -> StoredKernel:
        name = self._file.name
        kernel = Kernel(name=name, digest="", primitive="unknown")
        return StoredKernel(name=name, folder=self._file.absolute().parent, kernel=kernel)

    def texts(self, entry: Entry) -> Iterator[StoredText]:
        return iter(())

    def runs(self, dump: int) -> Iterator[RunRecord]:
        return iter(())

    def named(self, dump: int, name: str) -> list[Entry]:
        return []

    def steps(self, entry: Entry, target: str | None) -> list[Step]:
        return [Step(label=self._file.name, file=self._file)]

    def file(self, place: Place) -> DumpFile:
        return DumpFile(path=self._file, root=None)  # the user named it, link or not

    def command(self, place: Place, base: Place | None = None, **options: object) -> str:
        return shlex.join(["pallas-debug", "browse", str(self._file)])


def _entry_of(browser: Browser, spot: Spot) -> Entry | None:
    if spot.kernel is None:
        return None
    wanted = Entry(spot.dump, spot.kernel)
    return wanted if wanted in browser.entries else None


def _part(app: BrowseApp, name: str) -> DOMNode:
    found = getattr(app, name) if name else app
    assert isinstance(found, DOMNode)
    return found


def _names(entries: Iterable[Entry]) -> list[str]:
    return list(dict.fromkeys(e.name for e in entries))


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    more = f", and {len(listed) - LISTED} more" if len(listed) > LISTED else ""
    return (", ".join(listed[:LISTED]) or "none") + more

"""Going to a place by its number or name."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from pallas_debug.report import plural
from pallas_debug.tui import opening
from pallas_debug.tui.actions import action
from pallas_debug.tui.model import Entry, Step

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp

_SOURCE = re.compile(r"(?P<file>.*[^:\s]):(?P<line>\d+)")
_PASS = re.compile(r"p(?P<number>\d+)")


@action("go.to", "colon", "go to a line, a pass (p13 or its name), or file:line", ahead=True)
def go_to(app: BrowseApp) -> None:
    def done(typed: str) -> None:
        typed = typed.strip()
        if typed.isdecimal():
            app.text.go_to(max(int(typed), 1) - 1)
            _said_if_less(app, int(typed))
        elif source := _SOURCE.fullmatch(typed):
            to_source(app, source["file"], int(source["line"]))
        elif typed:
            to_step(app, typed)

    app.ask("line, p13, name of a pass, or file:line", done=done)


@action("go.kernel", "", "go to a kernel, by its name")
def kernel(app: BrowseApp) -> None:
    several = len(app.browser.roots) > 1

    def label(entry: Entry) -> str:
        return f"{entry.name}  in {app.browser.roots[entry.dump]}" if several else entry.name

    def chosen(entry: Entry | None) -> None:
        if entry is not None:
            app.go_to_kernel(entry)

    entries = app.browser.entries
    at = entries.index(app.entry) if app.entry in entries else 0
    app.choose("go to kernel", [(label(e), e) for e in entries], chosen, at=at)


@action("go.pass", "", "go to a stage or pass, by its name")
def step(app: BrowseApp) -> None:
    _choose_step(app, app.steps.all_steps)


@action("go.target", "", "go to a target, by its name")
def target(app: BrowseApp) -> None:
    if app.entry is None:
        return

    def chosen(name: str | None) -> None:
        if name is not None:
            app.wanted_target = name
            app.show_kernel()

    names = [c.target for c in app.browser.stored(app.entry).compilations]
    at = names.index(app.target) if app.target in names else 0
    app.choose("go to target", [(name, name) for name in names], chosen, at=at)


def to_step(app: BrowseApp, typed: str) -> None:
    """Go to a pass by `p13`, or to a step by its name or a part of it."""
    number = _PASS.fullmatch(typed)
    found = opening.matching(app.steps.all_steps, number["number"] if number else typed)
    if len(found) == 1:
        app.go_to_step(found[0])
    elif found:
        _choose_step(app, found)
    else:
        app.say(f"no line, stage or pass {typed!r}")


def to_source(app: BrowseApp, file: str, line: int) -> None:
    """Show a line of the Python source, and mark the operations that come from it."""
    origins = app.text.module.from_source if app.text.module.lines else {}
    files = sorted({name for name, _ in origins if _means(name, file)})
    own = app.browser.source_file(app.entry) if app.entry else None
    if own is not None and _means(own, file):
        app.sourcing = True
        app.source.cursor = line - 1
    elif not files:
        app.say(f"nothing in this text comes from a file {file!r}")
        return
    marked = sorted({at for name in files for at in origins.get((name, line), ())})
    if not marked:
        lines = sorted({number for name, number in origins if name in files})
        near = min(lines, key=lambda number: abs(number - line), default=None)
        hint = f"; from line {near} something does" if near else ""
        app.say(f"nothing in this text comes from {file}:{line}{hint}")
        return
    app.text.mark_origin(marked)
    app.text.go_to(marked[0])
    app.say(f"{plural(len(marked), 'line')} from {file}:{line}")


def _means(name: str, typed: str) -> bool:
    """Whether a file is meant by what was typed: all of its path, or the end of it."""
    wanted = PurePath(typed).parts
    return bool(wanted) and PurePath(name).parts[-len(wanted) :] == wanted


def _choose_step(app: BrowseApp, steps: list[Step]) -> None:
    def chosen(wanted: Step | None) -> None:
        if wanted is not None:
            app.go_to_step(wanted)

    at = steps.index(app.steps.current) if app.steps.current in steps else 0
    app.choose("go to stage or pass", [(s.label, s) for s in steps], chosen, at=at)


def _said_if_less(app: BrowseApp, line: int) -> None:
    source = app.text.source
    if line > app.text.count and source.indexed >= source.size:
        app.say(f"there are {plural(app.text.count, 'line')}")

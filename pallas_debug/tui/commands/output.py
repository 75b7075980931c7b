"""Taking what is shown elsewhere: the clipboard, a file, an editor, a pager."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from pallas_debug.errors import PallasDebugError, UsageError
from pallas_debug.ir.patterns import Query
from pallas_debug.report import plural
from pallas_debug.store import files
from pallas_debug.store.files import DumpFile
from pallas_debug.tui import _textual, clipboard, editor
from pallas_debug.tui.actions import action
from pallas_debug.tui.cells import plain, visible
from pallas_debug.tui.lineview import LineView
from pallas_debug.tui.model import Place, spelled

if TYPE_CHECKING:
    from pallas_debug.tui.app import BrowseApp

_MANY = clipboard.MOST
"""Lines that are looked at to be copied: of more, a terminal would not take the line ends."""


@action("copy.select", "v", "select lines, for y and S; esc lets them go")
def select(app: BrowseApp) -> None:
    pane = app.shown
    pane.selected_from = pane.cursor if pane.selected_from is None else None
    app.say(
        "lines are selected from here"
        if pane.selected_from is not None
        else "no lines are selected"
    )


@action("copy.line", "y", "copy the line, or those that are selected")
def copy_line(app: BrowseApp) -> None:
    pane = app.focused
    if pane is app.shown and app.shown.selected:
        lines = app.shown.selected
        _copy(app, [_line(app, number) for number in lines[:_MANY]], of=len(lines))
        app.shown.selected_from = None
        return
    if pane is app.source and app.source.count:
        _copy(app, [plain(app.source.cells(app.source.cursor))])
    elif isinstance(pane, LineView) and pane not in (app.text, app.diff, app.source) and pane.count:
        _copy(app, [plain(pane.cells(pane.cursor)).strip()])
    elif app.shown.count:
        _copy(app, [_line(app, app.shown.cursor)])


@action("copy.text", "Y", "copy the whole text")
def copy_text(app: BrowseApp) -> None:
    if not app.shown.count:
        return
    lines: list[str] = []
    left = clipboard.MOST
    rest = _lines(app)
    for line in rest:
        lines.append(line)
        left -= len(line) + 1
        if left < 0:
            break
    more = sum(1 for _ in rest) if app.diffing else app.text.count - len(lines)
    _copy(app, lines, of=len(lines) + more)


@action("copy.command", "", "copy the command that prints what is shown")
def copy_command(app: BrowseApp) -> None:
    if app.place is not None:
        command = _command(app, app.place)
        _copy(app, [command], what=command)


@action("output.save", "S", "save the text, or the lines that are selected, to a file")
def save(app: BrowseApp) -> None:
    if not app.shown.count:
        return

    def done(typed: str) -> None:
        if not typed.strip():
            return
        file = Path(typed.strip()).expanduser()
        if not file.exists():
            _save(app, file)
        else:
            app.ask(f"{file} exists; y overwrites it", done=lambda word: overwrite(word, file))

    def overwrite(word: str, file: Path) -> None:
        if word.strip().lower() in ("y", "yes"):
            _save(app, file)
        else:
            app.say(f"{file} was left as it was")

    app.ask("save as", value=_name(app), done=done)


@action("output.edit_source", "e", "open the Python source at the line in $VISUAL or $EDITOR")
def edit_source(app: BrowseApp) -> None:
    if app.entry is None:
        return
    kept = app.browser.stored(app.entry).kernel
    own = app.browser.source_file(app.entry)
    file, line = own, kept.source.line if kept and kept.source else 1
    if app.focused is app.source:
        line = app.source.cursor + 1
    elif app.shown is app.text and app.text.origin:
        file, line = app.text.origin[0].file, app.text.origin[0].line
    if file is None:
        app.say("the dump names no Python file of this kernel")
        return
    found, said = _source(app, file, own)
    if found is None:
        app.say(said)
    else:
        _edit(app, found, line, said)


@action("output.edit_text", "E", "open the text at the line in $VISUAL or $EDITOR")
def edit_text(app: BrowseApp) -> None:
    file = _file(app)
    if file is not None:
        _edit(app, file.path, app.shown.cursor + 1, "")
    elif app.shown.count:
        copy = app.scratch(_name(app), b"".join(_pieces(app)))
        _edit(app, copy, app.shown.cursor + 1, "")


@action("output.pager", "vertical_line", "read the text in $PAGER, or less")
def pager(app: BrowseApp) -> None:
    if not app.shown.count:
        return
    try:
        words = editor.pager(os.environ)
    except UsageError as error:
        app.say(str(error))
        return
    _hand_over(app, lambda: editor.pipe(words, map(_harmless, _pieces(app))))


# What is shown.


def _command(app: BrowseApp, place: Place) -> str:
    """The command that prints the source, what is searched for, the diff or the text."""
    if app.is_file:
        return app.browser.command(place)
    where = [str(app.browser.roots[place.entry.dump])]
    options = ["--kernel", place.entry.name]
    options += ["--target", place.target] if place.target else []
    step = ["--pass", spelled(place.step)]
    sought = app.text.sought
    if app.focused is app.source:
        line = app.source.cursor + 1
        step += ["--line", str(line)] if app.made_from(line) else ["--all"]
        return shlex.join(["pallas-debug", "source", *where, *options, *step])
    if app.search.active and sought is None:
        only = options[:2] if app.search.scope == "kernel" else []
        query = Query(text=app.search.text, ignore_case=None)
        return shlex.join(["pallas-debug", "grep", *_sought(query), *where, *only])
    if sought is not None and app.shown is app.text:
        return shlex.join(["pallas-debug", "grep", *_sought(sought), *where, *options, *step])
    return app.browser.command(place, app.base)


def _sought(query: Query) -> list[str]:
    """What `grep` is told to look for."""
    flags = ["--fixed"] if query.literal else []
    flags += ["--ignore-case"] if query.folds else []
    return [*flags, *(["--"] if query.text.startswith("-") else []), query.text]


def _lines(app: BrowseApp) -> Iterator[str]:
    """The text; a diff as `diff -u` has it."""
    if app.base is not None and app.place is not None:
        yield from app.browser.change(app.base, app.place, noise=app.noise)
        return
    for number in range(app.text.count):
        yield _line(app, number)


def _line(app: BrowseApp, number: int) -> str:
    """A line of the text, as far as it can be copied."""
    return app.shown.source.text(number, 0, clipboard.MOST + 1)


def _file(app: BrowseApp) -> DumpFile | None:
    """The file that holds the text as it is shown; None for text made of several, or refused."""
    if app.place is None or app.diffing:
        return None
    try:
        file = app.browser.file(app.place)
        os.close(file.open())
    except (OSError, PallasDebugError):
        return None
    return file


def _name(app: BrowseApp) -> str:
    """What a file with the text would be called."""
    file = _file(app)
    if file is not None:
        return file.path.name
    label = app.place.step.label if app.place else "text"
    return label.replace(" ", "-").replace("/", "-") + ".diff"


def _pieces(app: BrowseApp) -> Iterator[bytes]:
    """The text in pieces of whole lines."""
    file = _file(app)
    if file is not None:
        with os.fdopen(file.open(), "rb") as opened:
            yield from opened
        return
    for line in _lines(app):
        yield line.encode(errors="replace") + b"\n"


def _harmless(line: bytes) -> bytes:
    """A line that no terminal obeys, whichever pager writes it."""
    text = line.decode(errors="replace").removesuffix("\n")
    return (_seen(text) + "\n").encode()


def _seen(line: str) -> str:
    """A line whose control characters are replaced by pictures of them, but for tabs."""
    return "\t".join(map(visible, line.split("\t")))


# Where it goes.


def _copy(
    app: BrowseApp, lines: list[str], *, of: int | None = None, what: str | None = None
) -> None:
    # What is pasted into a shell must not hold what a terminal obeys.
    text, count = clipboard.fitting([_seen(line) for line in lines])
    for sequence in clipboard.sequences(text, os.environ):
        _textual.write(app, sequence)
    of = len(lines) if of is None else of
    size = f"{len(text.encode(errors='replace')):,} bytes"
    if what is not None:
        app.say(f"copied: {what}")
    elif count < of:
        app.say(f"copied {count:,} of {of:,} lines: a terminal takes no more; S saves all")
    elif lines and len(text) < len(lines[0]):
        app.say(f"copied the first {size} of the line: a terminal takes no more; S saves all")
    else:
        app.say(f"copied {plural(count, 'line')}, {size}")


def _save(app: BrowseApp, file: Path) -> None:
    lines = app.shown.selected
    app.shown.selected_from = None
    source = None if lines else _file(app)
    pieces: list[bytes] = []
    if lines:
        pieces = [_line(app, n).encode(errors="replace") + b"\n" for n in lines]
    elif source is None:
        pieces = list(_pieces(app))

    def write() -> None:
        if source is not None and file.exists() and source.path.samefile(file):
            raise shutil.SameFileError
        if source is not None:
            with os.fdopen(source.open(), "rb") as opened, file.open("wb") as to:
                shutil.copyfileobj(opened, to)
        else:
            file.write_bytes(b"".join(pieces))

    async def run() -> None:
        try:
            await asyncio.to_thread(write)
        except shutil.SameFileError:
            app.say(f"{file} is the dump's own file")
        except OSError as error:
            app.say(f"{file} cannot be written: {error.strerror}")
        except PallasDebugError as error:
            app.say(str(error))
        else:
            app.say(f"saved {file}, {file.stat().st_size:,} bytes")

    app.run_worker(run(), group="save")


def _source(app: BrowseApp, file: str, own: str | None) -> tuple[Path | None, str]:
    """A Python file as it was when it was dumped, and what is to be said of it."""
    disk = Path(file)
    is_there = disk.is_file()
    missing = f"{file} is not on this machine, and the dump does not keep it"
    if file != own or app.entry is None:
        if not is_there:
            return None, missing
        return disk, "this file is as it is now: the dump does not keep it"
    stored = app.browser.stored(app.entry)
    try:
        then = b"".join(files.pieces(stored.stage_file("source").path, stored.root))
    except OSError:
        return (disk, "") if is_there else (None, missing)
    except PallasDebugError as error:
        return None, str(error)
    if is_there and _holds(disk, then):
        return disk, ""
    why = "has changed since it was dumped" if is_there else "is not on this machine"
    copy = app.scratch(PurePath(file).name, then)
    return copy, f"{file} {why}: this was a copy of the dump's"


def _holds(disk: Path, content: bytes) -> bool:
    """Whether a file has a content. A dump may name any file: one of another size is not read."""
    try:
        return disk.stat().st_size == len(content) and content == b"".join(files.pieces(disk, None))
    except (OSError, PallasDebugError):
        return False


def _edit(app: BrowseApp, file: Path, line: int, said: str) -> None:
    try:
        words = editor.editor(os.environ)
    except UsageError as error:
        app.say(f"{error}; the file is {file}")
        return
    if not editor.takes_line(words):
        said = "; ".join(filter(None, [said, f"how {words[0]} is told line {line} is not known"]))
    command = editor.command(words, file, line)
    where = editor.directory(app.browser.roots)
    _hand_over(app, lambda: editor.run(command, where), said)


def _hand_over(app: BrowseApp, run: Callable[[], str | None], said: str = "") -> None:
    problem = app.hand_over(run)
    if problem or said:
        app.say(problem or said)

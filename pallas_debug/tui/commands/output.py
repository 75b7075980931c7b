"""Actions that pass the shown text on: to the clipboard or an editor."""

from __future__ import annotations

import os
from pathlib import Path, PurePath

from pallas_debug.errors import CannotRunError, PallasDebugError, UsageError
from pallas_debug.render import plural
from pallas_debug.store import files
from pallas_debug.store.files import DumpFile
from pallas_debug.tui import _textual, terminal
from pallas_debug.tui.keys import action
from pallas_debug.tui.widgets.cells import plain, visible
from pallas_debug.tui.widgets.lineview import LineView
from pallas_debug.tui.workspace import Workspace

_MAX_LINES = terminal.MAX_COPY
"""Maximum number of lines to read for copying, as more newlines alone would not fit."""

_TRUNCATED = "the limit of terminals; `pallas-debug show` prints all"


class OutputActions(Workspace):
    """Mixin with actions that copy and edit."""

    @action("copy.select", "v", "select lines, for y; esc cancels")
    def action_select_lines(self) -> None:
        pane = self.shown
        pane.selected_from = pane.cursor if pane.selected_from is None else None
        is_selecting = pane.selected_from is not None
        self.show_message("selecting lines from here" if is_selecting else "no lines are selected")

    @action("copy.line", "y", "copy the line, or the selected lines")
    def action_copy_line(self) -> None:
        pane = self.focused
        if pane is self.shown and self.shown.selected:
            lines = self.shown.selected
            self._copy([self._line(number) for number in lines[:_MAX_LINES]], of=len(lines))
            self.shown.selected_from = None
        elif pane is self.source and self.source.count:
            self._copy([plain(self.source.cells(self.source.cursor))])
        elif (
            isinstance(pane, LineView)
            and pane not in (self.text, self.diff, self.source)
            and pane.count
        ):
            self._copy([plain(pane.cells(pane.cursor)).strip()])
        elif self.shown.count:
            self._copy([self._line(self.shown.cursor)])

    @action("output.edit_source", "e", "open the Python source at the line in $VISUAL or $EDITOR")
    def action_edit_source(self) -> None:
        if self.entry is None:
            return
        kernel = self.browser.stored(self.entry).kernel
        own = self.browser.source_file(self.entry)
        file, line = own, kernel.source.line if kernel and kernel.source else 1
        if self.focused is self.source:
            line = self.source.cursor + 1
        elif self.shown is self.text and self.text.origin:
            file, line = self.text.origin[0].file, self.text.origin[0].line
        if file is None:
            self.show_message("the dump names no Python file for this kernel")
            return
        found, message = self._source_as_dumped(file, own)
        if found is None:
            self.show_message(message)
        else:
            self._edit(found, line, message)

    @action("output.edit_text", "E", "open the text at the line in $VISUAL or $EDITOR")
    def action_edit_text(self) -> None:
        file = self._file()
        if file is not None:
            self._edit(file.path, self.shown.cursor + 1, "")
        elif self.shown.count:
            self.show_message("there is no file of this text")

    # The shown text.

    def _line(self, number: int) -> str:
        """Return a line, cut to the length that can be copied."""
        return self.shown.lines[number][: terminal.MAX_COPY + 1]

    def _file(self) -> DumpFile | None:
        """Return the file that contains the shown text, if it exists and can be read."""
        if self.place is None or self.diffing:
            return None
        try:
            file = self.browser.file(self.place)
            os.close(file.open())
        except (OSError, PallasDebugError):
            return None
        return file

    def _source_as_dumped(self, file: str, own: str | None) -> tuple[Path | None, str]:
        """Return a Python file with its content at the time of the dump, and a message."""
        disk = Path(file)
        is_there = files.is_file(disk)
        missing = f"{file} is not on this machine, and the dump has no copy"
        if file != own or self.entry is None:
            if not is_there:
                return None, missing
            return disk, "this is the current file: the dump has no copy"
        stored = self.browser.stored(self.entry)
        try:
            then = b"".join(files.pieces(stored.stage_file("source").path, stored.root))
        except OSError:
            return (disk, "") if is_there else (None, missing)
        except PallasDebugError as error:
            return None, str(error)
        if is_there and _has_content(disk, then):
            return disk, ""
        why = "has changed since the dump" if is_there else "is not on this machine"
        try:
            copy = self.temporary_file(PurePath(file).name, then)
        except CannotRunError as error:
            return None, str(error)
        return copy, f"{file} {why}: this was the dump's copy"

    # Destinations.

    def _copy(self, lines: list[str], *, of: int = 1) -> None:
        # Replace control characters, as the text may be pasted into a shell.
        text, count = terminal.fitting([_without_controls(line) for line in lines])
        for sequence in terminal.copy_sequences(text, os.environ):
            _textual.write(self, sequence)
        size = f"{len(text.encode(errors='replace')):,} bytes"
        if count < of:
            self.show_message(f"copied {count:,} of {of:,} lines, {_TRUNCATED}")
        elif lines and len(text) < len(lines[0]):
            self.show_message(f"copied the first {size} of the line, {_TRUNCATED}")
        else:
            self.show_message(f"copied {plural(count, 'line')}, {size}")

    def _edit(self, file: Path, line: int, message: str) -> None:
        try:
            words = terminal.editor(os.environ)
        except UsageError as error:
            self.show_message(f"{error}; the file is {file}")
            return
        if not terminal.takes_line(words):
            unknown = f"cannot open {words[0]} at line {line}: its option is unknown"
            message = "; ".join(filter(None, [message, unknown]))
        command = terminal.edit_command(words, file, line)
        where = terminal.edit_directory(self.browser.roots)
        message = self.run_in_terminal(lambda: terminal.run(command, where)) or message
        if message:
            self.show_message(message)


def _without_controls(line: str) -> str:
    """Replace control characters, except tabs, by visible symbols."""
    return "\t".join(map(visible, line.split("\t")))


def _has_content(disk: Path, content: bytes) -> bool:
    """Return whether a file has this content.

    Files of a different size are not read, as a dump may name any file.
    """
    try:
        return disk.stat().st_size == len(content) and content == b"".join(files.pieces(disk, None))
    except (OSError, PallasDebugError):
        return False

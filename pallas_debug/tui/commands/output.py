"""Actions that pass the shown text on: to the clipboard or an editor."""

from __future__ import annotations

import os
from pathlib import Path

from pallas_debug.errors import PallasDebugError, UsageError
from pallas_debug.store.files import DumpFile, is_file
from pallas_debug.tui import terminal
from pallas_debug.tui.keys import action
from pallas_debug.tui.model.browser import Entry
from pallas_debug.tui.widgets.cells import MAX_LINE, plain, visible
from pallas_debug.tui.widgets.find import FindView
from pallas_debug.tui.widgets.lineview import LineView
from pallas_debug.tui.workspace import Workspace


class OutputActions(Workspace):
    """Mixin with actions that copy and edit."""

    @action("copy.line", "y", "copy the line")
    def action_copy_line(self) -> None:
        pane = self.focused
        if not isinstance(pane, LineView) or not pane.count:
            return
        if isinstance(pane, FindView):
            line = pane.lines[pane.cursor]
        else:
            line = plain(pane.cells(pane.cursor)).strip()
        # Replace control characters, except tabs, as the text may be pasted into a shell.
        text = "\t".join(map(visible, line[:MAX_LINE].split("\t")))
        self.copy_to_clipboard(text)
        self.show_message(f"copied {len(text):,} characters")

    @action("output.edit_source", "e", "open the Python source at the line in $VISUAL or $EDITOR")
    def action_edit_source(self) -> None:
        if self.entry is None:
            return
        own = self.browser.source_file(self.entry)
        file, line = own, self.browser.source_line(self.entry)
        if self.focused is self.source:
            line = self.source.cursor + 1
        elif self.shown is self.text and self.text.origin:
            file, line = self.text.origin[0].file, self.text.origin[0].line
        if file is None:
            self.show_message("the dump names no Python file for this kernel")
        elif not is_file(Path(file)):
            copy = "; E in the stage source opens the dump's copy" if file == own else ""
            self.show_message(f"{file} is not on this machine{copy}")
        else:
            has_changed = file == own and self._has_changed(Path(file), self.entry)
            note = f"{file} has changed since the dump; E in the stage source opens its copy"
            self._edit(Path(file), line, note if has_changed else "")

    @action("output.edit_text", "E", "open the text at the line in $VISUAL or $EDITOR")
    def action_edit_text(self) -> None:
        file = self._file()
        if file is not None:
            self._edit(file, self.shown.cursor + 1)
        elif self.shown.count:
            self.show_message("there is no file of this text")

    def _file(self) -> Path | None:
        """Return the path of the shown text, if the file exists and can be read."""
        if self.place is None or self.diffing:
            return None
        try:
            file = self.browser.file(self.place)
            os.close(file.open())
        except (OSError, PallasDebugError):
            return None
        return file.path

    def _has_changed(self, disk: Path, entry: Entry) -> bool:
        try:
            then = self.browser.stored(entry).stage_file("source").text()
            return DumpFile(path=disk, root=None).text() != then
        except PallasDebugError:
            return False

    def _edit(self, file: Path, line: int, note: str = "") -> None:
        try:
            words = terminal.editor(os.environ)
        except UsageError as error:
            self.show_message(f"{error}; the file is {file}")
            return
        command = terminal.edit_command(words, file, line)
        where = terminal.edit_directory(self.browser.roots)
        if message := self.run_in_terminal(lambda: terminal.run(command, where)) or note:
            self.show_message(message)

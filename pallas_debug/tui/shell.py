"""What an app in a terminal owes to whoever uses it; nothing in here knows of kernels.

Keys come from the registry of actions and the user's keymap. Programs get the terminal and give
it back. Where there are no colours, none are used; when the terminal goes, so does the app; and
an error of its own ends the app and is kept for a report.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.cells import cell_len
from textual import events
from textual.app import App, SuspendNotSupported
from textual.binding import Binding
from textual.css.query import NoMatches
from textual.filter import LineFilter, NoColor
from textual.widget import Widget
from textual.widgets import Static

from pallas_debug.store.scratch import PREFIX, Scratch
from pallas_debug.tui import _textual, pace, terminal
from pallas_debug.tui.actions import registry
from pallas_debug.tui.cells import visible
from pallas_debug.tui.chooser import Chooser
from pallas_debug.tui.help import HelpScreen
from pallas_debug.tui.keymap import Keymap, default
from pallas_debug.tui.prompt import Prompt

T = TypeVar("T")

CUT = "…"


class Shell(App[None]):
    """An app with actions, a line to ask in, and a line to say things in."""

    ENABLE_COMMAND_PALETTE = False

    def __init__(self, *, keymap: Keymap | None = None, colors: bool = True) -> None:
        super().__init__()
        self.no_color = not colors
        self.keymap = keymap or default(registry())
        over = self.keymap.over_panes
        bindings = [Binding("enter", "finish_prompt", show=False, priority=True)]
        for action in registry().values():
            bindings += action.bindings(self.keymap.keys[action.name], over=over)
        _textual.set_bindings(self, bindings)
        self.fault: Exception | None = None
        """What the app ended with, where that was an error of its own."""
        self.ending = False
        self.lost = False
        """Whether it was ended from outside: by a signal, or as the terminal went away."""
        self.chosen_theme: str | None = None
        """The theme that was chosen in this run."""
        self._scratch: Scratch | None = None
        self._message = ""
        self._standing = ""

    # The terminal.

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [NoColor()] if self.no_color else super().get_line_filters()

    def watch_terminal(self) -> None:
        """End in order when the terminal goes away, or somebody ends the process."""
        if self.is_headless:
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGHUP, signal.SIGTERM):
            loop.add_signal_handler(number, self._end)
        terminal.watch(lambda: loop.call_soon_threadsafe(self._end))

    def _end(self) -> None:
        self.lost = True
        self.exit()

    def hand_over(self, run: Callable[[], str | None]) -> str | None:
        """Give the terminal to a program, and take it back; what it says went wrong, if anything.

        ctrl+c in the meantime is the program's: it comes to all that the terminal has running.
        """
        try:
            with self.suspend():
                before = signal.signal(signal.SIGINT, lambda *_: None)
                try:
                    return run()
                finally:
                    signal.signal(signal.SIGINT, before)
        except SuspendNotSupported:
            return "there is no terminal to run it in"

    def _handle_exception(self, error: Exception) -> None:
        """Textual's way to end after an error, but for the traceback that it prints.

        Messages may be under way while the app ends, to panes that are there no more.
        """
        if self.ending and isinstance(error, NoMatches):
            return
        self.fault = self.fault or error
        super()._handle_exception(error)
        _textual.drop_reports(self)

    def scratch(self, name: str, content: bytes) -> Path:
        """A file for what an editor is to open and that is in none; it goes when the app does."""
        if self._scratch is None:
            self._scratch = Scratch(Path(tempfile.gettempdir()), PREFIX)
        file = self._scratch.path / name
        file.write_bytes(content)
        return file

    def tidy(self) -> None:
        """Away with the files that were made for an editor."""
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    # What is said.

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key | events.MouseDown):
            self._message = ""
            pace.hold()
        if isinstance(event, events.Key) and self.is_running:
            self.before_key()
        await super().on_event(event)

    def before_key(self) -> None:
        """A key was typed, and does something now; for subclasses."""

    def say(self, text: str) -> None:
        """In the line at the bottom, until the next key."""
        self._message = text
        self._show_said()

    def stand(self, parts: Iterable[str]) -> None:
        """Where one stands, in the line at the bottom: what matters most comes first."""
        self._standing = "  ".join(part for part in parts if part)
        self._show_said()

    def _show_said(self) -> None:
        said = "   ".join(filter(None, (self._message, self._standing)))
        self.query_one("#status", Static).update(visible(said), layout=False)

    def head(self, parts: Sequence[str]) -> None:
        """What is shown, in the line at the top: what matters most comes last."""
        room = max(self.size.width - 2, 1)
        whole = visible("  ›  ".join(parts))
        cut = whole
        while cell_len(cut) > room and len(cut) > 1:
            cut = CUT + cut.removeprefix(CUT)[1:]
        self.query_one("#title", Static).update(cut, layout=False)

    def show_help(self) -> None:
        self.push_screen(HelpScreen())

    # What is asked for.

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    def ask(
        self,
        what: str,
        *,
        value: str = "",
        typed: Callable[[str], None] | None = None,
        done: Callable[[str], None] | None = None,
    ) -> None:
        """Ask for something in the line at the bottom; see `Prompt.ask`."""
        self.prompt.ask(what, value=value, typed=typed, done=done)
        self.screen.set_focus(self.prompt)

    async def action_finish_prompt(self) -> None:
        """Take what was typed: at once, as the keys after it are for what is there next."""
        for _ in range(2):  # the keys, and then what they changed
            await self._reached(self.prompt)
        self.after_prompt()
        self.prompt.finish()

    async def _reached(self, widget: Widget) -> None:
        """Wait until a widget has dealt with all that was sent to it."""
        reached = asyncio.Event()
        if widget.call_later(reached.set):
            await reached.wait()

    def after_prompt(self) -> None:
        """Give the focus to whatever has it when nothing is asked for."""

    def choose(
        self,
        what: str,
        choices: Sequence[tuple[str, T]],
        chosen: Callable[[T | None], None],
        *,
        at: int = 0,
    ) -> None:
        """Have one of several chosen; None where it is left.

        Args:
          at: the one that the cursor stands on at first.
        """
        screen: Chooser[Any] = Chooser(what, choices, at=at)
        self.push_screen(screen, chosen)

    # What the keys do.

    async def action_perform(self, name: str) -> None:
        """Do what the registry has under a name."""
        done = registry()[name].run(self)  # type: ignore[arg-type]
        if inspect.isawaitable(done):
            await done

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While something is asked for, or help lies on top, keys are characters like any other."""
        on_top = len(self.screen_stack) > 1
        if action == "finish_prompt":
            return self.prompt.asking and not on_top
        if action != "perform":
            return True
        return not (self.prompt.asking or on_top) or not self._counts_first(str(parameters[0]))

    def _counts_first(self, name: str) -> bool:
        keys = self.keymap.keys[name].split(",")
        return registry()[name].ahead or any(key in self.keymap.over_panes for key in keys)

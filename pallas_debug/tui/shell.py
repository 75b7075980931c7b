"""Generic app shell: actions, prompt, status line, signals. Knows nothing about kernels.

Keys come from the action registry. Programs can take over the terminal.
The app ends when the terminal is gone, and after an internal error, which is kept for the caller.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from rich.cells import cell_len
from textual import events, getters, on
from textual.app import SuspendNotSupported
from textual.binding import Binding
from textual.content import Content
from textual.css.query import NoMatches
from textual.widget import Widget
from textual.widgets import Input, Static

from pallas_debug.tui import _textual, terminal
from pallas_debug.tui.keys import bindings, footer, registry
from pallas_debug.tui.model import Throttle
from pallas_debug.tui.theme import ThemedApp
from pallas_debug.tui.widgets.cells import visible
from pallas_debug.tui.widgets.choices import Choice
from pallas_debug.tui.widgets.frame import CUT

T = TypeVar("T")


class Prompt(Input):
    """Input line that is visible only while it asks for something."""

    DEFAULT_CSS = """
    Prompt {
        height: 1; border: none; padding: 0 1; display: none; background: $panel;
        background-tint: $panel 0%;
        & > .input--placeholder { color: $text-muted; }
        &.asking { display: block; }
    }
    """

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, compact=True)
        self._typed: Callable[[str], None] | None = None
        self._done: Callable[[str], None] | None = None

    @property
    def asking(self) -> bool:
        return self.has_class("asking")

    def ask(
        self,
        what: str,
        *,
        value: str = "",
        typed: Callable[[str], None] | None = None,
        done: Callable[[str], None] | None = None,
    ) -> None:
        """Ask for something, immediately, as the next key is for the prompt.

        Args:
          typed: called after every change.
          done: called with the final text on enter.
        """
        self._typed, self._done = typed, done
        self.placeholder = what
        self.value = value
        self.cursor_position = len(value)
        self.add_class("asking")
        self.screen.set_focus(self)

    def cancel(self) -> None:
        """Hide the prompt."""
        self._typed = self._done = None
        self.remove_class("asking")

    def finish(self) -> None:
        """Hide the prompt, and report the final text."""
        done, value = self._done, self.value
        self.cancel()
        if done is not None:
            done(value)

    @on(Input.Changed)
    def _report_typed(self, event: Input.Changed) -> None:
        if self._typed is not None:
            self._typed(event.value)


class Shell(ThemedApp, inherit_bindings=False):
    """App with actions, a prompt, and a bottom line with keys or a message."""

    ENABLE_COMMAND_PALETTE = False

    prompt = getters.query_one(Prompt)

    def __init__(self) -> None:
        super().__init__()
        finish = Binding("enter", "finish_prompt", show=False, priority=True)
        _textual.set_bindings(self, [finish, *bindings()])
        self._priority_actions = {found.method for found in registry().values() if found.priority}
        self.fault: Exception | None = None
        """Internal error that ended the app."""
        self._is_ending = False
        self.interrupted = False
        """Whether a signal or a hang-up ended the app."""
        self._message = ""
        self._bottom = Content()

    # The terminal.

    def watch_terminal(self) -> None:
        """Exit cleanly when the terminal is gone, and redraw the screen after an editor."""
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        if self.is_headless:
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGHUP, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt)
        terminal.watch(lambda: loop.call_soon_threadsafe(self._interrupt))

    def exit(self, *arguments: Any, **options: Any) -> None:
        self._is_ending = True
        super().exit(*arguments, **options)

    def _interrupt(self) -> None:
        self.interrupted = True
        self.exit()

    def run_in_terminal(self, run: Callable[[], str | None]) -> str | None:
        """Run a program in the terminal; return what went wrong, if anything.

        This app ignores ctrl+c meanwhile, as the terminal sends it to all of its processes.
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
        """Keep an error for the caller instead of printing a traceback."""
        if self._is_ending and isinstance(error, NoMatches):
            return  # a message to a pane that is already gone
        self.fault = self.fault or error
        super()._handle_exception(error)
        _textual.discard_traceback(self)

    # Messages, status and title.

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key | events.MouseDown):
            if self._message:
                self._message = ""
                self.call_next(self.show_keys)
            Throttle.hold()
        if isinstance(event, events.Key) and self.is_running:
            self.before_key()
            if not event.is_forwarded and self._takes_keys_in_order:
                await _textual.run_bindings(self, event.key)
                return
        await super().on_event(event)

    @property
    def _takes_keys_in_order(self) -> bool:
        """True if a key runs its action immediately.

        Textual sends a key through the queues of the focused widget and its ancestors before it
        looks for an action, except for priority keys, which thus overtake earlier keys when the
        user types fast. Only prompts and modal screens need that.
        """
        is_covered = len(self.screen_stack) > 1
        return bool(self.query(Prompt)) and not is_covered and not self.prompt.asking

    def before_key(self) -> None:
        """Hook for subclasses, called before a key is handled."""

    def show_message(self, text: str) -> None:
        """Show a message in the bottom line, in place of the keys, until the next key."""
        self._message = text
        self.show_keys()

    def show_keys(self) -> None:
        """Show in the bottom line the keys of the focused pane, as many as there is room for."""
        if len(self.screen_stack) > 1:  # a dialog has keys of its own
            return
        room = max(self.size.width - 2, 1)
        message = visible(self._message)
        text = Content(message if cell_len(message) <= room else f"{message[: room - 1]}{CUT}")
        if not message:
            always = [("?", "help"), ("q", "quit")]
            keys = footer(self.focused.id if self.focused is not None else None)
            while keys and sum(len(key) + len(what) + 3 for key, what in (*keys, *always)) > room:
                keys.pop()
            styled = (
                Content.assemble((key, "bold $text-primary"), f" {what}")
                for key, what in (*keys, *always)
            )
            text = Content("  ").join(styled)
        if text != self._bottom:
            self._bottom = text
            self.query_one("#status", Static).update(text, layout=False)

    def show_help(self) -> None:
        from pallas_debug.tui.panes.dialogs import HelpScreen, help_sections  # slows the start

        pane = self.focused.id if self.focused is not None else None
        self.push_screen(HelpScreen(help_sections(registry().values(), pane)))

    # Questions.

    async def action_finish_prompt(self) -> None:
        """Accept the typed text, before handling keys that were typed after it."""
        for _ in range(2):  # keys, and then their effects
            await self._messages_handled(self.prompt)
        self.after_prompt()
        self.prompt.finish()

    async def _messages_handled(self, widget: Widget) -> None:
        """Wait until a widget has handled all messages sent to it."""
        reached = asyncio.Event()
        if widget.call_later(reached.set):
            await reached.wait()

    def after_prompt(self) -> None:
        """Hook for subclasses to restore the focus after the prompt."""

    def choose(
        self,
        what: str,
        choices: Iterable[tuple[str, T] | Choice[T]],
        chosen: Callable[[T | None], None],
        *,
        at: int = 0,
        typed: Callable[[str], list[Choice[T]]] | None = None,
    ) -> None:
        """Let the user choose from a list; see `Chooser`."""
        from pallas_debug.tui.panes.dialogs import Chooser  # slows the start

        screen = Chooser(what, [Choice(*choice) for choice in choices], at=at, typed=typed)
        self.push_screen(screen, chosen)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable priority keys while the prompt or a modal screen needs them as text."""
        is_covered = len(self.screen_stack) > 1
        if action == "finish_prompt":
            return self.prompt.asking and not is_covered
        return action not in self._priority_actions or not (self.prompt.asking or is_covered)

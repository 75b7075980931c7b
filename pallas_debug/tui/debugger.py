"""Debugger screen: source, values and command line. Uses tracks; does not import jax."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rich.text import Text
from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Static

from pallas_debug.errors import PallasDebugError
from pallas_debug.stepping import describe, prompt
from pallas_debug.stepping.prompt import CommandPrompt
from pallas_debug.stepping.session import StepSession, short
from pallas_debug.stepping.track import FlyingCopy, NamedValue, StepPlace
from pallas_debug.tui.keys import MOVING, display_keys
from pallas_debug.tui.panes.dialogs import HelpScreen, moving_keys
from pallas_debug.tui.shell import Prompt
from pallas_debug.tui.theme import ThemedApp
from pallas_debug.tui.widgets.cells import Cells, visible
from pallas_debug.tui.widgets.lineview import LineView
from pallas_debug.tui.widgets.lists import LineList

MAX_OUTPUT = 500
"""Maximum number of output lines to keep."""


@dataclass(frozen=True, kw_only=True)
class DebuggerView:
    """Content of the screen for a place; collected in a worker, as statistics take a while."""

    place: StepPlace
    fault: str | None = None
    values: Sequence[tuple[NamedValue, str]] = ()
    copies: Sequence[FlyingCopy] = ()
    selected: str | None = None
    array: np.ndarray[Any, Any] | None = None
    messages: Sequence[str] = field(default_factory=tuple)
    device: int | None = None


class Pane(LineList, inherit_bindings=False):
    """Pane of lines, with a border and a title."""

    BINDINGS: ClassVar[list[BindingType]] = [
        binding
        for binding in Binding.make_bindings(LineView.BINDINGS)
        if binding.key != "b"  # sets a breakpoint
    ]

    DEFAULT_CSS = """
    Pane {
        height: 1fr; width: 1fr; border: round $border-blurred; border-title-color: $text-muted;
        &:focus { border: round $text-primary; border-title-color: $text-primary; }
    }
    """

    def __init__(self, *, id: str, title: str) -> None:
        super().__init__(id=id)
        self.border_title = title


KEYS: Sequence[tuple[Mapping[str, str], str]] = (
    ({"s": "execute('step')", "S": "execute('back')"}, "next line, into calls; back"),
    ({"n": "execute('next')", "N": "execute('bn')"}, "next line of this function; back"),
    ({"o": "execute('out')", "O": "execute('bo')"}, "line of the caller; back"),
    ({"p": "execute('point')", "P": "execute('bpt')"}, "next grid point; back"),
    ({"i": "execute('iteration')", "I": "execute('bit')"}, "next iteration; back"),
    ({"c": "execute('continue')", "C": "execute('bc')"}, "next breakpoint or watched change; back"),
    ({"u": "to_cursor('until')", "U": "to_cursor('bu')"}, "run to the cursor's line; back to it"),
    ({"b": "toggle_stop"}, "set or delete a breakpoint at the cursor's line"),
    ({"B": "ask_for('break')"}, "breakpoint with a condition"),
    ({"w": "ask_for('watch')"}, "watch the selected value, or a slice of it"),
    ({"W": "ask_for('who')"}, "who wrote an element of the selected value"),
    ({"colon": "ask_for('')"}, "command line"),
    ({"tab": "app.focus_next"}, "next pane"),
    ({"full_stop": "show_current"}, "back to the current line"),
    ({"escape": "dismiss_top"}, "stop what is running; leave the command line"),
    ({"question_mark": "help"}, "this help"),
    ({"q": "quit"}, "quit"),
)
"""Actions of keys, and what they do."""


class DebuggerApp(ThemedApp):
    """App with the source at the current line, values, output and a command line."""

    TITLE = "pallas-debug"
    ENABLE_COMMAND_PALETTE = False

    CSS = """
    #title, #status { height: 1; padding: 0 1; }
    #source { width: 3fr; }
    #right { width: 2fr; }
    #numbers { height: 12; }
    #output { height: 7; }
    .narrow #right { display: none; }
    .narrow #output { height: 4; }
    .low #numbers { height: 7; }
    .low #output { height: 4; }
    .lowest #numbers { display: none; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, action, show=False, priority=key == "escape")
        for keys, _ in KEYS
        for key, action in keys.items()
    ]

    def __init__(self, session: StepSession, *, notes: Sequence[str] = ()) -> None:
        super().__init__()
        self.session = session
        self.prompt = CommandPrompt(session)
        self.shown: DebuggerView | None = None
        self.running = False
        self._output: list[str] = [f"note: {note}" for note in notes]
        self._selected: str | None = None
        self._file: str | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        with Horizontal():
            yield Pane(id="source", title="source")
            with Vertical(id="right"):
                yield Pane(id="values", title="values")
                yield Pane(id="numbers", title="")
        yield Pane(id="output", title="output")
        yield Prompt(id="line")
        yield Static(id="status")

    def on_mount(self) -> None:
        self.query_one("#source", Pane).focus()
        self._run(lambda: ())

    def on_resize(self, event: events.Resize) -> None:
        self.screen.set_class(event.size.width < 80, "narrow")
        self.screen.set_class(event.size.height < 30, "low")
        self.screen.set_class(event.size.height < 24, "lowest")

    # Running

    def _run(self, command: Callable[[], Sequence[str]]) -> None:
        """Run a command that may take a while, and show the state after it."""
        if self.running:
            self.notify_status("running; esc stops it")
            return
        self.running = True
        self.notify_status("running; esc stops it")
        self._run_in_background(command)

    @work(thread=True, group="run")
    def _run_in_background(self, command: Callable[[], Sequence[str]]) -> None:
        try:
            messages = list(command())
        except PallasDebugError as error:
            messages = f"error: {error}".splitlines()
        view = self._gathered(messages)
        self.call_from_thread(self._show, view)

    def _gathered(self, messages: Sequence[str]) -> DebuggerView:
        track = self.session.track
        named = track.values()
        values = []
        for value in named:
            held = track.value(value.name)
            is_kept = value.kind != "variable"
            values.append((value, "" if held is None else short(held, is_memory=is_kept)))
        names = [value.name for value in named]
        selected = self._selected if self._selected in names else next(iter(names), None)
        array = None if selected is None else track.value(selected)
        devices = track.devices()
        return DebuggerView(
            place=track.place,
            fault=track.fault,
            values=values,
            copies=track.copies(),
            selected=selected,
            array=None if array is None else np.array(array, copy=True),
            messages=messages,
            device=next((d.place.device for d in devices if d.is_shown), None),
        )

    def _show(self, view: DebuggerView) -> None:
        is_first = self.shown is None
        self.running = False
        self.shown = view
        hidden = set(prompt.place_lines(view.place, view.fault))  # already on the screen
        messages = [line for line in view.messages if line not in hidden]
        self._output = [*self._output, *messages][-MAX_OUTPUT:]
        if self.prompt.is_over:
            self.exit()
            return
        self.query_one("#title", Static).update(Text(visible(prompt.location(view.place))))
        self._show_source()
        self._show_values()
        self._show_numbers()
        # Notes begin with the finding where the screen opens.
        pane = self.query_one("#output", Pane)
        wrapper = textwrap.TextWrapper(
            max(pane.columns, 20), drop_whitespace=False, break_on_hyphens=False
        )
        rows = [row for line in self._output for row in wrapper.wrap(line) or [""]]
        pane.show([[(row, "")] for row in rows], cursor=0 if is_first else len(rows) - 1)
        keys = "s step  n next  p point  c continue  SHIFT back  : command  ? help  q quit"
        fault = f"the run stops here: {view.fault}" if view.fault is not None else keys
        self.notify_status(fault)

    def notify_status(self, text: str) -> None:
        self.query_one("#status", Static).update(Text(visible(text)))

    # Panes

    def _show_source(self) -> None:
        assert self.shown is not None
        line = self.shown.place.line
        if line is not None:
            self._file = line.file
        pane = self.query_one("#source", Pane)
        if self._file is None:
            return
        pane.border_title = Path(self._file).name
        stops = {b.line for b in self.session.breakpoints.values() if b.file == self._file}
        calling = {c.line for c in self.shown.place.calls if c.file == self._file}
        current = None if line is None else line.line
        lines: list[Cells] = []
        for number, text in enumerate(self.session.track.lines(self._file), 1):
            mark = "●" if number in stops else " "
            mark += "▶" if number == current else "│" if number in calling else " "
            style = "bold text-warning" if number == current else ""
            lines.append([(f"{number:>4} {mark} {text.expandtabs(4)}", style)])
        pane.show(lines, cursor=None if current is None else current - 1)
        if current is not None:  # with its context
            pane.scroll_to(y=current - 1 - pane.room // 2, animate=False, force=True)

    def _show_values(self) -> None:
        assert self.shown is not None
        lines: list[Cells] = []
        cursor = 0
        for number, (value, held) in enumerate(self.shown.values):
            if value.name == self.shown.selected:
                cursor = number
            block = "" if value.block is None else f"  block {value.block}"
            kind = f" {value.kind} ", "text-accent"
            lines.append([(value.name, "bold"), kind, (held, ""), (block, "text-muted")])
        for copy in self.shown.copies:
            at = "" if copy.line is None else f", line {copy.line.line}"
            text = f"DMA {copy.number}: {copy.source} → {copy.destination}, {copy.nbytes:,} bytes"
            lines.append([(text + at, "text-secondary")])
        pane = self.query_one("#values", Pane)
        several = self.shown.place.devices > 1 and self.shown.device is not None
        pane.border_title = f"values of device {self.shown.device}" if several else "values"
        pane.show(lines, cursor=cursor)

    def _show_numbers(self) -> None:
        """Show the elements of the selected value."""
        assert self.shown is not None
        pane = self.query_one("#numbers", Pane)
        pane.border_title = self.shown.selected or ""
        rows = [] if self.shown.array is None else describe.numbers(self.shown.array).splitlines()
        pane.show([[(row, "")] for row in rows], cursor=0)

    @on(LineView.Moved, "#values")
    def _select_value(self) -> None:
        """Show the value under the cursor."""
        pane = self.query_one("#values", Pane)
        if self.shown is None or self.running:
            return
        if pane.cursor < len(self.shown.values):
            self._selected = self.shown.values[pane.cursor][0].name
            self._run(lambda: ())

    # Actions

    def action_execute(self, line: str) -> None:
        self._run(lambda: self.prompt.execute(line))

    def action_to_cursor(self, command: str) -> None:
        self.action_execute(f"{command} {self.query_one('#source', Pane).cursor + 1}")

    def action_toggle_stop(self) -> None:
        line = self.query_one("#source", Pane).cursor + 1
        for number, item in self.session.breakpoints.items():
            if (item.file, item.line) == (self._file, line):
                self.action_execute(f"delete {number}")
                return
        self.action_execute(f"break {line}")

    def action_ask_for(self, what: str) -> None:
        line = self.query_one("#source", Pane).cursor + 1
        name = self.shown.selected if self.shown is not None else None
        given = {"break": f"break {line} if ", "watch": f"watch {name or ''}"}
        given["who"] = f"who {name or ''}["
        self.query_one(Prompt).ask(
            "command",
            value=given.get(what, ""),
            done=lambda text: self._run(lambda: [f"> {text}", *self.prompt.execute(text)]),
        )

    @on(Input.Submitted)
    def _submitted(self) -> None:
        self.query_one("#source", Pane).focus()
        self.query_one(Prompt).finish()

    def action_show_current(self) -> None:
        self._show_source()

    def action_dismiss_top(self) -> None:
        if len(self.screen_stack) > 1:
            self.pop_screen()
        elif self.query_one(Prompt).asking:
            self.query_one(Prompt).cancel()
            self.query_one("#source", Pane).focus()
        elif self.running:
            self.session.interrupt()

    def action_help(self) -> None:
        keys = [(display_keys(",".join(actions)), what) for actions, what in KEYS]
        commands = [(f"{', '.join(c.names)} {c.usage}", c.summary) for c in prompt.COMMANDS]
        moving = moving_keys(Pane.BINDINGS)
        sections = {"Keys": keys, MOVING: moving, "Commands, after `:`": commands}
        self.push_screen(HelpScreen(sections))


def open_debugger(session: StepSession, notes: Sequence[str] = ()) -> None:
    """Show the screen until the user leaves it.

    Raises:
      Exception: an internal error that ended the screen.
    """
    DebuggerApp(session, notes=notes).run()

"""Action that goes to any place by letters of its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import PurePath

from pallas_debug.render import plural
from pallas_debug.tui.keys import HEADINGS, action, display_keys, registry
from pallas_debug.tui.widgets.choices import Choice
from pallas_debug.tui.workspace import Workspace

_SOURCE = re.compile(r"(?P<file>.*[^:\s]):(?P<line>\d+)")

Go = Callable[[], object]


class GoingActions(Workspace):
    """Mixin with an action that goes to a place by its name."""

    @action(
        "go.to",
        "colon,ctrl+p",
        "go to a kernel, pass, target, line or action, by parts of its name",
        priority=True,
    )
    def action_go_to(self) -> None:
        def chosen(go: Go | None) -> None:
            if go is not None:
                go()

        places = [*self._places(), *self._actions()]
        self.choose("Go to", places, chosen, typed=self._typed_places)

    def _typed_places(self, text: str) -> list[Choice[Go]]:
        """Return the line of the text, or of a Python file, that a text names."""
        if text.isdecimal():
            return [Choice(f"line {text}", partial(self._go_to_line, int(text)), "this text")]
        if place := _SOURCE.fullmatch(text):
            go = partial(self._go_to_source, place["file"], int(place["line"]))
            return [Choice(text, go, "Python line")]
        return []

    def _places(self) -> Iterator[Choice[Go]]:
        for step in self.steps.all_steps:
            kind = "pass" if step.pass_ else "stage"
            yield Choice(step.label, partial(self.go_to_step, step), kind)
        for entry in self.browser.entries:
            label = self.kernels.list.label(entry)
            yield Choice(label, partial(self.go_to_kernel, entry), "kernel")
        if self.entry is None:
            return
        for compilation in self.browser.stored(self.entry).compilations:
            yield Choice(
                compilation.target, partial(self._go_to_target, compilation.target), "target"
            )
        if file := self.browser.source_file(self.entry):
            for number, text in enumerate(self.browser.source_lines(self.entry), 1):
                if text.strip():
                    go = partial(self._go_to_source, file, number)
                    yield Choice(f"{number}  {text.strip()}", go, "Python line")

    def _actions(self) -> Iterator[Choice[Go]]:
        for found in registry().values():
            if found.name != "go.to":
                note = display_keys(found.keys) or HEADINGS[found.group].lower()
                yield Choice(
                    found.title, partial(self.call_later, self.run_action, found.call), note
                )

    def _go_to_line(self, number: int) -> None:
        self.text.go_to(max(number, 1) - 1)
        source = self.text.source
        if number > self.text.count and source.indexed >= source.size:
            self.show_message(f"there are {plural(self.text.count, 'line')}")

    def _go_to_target(self, target: str) -> None:
        self.wanted_target = target
        self.show_kernel()

    def _go_to_source(self, file: str, line: int) -> None:
        """Show a line of the Python source, and mark the operations that come from it."""
        origins = self.text.origins
        files = sorted({name for name, _ in origins if _is_path(name, file)})
        own = self.browser.source_file(self.entry) if self.entry else None
        if own is not None and _is_path(own, file):
            self.sourcing = True
            self.source.cursor = line - 1
        elif not files:
            self.show_message(f"nothing in this text comes from a file {file!r}")
            return
        made = sorted({at for name in files for at in origins.get((name, line), ())})
        if not made:
            lines = sorted({number for name, number in origins if name in files})
            near = min(lines, key=lambda number: abs(number - line), default=None)
            hint = f"; try line {near}" if near else ""
            self.show_message(f"nothing in this text comes from {file}:{line}{hint}")
            return
        self.text.mark_origin(made)
        self.text.go_to(made[0])
        self.show_message(f"{plural(len(made), 'line')} from {file}:{line}")


def _is_path(name: str, typed: str) -> bool:
    """Return whether the typed text is this path, or the end of it."""
    wanted = PurePath(typed).parts
    return bool(wanted) and PurePath(name).parts[-len(wanted) :] == wanted

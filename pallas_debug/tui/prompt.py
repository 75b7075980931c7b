"""The line at the bottom in which something is asked for."""

from __future__ import annotations

from collections.abc import Callable

from textual import on
from textual.widgets import Input


class Prompt(Input):
    """An input that is there only while something is asked for."""

    DEFAULT_CSS = """
    Prompt {
        height: 1; border: none; padding: 0 1; display: none;
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
        """Ask for something; the caller gives it the focus.

        Args:
          typed: is told of every change.
          done: is told of what was entered.
        """
        self._typed, self._done = typed, done
        self.placeholder = what
        self.value = value
        self.cursor_position = len(value)
        self.add_class("asking")

    def stop(self) -> None:
        """Away with it."""
        self._typed = self._done = None
        self.remove_class("asking")

    @on(Input.Changed)
    def _tell_typed(self, event: Input.Changed) -> None:
        if self._typed is not None:
            self._typed(event.value)

    def finish(self) -> None:
        """Away with it, and tell whoever asked what was entered."""
        done, value = self._done, self.value
        self.stop()
        if done is not None:
            done(value)

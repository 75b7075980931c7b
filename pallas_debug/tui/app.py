"""The browse app: workspace with all actions, startup, shutdown and watching of directories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import RenderableType
from textual import work
from textual.dom import DOMNode

from pallas_debug.render import plural
from pallas_debug.tui import _textual
from pallas_debug.tui.commands.moving import MovingActions
from pallas_debug.tui.commands.output import OutputActions
from pallas_debug.tui.commands.viewing import ViewingActions
from pallas_debug.tui.keys import HEADINGS, action, display_keys
from pallas_debug.tui.keys import registry as registry
from pallas_debug.tui.model.browser import BEFORE, Browser, Entry
from pallas_debug.tui.model.state import Spot, spot_of
from pallas_debug.tui.model.watch import DumpChange, Watch
from pallas_debug.tui.widgets.lists import ListPane

if TYPE_CHECKING:
    from pallas_debug.stepping.computed import ComputedValues

PRELOAD_AFTER = 0.5
"""Seconds after startup before modules are preloaded."""

WATCH_EVERY = 1.0
"""Seconds between checks of the directories."""

TOGGLES: dict[str, tuple[str, str]] = {
    "text.locations": ("text", "folded"),
    "text.wrap": ("text", "wrap"),
    "diff.noise": ("", "noise"),
    "pass.hide_same": ("steps", "only_changed"),
    "source.show": ("", "sourcing"),
    "pane.zoom": ("", "zoomed"),
}
"""Switches to remember, by action: name of the pane, or `""` for the app, and the attribute."""

_FOCUSABLE = ("kernels", "steps", "text")


def preload() -> None:
    """Preload the modules for diffs, which are slow to import and often used, and for dialogs."""
    import numpy  # noqa: F401

    import pallas_debug.ir.diff
    import pallas_debug.store.scratch
    import pallas_debug.tui.panes.dialogs  # noqa: F401


class BrowseApp(MovingActions, ViewingActions, OutputActions):
    """App of `pallas-debug browse`: kernels, their passes, and the text of each.

    Args:
      spot: place to open.
      colors: whether colours may be used.
      notes: messages to show at the start.
      recorded: values of a run, to show beside the lines of its kernel.
    """

    def __init__(
        self,
        browser: Browser,
        *,
        spot: Spot | None = None,
        colors: bool = True,
        notes: Sequence[str] = (),
        recorded: ComputedValues | None = None,
    ) -> None:
        super().__init__(browser, colors=colors, recorded=recorded)
        self._start_spot = spot
        self._start_notes = notes
        self.last: Spot | None = None
        """Place at which the session ended."""
        self.watched = Watch(browser)

    # Startup and shutdown.

    def on_mount(self) -> None:
        self.focus_on(self.kernels)
        self.show_kernel()
        if self.is_file:
            self.zoomed = True
            self.focus_on(self.text)
        else:
            self.set_timer(PRELOAD_AFTER, self._preload)
            self.set_interval(WATCH_EVERY, self._look)
        if self._start_spot is not None:
            self._restore(self._start_spot)
        if self._start_notes:
            self.show_message("; ".join(self._start_notes))
        self.watch_terminal()

    @work(thread=True, group="preload")
    def _preload(self) -> None:
        preload()

    def exit(
        self, result: None = None, return_code: int = 0, message: RenderableType | None = None
    ) -> None:
        self.last = self.last or self._current_spot()
        self.ending = True
        super().exit(result, return_code, message)

    def _restore(self, spot: Spot) -> None:
        """Go to the place where a session ended, as far as it still exists."""
        for name, (part, attribute) in TOGGLES.items():
            if name in spot.toggles:
                setattr(self._part(part), attribute, spot.toggles[name])
        entry = spot.entry(self.browser)
        if entry is None:
            return
        self.wanted_target = spot.target
        self.go_to_kernel(entry)
        step = next((s for s in self.steps.all_steps if s.label == spot.step), None)
        if step is not None:
            self.go_to_step(step)
        if spot.line is not None and (step is not None or spot.step is None):
            self.text.go_to(spot.line - 1)
        if spot.focus in _FOCUSABLE:
            self.screen.set_focus(self.query_one(f"#{spot.focus}"))

    def _current_spot(self) -> Spot:
        """Return the current place of the session, for `_restore`."""
        place = self.place
        toggles = {n: bool(getattr(self._part(p), a)) for n, (p, a) in TOGGLES.items()}
        spot = replace(spot_of(self.browser.roots), toggles=toggles)
        if place is None:
            return spot
        return replace(
            spot,
            dump=place.entry.dump,
            kernel=place.entry.name,
            target=self.wanted_target,
            step=place.step.label,
            line=None if self.diffing else self.text.cursor + 1,
            focus=next((name for name in _FOCUSABLE if self._part(name) is self.focused), None),
        )

    def _part(self, name: str) -> DOMNode:
        return self.query_one(f"#{name}") if name else self

    # Directories that are being written.

    def _look(self) -> None:
        """Check the directories in the background, as there may be many files."""
        if self.is_composed and self.watched.begin():
            self._look_in_background(self.entry)

    @work(thread=True, group="watch")
    def _look_in_background(self, entry: Entry | None) -> None:
        folder = self.browser.stored(entry).folder if entry is not None else None
        self.call_later(self._show_change, self.watched.look(entry, folder), entry)

    def _show_change(self, found: DumpChange, entry: Entry | None) -> None:
        has_changed = self.watched.take(found)
        if not self.is_composed:
            return
        if has_changed:
            self._show_new_kernels(self.entry)
        if found.is_changed and entry is not None and entry == self.entry:
            self._show_new_steps(entry)

    def _show_new_kernels(self, entry: Entry | None) -> None:
        new = self.watched.new
        self.kernels.reload()
        if new and self.following:
            self.go_to_kernel(new[-1])
            self.watched.clear()
        elif self.entry != entry:
            self.show_kernel()
        if new and not self.following:
            self.show_message(f"{plural(len(new), 'new kernel')}; F follows")

    def _show_new_steps(self, entry: Entry) -> None:
        before, at, line = self.steps.all_steps, self.steps.current, self.text.cursor
        self.browser.forget(entry)
        self.kernels.list.learn_again(entry)
        self.kernels.refresh()
        if self.browser.steps(entry, self.wanted_target) == before:
            return
        self.show_kernel()
        labels = {step.label for step in before}
        new = [step for step in self.steps.all_steps if step.label not in labels]
        if new and self.following:
            self.go_to_step(next((s for s in reversed(new) if s.changed), new[-1]))
            return
        if at is not None:
            self.go_to_step(at)
            self.text.go_to(line)
        if new:
            self.show_message(f"new: {plural(len(new), 'pass')}; F follows")

    @action("program.help", "question_mark", "help: keys of this pane, then of all")
    def action_help(self) -> None:
        self.show_help()

    @action("program.palette", "ctrl+p", "palette: all actions, by name")
    def action_palette(self) -> None:
        def chosen(call: str | None) -> None:
            if call is not None:
                self.call_later(self.run_action, call)

        choices = []
        for found in registry().values():
            if found.method != "palette":
                heading = HEADINGS[found.group].lower()
                parts = found.title, display_keys(found.keys), f"· {heading}"
                choices.append(("  ".join(filter(None, parts)), found.call))
        self.choose("run an action", choices, chosen)

    @action("program.follow", "F", "follow: show the newest kernel or pass as it is written")
    def action_follow(self) -> None:
        self.following = not self.following
        if self.following and self.watched.new:
            self.go_to_kernel(self.watched.new[-1])
        self.watched.clear()
        self.show_message("following; F stops" if self.following else "no longer following")

    @action("program.theme", "", "theme, light or dark")
    def action_choose_theme(self) -> None:
        def chosen(name: str | None) -> None:
            if name is not None:
                self.theme = self.chosen_theme = name

        themes = self.available_themes
        names = sorted(themes, key=lambda name: (not themes[name].dark, name))
        listed = [(f"{name}  {'dark' if themes[name].dark else 'light'}", name) for name in names]
        self.choose("theme", listed, chosen, at=names.index(self.theme))

    @action("program.suspend", "ctrl+z", "suspend; fg in the shell resumes")
    def action_suspend(self) -> None:
        _textual.stop_process(self)

    @action("program.close", "escape,ctrl+c", "close the topmost view")
    def action_dismiss_top(self) -> None:
        """Close the topmost open item, but never the app."""
        lists: list[ListPane] = [self.kernels, self.steps]
        lists.sort(key=lambda pane: pane is not self.focused)
        if self.prompt.asking:
            self.prompt.cancel()
            self.after_prompt()
        elif self.shown.selected_from is not None:
            self.shown.selected_from = None
        elif self.shown is self.text and self.text.narrowed:
            self.text.narrow(False)
        elif self.search.dismiss() or any(pane.dismiss() for pane in lists):
            if not self.search.active:
                self.text.mark(None)
        elif self.shown.where:
            self.shown.search(None)
        elif self.shown is self.diff and self.diff.stop():
            pass
        elif self.trailing:
            if self.focused is self.trail:
                self.focus_on(self.shown)
            self.trailing = False
        elif self.diffing:
            self.diffing = False
            self.against = BEFORE
        else:
            self.zoomed = False
        self.update_status()

    @action("program.quit", "q", "quit")
    async def action_quit(self) -> None:
        self.exit()

"""Generic features of the app: help, palette, places, copies and files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pilot import drive, press, screen_rows, status, until
from textual.widgets import Input, Static

from pallas_debug.tui.app import BrowseApp
from pallas_debug.tui.keys import registry
from pallas_debug.tui.model.browser import Browser, SingleFile
from pallas_debug.tui.panes.dialogs import Chooser, HelpLines
from pallas_debug.tui.widgets.cells import plain


async def perform(app: BrowseApp, name: str) -> None:
    """Run an action by its name."""
    await app.run_action(registry()[name].call)


@pytest.fixture
def add(raw: Path) -> Path:
    return raw / "libtpu-0.0.50" / "add"


# Help and palette.


@pytest.mark.slow
@pytest.mark.parametrize("size", [(40, 12), (80, 24), (160, 48)])
@drive
async def test_the_help_has_every_key_and_scrolls(add: Path, size: tuple[int, int]) -> None:
    app = BrowseApp(Browser(add))
    async with app.run_test(size=size) as pilot:
        await press(pilot, "tab", "tab", "question_mark")
        shown = app.screen.query_one(HelpLines)
        lines = [plain(shown.cells(n)) for n in range(shown.count)]
        assert all(len(line) <= shown.size.width for line in lines)
        assert lines[0] == "The text", "the pane that has the focus comes first"
        assert "Moving" in lines
        message = " ".join(" ".join(lines).split())
        for action in registry().values():
            if action.keys:
                assert action.title in message
        assert "up k" in message
        for textuals in ("Page Left", "Quit", "Scroll"):
            assert textuals not in message
        await press(pilot, "G")
        assert shown.cursor == shown.count - 1
        await press(pilot, "slash", *"history of", "enter")
        assert plain(shown.cells(0)) == "The text"
        assert plain(shown.cells(1)).split()[:3] == ["u", "history", "of"]
        await press(pilot, "escape")
        assert shown.count == len(lines)
        await press(pilot, "g", "space", "escape")
        assert len(app.screen_stack) == 1


@pytest.mark.slow
@drive
async def test_the_palette_has_every_action_and_does_it(add: Path) -> None:
    app = BrowseApp(Browser(add))
    async with app.run_test(size=(40, 12)) as pilot:
        await press(pilot, "ctrl+p")
        assert isinstance(app.screen, Chooser)
        labels = [match.choice.label for match in app.screen.shown]
        for action in registry().values():
            assert action.title in labels or action.name == "go.to"
        await press(pilot, *"next pass that", "ctrl+n", "ctrl+p", "enter")
        await until(pilot, lambda: app.steps.cursor > 0)
        await press(pilot, "ctrl+p", *"nowhere")
        assert str(app.screen.query_one("#summary", Static).render()) == "nothing matches"
        await press(pilot, *["backspace"] * 7)
        assert str(app.screen.query_one("#summary", Static).render()) == ""
        await press(pilot, "escape")
        assert len(app.screen_stack) == 1


@pytest.mark.slow
@drive
async def test_a_theme_is_chosen(add: Path) -> None:
    app = BrowseApp(Browser(add))
    async with app.run_test(size=(80, 24)) as pilot:
        await perform(app, "program.theme")
        await press(pilot, *"textual-light", "enter")
        assert app.theme == "textual-light"


@pytest.mark.slow
@drive
async def test_lines_that_were_drawn_before_take_on_a_theme(add: Path) -> None:
    drawn = []
    for is_changed in (True, False):
        app = BrowseApp(Browser(add))
        red = dataclasses.replace(
            app.current_theme, name="red", primary="red", accent="red", success="red"
        )
        app.register_theme(red)
        app.theme = app.theme if is_changed else "red"
        async with app.run_test(size=(160, 48)) as pilot:
            await pilot.pause()
            before = [app.text.render_line(y) for y in range(10)]
            app.theme = "red"
            await pilot.pause()
            drawn.append([app.text.render_line(y) for y in range(10)])
            assert (before != drawn[-1]) == is_changed
    assert drawn[0] == drawn[1]


# Going somewhere.


@pytest.mark.slow
@drive
async def test_anything_is_gone_to_by_letters_of_its_name(dumps: Path) -> None:
    app = BrowseApp(Browser(dumps))
    async with app.run_test(size=(160, 48)) as pilot:
        for typed, label in [
            ("10", "10 "),
            ("lower-to-llo", " lower-to-llo"),
            ("tilprop", " tiling-propagation"),
            ("mosaic", "mosaic"),
        ]:
            await press(pilot, "colon")
            app.screen.query_one(Input).value = typed
            await press(pilot, *["down"] * typed.isdecimal(), "enter")
            assert app.steps.current is not None
            assert label in app.steps.current.label
        await press(pilot, "ctrl+p", *"v6", "enter")
        assert app.target == "v6e"
        await press(pilot, "colon")
        app.screen.query_one(Input).value = "x_ref y_ref +"
        await press(pilot, "enter")
        assert app.sourcing
        assert "x_ref[...] + y_ref[...]" in app.source.line(app.source.cursor)
        await press(pilot, "colon", *"999", "enter")
        assert f"there are {app.text.count} lines" in status(app)


@pytest.mark.slow
@drive
async def test_a_line_of_the_source_leads_to_its_operations(dumps: Path) -> None:
    app = BrowseApp(Browser(dumps))
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "slash", *"addf", "enter")
        origin, at = app.text.origin[0], app.text.cursor
        await press(pilot, "g", "colon")
        app.screen.query_one(Input).value = f"{origin.line} x_ref y_ref"
        await press(pilot, "enter")
        assert app.focused is app.source
        assert app.source.cursor == origin.line - 1
        assert at in app.text._origin
        assert app.text.cursor == min(app.text._origin)


# Taking it elsewhere.


@pytest.mark.slow
@drive
async def test_what_is_copied(add: Path, dumps: Path) -> None:
    app = BrowseApp(Browser(add))
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "tab", "y")
        assert app.clipboard.startswith("00 deserialization")
        await press(pilot, "tab", "g", "j", "y")
        assert app.clipboard == app.text.line(1)
        assert status(app).startswith(f"copied {len(app.clipboard):,} characters")
    app = BrowseApp(Browser(dumps))
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "o", "tab", "tab", "tab")
        assert app.focused is app.source
        app.source.cursor = 7
        await press(pilot, "y")
        assert app.entry is not None
        assert app.clipboard == app.browser.source_lines(app.entry)[7]


@drive
async def test_what_is_copied_obeys_nothing_and_has_an_end(tmp_path: Path) -> None:
    file = tmp_path / "long"
    file.write_text("\x1b[2J\ta\n" + "x" * 200_000)
    app = BrowseApp(SingleFile(file))
    async with app.run_test(size=(160, 24)) as pilot:
        await press(pilot, "y")
        assert app.clipboard == "␛[2J\ta"
        await press(pilot, "G", "y")
        assert app.clipboard == "x" * 10_000


@drive
async def test_a_program_needs_a_terminal(add: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "vi")
    app = BrowseApp(Browser(add))
    async with app.run_test(size=(160, 24)) as pilot:
        await press(pilot, "E")
        assert "there is no terminal to run it in" in status(app)
        await press(pilot, "e")
        assert "the dump names no Python file for this kernel" in status(app)


# What is said, and the mouse.


@drive
async def test_a_narrow_terminal_says_what_matters_most(add: Path) -> None:
    app = BrowseApp(Browser(add))
    async with app.run_test(size=(20, 6)) as pilot:
        await press(pilot, *["right_square_bracket"] * 2)
        await press(pilot, "3")
        assert screen_rows(app)[0].endswith("…pace ─╮")
        app.show_message("[bold]a message that is longer[/bold] than the line")
        await pilot.pause()
        bottom = "".join(s.text for s in app.screen._compositor.render_strips()[-1])
        assert bottom == " [bold]a message t… "


@pytest.mark.slow
@drive
async def test_the_mouse_selects(add: Path) -> None:
    app = BrowseApp(Browser(add))
    async with app.run_test(size=(160, 24)) as pilot:
        await pilot.click("#steps", offset=(5, 3))
        await pilot.pause()
        assert app.steps.has_focus
        assert app.steps.cursor == 3

"""The frame around the panes: contrast of its text in every theme, tiny terminals, damaged dumps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pilot import drive, press, screen_rows, until
from rich.color import Color
from textual.app import App

from pallas_debug.tui.app import BrowseApp
from pallas_debug.tui.model.browser import Browser

LISTED = Path(__file__).parent / "data" / "dumps"


def luminance(color: Color) -> float:
    """Relative luminance: https://www.w3.org/TR/WCAG22/#dfn-relative-luminance."""
    linear = []
    for channel in color.get_truecolor():
        share = channel / 255
        linear.append(share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4)
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def faint(app: App[None]) -> set[tuple[str, float]]:
    """The text in the panes or the dialog with a contrast below 4.5, and that contrast."""
    found = set()
    box = next(iter(app.screen.query("#help, #results")), app.screen).region
    for row in app.screen._compositor.render_strips()[box.y : box.bottom]:
        for text, style, _ in row.crop(box.x, box.right):
            if not any(letter.isalnum() or letter in "+-±~=✓✗▲⚑" for letter in text):
                continue
            assert style is not None
            assert style.color is not None
            assert style.bgcolor is not None
            low, high = sorted(map(luminance, (style.color, style.bgcolor)))
            contrast = (high + 0.05) / (low + 0.05)
            if contrast < 4.5 or style.dim:
                found.add((text.strip(), round(contrast, 2)))
    return found


@drive
async def test_every_text_can_be_read_in_every_theme() -> None:
    app = BrowseApp(Browser(LISTED))
    of_terminal = {name for name, theme in app.available_themes.items() if theme.ansi}
    async with app.run_test(size=(160, 40)) as pilot:
        await press(pilot, "G")
        await until(pilot, lambda: app.steps.changes and app.kernels.runs.whole)
        screens = {
            "a failure": ("3", "slash", *"vector", "enter", "k"),
            "a diff": ("escape", "escape", "1", "g", "plus"),
            "the source": ("d", "o"),
            "the help": ("question_mark",),
            "a dialog": ("escape", "colon", *"lay"),
            "findings": ("escape", "R"),
            "a search": ("escape", "ctrl+g", *"addf"),
        }
        for screen, keys in screens.items():
            await press(pilot, *keys)
            await pilot.pause(0.3)
            for name in sorted({*app.available_themes} - of_terminal):
                app.theme = name
                await pilot.pause()
                assert not faint(app), f"{screen} in {name}"


@pytest.mark.parametrize("size", [(10, 5), (1, 1), (10, 30), (100, 3)])
@drive
async def test_every_pane_and_dialog_opens_in_a_tiny_terminal(size: tuple[int, int]) -> None:
    app = BrowseApp(Browser(LISTED))
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.steps.changes)
        for keys in ("j", "2", "3", "o", "tab", "d", "D", "escape", "colon", "x", "escape"):
            await press(pilot, keys)
        for keys in ("question_mark", "slash", "x", "escape", "escape", "R", "escape", "z", "G"):
            await press(pilot, keys)
        assert app.is_running
        assert len(app.screen_stack) == 1


@drive
async def test_a_pass_that_was_cut_off_is_said_to_be_damaged(tmp_path: Path) -> None:
    root = Path(shutil.copytree(LISTED, tmp_path / "dumps"))
    (cut,) = root.glob("double-*/v5e/passes/12-*")
    cut.write_bytes(cut.read_bytes()[:300] + b"\xe2\x82")
    app = BrowseApp(Browser(root))
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: app.steps.changes)
        await press(pilot, "colon", *"apply-vector-layout", "enter")
        assert "12 apply-vector-layout" in screen_rows(app)[0]
        assert "is damaged: it has 302 bytes, and its manifest records 3,699" in app.text.line(0)
        await press(pilot, "d", "u", "x", "plus", "escape")
        assert app.is_running


@drive
async def test_two_programs_show_a_directory_that_a_third_changes(tmp_path: Path) -> None:
    root = Path(shutil.copytree(LISTED, tmp_path / "dumps"))
    shutil.copytree(root / "double-40afca47", root / "double-00000000")
    one, other = (BrowseApp(Browser(root)) for _ in range(2))
    async with one.run_test(size=(80, 24)) as a, other.run_test(size=(80, 24)) as b:
        shutil.rmtree(root / "running-cc4e5499")
        for app, pilot in ((one, a), (other, b)):
            await until(pilot, lambda app=app: app.steps.changes)
            rows = "".join(screen_rows(app))
            assert "double-40af" in rows, "the digest tells the two apart"
            assert "running-" not in rows
            await press(pilot, "j", "j", "enter", "G", "d", "R", "escape")
            assert app.is_running

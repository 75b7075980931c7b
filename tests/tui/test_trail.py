"""The trail of an operation, in Textual's own driver, through the passes of the real compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
from pilot import drive, screen_rows
from textual.app import ComposeResult

from pallas_debug.ir.operations import Module
from pallas_debug.tui.panes.trail import TrailPane, TrailRow, trail_rows
from pallas_debug.tui.theme import ThemedApp
from pallas_debug.tui.widgets.cells import cells as cell_count
from pallas_debug.tui.widgets.cells import plain

SIZES = {"160x48": (160, 48), "80x24": (80, 24), "40x12": (40, 12)}
DATA = Path(__file__).parents[1] / "ir" / "data"
PATHS = sorted((DATA / "libtpu-0.0.50").glob("rows-*/v5e/passes/*"))


class Alone(ThemedApp):
    """Nothing but the pane."""

    def __init__(self) -> None:
        super().__init__()
        self.pane = TrailPane(id="trail")
        self.chosen: list[tuple[str, int]] = []

    def compose(self) -> ComposeResult:
        yield self.pane

    def on_mount(self) -> None:
        self.pane.focus()

    def on_trail_pane_chosen(self, event: TrailPane.Chosen) -> None:
        self.chosen.append((event.label, event.line))


def modules() -> dict[str, Module]:
    return {path.stem: Module.of(path.read_text()) for path in PATHS}


def line_of(module: Module, name: str) -> int:
    return module.names.index(name)


@pytest.mark.parametrize("size", SIZES)
@drive
async def test_a_load_through_all_passes(size: str) -> None:
    app = Alone()
    found = modules()
    labels = [path.stem for path in PATHS]
    async with app.run_test(size=SIZES[size]) as pilot:
        line = line_of(found[labels[0]], "vector.load")
        app.pane.follow(modules, labels[0], line)
        assert app.pane.following
        message = plain(app.pane.cells(0))
        assert message == f"following line {line + 1} of {labels[0]}…"
        while app.pane.following:
            await pilot.pause(0.01)
        await pilot.pause()
        rows = screen_rows(app)
        assert {cell_count(row) for row in rows} == {SIZES[size][0]}
        assert rows[0].startswith("▶00-deserialization")
        assert app.pane.cursor == 0
        await pilot.press("j")
        assert app.pane.choose()
        await pilot.pause()
        row = app.pane.current
        assert row is not None
        assert app.chosen == [(labels[1], row.line)]
        assert app.pane.count >= 2


def test_fates_are_told_by_the_pass_that_did_it_whichever_way_one_looks() -> None:
    alias = '#loc1 = loc("a.py":3:1)\n'
    texts = [
        "module {\n  %0 = a.load %x loc(#loc1)\n}\n" + alias,
        "module {\n" + "  %0 = b.load %x loc(#loc1)\n" * 2 + "}\n" + alias,
        "module {\n}\n",
    ]

    def load() -> dict[str, Module]:
        return {str(n): Module.of(text) for n, text in enumerate(texts)}

    def fates(rows: list[TrailRow]) -> list[tuple[int, int | None, str, bool]]:
        return [(int(row.label), row.line, row.fate, row.here) for row in rows]

    assert fates(trail_rows(load, "0", 1)) == [
        (0, 1, "first", True),
        (1, 1, "split", False),
        (1, 2, "split", False),
        (2, None, "gone", False),
    ]
    assert fates(trail_rows(load, "1", 1))[0] == (0, 1, "first", False)
    texts.reverse()
    assert fates(trail_rows(load, "2", 1))[:2] == [(1, 1, "new", False), (1, 2, "new", False)]
    assert fates(trail_rows(load, "2", 1))[2] == (2, 1, "merged", True)


@drive
async def test_an_operation_that_is_gone_leads_nowhere() -> None:
    app = Alone()
    texts = ["module {\n  %0 = a.b : i32\n}\n", "module {\n}\n"]
    async with app.run_test(size=(80, 24)) as pilot:
        named = dict(zip(["one", "two"], map(Module.of, texts), strict=True))
        app.pane.follow(lambda: named, "one", 1)
        while app.pane.following:
            await pilot.pause(0.01)
        await pilot.pause()
        assert [row.rstrip() for row in screen_rows(app)[:2]] == [
            "▶one                 2  %0 = a.b : i32",
            " two  ✗ gone",
        ]
        await pilot.press("j")
        assert not app.pane.choose()
        await pilot.click(app.pane, offset=(3, 0))
        await pilot.click(app.pane, offset=(3, 0))
        await pilot.pause()
        assert app.chosen == [("one", 1)]

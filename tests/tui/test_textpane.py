"""The text pane on its own, in Textual's own driver: files and lists of any size and shape."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pilot import drive, screen_rows, until
from textual.app import ComposeResult

from pallas_debug.tui.model.document import Document
from pallas_debug.tui.panes.text import DEFINED, SAME, TextPane
from pallas_debug.tui.theme import ThemedApp
from pallas_debug.tui.widgets.cells import cells as cell_count
from pallas_debug.tui.widgets.cells import plain

SIZES = {"160x48": (160, 48), "80x24": (80, 24), "40x12": (40, 12)}
DATA = Path(__file__).parents[1] / "ir" / "data"
PASSES = sorted((DATA / "libtpu-0.0.50").glob("rows-*/v5e/passes/*"))
JAXPR = next((DATA / "libtpu-0.0.50").glob("rows-*/jaxpr.txt"))


class Alone(ThemedApp):
    """Nothing but the pane."""

    def __init__(self, **state: Any) -> None:
        super().__init__(**state)
        self.pane = TextPane(id="text")
        self.redrawn = 0

    def compose(self) -> ComposeResult:
        yield self.pane

    def on_mount(self) -> None:
        self.pane.focus()

    def on_text_pane_text_changed(self) -> None:
        self.redrawn += 1

    def rows(self) -> list[str]:
        """The screen, without the bar in its last column."""
        return [row[:-1] for row in screen_rows(self)]


def lines_of(path: Path) -> list[str]:
    return path.read_text().removesuffix("\n").split("\n")


@pytest.mark.parametrize("size", SIZES)
@drive
async def test_every_stage_is_drawn_at_every_size(size: str) -> None:
    app = Alone()
    async with app.run_test(size=SIZES[size]) as pilot:
        for path in (*PASSES[::5], JAXPR):
            app.pane.locations = True
            app.pane.show(lines_of(path), keep=0)
            await pilot.pause()
            width, height = SIZES[size]
            rows = app.rows()
            assert len(rows) == height
            assert {cell_count(row) for row in rows} == {width - 1}
            for number, line in enumerate(lines_of(path)[: height - 1]):
                if number and "loc(" not in line:
                    start = rows[number][len(str(app.pane.count)) + 1 :].rstrip("› ")
                    assert line.startswith(start[: width - 12])


@drive
async def test_a_line_that_goes_on_says_so_and_can_be_panned() -> None:
    app = Alone()
    async with app.run_test(size=(40, 12)) as pilot:
        app.pane.show(["short", "0123456789" * 10])
        await pilot.pause()
        assert "›" not in app.rows()[0]
        assert app.rows()[1].startswith("2 01234567")
        assert app.rows()[1].endswith("2345›")
        await pilot.press("l")
        await pilot.pause()
        assert app.rows()[1].startswith("2 ‹9012345")
        assert app.rows()[0].rstrip() == "1 ‹"
        app.pane.action_pan(200)
        await pilot.pause()
        assert app.pane.panned == 99
        assert app.rows()[1].rstrip() == "2 ‹"
        app.pane.panned = 63
        await pilot.pause()
        assert app.rows()[1].endswith("456789")
        await pilot.press("h")
        assert app.pane.panned == 55


@drive
async def test_what_is_wide_combining_or_hostile_takes_the_cells_it_says() -> None:
    app = Alone()
    hostile = [
        "\x1b[31mred\x1b]0;title\x07",
        "[bold]markup[/] %x",
        "\u202eesrever\u2066 isolate \u200bnothing\u2028",
        "宽字" * 40,
        "e\u0301" * 100,
        "a\tb\t\tc",
        "\U0001f469\u200d\U0001f469\u200d\U0001f467 \ufe0f \U0001f44d\U0001f3fd",
        "\udc80 half",
    ]
    async with app.run_test(size=(40, 12)) as pilot:
        app.pane.show(hostile)
        for pan in (0, 1, 3, 7):
            app.pane.panned = pan
            await pilot.pause()
            rows = app.rows()
            assert {cell_count(row) for row in rows} == {39}
            joined = "".join(rows)
            assert joined.isprintable()
            assert not set(joined) & set("\x1b\x07\u202e\u2066\u200b\u200d\ufe0f\udc80\t")
            joined.encode()
        app.pane.panned = 0
        await pilot.pause()
        rows = app.rows()
        assert "␛[31mred␛]0;title␇" in rows[0]
        assert "[bold]markup[/] %x" in rows[1]
        assert "�esrever�" in rows[2]
        assert rows[5].startswith("6 a       b               c ")


@drive
async def test_of_a_long_line_the_start_is_drawn() -> None:
    app = Alone()
    async with app.run_test(size=(80, 24)) as pilot:
        app.pane.show(["first", "0123456789" * 100_000])
        await pilot.pause()
        assert plain(app.pane.cells(1)).endswith("789 …")
        app.pane.panned = 9_995
        await pilot.pause()
        assert app.rows()[1].rstrip() == "2 ‹6789 …"


@drive
async def test_a_large_file_is_shown_and_searched_in_a_thread(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"%0 = a.b\n" * 6_000_000 + b"the very needle\n")
    app = Alone()
    async with app.run_test(size=(80, 24)) as pilot:
        app.pane.show(Document(os.open(path, os.O_RDONLY)))
        await pilot.pause()
        assert not app.pane.linked
        assert app.pane.state.startswith("no values and Python lines: the text has 54 MB")
        app.pane.cursor = 5_000_000
        assert app.pane.cursor == 5_000_000
        app.pane.action_go(-1)
        assert app.pane.cursor == 6_000_000
        app.pane.action_go(0)
        app.pane.search("the very needle")
        assert app.pane.where == "searching"
        await pilot.press("j")
        await until(pilot, lambda: not app.pane.searching)
        assert app.pane.where == "1/1"
        assert app.pane.cursor == 6_000_000
        assert app.rows()[-1].rstrip() == "6000001 the very needle"


@drive
async def test_definitions_of_locations_are_hidden_until_a_search_leads_there() -> None:
    app = Alone()
    lines = ["#loc1 = loc(unknown)", "module {", "  %0 = a.b loc(#loc1)", "}", "#loc2 = loc(#loc1)"]
    async with app.run_test(size=(40, 12)) as pilot:
        app.pane.show(lines, keep=0)
        await pilot.pause()
        assert [row.rstrip() for row in app.rows()[:4]] == ["2 module {", "3   %0 = a.b", "4 }", ""]
        assert app.pane.cursor == 1
        await pilot.press("G")
        assert app.pane.cursor == 3
        await pilot.press("g")
        assert app.pane.cursor == 1
        assert not app.pane.locations
        app.pane.search("loc2")
        await pilot.pause()
        assert app.pane.locations
        assert app.pane.cursor == 4
        assert app.rows()[4].rstrip() == "5 #loc2 = loc(#loc1)"
        app.pane.locations = False
        assert app.pane.cursor == 3


@drive
async def test_values_are_told_apart_by_definition_and_use() -> None:
    app = Alone()
    async with app.run_test(size=(160, 48)):
        for path in (PASSES[0], JAXPR):
            app.pane.show(lines_of(path))
            module = app.pane.module
            line, uses = next(
                (n, module.uses(o.results[0].name, n))
                for n in range(app.pane.count)
                for o in module.operations(n)
                if o.results and len(module.uses(o.results[0].name, n)) == 1
            )
            app.pane.cursor = line
            assert DEFINED in {kind for _, kind in app.pane.cells(line)}
            assert SAME in {kind for _, kind in app.pane.cells(uses[0])}
            assert app.pane.next_use()
            assert app.pane.cursor == uses[0]


@drive
async def test_search_is_incremental() -> None:
    app = Alone()
    texts = ["a load", "Load.b", "x", "load load", "a.b", "load"]
    async with app.run_test(size=(80, 24)) as pilot:
        pane = app.pane
        pane.show(texts, keep=2)
        for typed, cursor, where in (("l", 3, "3/4"), ("lo", 3, "3/4"), ("load", 3, "3/4")):
            pane.search(typed)
            assert (pane.cursor, pane.where) == (cursor, where)
        pane.search("loadx")
        assert (pane.cursor, pane.where) == (2, "0/0")
        pane.search("Load")
        assert (pane.cursor, pane.where) == (1, "1/1")
        pane.search("a.")
        assert pane.hits == [0, 1, 3, 4, 5]
        pane.search("(?=a)")
        assert pane.problem.startswith("not a regular expression: invalid perl operator: (?=")
        assert pane.problem.endswith("searching for the literal text")
        pane.search("load")
        pane.cursor = 5
        pane.next_hit(1)
        assert pane.cursor == 0
        pane.next_hit(-1)
        assert pane.cursor == 5
        await pilot.pause()
        assert "hit" in {kind for _, kind in pane.cells(0)}
        pane.search(None)
        assert pane.where == ""
        assert "hit" not in {kind for _, kind in pane.cells(0)}


@drive
async def test_tables_of_a_long_pass_are_made_in_a_thread() -> None:
    app = Alone()
    texts = lines_of(PASSES[0])
    long = texts * (1 + 6000 // len(texts))
    async with app.run_test(size=(80, 24)) as pilot:
        app.pane.show(long)
        assert not app.pane.linked
        assert app.pane.state == "parsing"
        await until(pilot, lambda: app.pane.linked)
        assert app.pane.state == ""
        assert app.redrawn
        assert app.pane.module.from_source


@drive
async def test_an_empty_text_and_odd_keys() -> None:
    app = Alone()
    async with app.run_test(size=(20, 3)) as pilot:
        app.pane.show([])
        await pilot.press("j", "G", "g", "l", "h", "space", "b")
        app.pane.search("x")
        app.pane.next_hit(1)
        app.pane.next_hit(-1)
        assert not app.pane.next_use()
        assert app.pane.origin == ()
        assert app.pane.cursor == 0


@drive
async def test_without_colour_all_is_still_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = Alone()
    async with app.run_test(size=(160, 12)) as pilot:
        app.pane.show(["%0 = a.b %1", "%2 = a.c %0", "plain"])
        app.pane.cursor = 1
        app.pane.search("c")
        await pilot.pause()
        strips = [list(strip) for strip in app.screen._compositor.render_strips()]
        styles = {s.text: s.style for strip in strips for s in strip if s.text.strip() and s.style}
        assert styles["c"].reverse
        assert styles["%2"].bold
        assert all(s.style and s.style.bold for s in strips[1] if s.text.strip())
        assert not any(s.style and s.style.reverse for s in strips[2])

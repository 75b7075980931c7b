"""Views restricted to matching lines: the selection of lines, and the pane that shows them."""

from __future__ import annotations

import asyncio
import random
from array import array

import pytest
from pilot import screen_rows
from textual.app import App, ComposeResult

from pallas_debug.tui.panes.text import TextPane
from pallas_debug.tui.widgets.lines import HitLines


@pytest.mark.parametrize("context", [0, 1, 2, 5])
def test_the_lines_around_hits_and_no_others(context: int) -> None:
    rng = random.Random(context)
    for count in (1, 7, 60, 400):
        hits = sorted(rng.sample(range(count), rng.randrange(count + 1)))
        seen = [n for n in range(count) if any(abs(n - hit) <= context for hit in hits)]
        only, known = HitLines(context), array("Q")
        for hit in hits:  # bit by bit
            known.append(hit)
            only.extend(known)
        assert only.rows(count) == len(seen)
        assert [only.line_of(row) for row in range(len(seen))] == seen
        for line in range(count):
            assert (line in only) == (line in seen)
            before = [row for row, other in enumerate(seen) if other <= line]
            assert only.row_of(line) == (before[-1] if before else 0)
            left_out = line in seen and line > 0 and line - 1 not in seen
            assert only.opens(line) == left_out


def test_another_search_begins_at_the_start() -> None:
    only = HitLines(0)
    only.extend(array("Q", [1, 2, 3]))
    other = array("Q", [7])
    only.extend(other)
    assert (only.rows(10), only.line_of(0)) == (1, 7)
    other.append(9)
    only.extend(other)
    assert [only.line_of(row) for row in range(only.rows(10))] == [7, 9]
    del other[1:]  # what was found in a piece is looked for again
    only.extend(other)
    assert only.rows(10) == 1


class Alone(App[None]):
    def compose(self) -> ComposeResult:
        yield TextPane(id="text")

    def rows(self) -> list[str]:
        return [row[:-1].rstrip() for row in screen_rows(self)]


def test_the_pane_shows_them_moves_in_them_and_goes_back() -> None:
    async def run() -> None:
        app = Alone()
        async with app.run_test(size=(40, 12)) as pilot:
            pane = app.query_one(TextPane)
            pane.focus()
            pane.show([f"line {n}{' needle' * (n in (10, 12, 50))}" for n in range(100)])
            pane.search("needle")
            pane.narrow(True)
            await pilot.pause()
            shown = [8, 9, 10, 11, 12, 13, 14, 48, 49, 50, 51, 52]
            marks = ["┄" if n in (8, 48) else " " for n in shown]
            expected = [f"{n + 1:>3}{m}line {n}" for n, m in zip(shown, marks, strict=True)]
            assert [row.removesuffix(" needle") for row in app.rows()] == expected
            assert (pane.rows, pane.count, pane.cursor) == (12, 100, 10)
            pane.action_move(5)
            assert pane.cursor == 48
            pane.action_go(-1)
            assert pane.cursor == 52
            pane.next_case()  # another search of the same: still narrowed
            await pilot.pause()
            assert pane.narrowed
            assert pane.rows == 12
            pane.go_to(70)  # a line that is not shown is shown with all others
            assert not pane.narrowed
            assert pane.rows == 100

    asyncio.run(run())


def test_what_no_line_has_narrows_nothing() -> None:
    async def run() -> None:
        app = Alone()
        async with app.run_test(size=(40, 12)) as pilot:
            pane = app.query_one(TextPane)
            pane.show(["one", "two"])
            pane.search("three")
            pane.narrow(True)
            await pilot.pause()
            assert not pane.narrowed
            assert pane.problem == "no line matches: showing all lines"
            assert app.rows()[:2] == ["1 one", "2 two"]

    asyncio.run(run())


@pytest.mark.slow
def test_hits_that_become_known_later_are_shown_then(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        app = Alone()
        async with app.run_test(size=(40, 12)) as pilot:
            pane = app.query_one(TextPane)
            pane.show([f"line {n} {'needle' * (n % 1000 == 0)}" for n in range(300_000)])
            pane.search("needle")
            pane.narrow(True)
            assert pane.narrowed
            assert pane.searching
            for _ in range(2000):
                if not pane.searching:
                    break
                await pilot.pause(0.005)
            assert pane.rows == 300 * 5 - 2
            pane.action_go(-1)
            assert pane.cursor == 299_002

    asyncio.run(run())

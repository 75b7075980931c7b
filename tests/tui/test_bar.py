"""Scroll bar at the right edge of a view, with mouse support."""

from __future__ import annotations

import asyncio

import pytest
from pilot import screen_rows
from textual import events
from textual.app import ComposeResult

from pallas_debug.tui.panes.text import TextPane
from pallas_debug.tui.theme import ThemedApp
from pallas_debug.tui.widgets.lineview import THUMB, TRACK, bar_thumb


def test_there_is_none_where_all_is_seen() -> None:
    assert not bar_thumb(0, 10, 0)
    assert not bar_thumb(10, 10, 0)
    assert bar_thumb(11, 10, 0)


@pytest.mark.parametrize("rows", [11, 25, 100, 10_000_000])
@pytest.mark.parametrize("room", [1, 2, 3, 10, 46])
def test_it_stands_at_an_end_only_where_that_is_seen(rows: int, room: int) -> None:
    if rows <= room:
        return
    last = rows - room
    tops = sorted({0, 1, last // 3, last // 2, last - 1, last})
    thumbs = [bar_thumb(rows, room, top) for top in tops]
    assert all(0 <= t.start < t.stop <= room for t in thumbs)
    assert len({len(t) for t in thumbs}) == 1
    assert [t.start for t in thumbs] == sorted(t.start for t in thumbs)
    assert thumbs[0].start == 0
    assert thumbs[-1].stop == room
    if room - len(thumbs[0]) >= 2:
        between = thumbs[1:-1]
        assert all(t.start > 0 and t.stop < room for t in between)


class Alone(ThemedApp):
    def compose(self) -> ComposeResult:
        yield TextPane(id="text")

    def column(self, x: int) -> str:
        return "".join(row[x] for row in screen_rows(self))


def _mouse(kind: type[events.MouseEvent], pane: TextPane, x: int, y: int) -> events.MouseEvent:
    return kind(pane, x, y, 0, 0, 1, False, False, False, screen_x=x, screen_y=y)


def test_the_wheel_of_the_mouse_moves_what_is_seen_and_a_click_the_cursor() -> None:
    async def run() -> None:
        app = Alone()
        async with app.run_test(size=(40, 10)) as pilot:
            pane = app.query_one(TextPane)
            pane.show([f"line {n}" for n in range(100)])
            await pilot.pause()
            assert app.column(39) == THUMB + TRACK * 9
            before = pane.scroll_offset.y
            pane.post_message(_mouse(events.MouseScrollDown, pane, 5, 5))
            await pilot.pause()
            assert pane.scroll_offset.y > before
            pane.post_message(_mouse(events.MouseScrollUp, pane, 5, 5))
            await pilot.pause()
            assert pane.scroll_offset.y == before
            await pilot.click(pane, offset=(5, 2))
            assert pane.cursor == before + 2

    asyncio.run(run())

"""The diff pane on its own, in Textual's own driver, on passes of the real compiler."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import pytest
from pilot import drive, screen_rows, until
from textual.app import ComposeResult

from pallas_debug.tui.panes import diff as diffpane
from pallas_debug.tui.panes.diff import Compared, DiffPane
from pallas_debug.tui.theme import ThemedApp
from pallas_debug.tui.widgets.cells import cells as cell_count
from pallas_debug.tui.widgets.cells import plain

SIZES = {"160x48": (160, 48), "80x24": (80, 24), "40x12": (40, 12)}
DATA = Path(__file__).parents[1] / "ir" / "data"
(PASSES,) = (DATA / "libtpu-0.0.50").glob("rows-*/v5e/passes")
OLD, NEW = PASSES / "14-relayout-insertion.mlir", PASSES / "15-apply-vector-layout.mlir"


class Alone(ThemedApp):
    """Nothing but the pane."""

    def __init__(self) -> None:
        super().__init__()
        self.pane = DiffPane(id="diff")
        self.states: list[str] = []

    def compose(self) -> ComposeResult:
        yield self.pane

    def on_mount(self) -> None:
        self.pane.focus()

    def on_diff_pane_diff_changed(self) -> None:
        self.states.append(self.pane.state)


def lines_of(path: Path) -> list[str]:
    return path.read_text().removesuffix("\n").split("\n")


def compare(pane: DiffPane, old: Path = OLD, new: Path = NEW) -> None:
    show(pane, lines_of(old), lines_of(new), labels=(old.stem, new.stem))


def show(
    pane: DiffPane,
    old: list[str],
    new: list[str],
    labels: tuple[str, str] = ("A", "B"),
) -> None:
    a, b = (
        Compared(label=label, size=sum(map(len, lines)), read=functools.partial(list, lines))
        for label, lines in zip(labels, (old, new), strict=True)
    )
    pane.compare(a, b)


@pytest.mark.parametrize("size", SIZES)
@drive
async def test_every_pass_against_the_next_at_every_size(size: str) -> None:
    app = Alone()
    async with app.run_test(size=SIZES[size]) as pilot:
        paths = sorted(PASSES.iterdir())
        for old, new in zip(paths[::4], paths[1::4], strict=False):
            compare(app.pane, old, new)
            await pilot.pause()
            rows = screen_rows(app)
            assert {cell_count(row) for row in rows} == {SIZES[size][0]}
            assert len(rows) == SIZES[size][1]
            assert app.pane.count > 1


@drive
async def test_words_that_changed_are_reversed_and_lines_have_signs() -> None:
    app = Alone()
    async with app.run_test(size=(80, 24)) as pilot:
        show(app.pane, ["same", "%0 = a.load %1 : f32"], ["same", "%0 = a.store %1 : f32"])
        await pilot.pause()
        rows = [row.rstrip() for row in screen_rows(app)]
        assert rows[:7] == [
            "- A   + B",
            "  a.load       -1          ██████████████████████████████",
            "  a.store              +1  ██████████████████████████████",
            "@@ -1,2 +1,2 @@",
            "1 1  same",
            "2   -%0 = a.load %1 : f32",
            "  2 +%0 = a.store %1 : f32",
        ]
        assert app.pane.cells(5) == [
            ("%0 = ", "text-error"),
            ("a.load", "reverse text-error"),
            (" %1 : f32", "text-error"),
        ]
        styled = [s for strip in app.screen._compositor.render_strips()[5:7] for s in strip]
        assert [s.text for s in styled if s.style and s.style.reverse] == ["a.load", "a.store"]


@drive
async def test_a_location_is_no_change_in_a_line_that_changed() -> None:
    app = Alone()
    async with app.run_test(size=(80, 24)) as pilot:
        old = ["%0 = a.load %1 : f32 loc(#loc1)", "%1 = a.b loc(#loc1)"]
        show(app.pane, old, ["%0 = a.store %1 : f32 loc(#loc7)", "%1 = a.b loc(#loc8)"])
        await pilot.pause()
        removed, added = app.pane.cursor, app.pane.cursor + 1
        assert plain(app.pane.cells(removed)) == "%0 = a.load %1 : f32"
        assert plain(app.pane.cells(added)) == "%0 = a.store %1 : f32"
        assert [text for text, look in app.pane.cells(added) if look == "reverse text-success"] == [
            "a.store"
        ]
        assert app.pane.count == 7


@drive
async def test_renumbered_values_are_not_marked_and_other_operands_are() -> None:
    app = Alone()
    old = ["%0 = a.b : i32", "%1 = a.c : i32", "%2 = a.d %0, %1 : i32", "%3 = a.e %2, %0"]
    new = ["%4 = a.b : i32", "%5 = a.c : i32", "%6 = a.d %4, %4 : i32", "%7 = a.f %6, %4"]
    async with app.run_test(size=(80, 24)):
        show(app.pane, old, new)
        marked = [
            [text for text, look in app.pane.cells(n) if look.startswith("reverse")]
            for n in range(app.pane.count)
        ]
        assert [words for words in marked if words] == [["%1"], ["a.e"], ["%4"], ["a.f"]]


@drive
async def test_a_row_of_an_operation_filters_the_changes() -> None:
    app = Alone()
    same = [f"%{n} = a.same %{n} : i32" for n in range(20)]
    old = ["%x = a.load : i32", *same, "%y = a.mul : i32"]
    new = ["%x = a.store : i32", *same, "%y = a.div : i32", "%z = a.div : i32"]
    async with app.run_test(size=(80, 40)) as pilot:
        show(app.pane, old, new, labels=("v5e", "v6e"))
        await pilot.pause()
        rows = [row.rstrip() for row in screen_rows(app)]
        assert rows[0] == "- v5e   + v6e"
        assert [row.split()[:2] for row in rows[1:5]] == [
            ["a.div", "+2"],
            ["a.load", "-1"],
            ["a.mul", "-1"],
            ["a.store", "+1"],
        ]
        assert sum(row.startswith("@@") for row in rows) == 2
        app.pane.cursor = 1
        app.pane.choose()
        await pilot.pause()
        rows = [row.rstrip() for row in screen_rows(app)]
        assert rows[1].startswith("▸ a.div")
        assert sum(row.startswith("@@") for row in rows) == 1
        assert not any("a.load :" in row for row in rows)
        app.pane.choose()
        await pilot.pause()
        assert sum(row.startswith("@@") for row in screen_rows(app)) == 2


@drive
async def test_a_change_beyond_the_edge_is_panned_to() -> None:
    app = Alone()
    head = "%0 = a.b " + "x" * 100
    async with app.run_test(size=(60, 24)) as pilot:
        show(app.pane, [f"{head} old", *"abcdefgh", "short"], [f"{head} new", *"abcdefgh", "other"])
        await pilot.pause()
        assert app.pane.panned
        assert any("old" in row for row in screen_rows(app))
        app.pane.next_hunk(1)
        await pilot.pause()
        assert app.pane.panned == 0


@drive
async def test_noise_is_ignored() -> None:
    app = Alone()
    async with app.run_test(size=(80, 24)) as pilot:
        old = ["%0 = a.b : i32 loc(#loc1)", "a.c %0"]
        new = ["%7 = a.b : i32 loc(#loc9)", "a.c %7"]
        show(app.pane, old, new)
        await pilot.pause()
        assert screen_rows(app)[0].startswith(
            "B is the same as A except for value numbers, locations"
        )
        assert app.pane.state == "-0 +0 lines"


@drive
async def test_keys_go_from_change_to_change() -> None:
    app = Alone()
    old = [f"line {n}" for n in range(100)]
    new = [*old[:20], "x", *old[21:60], "y", "z", *old[60:]]
    async with app.run_test(size=(80, 24)):
        pane = app.pane
        show(pane, old, new)
        assert pane.place == (20, None)
        pane.next_hunk(1)
        assert pane.place == (None, 60)
        pane.next_hunk(1)
        assert pane.place == (None, 60)
        pane.next_hunk(-1)
        assert pane.place == (20, None)
        pane.search("z")
        assert pane.place == (None, 61)
        assert pane.where == "1/1"


@drive
async def test_a_long_diff_is_made_in_a_thread() -> None:
    app = Alone()
    old = [f"%{n} = a.b{n % 7} %{n - 1} : i32" for n in range(6000)]
    new = [f"%{n} = a.b{n % 5} %{n - 1} : i32" for n in range(6000)]
    async with app.run_test(size=(80, 24)) as pilot:
        show(app.pane, old, new, labels=("before", "after"))
        assert app.pane.comparing
        assert app.pane.state == "diffing…"
        assert plain(app.pane.cells(0)) == "diffing before with after…"
        await until(pilot, lambda: app.pane.state.startswith("-"))
        assert app.pane.count > 100
        assert "diffing…" in app.states


@pytest.mark.slow
@drive
async def test_many_bytes_are_read_in_a_thread() -> None:
    app = Alone()
    threads: list[threading.Thread] = []

    def text(label: str, line: str) -> Compared:
        def read() -> list[str]:
            threads.append(threading.current_thread())
            return [line]

        return Compared(label=label, size=len(line), read=read)

    async with app.run_test(size=(80, 24)) as pilot:
        for size, in_thread in ((10, False), (5_000_000, True)):
            threads.clear()
            app.pane.compare(text("A", "x " * size), text("B", "y " * size))
            await until(pilot, lambda: not app.pane.comparing)
            assert [t is not threading.main_thread() for t in threads] == [in_thread] * 2
            assert screen_rows(app)[2].startswith("1   -x x")
            assert screen_rows(app)[3].startswith("  1 +y y")


@drive
async def test_what_is_too_large_is_said_and_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffpane, "MAX_BYTES", 2_000_000)
    app = Alone()

    def read() -> list[str]:
        raise AssertionError

    async with app.run_test(size=(160, 24)) as pilot:
        large, small = (Compared(label=n, size=s, read=read) for n, s in (("A", 3 << 20), ("B", 1)))
        app.pane.compare(large, small)
        await pilot.pause()
        assert screen_rows(app)[0].rstrip() == (
            "A has 3 MB; the limit here is 2 MB. Use `pallas-debug diff` for larger texts."
        )

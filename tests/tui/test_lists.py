"""The lists of the terminal UI in Textual's own driver: kernels, passes, failures, runs, searches."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pilot import drive, press, screen_rows, status, until
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input, Static

from pallas_debug.store import DumpReader
from pallas_debug.tui.app import BrowseApp
from pallas_debug.tui.model.browser import Browser
from pallas_debug.tui.panes.dialogs import ListScreen
from pallas_debug.tui.widgets.cells import plain

Golden = Callable[[App[None], str], None]
LISTED = Path(__file__).parent / "data" / "dumps"
MANY = 10_000


async def until_idle(pilot: Pilot[None], app: BrowseApp) -> None:
    """All rows are read, and the operations of the steps counted."""
    await until(pilot, lambda: app.kernels.list.whole and app.kernels.runs.whole)
    await until(pilot, lambda: app.steps.changes)
    await app.workers.wait_for_complete()
    await pilot.pause(0.1)


def kernel(app: BrowseApp) -> str:
    return app.entry.name.partition("-")[0] if app.entry else ""


def message(app: BrowseApp) -> str:
    """Below the list that lies over the panes."""
    return str(app.screen.query_one("#summary", Static).render())


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    """The app shortens the interpreter's turns; other tests have them as they were."""
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10,000 kernels, a hundred of which failed; all are links to the folders of two."""
    root = tmp_path_factory.mktemp("many")
    shutil.copytree(LISTED, root / ".listed")  # links out of the directory are not followed
    double, running = (
        str(next((root / ".listed").glob(f"{name}-*"))) for name in ("double", "running")
    )
    for number in range(MANY):
        source = running if number % 100 == 99 else double
        os.symlink(source, f"{root}/kernel_{number:05d}-{number:08x}")  # noqa: PTH211 - quicker
    return root


# Kernels.


@pytest.mark.slow
@drive
async def test_the_first_screen_of_ten_thousand_kernels_reads_few(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = DumpReader.read

    def reading(self: DumpReader, name: str) -> Any:
        read.append(name)
        return real(self, name)

    monkeypatch.setattr(DumpReader, "read", reading)
    app = BrowseApp(Browser(many))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.kernels.list.targets)
        assert app.kernels.count == MANY
        assert plain(app.kernels.cells(0)).startswith("✓ kernel_00000  ✓v5e")
        assert len(set(read)) <= 24
        await press(pilot, "G")
        assert app.kernels.cursor == MANY - 1
        assert len(set(read)) <= 2 * 24
        assert "10,000 of 10,000" in "".join(screen_rows(app))


@drive
async def test_the_kernels_are_filtered() -> None:
    app = BrowseApp(Browser(LISTED))
    async with app.run_test(size=(80, 24)) as pilot:
        await press(pilot, "f", *"failed")
        await until(pilot, lambda: app.kernels.count == 2)
        assert app.kernels.note == "2/3 failed"
        await press(pilot, "space", *"unal", "enter")
        assert app.kernels.has_focus
        assert [entry.name.partition("-")[0] for entry in app.kernels.shown] == ["unaligned"]
        assert kernel(app) == "unaligned"
        await press(pilot, "f", *"x", "enter")
        assert app.entry is None
        assert app.text.line(0) == "no kernel matches the filter; press f to change it"
        await press(pilot, "escape")
        assert (app.kernels.count, app.kernels.note) == (3, "2 failed")


@pytest.mark.slow
@drive
async def test_two_directories_side_by_side(tmp_path: Path) -> None:
    other = Path(shutil.copytree(LISTED, tmp_path / "other"))
    shutil.rmtree(other / "double-40afca47")
    compilation = other / "running-cc4e5499" / "v6e" / "compilation.json"
    compilation.parent.mkdir()
    text = (LISTED / "double-40afca47" / "v5e" / "compilation.json").read_text()
    compilation.write_text(text.replace('"target": "v5e"', '"target": "v6e"'))
    app = BrowseApp(Browser(LISTED, other))
    async with app.run_test(size=(160, 48)) as pilot:
        await until_idle(pilot, app)
        rows = [plain(app.kernels.cells(i)) for i in range(3)]
        assert rows[0].startswith("A ✓ double     ⚑1   ✓v5e")
        assert rows[1].startswith("A ✗ running         ✗v5e")
        assert rows[2].startswith("B ✗ running         ✗v5e ✓v6e")


@pytest.mark.slow
@drive
async def test_names_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    name = "a\x1b[2J[red]\u202ek-12345678"
    shutil.copytree(LISTED / "double-40afca47", tmp_path / name)
    (tmp_path / "empty").mkdir()
    app = BrowseApp(Browser(tmp_path))
    async with app.run_test(size=(160, 48)) as pilot:
        await until_idle(pilot, app)
        screen = "\n".join(screen_rows(app))
        assert "a␛[2J[red]�k" in screen
        assert "\x1b" not in screen
        assert "\u202e" not in screen
        await press(pilot, "j")
        assert plain(app.kernels.cells(1)).strip() == "? empty"
        assert app.failure.report is not None
        await press(pilot, "ctrl+g", *"addf")
        await until(pilot, lambda: app.search.hits and not app.search.running)
        assert "\x1b" not in "".join(screen_rows(app))


@pytest.mark.slow
@drive
async def test_what_vanishes_while_it_is_shown(tmp_path: Path) -> None:
    root = Path(shutil.copytree(LISTED, tmp_path / "dumps"))
    app = BrowseApp(Browser(root))
    async with app.run_test(size=(160, 48)) as pilot:
        await until_idle(pilot, app)
        shutil.rmtree(root)
        await press(pilot, "j", "j", "k", "tab", "j", "G", "R", "escape")
        await press(pilot, "ctrl+g", *"add", "escape", "escape", "escape")
        assert app.is_running


@pytest.mark.slow
@drive
async def test_a_long_name_is_cut_so_that_its_targets_are_seen() -> None:
    app = BrowseApp(Browser(LISTED))
    async with app.run_test(size=(80, 30)) as pilot:
        await until_idle(pilot, app)
        app.kernels.styles.width = 24
        await pilot.pause()
        rows = [plain(app.kernels.cells(i)) for i in range(app.kernels.count)]
        assert [row[: app.kernels.columns].rstrip() for row in rows] == [
            "✓ double     ⚑1   ✓v5e",
            "✗ running         ✗v5e",
            "✗ unaligned       ✗v5e",
        ]


# Passes.


@drive
async def test_passes_say_what_they_changed() -> None:
    app = BrowseApp(Browser(LISTED))
    async with app.run_test(size=(200, 30)) as pilot:
        await press(pilot, "tab", "z")
        await until_idle(pilot, app)
        rows = {s.label: plain(app.steps.cells(i)) for i, s in enumerate(app.steps.steps)}
        assert rows["01 original"].split()[:3] == ["01", "original", "="]
        (most,) = (row for row in rows.values() if row.startswith("▲"))
        words = most.split()
        assert (words[3], words[4]) == ("+14", "████████")
        assert words[6] == "ops"
        assert words[-1] == "ms"
        assert {row.index("ops") for row in rows.values() if "ops" in row} == {
            rows["mosaic"].index("ops")
        }
        assert "ops" not in rows["log"]
        assert app.steps.grew_most is not None
        assert app.steps.grew_most.label == "12 apply-vector-layout" == f"{words[1]} {words[2]}"


# Failures.


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light"])
@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 50)])
@drive
async def test_the_advice_for_a_failure_is_seen_at_once(
    golden_in_colour: Golden, size: tuple[int, int], theme: str
) -> None:
    app = BrowseApp(Browser(LISTED))
    app.theme = theme
    async with app.run_test(size=size) as pilot:
        await press(pilot, "G")
        await until_idle(pilot, app)
        assert kernel(app) == "unaligned"
        assert app.failure.report is not None
        rows = [plain(app.failure.cells(i)) for i in range(app.failure.size.height)]
        seen = " ".join(" ".join(rows).split())
        assert " ".join(app.failure.report.explanation) in seen
        assert "tpu.vector_load" in app.text.line(app.text.cursor)
        text = app.text
        await until(
            pilot, lambda: text.row_of(text.cursor) - text.scroll_offset.y in range(text.room)
        )
        golden_in_colour(app, f"failure-{size[0]}x{size[1]}-{theme.removeprefix('textual-')}")


@pytest.mark.parametrize("theme", ["textual-dark", "textual-light"])
@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 50)])
@pytest.mark.parametrize(
    "screen, keys",
    [("growth", ("plus",)), ("source", ("o", "3")), ("finding", ("exclamation_mark",))],
)
@drive
async def test_screens(
    golden_in_colour: Golden, screen: str, keys: tuple[str, ...], size: tuple[int, int], theme: str
) -> None:
    app = BrowseApp(Browser(LISTED))
    app.theme = theme
    async with app.run_test(size=size) as pilot:
        await until_idle(pilot, app)
        await press(pilot, *keys)
        await until_idle(pilot, app)
        golden_in_colour(app, f"{screen}-{size[0]}x{size[1]}-{theme.removeprefix('textual-')}")


@pytest.mark.slow
@drive
async def test_a_failure_is_told_in_a_small_terminal(golden: Golden) -> None:
    app = BrowseApp(Browser(LISTED))
    async with app.run_test(size=(40, 12)) as pilot:
        await press(pilot, "G", "3")
        await until_idle(pilot, app)
        golden(app, "failure-40x12")
        await press(pilot, "shift+tab")
        assert app.failure.has_focus
        await press(pilot, "G")
        assert app.failure.cursor == app.failure.count - 1
        await press(pilot, "1", "g")
        await until(pilot, lambda: app.failure.report is None)
        assert kernel(app) == "double"


# Findings and prints.


@pytest.mark.slow
@drive
async def test_findings_lead_to_the_line_of_the_source(golden: Golden) -> None:
    app = BrowseApp(Browser(LISTED))
    async with app.run_test(size=(80, 24)) as pilot:
        await until_idle(pilot, app)
        await press(pilot, "G", "R")
        golden(app, "runs-80x24")
        await press(pilot, *"reaches")
        await press(pilot, "enter")
        assert kernel(app) == "double"
        assert app.source.has_focus
        line = plain(app.source.cells(app.source.cursor))
        assert "o_ref[...] = x_ref[...] + x_ref[...]" in line


@pytest.mark.slow
@drive
async def test_a_finding_of_a_kernel_that_is_not_here(tmp_path: Path) -> None:
    shutil.copytree(LISTED / "runs", tmp_path / "runs")
    shutil.copytree(LISTED / "running-cc4e5499", tmp_path / "running-cc4e5499")
    app = BrowseApp(Browser(tmp_path))
    async with app.run_test(size=(160, 24)) as pilot:
        await until_idle(pilot, app)
        await press(pilot, "R", "enter")
        assert "the kernel double is not in this directory" in status(app)


@drive
async def test_without_runs_it_says_what_makes_some(tmp_path: Path) -> None:
    app = BrowseApp(Browser(tmp_path))
    async with app.run_test(size=(160, 24)) as pilot:
        await until(pilot, lambda: app.kernels.runs.whole)
        await press(pilot, "R")
        assert "no findings; run pytest with --pallas-interpret or --pallas-check" in status(app)


# Searching everywhere.


@pytest.mark.slow
@drive
async def test_a_search_over_all_kernels_goes_on_with_n(golden: Golden) -> None:
    app = BrowseApp(Browser(LISTED))
    async with app.run_test(size=(80, 24)) as pilot:
        await until_idle(pilot, app)
        await press(pilot, "ctrl+g", *"vector", "full_stop", *"load")
        await until(pilot, lambda: app.search.hits and not app.search.running)
        await pilot.pause(0.2)
        golden(app, "search-80x24")
        await press(pilot, "down")
        await press(pilot, "enter")
        hit = app.search.hits[app.search.groups[1].hits[0]]
        assert app.text.has_focus
        assert "vector.load" in app.text.line(app.text.cursor)
        assert app.text.cursor == hit.line
        assert ("vector.load", "hit") in app.text.cells(app.text.cursor)
        await press(pilot, "n")
        later = [line for line in app.text.hits if line > hit.line]
        assert app.text.cursor == min(later or app.text.hits)
        await press(pilot, "ctrl+g")
        assert app.screen.query_one(Input).value == "vector.load"
        await press(pilot, "escape", "escape")
        assert "hit" not in {kind for _, kind in app.text.cells(app.text.cursor)}


@pytest.mark.slow
@drive
async def test_a_long_search_is_stopped_by_esc_and_blocks_no_key(tmp_path: Path) -> None:
    folder = tmp_path / "k-00000000" / "v5e" / "passes"
    folder.mkdir(parents=True)
    (folder / "00-a.mlir").write_bytes(b"%0 = arith.addf\n" + b"%0 = arith.mulf\n" * 100_000)
    for number in range(1, 4000):
        (folder / f"{number:02d}-a.mlir").hardlink_to(folder / "00-a.mlir")
    app = BrowseApp(Browser(tmp_path))
    async with app.run_test(size=(120, 24)) as pilot:
        await press(pilot, "ctrl+g", *"addf")
        await until(pilot, lambda: app.search.groups)
        await press(pilot, "up")
        assert app.search.running
        await press(pilot, "escape")
        assert not app.search.running
        assert message(app).strip().endswith("stopped")
        assert isinstance(app.screen, ListScreen)
        count = app.search.count
        await pilot.pause(0.1)
        assert app.search.count == count
        await press(pilot, "escape")
        assert not isinstance(app.screen, ListScreen)

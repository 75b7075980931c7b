"""The app in Textual's own driver, at three sizes, on dumps of the real compiler."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pilot import drive, press, status
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input

from pallas_debug.tui.app import BrowseApp
from pallas_debug.tui.model.browser import Browser, Entry
from pallas_debug.tui.panes.text import SAME
from pallas_debug.tui.widgets.cells import plain
from pallas_debug.tui.widgets.frame import frame_of

Golden = Callable[[App[None], str], None]
SIZES = {"160x48": (160, 48), "80x24": (80, 24), "40x12": (40, 12)}


async def until_idle(app: BrowseApp, pilot: Pilot[None]) -> None:
    """Wait for what is made in the background."""
    await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("libtpu", ["libtpu-0.0.42", "libtpu-0.0.50"])
@drive
async def test_first_screen(raw: Path, golden: Golden, libtpu: str, size: str) -> None:
    app = BrowseApp(Browser(raw / libtpu / "add"))
    async with app.run_test(size=SIZES[size]) as pilot:
        while not app.steps.changes:  # what each pass did is counted in the background
            await pilot.pause(0.02)
        await until_idle(app, pilot)
        golden(app, f"{libtpu}-{size}")


@drive
async def test_keys_move_in_every_pane(raw: Path) -> None:
    app = BrowseApp(Browser(raw / "libtpu-0.0.50" / "add"))
    async with app.run_test(size=(160, 8)) as pilot:
        await press(pilot, "enter")
        assert app.steps.has_focus
        await press(pilot, "j", "j", "k")
        assert app.steps.cursor == 1
        await press(pilot, "G")
        assert app.steps.cursor == app.steps.count - 1
        await press(pilot, "g", "tab", "g", "space")
        assert app.text.has_focus
        assert app.text.cursor == app.text.size.height - 1
        await press(pilot, "g", "ctrl+d")
        assert app.text.cursor == (app.text.size.height - 1) // 2


@drive
async def test_brackets_go_to_what_changed(raw: Path) -> None:
    app = BrowseApp(Browser(raw / "libtpu-0.0.50" / "add"))
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "right_square_bracket", "right_square_bracket")
        changed = app.steps.current
        assert changed is not None
        assert changed.changed
        await press(pilot, "left_square_bracket")
        before = app.steps.current
        assert before is not None
        assert before.changed
        assert app.steps.steps.index(before) < app.steps.steps.index(changed)


@pytest.mark.slow
@drive
async def test_a_line_is_gone_to(raw: Path) -> None:
    app = BrowseApp(Browser(raw / "libtpu-0.0.50" / "add"))
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "colon", "5", "enter")
        assert app.text.cursor == 4
        await press(pilot, "colon", *"999999", "enter")
        assert app.text.cursor == app.text.count - 1


@pytest.mark.slow
@drive
async def test_layers_peel_off_and_only_q_leaves(raw: Path) -> None:
    app = BrowseApp(Browser(raw / "libtpu-0.0.50" / "add"))
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "z", "slash", "escape")
        assert not app.query_one("#prompt", Input).has_class("asking")
        assert app.zoomed
        await press(pilot, "escape")
        assert not app.zoomed
        await press(pilot, "escape", "escape", "question_mark", "escape")
        assert app.is_running
        await press(pilot, "q")
    assert not app.is_running


@pytest.mark.slow
@drive
async def test_the_help_lists_the_real_keys(raw: Path, golden: Golden) -> None:
    app = BrowseApp(Browser(raw / "libtpu-0.0.50" / "add"))
    async with app.run_test(size=(80, 40)) as pilot:
        while not app.steps.changes:  # what each pass did is counted in the background
            await pilot.pause(0.02)
        await until_idle(app, pilot)
        await press(pilot, "question_mark")
        golden(app, "help")


@drive
async def test_narrow_terminals_show_the_focused_pane(raw: Path) -> None:
    app = BrowseApp(Browser(raw / "libtpu-0.0.50" / "add"))
    async with app.run_test(size=(20, 6)) as pilot:
        for shown in (app.kernels, app.steps, app.text, app.kernels):
            panes = (app.kernels, app.steps, app.text)
            seen = [all(node.display for node in pane.ancestors_with_self) for pane in panes]
            assert seen == [pane is shown for pane in panes]
            await press(pilot, "tab")


@pytest.mark.slow
@drive
async def test_an_empty_directory_says_what_makes_a_kernel(tmp_path: Path) -> None:
    app = BrowseApp(Browser(tmp_path))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        await press(pilot, "j", "tab", "right_square_bracket", "t", "slash", "x", "enter", "y", "n")
        assert app.text.line(0).endswith("`pallas-debug dump` creates some")


@pytest.mark.slow
@drive
async def test_a_diff_shows_what_a_pass_changed(raw: Path) -> None:
    app = BrowseApp(Browser(raw / "libtpu-0.0.50" / "add"))
    async with app.run_test(size=(120, 48)) as pilot:
        await press(pilot, *["right_square_bracket"] * 2, "d")
        assert app.diff.display
        assert not app.text.display
        assert app.diff.labels == ("01 original", "03 canonicalize-memory-space")
        signs = {plain(app.diff.prefix(i))[-1:] for i in range(app.diff.count)}
        assert signs == {"", " ", "+", "-"}
        assert plain(app.diff.cells(0)) == "- 01 original   + 03 canonicalize-memory-space"
        await press(pilot, "right_square_bracket")
        assert app.diff.labels[1] == "04 infer-memref-layout"
        await press(pilot, "slash", *"memref", "enter")
        first = app.diff.cursor
        await press(pilot, "n")
        assert app.diff.has_focus
        assert app.diff.cursor == min(hit for hit in app.diff.hits if hit > first)
        await press(pilot, "escape", "escape")
        assert app.text.display
        assert app.text.has_focus
        assert not app.diff.display


@drive
async def test_the_first_pass_has_nothing_before_it(raw: Path) -> None:
    app = BrowseApp(Browser(raw / "libtpu-0.0.50" / "add"))
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "d")
        assert app.text.line(0) == "there is nothing before 00 deserialization"


@pytest.mark.slow
@drive
async def test_the_line_under_the_cursor_names_its_python_line_and_its_values(raw: Path) -> None:
    app = BrowseApp(Browser(raw / "libtpu-0.0.50" / "add"))
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "slash", *"addf", "enter")
        line = app.text.cursor
        operation = app.text.module.operations(line)[0]
        assert operation.name == "arith.addf"
        await press(pilot, "X")
        defined = app.text.module.operations(app.text.cursor)[0].results[0].name
        assert defined == operation.operands[0].name
        assert SAME in {style for _, style in app.text.cells(line)}
        await press(pilot, "x")
        assert app.text.cursor == line


@pytest.mark.slow
@drive
async def test_the_source_is_linked_both_ways(dumps: Path) -> None:
    app = BrowseApp(Browser(dumps))
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "o", "tab", "tab", "slash", *"addf", "enter")
        line = app.text.cursor
        origin = app.text.origin[0]
        assert app.source.cursor == origin.line - 1
        assert "x_ref[...] + y_ref[...]" in app.source.line(app.source.cursor)
        assert f"kernel.py:{origin.line}" in status(app)
        await press(pilot, "tab", "g")
        assert app.focused is app.source
        app.source.cursor = origin.line - 1
        await pilot.pause()
        assert line in app.text._origin
        assert app.text.cursor in app.text._origin
        await press(pilot, "o")
        assert app.focused is app.text
        assert not frame_of(app.source).display


@pytest.mark.slow
@drive
async def test_a_bundle_comes_from_lines_that_do_not_call_each_other(
    dumps: Path, tmp_path: Path
) -> None:
    root = tmp_path / "dumps"
    shutil.copytree(dumps, root)
    (folder,) = root.glob("*-????????")
    browser = Browser(root)
    entry = Entry(0, folder.name)
    file, own = browser.source_file(entry), browser.source_line(entry)
    assert own > 1
    schedule = folder / "v5e" / "schedule"
    schedule.mkdir()
    (schedule / "bundles.txt").write_text(
        f"""     0x1   :  {{ %1 = vadd.f32 %v2, %v3 /* loc("{file}":{own + 1}:1 to :5) */  ;;  %4 = vst [vmem:[#a] sm:$0xff] /*vst_source=*/%v1 /* loc("{file}":{own + 2}:1 to :5) */ }}
"""
    )
    app = BrowseApp(Browser(root))
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "o", "colon", *"bundles", "enter")
        await until_idle(app, pilot)
        name = Path(file or "").name
        assert f"{name}:{own + 1}, {name}:{own + 2}" in status(app)
        assert "←" not in status(app)
        assert app.source.cursor == own
        app.focus_on(app.source)
        app.source.cursor = own + 1
        await pilot.pause()
        assert app.source.cursor == own + 1, "the line that was asked for stays chosen"


@pytest.mark.slow
@drive
async def test_the_cursor_stays_on_its_python_line_from_stage_to_stage(dumps: Path) -> None:
    app = BrowseApp(Browser(dumps))
    async with app.run_test(size=(160, 48)) as pilot:
        steps = {step.label: step for step in app.steps.steps}

        async def go(label: str) -> str:
            app.go_to_step(steps[label])
            await until_idle(app, pilot)
            return app.text.line(app.text.cursor)

        await go("source")
        line = next(n for n in range(app.text.count) if "x_ref[...] + y_ref" in app.text.line(n))
        app.text.cursor = line
        await until_idle(app, pilot)
        assert f"kernel.py:{line + 1}:" in await go("jaxpr")
        await go("stablehlo")  # has no Python lines: the place is kept
        for label in ("mosaic", next(label for label in reversed(steps) if steps[label].pass_)):
            await go(label)
            assert {s.line for s in app.text.origin} == {line + 1}
        assert "x_ref[...] + y_ref[...]" in await go("source")


@pytest.mark.slow
@drive
async def test_the_source_opens_at_the_kernel(dumps: Path) -> None:
    browser = Browser(dumps)
    app = BrowseApp(browser)
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "o")
        assert app.entry is not None
        assert app.text.origin == ()
        assert app.source.cursor + 1 == browser.source_line(app.entry) > 1


@pytest.mark.slow
@drive
async def test_the_next_target_is_shown_at_the_same_pass(dumps: Path) -> None:
    app = BrowseApp(Browser(dumps))
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, *["right_square_bracket"] * 3)
        step = app.steps.current
        assert step is not None
        await press(pilot, "t")
        assert app.target == "v6e"
        assert app.steps.current is not None
        assert app.steps.current.label == step.label
        await press(pilot, "t")
        assert app.target == "v5e"

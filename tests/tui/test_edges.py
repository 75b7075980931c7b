"""Browse at its edges: fast keys, folders without permission, huge texts, two dumps, tiny screens."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pilot import drive, press, status, until
from textual import events
from textual.app import App
from textual.pilot import Pilot

from pallas_debug.ir.follow import Trail
from pallas_debug.store import open_dumps
from pallas_debug.tui.app import BrowseApp
from pallas_debug.tui.model.browser import Against, Browser
from pallas_debug.tui.panes import dialogs, searching  # noqa: F401 - not to be imported without permission

LISTED = Path(__file__).parent / "data" / "dumps"


def drawn_bold(app: App[None], column: int) -> list[int]:
    """Rows of the screen that are bold, as the cursor's line is, at a column."""
    found = []
    for row, strip in enumerate(app.screen._compositor.render_strips()):
        at = 0
        for segment in strip:
            if at <= column < at + segment.cell_length and segment.style and segment.style.bold:
                found.append(row)
            at += segment.cell_length
    return found


# Keys.


@drive
async def test_only_the_line_under_the_cursor_is_highlighted(raw: Path) -> None:
    app = BrowseApp(Browser(raw / "libtpu-0.0.50" / "add"))
    async with app.run_test(size=(160, 48)) as pilot:
        await press(pilot, "tab")
        assert app.steps.has_focus
        column = app.steps.region.x + 2
        for key in ("j", "j", "j", "k", "G", "g"):
            await press(pilot, key)
            row = app.steps.region.y + app.steps.cursor - app.steps.scroll_offset.y
            inside = range(app.steps.region.y, app.steps.region.bottom)
            assert [at for at in drawn_bold(app, column) if at in inside] == [row], key


@pytest.mark.slow
@drive
async def test_keys_act_in_the_order_in_which_they_are_typed() -> None:
    """Those of the app, of a pane, and of a prompt, without a pause between them."""
    app = BrowseApp(Browser(LISTED))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        kernel = app.kernels.current
        for key in ("j", "right_square_bracket", "slash", *"jit", "enter", "n", "k"):
            app.post_message(events.Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: app.text.sought is not None and app.text.cursor)
        assert app.kernels.current != kernel
        assert app.text.sought is not None
        assert app.text.sought.text == "jit"
        assert app.text.line(app.text.cursor + 1) in [app.text.line(hit) for hit in app.text.hits]


# Two dumps.


@pytest.mark.slow
@drive
async def test_the_first_directory_is_the_old_one_from_whichever_side(
    raw: Path,
) -> None:
    old, new = raw / "libtpu-0.0.42" / "add", raw / "libtpu-0.0.50" / "add"
    app = BrowseApp(Browser(old, new))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        await press(pilot, *["right_square_bracket"] * 2, "D", *"same kernel", "enter")
        for side in (0, 1):
            assert app.entry is not None
            assert app.entry.dump == side
            assert [label.split()[0] for label in app.diff.labels] == [
                "libtpu-0.0.42/add",
                "libtpu-0.0.50/add",
            ]
            await press(pilot, "greater_than_sign")
            assert app.diff.place[side] == app.line
            app.go_to_kernel(app.browser.counterpart(app.entry))  # type: ignore[arg-type]


@drive
async def test_the_earlier_pass_is_the_old_one(raw: Path) -> None:
    app = BrowseApp(Browser(raw / "libtpu-0.0.50" / "add"))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.pause()
        first = app.steps.steps[0].label
        last = [step for step in app.steps.steps if step.pass_ and step.changed][-1].label
        for here, there in ((first, last), (last, first)):
            app.go_to_step(next(s for s in app.steps.steps if s.label == here))
            app.against = Against(step=there)
            app.diffing = True
            app.show_step()
            await pilot.pause()
            assert app.diff.labels == (first, last)


# Permissions.


@pytest.fixture(scope="module")
def loaded() -> None:
    """Import what browse needs for these tests: an unprivileged user may not read root's Python."""

    @drive
    async def run() -> None:
        app = BrowseApp(Browser(LISTED))
        async with app.run_test(size=(100, 30)) as pilot:
            await press_many(pilot)
            await app.workers.wait_for_complete()

    run()


async def press_many(pilot: Pilot[None]) -> None:
    await press(pilot, "j", "k", "tab", "j", "d", "d", "u", "escape", "e", "o", "o", "tab")
    await press(pilot, "tab", "R", "escape")


@pytest.fixture
def unprivileged(loaded: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of a dump directory that the test may lock, as a user whom locks concern."""
    folder = Path(tempfile.mkdtemp())  # pytest's own are only for the user who runs it
    shutil.copytree(LISTED, folder / "dumps")
    is_root = os.geteuid() == 0
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
        if is_root:
            os.chown(path, 65534, -1)
    (folder / "temporary").mkdir()
    (folder / "temporary").chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "temporary"))
    if is_root:
        os.seteuid(65534)
    try:
        yield folder / "dumps"
    finally:
        if is_root:
            os.seteuid(0)
        for path in [folder, *folder.rglob("*/")]:
            path.chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "locked, mode",
    [
        (".", 0o400),
        (".", 0o000),
        ("double-40afca47", 0o000),
        ("double-40afca47/v5e", 0o000),
        ("double-40afca47/v5e/passes", 0o000),
        ("runs", 0o400),
    ],
)
@drive
async def test_folders_without_permission_are_reported(
    unprivileged: Path, locked: str, mode: int
) -> None:
    """Before they are opened, and while they are shown."""
    folder = unprivileged / locked
    folder.chmod(0o755 if mode == 0 and locked == "." else mode)  # an unlistable one is an error
    app = BrowseApp(Browser(unprivileged))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        for lock in (mode, 0o755, mode):
            folder.chmod(lock)
            await press_many(pilot)
            await app.workers.wait_for_complete()
            await pilot.pause()
        assert app.fault is None
        assert app.kernels.count == 3


@pytest.mark.slow
@drive
async def test_a_source_in_a_folder_that_may_not_be_searched(unprivileged: Path) -> None:
    private = unprivileged.parent / "private"
    private.mkdir()
    source = private / "kernel.py"
    source.write_text("x = 1\n")
    manifest = unprivileged / "double-40afca47" / "kernel.json"
    file = open_dumps(unprivileged).read("double-40afca47").kernel.source.file  # type: ignore[union-attr]
    manifest.write_text(manifest.read_text().replace(file, str(source)))
    private.chmod(0)
    app = BrowseApp(Browser(unprivileged))
    async with app.run_test(size=(200, 30)) as pilot:
        await press(pilot, "e")
        assert app.fault is None
        assert "kernel.py is not on this machine; E in the stage source opens the" in status(app)
    private.chmod(0o755)


# Huge texts.


@pytest.mark.slow
@drive
async def test_an_operation_is_not_followed_through_a_huge_text(raw: Path, tmp_path: Path) -> None:
    folder = tmp_path / "add"
    shutil.copytree(raw / "libtpu-0.0.50" / "add", folder)
    huge = next(folder.glob("*0015-mosaic-dump-add-post-apply-vector-layout.txt"))
    with huge.open("ab") as file:
        file.truncate(200_000_000)
    sentence = "has 200 MB; operations are followed through texts of up to 4 MB"
    app = BrowseApp(Browser(folder))
    async with app.run_test(size=(200, 48)) as pilot:
        await pilot.pause()
        at = {step.label: step for step in app.steps.steps}
        app.go_to_step(at["15 apply-vector-layout"])
        await press(pilot, "u")
        assert f"15 apply-vector-layout {sentence}" in status(app)
        assert len(app.screen_stack) == 1
        for label in ("04 infer-memref-layout", "21 "):
            step = next(s for name, s in at.items() if name.startswith(label))
            app.go_to_step(step)
            line = next(n for n in range(app.text.count) if " = " in app.text.line(n))
            app.text.cursor = line
            await press(pilot, "tab", "tab", "u")
            await until(pilot, lambda: isinstance(app.screen, dialogs.Chooser))
            assert isinstance(app.screen, dialogs.Chooser)
            labels = [match.choice.value.label for match in app.screen.shown]
            assert "15 apply-vector-layout" not in labels
            assert step.label in labels
            await press(pilot, "escape")


@pytest.mark.slow
@drive
async def test_an_operation_whose_line_has_gone_is_not_followed(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("it looked for a line that is not there")

    monkeypatch.setattr(Trail, "trace", fail)
    folder = tmp_path / "add"
    shutil.copytree(raw / "libtpu-0.0.50" / "add", folder)
    app = BrowseApp(Browser(folder))
    async with app.run_test(size=(200, 48)) as pilot:
        await press(pilot, "tab", "tab", "G")
        assert app.place is not None
        app.browser.path(app.place).write_text("module {\n")
        await press(pilot, "u")
        await until(pilot, lambda: "no longer in the text" in status(app))


# The screen.


@pytest.mark.slow
@drive
async def test_the_smallest_terminals_and_resizing() -> None:
    app = BrowseApp(Browser(LISTED))
    async with app.run_test(size=(1, 1)) as pilot:
        for size in ((1, 1), (3, 2), (8, 3), (20, 6), (300, 80), (2, 60), (400, 1)):
            await pilot.resize_terminal(*size)
            await press(pilot, "j", "tab", "right_square_bracket", "d", "d", "o", "question_mark")
            await press(pilot, "escape", "o", "tab", "z", "slash", "a", "enter", "escape")
        assert app.fault is None

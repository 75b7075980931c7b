"""Detection of changes in directories that are being written, without a screen."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pallas_debug.tui.model.browser import Browser
from pallas_debug.tui.model.watch import Watch


@pytest.fixture
def root(dumps: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dumps, tmp_path / "dumps"))


def test_what_is_written_into_the_kernel_that_is_shown_is_found(root: Path) -> None:
    browser = Browser(root)
    watch = Watch(browser)
    (entry,) = browser.entries
    folder = browser.stored(entry).folder
    assert not watch.look(entry, folder).is_changed
    assert not watch.look(entry, folder).is_changed
    (folder / "v5e" / "passes" / "99-late.mlir").touch()
    assert watch.look(entry, folder).is_changed
    assert not watch.look(entry, folder).is_changed
    assert not watch.look(None, None).is_changed  # another one is looked at


def test_of_raw_dumps_the_directory_is_looked_at_and_nothing_in_it(
    raw: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(raw / "libtpu-0.0.50" / "add", tmp_path / "raw"))
    (root / "inner").mkdir()
    browser = Browser(root)
    watch = Watch(browser)
    entry = browser.entries[-1]
    folder = browser.stored(entry).folder
    assert folder == root
    assert not watch.look(entry, folder).is_changed
    (root / "inner" / "more").mkdir()
    assert not watch.look(entry, folder).is_changed
    last = max(root.glob("*.txt"))
    last.rename(root / last.name.replace("finalize-llo", "other"))
    found = watch.look(entry, folder)
    assert found.is_changed
    assert found.entries == browser.entries


def test_a_directory_that_is_gone_keeps_what_it_had(root: Path) -> None:
    browser = Browser(root)
    watch = Watch(browser)
    before = browser.entries
    shutil.rmtree(root)
    assert watch.look(before[0], root / before[0].name).entries == before

"""What is on the screen before the program behind it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallas_debug.tui import ahead
from pallas_debug.tui.model import Browser


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("LINES", "24")


def test_kernels_of_dumps_are_listed_by_name(dumps: Path) -> None:
    names = sorted(entry.name for entry in Browser(dumps).entries)
    assert ahead._lines([dumps]) == [f" {dumps}", *(f"  {name}" for name in names)]
    both = ahead._lines([dumps, dumps])
    assert both == [f" {dumps} and {dumps}", *(f"  {name}" for name in names)]


def test_kernels_of_raw_dumps_are_listed_by_age(tmp_path: Path) -> None:
    ages = {"zeta": 3, "beta": 5, "alpha": 9}
    for kernel, age in ages.items():
        for number, name in enumerate(("original", "post-canonicalize", "post-finalize-llo"), 1):
            stamp = 1795185118477198480 + age
            file = tmp_path / f"{stamp}-{number:04d}-mosaic-dump-{kernel}-{name}.txt"
            file.write_text("module {}")
    (tmp_path / "notes.txt").write_text("none of them")
    assert ahead._lines([tmp_path]) == [f" {tmp_path}", "  zeta", "  beta", "  alpha"]
    assert [entry.name for entry in Browser(tmp_path).entries] == list(ages)


def test_no_more_is_shown_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    text = tmp_path / "text.mlir"
    text.write_text("\x1b[2Jmodule {\n" * 100)
    lines = ahead._lines([text])
    assert len(lines) == 23
    assert set(lines[1:]) == {"\N{REPLACEMENT CHARACTER}[2Jmodule {"[:12]}

"""Untrusted names as single, safe path components."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallas_debug.model import Kernel
from pallas_debug.store.layout import MAX_BYTES, clean, kernel_folder, target_folder

NAMES = [
    *("add", "", " ", ".", "..", "...", "../../etc/passwd", "/", "a/b", "a\\b", "C:\\x", ".hidden"),
    *("trailing.", "a\x00b", "a\nb\r\t\x1b[31m", "\u202egnp", "\ud800", "\udcff" * 300, "<lambda>"),
    *(letter * 5000 for letter in "xü字🦀/"),
    *("tests/test_a.py::test_b[x-1]", "a|b>c<d*e?f\"g'h;i&j$k`l", "~"),
]


@pytest.mark.parametrize("name", NAMES)
def test_one_safe_component(name: str, tmp_path: Path) -> None:
    cleaned = clean(name)
    assert 0 < len(cleaned.encode()) <= MAX_BYTES
    assert Path(cleaned).parts == (cleaned,)
    assert not set(cleaned) & set("/\\:*?\"'<>|\x00\n\r\t\x1b\u202e$`;&")
    assert not cleaned.startswith(".")
    assert clean(name) == cleaned
    (tmp_path / cleaned).write_text("it is a name")
    assert [p.name for p in tmp_path.iterdir()] == [cleaned]


def test_what_is_kept() -> None:
    for name, cleaned in {
        "flash_attention": "flash_attention",
        "größe": "größe",
        "a/b": "a_b",
        "..": "unnamed",
        ".hidden.": "hidden",
        "t[1,2]": "t_1,2_",
    }.items():
        assert clean(name) == cleaned


@pytest.mark.parametrize("letter", ["x", "ü", "字", "/", "\udcff"])
def test_long_names_that_differ_at_the_end_stay_two(letter: str) -> None:
    one, other = clean(letter * 4999 + "1"), clean(letter * 4999 + "2")
    assert one != other
    assert "~" in one


def test_folders() -> None:
    kernel = Kernel(name="a/b", digest="0123456789abcdef", primitive="pallas_call")
    assert kernel_folder(kernel) == "a_b-01234567"
    assert target_folder("v5e:2x4") == "v5e-2x4"
    assert target_folder("../x") == "_x"

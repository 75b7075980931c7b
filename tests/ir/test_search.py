"""Search: the same lines as `re` finds line by line, for any text and chunk size."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import pytest

from pallas_debug.errors import PatternError
from pallas_debug.ir.patterns import spans_of
from pallas_debug.ir.search import (
    SHOWN,
    Hit,
    Progress,
    Query,
    finder,
    search,
)

PATTERNS = [
    "vector_load", r"%\d+ = tpu\.", r"loc\(#loc1\d\)$", "^ +return", "(mulf|addf)", "a*", "", "$", "^$",
    r"[^,]+,[^,]+,", r"\s+scf", r"rows\.py.:9", r"x{2,}", r"f32[^\w]", r"\bi32\b", r"(?s)mulf.*return",
    r"[\s]func", r"\.\w+_", r"a?rith", r"}\)?", r"\Drith", "…/", r"\b", r"x|\b", r"\B",
]  # fmt: skip


def hits(path: Path, query: Query, chunk: int = 1 << 20) -> list[Hit]:
    return [e for e in search([path], query, chunk=chunk) if isinstance(e, Hit)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_lines_are_those_that_re_finds(passes: list[Path], pattern: str) -> None:
    for path in (passes[0], passes[-1]):
        lines = path.read_text().split("\n")[:-1]
        for folds in (False, True):
            compiled = re.compile(pattern, re.IGNORECASE if folds else 0)
            expected = [n for n, line in enumerate(lines, 1) if compiled.search(line)]
            query = Query(text=pattern, ignore_case=folds)
            assert [hit.line for hit in hits(path, query)] == expected
            assert [hit.line for hit in hits(path, query, 700)] == expected


@pytest.mark.parametrize("text", ["tpu.vector_load", "%0", "(", "ARITH", "a\\", "f32["])
def test_literals(passes: list[Path], text: str) -> None:
    lines = passes[0].read_text().split("\n")
    expected = [n for n, line in enumerate(lines, 1) if text in line]
    assert [h.line for h in hits(passes[0], Query(text=text, literal=True))] == expected
    folded = [n for n, line in enumerate(lines, 1) if text.lower() in line.lower()]
    query = Query(text=text, literal=True, ignore_case=True)
    assert [h.line for h in hits(passes[0], query)] == folded


@pytest.mark.parametrize("text", ["x", "xx", "x.", "[^y]x"])
def test_lines_are_counted_once_however_often_they_match(tmp_path: Path, text: str) -> None:
    rng = random.Random(12)
    path = tmp_path / "text"
    for end in ("", "\n", "\n\n"):
        lines = ["".join(rng.choice("xyz") for _ in range(rng.randrange(9))) for _ in range(80)]
        path.write_text("\n".join(lines) + end)
        expected = sum(bool(re.search(text, line)) for line in lines)
        for literal in (False, True):
            query = Query(text=text, literal=literal)
            found = sum(text in line for line in lines) if literal else expected
            for chunk in (3, 50, 1 << 18):
                assert len(hits(path, query, chunk)) == found


def test_a_pattern_serves_the_characters_of_a_line() -> None:
    assert Query(text="a.c", ignore_case=None).compiled().search("xABC")
    assert not Query(text="a.c", literal=True).compiled().search("abc")
    pattern = Query(text="ü.|$", ignore_case=True).compiled()
    assert spans_of(pattern, "äÜx 1\udcff") == [(1, 3)]
    assert spans_of(Query(text="[^1]$").compiled(), "ä1\udcff") == [(2, 3)]


def test_smart_case() -> None:
    for text, folds in {"load": True, "Load": False, r"\Wload": True, r"\Load": True}.items():
        assert Query(text=text, ignore_case=None).folds is folds
    assert not Query(text="A", literal=True, ignore_case=None).folds


def test_a_hit_says_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("first\nä xyz needle here\n".encode())
    (hit,) = hits(path, Query(text="needle"))
    assert (hit.line, hit.column, hit.text, hit.cut) == (2, 7, "ä xyz needle here", False)
    assert hit.parts == ("ä xyz ", "needle", " here")


def test_a_huge_line_is_shown_in_part(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"x" * 10_000_000 + b"needle" + b"y" * 10_000 + b"\nnext needle")
    first, second = hits(path, Query(text="needle", literal=True))
    assert (first.line, first.column, first.cut, len(first.data)) == (1, 10_000_000, True, SHOWN)
    assert first.parts[1] == "needle"
    assert (second.line, second.text) == (2, "next needle")


def test_what_is_not_utf8_and_has_no_end(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"\xff\xfe\x00 one\n\x1b[31m\xc3one")
    assert [h.text for h in hits(path, Query(text="one"))] == [
        "\ufffd\ufffd\x00 one",
        "\x1b[31m\ufffdone",
    ]
    path.write_bytes(b"")
    assert hits(path, Query(text="one")) == []


def test_many_files_with_progress_and_problems(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "gone", "b", "pipe")]
    paths[0].write_bytes(b"x\n" * 100)
    paths[2].write_bytes(b"x\ny\n")
    os.mkfifo(paths[3])
    events = list(search(paths, Query(text="x"), chunk=50))
    done = [e for e in events if isinstance(e, Progress) and e.done]
    assert [e.path for e in done] == paths
    assert sum(isinstance(e, Hit) for e in events) == 101
    assert "gone cannot be read: No such file" in (done[1].problem or "")
    assert "Not a regular file" in (done[3].problem or "")


@pytest.mark.parametrize("pattern", ["(", "[", "a{2", "*", "(?P<", "a)(b"])
def test_what_is_not_a_regular_expression(pattern: str) -> None:
    if pattern == "a{2":
        Query(text=pattern).compiled()  # taken as it stands
        return
    with pytest.raises(PatternError, match="is not a valid regular expression: "):
        finder(Query(text=pattern))


@pytest.mark.parametrize("pattern", ["(?=a)", "(?<!a)b", r"(a)\1", "a++", "(?>a)", "a{2000}"])
def test_what_cannot_be_matched_in_linear_time_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError, match="RE2, which matches in linear time") as raised:
        Query(text=pattern).compiled()
    assert not raised.value.reason.startswith("'")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*)*x", "a?" * 99 + "a" * 99 + "$"])
def test_no_pattern_takes_exponential_time(tmp_path: Path, pattern: str) -> None:
    path = tmp_path / "text"
    path.write_text("a" * 5_000 + "!\n" + "b" * 50_000 + "\n")
    start = time.process_time()
    assert hits(path, Query(text=pattern)) == []
    assert time.process_time() - start < 5


def test_the_ends_of_a_text_are_those_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("ab\nxab\nabx")
    for pattern, lines in {r"\Aab": [1, 3], r"ab\Z": [1, 2], r"b\z": [1, 2], r"\\A": []}.items():
        for chunk in (3, 1 << 18):
            assert [h.line for h in hits(path, Query(text=pattern), chunk)] == lines

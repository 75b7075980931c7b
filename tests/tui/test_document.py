"""Documents: the lines of files of any size and shape, including files that change or vanish."""

from __future__ import annotations

import os
import random
import tracemalloc
from pathlib import Path

import pytest

from pallas_debug.tui.model.document import BLOCK, Document

EVERYTHING = 1 << 40

HOSTILE = {
    "empty": b"",
    "newline": b"\n",
    "no newline at the end": b"a\nb",
    "newlines alone": b"\n" * 5,
    "carriage returns": b"a\r\nb\r",
    "binary": bytes(range(256)) * 3,
    "not utf-8": b"\xff\xfe\n\xc3(\n",
    "escapes": b"\x1b[31mred\x1b[0m\n[bold]markup[/]\n",
    "separators that are no newlines": "a\x0bb\x0cc\x85d\u2028e\nf".encode(),
    "block of newlines": b"\n" * (BLOCK + 3),
    "line of a block": b"x" * BLOCK + b"\n" + b"y",
    "line over blocks": b"x" * (3 * BLOCK + 7) + b"\nend\n",
}


def document_of(folder: Path, data: bytes) -> Document:
    path = folder / "text"
    path.write_bytes(data)
    return Document.open(path)


def expected(data: bytes) -> list[str]:
    text = data.decode(errors="replace")
    return text.removesuffix("\n").split("\n") if text else []


@pytest.mark.parametrize("name", HOSTILE)
def test_lines_are_those_between_newlines(tmp_path: Path, name: str) -> None:
    data = HOSTILE[name]
    path = tmp_path / "text"
    path.write_bytes(data)
    with Document.open(path) as document:
        lines = document.lines(0, 10**9)
        assert lines == expected(data)
        assert document.line_count == len(lines)
        assert document.complete


def test_any_window_at_random(tmp_path: Path) -> None:
    rng = random.Random(7)
    for _ in range(15):
        sizes = [rng.choice((0, 1, 10, 500, BLOCK // 3)) for _ in range(rng.randrange(60))]
        data = b"\n".join(b"z" * size for size in sizes) + rng.choice((b"", b"\n"))
        document, whole = document_of(tmp_path, data), expected(data)
        for _ in range(20):
            start, stop = rng.randrange(70), rng.randrange(70)
            assert document.lines(start, stop) == whole[start:stop]
        offset = 0
        for number, line in enumerate(whole):
            assert document.offset(number) == offset
            assert document.line_size(number) == len(line)
            offset += len(line) + 1


def test_the_index_grows_as_it_is_asked_to(tmp_path: Path) -> None:
    document = document_of(tmp_path, b"line\n" * 200_000)
    assert (document.line_count, document.complete) == (0, False)
    document.index(BLOCK)
    assert 0 < document.line_count < 20_000
    assert document.lines(5, 7) == ["line", "line"]
    assert not document.complete
    document.index(EVERYTHING)
    assert document.line_count == 200_000


def test_a_long_line_is_cut_and_read_by_parts(tmp_path: Path) -> None:
    document = document_of(tmp_path, b"short\n" + b"0123456789" * 1_000_000 + b"\nlast")
    assert document.lines(0, 3, limit=12) == ["short", "012345678901", "last"]
    assert document.line_size(1) == 10_000_000
    assert document.line_slice(1, 9_999_995, 10_000_100) == "56789"


def test_chunks_end_with_lines(tmp_path: Path) -> None:
    data = b"one\ntwo\nthree\n" + b"x" * 1000 + b"\nend"
    document = document_of(tmp_path, data)
    assert document.chunk(0, 5, 100) == b"one\n"
    assert document.chunk(0, 9, 100) == b"one\ntwo\n"
    assert document.chunk(8, 2, 100) == b"three\n"
    assert document.chunk(14, 10, 100) == b"x" * 100
    assert document.chunk(14, 10, 5000) == data[14:]
    assert document.chunk(1015, 10, 100) == b"end"
    assert document.chunk(len(data), 10, 100) == b""


def test_lines_that_are_not_there(tmp_path: Path) -> None:
    document = document_of(tmp_path, b"a\nb\n")
    assert document.lines(5, 9) == []
    assert document.lines(1, 0) == []
    assert document.lines(-3, 1) == ["a"]


def test_a_file_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"one\ntw")
    with Document.open(path) as document:
        assert document.lines(0, 9) == ["one", "tw"]
        assert document.grow() == "same"
        with path.open("ab") as file:
            file.write(b"o\nthree\n" + b"more\n" * BLOCK)
        assert document.grow() == "grown"
        assert document.lines(0, 4) == ["one", "two", "three", "more"]
        document.index(EVERYTHING)
        assert document.line_count == 3 + BLOCK


def test_a_file_that_is_replaced_cut_short_or_gone(tmp_path: Path) -> None:
    path, other = tmp_path / "text", tmp_path / "other"
    path.write_bytes(b"one\ntwo\n")
    with Document.open(path) as document:
        assert document.lines(0, 9) == ["one", "two"]
        other.write_bytes(b"new\n")
        other.replace(path)
        assert document.grow() == "replaced"
        assert document.lines(0, 9) == ["new"]
        os.truncate(path, 1)
        assert document.grow() == "replaced"
        assert document.lines(0, 9) == ["n"]
        path.unlink()
        assert document.grow() == "gone"
        assert document.lines(0, 9) == ["n"]


def test_a_file_that_is_cut_short_between_two_looks(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"line\n" * 100_000)
    with Document.open(path) as document:
        document.index(EVERYTHING)
        os.truncate(path, 12)
        assert document.lines(90_000, 90_002) in ([], ["", ""], [""])
        assert document.lines(0, 2) == ["line", "line"]


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        with pytest.raises(OSError, match=r"."):
            Document.open(path)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "text"
    with path.open("wb") as file:
        for _ in range(30):
            file.write(b"\n" * 1_000_000)
    tracemalloc.start()
    with Document.open(path) as document:
        document.index(EVERYTHING)
        assert document.lines(29_999_998, 30_000_000) == ["", ""]
        _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert document.line_count == 30_000_000
    assert peak < 8_000_000

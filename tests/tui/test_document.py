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
    return Document(path)


def lines_of(document: Document) -> list[str]:
    document.index(EVERYTHING)
    return [document.text(line, 0, EVERYTHING) for line in range(document.count)]


def expected(data: bytes) -> list[str]:
    text = data.decode(errors="replace")
    return text.removesuffix("\n").split("\n") if text else []


@pytest.mark.parametrize("name", HOSTILE)
def test_lines_are_those_between_newlines(tmp_path: Path, name: str) -> None:
    data = HOSTILE[name]
    path = tmp_path / "text"
    path.write_bytes(data)
    with Document(path) as document:
        assert lines_of(document) == document.whole() == expected(data)


def test_any_window_at_random(tmp_path: Path) -> None:
    rng = random.Random(7)
    for _ in range(15):
        sizes = [rng.choice((0, 1, 10, 500, BLOCK // 3)) for _ in range(rng.randrange(60))]
        data = b"\n".join(b"z" * size for size in sizes) + rng.choice((b"", b"\n"))
        document, whole = document_of(tmp_path, data), expected(data)
        for _ in range(20 * bool(whole)):
            line, start, stop = rng.randrange(len(whole)), rng.randrange(600), rng.randrange(600)
            assert document.window(line, start, stop) == (whole[line][start:stop], len(whole[line]))
        assert lines_of(document) == whole


def test_the_index_grows_as_it_is_asked_to(tmp_path: Path) -> None:
    document = document_of(tmp_path, b"line\n" * 200_000)
    assert document.count == 0
    assert not document.index(BLOCK)
    assert 0 < document.count < 20_000
    assert document.text(5) == "line"
    assert document.index(EVERYTHING)
    assert document.count == 200_000


def test_a_file_is_read_as_it_was_opened_and_has_empty_lines_where_it_was_cut(
    tmp_path: Path,
) -> None:
    path, other = tmp_path / "text", tmp_path / "other"
    path.write_bytes(b"line\n" * 100_000)
    other.write_bytes(b"new\n")
    with Document(path) as document:
        document.index(EVERYTHING)
        os.truncate(path, 12)
        assert document.text(90_000) == ""
        assert document.text(1) == "line"
        other.replace(path)
        assert document.text(1) == "line"
        path.unlink()
        assert document.text(1) == "line"


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        with pytest.raises(OSError, match=r"."):
            Document(path)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "text"
    with path.open("wb") as file:
        for _ in range(30):
            file.write(b"\n" * 1_000_000)
    tracemalloc.start()
    with Document(path) as document:
        document.index(EVERYTHING)
        assert document.text(29_999_998) == ""
        _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert document.count == 30_000_000
    assert peak < 8_000_000

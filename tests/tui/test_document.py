"""Documents: the lines of large files, including files that change or vanish."""

from __future__ import annotations

import os
import random
import threading
import tracemalloc
from pathlib import Path

import pytest

from pallas_debug.ir.patterns import Query
from pallas_debug.tui.model.document import _MAX_LINE, Document
from pallas_debug.tui.widgets.find import hits_in

BLOCK = 1 << 15

HOSTILE = {
    "empty": b"",
    "newline": b"\n",
    "no newline at the end": b"a\nb",
    "newlines alone": b"\n" * 5,
    "carriage returns": b"a\r\nb\r",
    "binary": bytes(range(256)) * 3,
    "not utf-8": b"\xff\xfe\n\xc3(\n",
    "separators that are no newlines": "a\x0bb\x0cc\x85d\u2028e\nf".encode(),
    "block of newlines": b"\n" * (BLOCK + 3),
    "line of a block": b"x" * BLOCK + b"\n" + b"y",
    "line over blocks": b"x" * (BLOCK + 7) + b"\nend\n",
}


def document_of(folder: Path, data: bytes) -> Document:
    path = folder / "text"
    path.write_bytes(data)
    return Document(os.open(path, os.O_RDONLY))


def test_several_threads_may_finish_the_index(tmp_path: Path) -> None:
    document = document_of(tmp_path, b"line\n" * 4_000_000 + b"end")
    assert 0 < len(document) < 2_000_000
    assert not document.is_whole
    threads = [threading.Thread(target=document.find_lines) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert document.is_whole
    assert len(document) == 4_000_001
    assert (document[3_999_999], document[4_000_000]) == ("line", "end")


def expected(data: bytes) -> list[str]:
    text = data.decode(errors="replace")
    return text.removesuffix("\n").split("\n") if text else []


@pytest.mark.parametrize("name", HOSTILE)
def test_lines_are_those_between_newlines(tmp_path: Path, name: str) -> None:
    document = document_of(tmp_path, HOSTILE[name])
    assert list(document) == document[:] == expected(HOSTILE[name])


def test_lines_of_any_length() -> None:
    rng = random.Random(7)
    for _ in range(15):
        sizes = [rng.choice((0, 1, 10, 500, BLOCK // 3)) for _ in range(rng.randrange(60))]
        data = b"\n".join(b"z" * size for size in sizes) + rng.choice((b"", b"\n"))
        file = os.memfd_create("text")
        os.write(file, data)
        assert list(Document(file)) == expected(data)


def test_a_file_is_read_as_it_was_opened_and_has_empty_lines_where_it_was_cut(
    tmp_path: Path,
) -> None:
    path, other = tmp_path / "text", tmp_path / "other"
    document = document_of(tmp_path, b"line\n" * 100_000)
    other.write_bytes(b"new\n")
    os.truncate(path, 12)
    assert document[90_000] == ""
    assert document[1] == "line"
    other.replace(path)
    assert document[1] == "line"
    path.unlink()
    assert document[1] == "line"


def test_of_a_huge_line_the_start_is_read(tmp_path: Path) -> None:
    document = document_of(tmp_path, b"a\n" + b"x" * 3_000_000 + b"\nneedle\n")
    assert [len(line) for line in document] == [1, _MAX_LINE, 6]
    found = hits_in(document.pieces(), Query(text="needle"))
    assert [hit for hits in found for hit in hits] == [2]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "text"
    with path.open("wb") as file:
        for _ in range(30):
            file.write(b"\n" * 1_000_000)
    tracemalloc.start()
    document = Document(os.open(path, os.O_RDONLY))
    document.find_lines()
    assert document[29_999_998] == ""
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(document) == 30_000_000
    assert peak < 8_000_000

"""What numpy does for the search: the same as `bytes` does, at every size and for every byte."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pallas_debug.ir import vectors
from pallas_debug.ir.search import Query, count, search
from pallas_debug.ir.vectors import Literal, Lower, Newlines

ALL = bytes(range(256))
SIZES = [0, 1, vectors.SMALL - 1, vectors.SMALL, vectors.SMALL + 1, 70_000]


@pytest.fixture(autouse=True, params=["numpy", "without"])
def loaded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors._Numpy, "module", None)
    if request.param == "numpy":
        vectors.load()


def chunk(size: int, alphabet: bytes = ALL) -> bytes:
    return bytes(random.Random(size).choices(alphabet, k=size))


def test_numpy_is_loaded_by_long_searches_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors._Numpy, "module", None)
    monkeypatch.setattr(vectors, "WITHOUT", 100_000)
    path, query = tmp_path / "text", Query(text="needle")
    path.write_bytes(b"hay\n" * 10_000)
    assert [found for _, found, _ in count([path] * 2, query)] == [0, 0]
    assert len(list(search([path] * 2, query))) == 4
    assert vectors._Numpy.module is None
    assert [found for _, found, _ in count([path] * 4, query)] == [0] * 4
    assert vectors._Numpy.module is not None
    monkeypatch.setattr(vectors._Numpy, "module", None)
    assert len(list(search([path] * 4, query))) == 8
    assert vectors._Numpy.module is not None


def test_letters_alone_become_lower_case() -> None:
    lower = Lower()
    for size in (*SIZES, *reversed(SIZES)):  # what is kept grows and shrinks
        data = chunk(size)
        assert bytes(lower(data + b"MORE", size)) == data.lower()


def test_newlines_are_counted() -> None:
    newlines = Newlines()
    for size in SIZES:
        data = chunk(size, b"ab\n")
        for stop in (size, size // 2):
            assert newlines(data, stop) == data.count(b"\n", 0, stop)


@pytest.mark.parametrize("end", [b"", b"\n", b"a"])
def test_lines_are_told_of_places(end: bytes) -> None:
    newlines = Newlines()
    for size in SIZES:
        data = chunk(size, b"abcdefgh\n") + end
        bounds = []
        begin = 0
        for line in data.split(b"\n"):
            bounds.append((begin, begin + len(line)))
            begin += len(line) + 1
        wanted = [(7 + n, begin, end) for n, (begin, end) in enumerate(bounds) if begin < end]
        places = [random.Random(n).randrange(begin, end) for n, begin, end in wanted]
        assert list(newlines.lines(data + b"MORE", len(data), places, 7)) == wanted


@pytest.mark.parametrize("folds", [False, True])
@pytest.mark.parametrize(
    "needle, alphabet",
    [
        (b"a", b"aAb\n"),
        (b"aba", b"aAbB\n"),
        (b"x[0]_y", b"xX[{]}0_\x7fyY\n"),  # what differs from another byte in its case bit alone
        (b"@`", b"@`\n"),
        (b"\xc3\xa4", b"\xc3\xa4\xe3\x84\n"),
        (b"zzzz", b"z\n"),
        (b"abcdefghijk", b"abcdefghijk"),
        (b"vector_load", b"vector_load\n"),
        (b"loc(x)" * 20, b"loc(x)\n"),
    ],
)
def test_a_literal_is_found_wherever_it_stands(needle: bytes, alphabet: bytes, folds: bool) -> None:
    literal = Literal(needle, folds=folds)
    for size in SIZES:
        # Some at each distance from the multiples of a word's width.
        half = chunk(size // 2, alphabet)
        data = half + b"".join(b"-" * n + needle for n in range(9)) + half + needle
        seen = data.lower() if folds else data
        assert list(literal(data + needle, len(data))) == [
            at for at in range(len(seen)) if seen.startswith(needle, at)
        ]
        assert literal.lines(data + needle, len(data)) == sum(
            needle in line for line in seen.split(b"\n")
        )

"""Byte search in chunks, compared with `bytes` for every size and every byte."""

from __future__ import annotations

import itertools
import random

import pytest

from pallas_debug.ir import chunks
from pallas_debug.ir.chunks import Literal

ALL = bytes(range(256))
SIZES = [0, 1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 4095, 70_000]
"""About the widths of the registers in which bytes are looked at together."""


def chunk(size: int, alphabet: bytes = ALL) -> bytes:
    return bytes(random.Random(size).choices(alphabet, k=size))


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_letters_alone_become_lower_case(kind: type[bytes] | type[bytearray]) -> None:
    lower = Literal(b"x", folds=True)._lower
    for size in (*SIZES, *reversed(SIZES)):  # what is kept grows, and is longer than is asked for
        data = chunk(size)
        given = kind(data + b"MORE")
        assert lower(given, size)[:size] == data.lower()
        assert given == data + b"MORE"


def test_newlines_are_counted() -> None:
    for size in SIZES:
        data = chunk(size, b"ab\n")
        for stop in (size, size // 2):
            assert chunks.newlines(data, stop) == data.count(b"\n", 0, stop)
            start = stop // 3
            assert chunks.newlines(data, stop, start) == data.count(b"\n", start, stop)


@pytest.mark.parametrize("end", [b"", b"\n", b"a"])
def test_lines_are_told_of_places(end: bytes) -> None:
    for size in SIZES:
        data = chunk(size, b"abcdefgh\n") + end
        bounds = []
        begin = 0
        for line in data.split(b"\n"):
            bounds.append((begin, begin + len(line)))
            begin += len(line) + 1
        wanted = [(7 + n, begin, end) for n, (begin, end) in enumerate(bounds) if begin < end]
        places = [random.Random(n).randrange(begin, end) for n, begin, end in wanted]
        assert list(chunks.lines(data + b"MORE", len(data), places, 7)) == wanted


@pytest.mark.parametrize("folds", [False, True])
@pytest.mark.parametrize(
    "needle, alphabet",
    [
        (b"a", b"aAb\n"),
        (b"aba", b"aAbB\n"),
        (b"x[0]_y", b"xX[{]}0_\x7fyY\n"),  # what differs from another byte in its case bit alone
        (b"@`", b"@`\n"),
        (b"\xc3\xa4", b"\xc3\xa4\xe3\x84\n"),
        (b"\x00", b"\x00a\n"),
        (b"zzzz", b"z\n"),
        (b"abcdefghijk", b"abcdefghijk"),
        (b"vector_load", b"vector_load\n"),
        (b"loc(x)" * 20, b"loc(x)\n"),
    ],
)
def test_a_literal_is_found_wherever_it_stands(needle: bytes, alphabet: bytes, folds: bool) -> None:
    literal = Literal(needle, folds=folds)
    for size in SIZES:
        # Some at each distance from the multiples of a register's width.
        half = chunk(size // 2, alphabet)
        data = half + b"".join(b"-" * n + needle for n in range(65)) + half + needle
        seen = data.lower() if folds else data
        lines = seen.split(b"\n")
        begins = itertools.accumulate((len(line) + 1 for line in lines), initial=0)
        assert list(literal(data + needle, len(data))) == [
            begin + line.index(needle)
            for begin, line in zip(begins, lines, strict=False)
            if needle in line
        ]

"""Line matching: the longest common subsequence, compared with a simple implementation."""

from __future__ import annotations

import random
import time

import pytest

from pallas_debug.ir.match import Block, Budget, match


def longest(a: str, b: str) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        before = row.copy()
        for j, y in enumerate(b):
            row[j + 1] = before[j] + 1 if x == y else max(before[j + 1], row[j])
    return row[-1]


def matched(blocks: list[Block], a: str, b: str) -> int:
    """How many lines the blocks match, which must be equal and in order."""
    i = j = 0
    for x, y, size in blocks:
        assert size > 0
        assert x >= i
        assert y >= j
        assert a[x : x + size] == b[y : y + size]
        i, j = x + size, y + size
    return sum(size for _, _, size in blocks)


@pytest.mark.slow
def test_as_many_lines_as_there_can_be() -> None:
    rng = random.Random(8)
    for _ in range(500):
        a = "".join(rng.choice("abc") for _ in range(rng.randrange(90)))
        b = "".join(rng.choice("abcd") for _ in range(rng.randrange(90)))
        assert matched(Budget().close(a, b), a, b) == longest(a, b)
        assert matched(match(a, b), a, b) <= longest(a, b)


def test_what_is_beyond_the_budget_is_not_matched() -> None:
    budget = Budget(pairs=50)
    assert budget.close("abcdef", "abcdef") == [(0, 0, 6)]
    assert budget.close("abcdef", "abcdef") == []
    assert budget.close("abc", "abc") == [(0, 0, 3)]


def test_lines_that_one_side_alone_has_cost_nothing() -> None:
    a, b = "a" + "x" * 1000 + "bc", "a" + "y" * 1000 + "b" + "z" * 1000 + "c"
    assert Budget(pairs=9).close(a, b) == [(0, 0, 1), (1001, 1001, 1), (1002, 2002, 1)]


def test_thousands_of_lines_that_occur_often_take_no_time() -> None:
    rng = random.Random(9)
    a, b = ([rng.choice("abcdefgh") for _ in range(6000)] for _ in range(2))
    start = time.process_time()
    blocks = match(a, b)
    assert time.process_time() - start < 3
    assert matched(blocks, "".join(a), "".join(b)) > 3000

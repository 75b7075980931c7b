"""Diffs that the page computes, in the browser: what they match, and what they miss."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pages import DOUBLE, DUMPS, Browser

from pallas_debug.ir.diff import diff
from pallas_debug.report.pack import Packer, Text
from pallas_debug.report.page import static

WORDS = ["load", "store", "add", "mul", "dot", "if", "for", "yield"]


@pytest.fixture
def functions(browser: Browser, tmp_path: Path) -> Browser:
    """A page with nothing but the functions of the diff."""
    path = tmp_path / "diff.html"
    names = "Object.assign(window, { matchingBlocks, diffRows });"
    ready = "document.documentElement.dataset.ready = 'true';"
    path.write_text(
        f"<!doctype html><meta charset=utf-8><script>{static(['diff.js'])}\n{names}{ready}</script>"
    )
    browser.open(path)
    return browser


def edited(lines: list[str], seed: int) -> list[str]:
    """Some lines with a few of them removed, replaced, moved and doubled."""
    chance = random.Random(seed)
    found = list(lines)
    for _ in range(chance.randint(0, 12)):
        at = chance.randrange(len(found) + 1)
        action = chance.randrange(4)
        if action == 0:
            del found[at : at + chance.randint(1, 4)]
        elif action == 1:
            found[at:at] = [chance.choice(WORDS) for _ in range(chance.randint(1, 4))]
        elif action == 2:
            found[at:at] = found[: chance.randint(1, 5)]
        elif at < len(found):
            found[at] = f"{chance.choice(WORDS)} {chance.random()}"
    return found


def check(a: list[str], b: list[str], blocks: list[list[int]]) -> int:
    """Check that blocks are equal and in order on both sides; return the matched lines."""
    i = j = matched = 0
    for start, other, size in blocks:
        assert start >= i
        assert other >= j
        assert a[start : start + size] == b[other : other + size]
        i, j, matched = start + size, other + size, matched + size
    return matched


@pytest.mark.parametrize("of", ["few words", "many words"])
def test_blocks_are_equal_and_in_order(functions: Browser, of: str) -> None:
    pairs: list[tuple[list[str], list[str]]] = [([], []), ([], ["a"]), (["a"], []), (["a"], ["a"])]
    for seed in range(60):
        chance = random.Random(seed)
        count = chance.randint(1, 80)
        some = WORDS[:3] if of == "few words" else [f"{w} {n}" for w in WORDS for n in range(20)]
        lines = [chance.choice(some) for _ in range(count)]
        pairs.append((lines, edited(lines, seed)))
    found = functions.run("args[0].map(([a, b]) => matchingBlocks(a, b))", pairs)
    for (a, b), blocks in zip(pairs, found, strict=True):
        matched = check(a, b, blocks)
        assert matched >= len(a) - 60
        if a == b:
            assert matched == len(a)


def test_an_edit_beyond_the_limit_is_a_replacement(functions: Browser) -> None:
    a = [WORDS[n % 3] for n in range(3000)]
    b = [WORDS[3 + n % 3] for n in range(3000)]
    assert functions.run("matchingBlocks(args[0], args[1])", a, b) == []


def test_a_pass_differs_in_as_many_lines_as_on_the_command_line(functions: Browser) -> None:
    folder = DUMPS / DOUBLE / "v5e" / "passes"
    old, new = (
        Packer().text(Text(name=name, text=(folder / name).read_text()))["text"].split("\n")
        for name in ("10-infer-vector-layout.mlir", "12-apply-vector-layout.mlir")
    )
    texts: list[dict[str, Any]] = [{"kind": "mlir", "lines": lines} for lines in (old, new)]
    counts = []
    for ignore in (False, True):
        made = functions.run(
            "(({rows, added, removed}) => ({added, removed, kept: rows.flatMap(r => r.hidden ?? r)"
            ".filter(r => r.sign !== '−').map(r => r.line)}))(diffRows(args[0], args[1], args[2]))",
            *texts,
            ignore,
        )
        assert made["kept"] == list(range(len(new)))
        assert made["added"] - made["removed"] == len(new) - len(old)
        counts.append(made["added"])
    expected = diff(old, new, kind="mlir")
    assert counts[0] == expected.added
    assert counts[1] <= counts[0]

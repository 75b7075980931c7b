"""Diffs of real compiler passes, and of adversarial texts."""

from __future__ import annotations

import itertools
import random
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pallas_debug.ir.diff import Diff, changed_operations, diff, words
from pallas_debug.ir.operations import LONG, NOISE, Module


def read(path: Path) -> list[str]:
    return path.read_text().removesuffix("\n").split("\n")


def applied(found: Diff, old: Sequence[str], new: Sequence[str]) -> list[str]:
    """The new text, made of the old one by the changes; what they leave equal comes from the old."""
    made: list[str] = []
    for change in found.changes:
        side, numbers = (old, change.old) if change.tag == "equal" else (new, change.new)
        made += [side[n] for n in numbers]
    return made


def test_a_diff_makes_the_new_text_of_the_old(passes: list[Path]) -> None:
    for a, b in itertools.pairwise(passes):
        old, new = read(a), read(b)
        found = diff(old, new)
        assert applied(found, old, new) == new
        assert found.changed
        assert not diff(new, new).changed


def test_any_two_texts_at_random() -> None:
    rng = random.Random(11)
    for _ in range(200):
        old = [rng.choice("abcde") for _ in range(rng.randrange(20))]
        new = [rng.choice("abcde") for _ in range(rng.randrange(20))]
        found = diff(old, new)
        assert applied(found, old, new) == new
        positions = [(c.old.start, c.new.start) for c in found.changes]
        assert positions == sorted(positions)
        for change in found.changes:
            pairs = found.pairs(change)
            assert [o for o, _ in pairs if o is not None] == list(change.old)
            assert [n for _, n in pairs if n is not None] == list(change.new)


def test_unified_output_is_a_patch(passes: list[Path], tmp_path: Path) -> None:
    for number, (a, b) in enumerate(itertools.pairwise(passes)):
        (tmp_path / "text").write_bytes(a.read_bytes())
        lines = diff(read(a), read(b)).unified("text", "text", context=number % 4)
        patch = "\n".join(lines) + "\n"
        subprocess.run(
            ["git", "apply", "--unidiff-zero", "-p0", "-"],
            cwd=tmp_path,
            input=patch.encode(),
            check=True,
        )
        assert (tmp_path / "text").read_text().rstrip("\n") == b.read_text().rstrip("\n")


def test_an_inserted_line_is_the_only_change() -> None:
    old = [f"%{n} = a.add %{max(n - 1, 0)}, %{max(n - 2, 0)} : i32" for n in range(400)]
    shifted = [re.sub(r"%(\d+)", lambda m: f"%{int(m[1]) + (int(m[1]) >= 200)}", s) for s in old]
    new = [*shifted[:200], "%200 = a.neg %3 : i32", *shifted[200:]]
    found = diff(old, new, ignore=("ssa",), kind="mlir")
    assert (found.removed, found.added) == (0, 1)
    assert diff(old, new, kind="mlir").removed > 0


def test_locations_alone_are_no_change(passes: list[Path]) -> None:
    lines = read(passes[0])
    moved = [re.sub(r"#loc(\d+)", lambda m: f"#loc{int(m[1]) + 3}", line) for line in lines]
    assert diff(lines, moved).changed
    found = diff(lines, moved, ignore=("loc",))
    assert not found.changed
    assert len(found.old.lines) < len(lines)
    assert [lines[n] for n in found.old.numbers] == list(found.old.lines)


def test_counts_before_and_after(passes: list[Path]) -> None:
    by_name = {p.stem.partition("-")[2]: Module.of(p.read_text()) for p in passes}
    counts = changed_operations(by_name["apply-vector-layout-simplify"], by_name["lower-to-llo"])
    assert counts["llo.constant"][0] == 0
    assert counts["arith.constant"][1] == 0
    assert list(counts.values()) == sorted(
        counts.values(), key=lambda pair: -abs(pair[1] - pair[0])
    )
    assert not changed_operations(by_name["lower-to-llo"], by_name["lower-to-llo"])


@pytest.mark.parametrize(
    "old,new,spans",
    [
        ("a b c", "a x c", ([(2, 3)], [(2, 3)])),
        ("%1 = f %2", "%1 = f %2, %3", ([], [(9, 13)])),
        ("same", "same", ([], [])),
        ("", "new", ([], [(0, 3)])),
        ("%10 = add", "%11 = add", ([(0, 3)], [(0, 3)])),
    ],
)
def test_words_that_differ(
    old: str, new: str, spans: tuple[list[tuple[int, int]], list[tuple[int, int]]]
) -> None:
    found = words(old, new)
    merged = tuple([(s[0][0], s[-1][1])] if s else [] for s in found)
    assert merged == spans


def test_words_of_long_lines_are_those_that_differ_and_take_no_time() -> None:
    rng = random.Random(13)
    old = [rng.choice(["a", "b", "%0", "i32"]) for _ in range(300)]
    new = [word if n % 9 else "x" for n, word in enumerate(old)]
    start = time.process_time()
    for _ in range(20):
        _, b = words(" ".join(old), " ".join(new))
    assert time.process_time() - start < 2
    text = " ".join(new)
    assert "".join(text[i:j] for i, j in b).count("x") == new.count("x")
    assert sum(j - i for i, j in b) < len(text) / 3


@pytest.mark.parametrize(
    "old, new, differ",
    [
        ("b", "cd", ("b", "cd")),
        ("", "new", ("", "new")),
        ("aba", "abba", ("", "b")),
        ("x b x", "x c x", ("b", "c")),
    ],
)
def test_of_lines_beyond_long_all_between_the_differences_is_told(
    old: str, new: str, differ: tuple[str, str]
) -> None:
    same = "a.b " * LONG
    lines = [f"{same}({text}){same}" for text in (old, new)]
    found = words(lines[0], lines[1])
    assert tuple(
        "".join(line[i:j] for i, j in at) for line, at in zip(lines, found, strict=True)
    ) == (differ)


@pytest.mark.parametrize("ignore", [(), NOISE])
def test_hostile_texts(ignore: Sequence[str]) -> None:
    rng = random.Random(2)
    pieces = ["", "\x1b[2J", "%0 = ", "{", "}" * 9, "loc(", "a" * 50_000, "#loc1 = loc("]
    for _ in range(30):
        old = [rng.choice(pieces) for _ in range(rng.randrange(40))]
        new = [rng.choice(pieces) for _ in range(rng.randrange(40))]
        found = diff(old, new, ignore=ignore, kind="mlir")  # type: ignore[arg-type]
        assert [n for c in found.changes for n in c.new] == list(range(len(found.new.lines)))
        assert list(found.unified("a", "b")) or not found.changed

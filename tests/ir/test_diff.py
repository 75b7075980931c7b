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

from pallas_debug.ir.diff import Diff, diff, summary, words
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


def renumbered(text: str) -> str:
    names = sorted(set(re.findall(r"%[\w$.-]+", text)))
    shuffled = names.copy()
    random.Random(1).shuffle(shuffled)
    table = {a: f"{b}_new" for a, b in zip(names, shuffled, strict=True)}
    return re.sub(r"%[\w$.-]+", lambda m: table[m[0]], text)


def test_a_renumbering_is_no_change_if_one_wishes(passes: list[Path]) -> None:
    for path in passes:
        new = renumbered(path.read_text()).removesuffix("\n").split("\n")
        assert diff(read(path), new).changed
        assert not diff(read(path), new, ignore=("ssa",)).changed


def test_another_operand_is_a_change_whatever_is_ignored() -> None:
    old = ["%0 = a.x : i32", "%1 = a.y : i32", "%2 = a.sub %0, %1 : i32", "a.r %2 : i32"]
    new = ["%5 = a.x : i32", "%6 = a.y : i32", "%7 = a.sub %6, %5 : i32", "a.r %7 : i32"]
    found = diff(old, new, ignore=("ssa", "loc"), kind="mlir")
    assert [(c.tag, list(c.old)) for c in found.changes if c.tag != "equal"] == [("replace", [2])]


def test_a_number_that_is_used_again_is_another_value() -> None:
    old = ["%0 = a.x : i32", "a.u %0", "%0 = a.y : i32", "a.v %0"]
    new = ["%0 = a.x : i32", "a.u %0", "%1 = a.y : i32", "a.v %1"]
    assert not diff(old, new, ignore=("ssa",), kind="mlir").changed


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


def test_what_a_pass_changed_is_less_without_noise(passes: list[Path]) -> None:
    for a, b in itertools.pairwise(passes):
        plain, bare = diff(read(a), read(b)), diff(read(a), read(b), ignore=NOISE)
        assert bare.added <= plain.added


def test_counts_before_and_after(passes: list[Path]) -> None:
    by_name = {p.stem.partition("-")[2]: Module.of(p.read_text()) for p in passes}
    counts = summary(by_name["apply-vector-layout-simplify"], by_name["lower-to-llo"])
    assert counts.changed["llo.constant"][0] == 0
    assert counts.changed["arith.constant"][1] == 0
    assert list(counts.changed.values()) == sorted(
        counts.changed.values(), key=lambda pair: -abs(pair[1] - pair[0])
    )
    assert not summary(by_name["lower-to-llo"], by_name["lower-to-llo"]).changed


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


def test_words_of_huge_lines_are_not_compared_one_by_one() -> None:
    a, b = words("x " * 500_000 + "a", "y " * 500_000 + "a")
    assert len(a) == len(b) == 1


@pytest.mark.parametrize(
    "old, new, differ",
    [
        ("b", "cd", ("b", "cd")),
        ("", "new", ("", "new")),
        ("gone", "", ("gone", "")),
        ("", "", ("", "")),
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
    pieces = [
        "",
        "\x1b[2J",
        "[red]x[/]",
        "%0 = ",
        "{",
        "}" * 9,
        "loc(",
        "a" * 50_000,
        "#loc1 = loc(",
    ]
    for _ in range(30):
        old = [rng.choice(pieces) for _ in range(rng.randrange(40))]
        new = [rng.choice(pieces) for _ in range(rng.randrange(40))]
        found = diff(old, new, ignore=ignore, kind="mlir")  # type: ignore[arg-type]
        assert [n for c in found.changes for n in c.new] == list(range(len(found.new.lines)))
        assert list(found.unified("a", "b")) or not found.changed


def test_many_equal_lines_do_not_take_long() -> None:
    found = diff(["same"] * 20_000 + ["a"], ["same"] * 19_000 + ["b"])
    assert found.changed

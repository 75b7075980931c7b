"""Diffs that ignore value numbers: which operands count as the same value."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from pallas_debug.ir.diff import diff
from pallas_debug.ir.operations import NOISE, Kind, Noise


def changed(
    old: Sequence[str],
    new: Sequence[str],
    kind: Kind = "mlir",
    ignore: Sequence[Noise] = NOISE,
) -> tuple[list[int], list[int]]:
    """The lines that changed, of either text."""
    found = diff(old, new, ignore=ignore, kind=kind)
    changes = [c for c in found.changes if c.tag != "equal"]
    return (
        [found.old.numbers[n] for c in changes for n in c.old],
        [found.new.numbers[n] for c in changes for n in c.new],
    )


def program(rng: random.Random, size: int) -> list[str]:
    """Lines that each define a value or two of some above."""
    lines = ["func.func @f(%arg0: i32, %arg1: i32) {"]
    known = ["%arg0", "%arg1"]
    for n in range(size):
        operands = ", ".join(rng.choice(known[-8:]) for _ in range(rng.randrange(4)))
        name = rng.choice("abc")
        if rng.random() < 0.2:
            lines.append(f"  %{n}:2 = t.{name} {operands} : i32")
            known += [f"%{n}#0", f"%{n}#1"]
        else:
            lines.append(f"  %{n} = t.{name} {operands} : i32")
            known.append(f"%{n}")
    return [*lines, "}"]


def renumbered(lines: Sequence[str], rng: random.Random) -> list[str]:
    text = "\n".join(lines)
    names = sorted(set(re.findall(r"%\w+", text)))
    others = [f"%{n * 7}x{'y' * rng.randrange(12)}" for n in range(len(names))]
    rng.shuffle(others)
    table = dict(zip(names, others, strict=True))
    return re.sub(r"%\w+", lambda m: table[m[0]], text).split("\n")


@pytest.mark.slow
def test_any_renumbering_is_no_change_and_any_other_operand_is_one() -> None:
    rng = random.Random(21)
    for _ in range(150):
        old = program(rng, rng.randrange(1, 60))
        new = renumbered(old, rng)
        assert changed(old, new) == ([], [])
        places = [n for n, line in enumerate(old[:-1]) if re.search(r"%\d+\b(?! =|:)", line)]
        if not places:
            continue
        at = rng.choice(places)
        head, equals, rest = new[at].partition(" = ")
        new[at] = head + equals + re.sub(r"%\w+(#\d)?", "%arg_of_none", rest, count=1)
        assert at in changed(old, new)[1]


def test_a_name_of_another_region_is_another_value() -> None:
    def text(first: str, second: str) -> list[str]:
        lines = []
        for name, index in (("f", first), ("g", second)):
            lines += [
                f"func.func @{name}(%arg0: i32) {{",
                f"  scf.for {index} = %arg0 to %arg0 step %arg0 iter_args(%s = %arg0) -> (i32) {{",
                f"    a.use {index}, %s, %arg0",
                "  }",
                "}",
            ]
        return lines

    assert changed(text("%i", "%i"), text("%i", "%j")) == ([], [])
    assert changed(text("%i", "%j"), text("%j", "%j")) == ([], [])
    other = [line.replace("use %i, %s", "use %s, %i") for line in text("%i", "%i")]
    assert changed(text("%i", "%i"), other) == ([2, 7], [2, 7])


def test_arguments_of_blocks_are_defined_where_they_begin() -> None:
    old = [
        "^bb0(%arg0: i32, %arg1: i32):",
        "  a.x %arg0",
        "^bb1(%arg0: i32, %arg1: i32):",
        "  a.y %arg0",
    ]
    same = ["^bb0(%p: i32, %q: i32):", "  a.x %p", "^bb1(%q: i32, %p: i32):", "  a.y %q"]
    other = ["^bb0(%p: i32, %q: i32):", "  a.x %p", "^bb1(%q: i32, %p: i32):", "  a.y %p"]
    assert changed(old, same) == ([], [])
    assert changed(old, other) == ([3], [3])


def test_what_a_changed_line_defines_is_paired_by_its_first_use() -> None:
    old = ["%0 = a.x : i32", "%1 = a.z : i32", "a.u %0", "a.v %0", "a.w %1"]
    new = ["%5 = a.y : f32", "%6 = a.z : i32", "a.u %5", "a.v %5", "a.w %6"]
    assert changed(old, new) == ([0], [0])
    new[3] = "a.v %6"
    assert changed(old, new) == ([0, 3], [0, 3])


def test_one_value_twice_is_not_two_values() -> None:
    assert changed(["a.u %0, %0"], ["a.u %1, %2"]) == ([0], [0])
    assert changed(["a.u %0, %1"], ["a.u %2, %2"]) == ([0], [0])
    assert changed(["a.u %0, %1"], ["a.u %1, %0"]) == ([], [])


def test_a_line_may_use_what_it_redefines() -> None:
    old = ["%0 = a.x", "%0 = a.f %0", "%0 = a.f %0", "a.u %0"]
    new = ["%0 = a.x", "%1 = a.f %0", "%2 = a.f %1", "a.u %2"]
    assert changed(old, new) == ([], [])
    assert changed(old, [*new[:3], "a.u %1"]) == ([3], [3])


@pytest.mark.parametrize(
    "one,other",
    [
        ("%1", "%10"),
        ("%a", "%a.b"),
        ("%a", "%a-b"),
        ("%12345678", "%123456789"),
        ("%12345678", "%12345679"),
        ("%long_name_of_0", "%long_name_of_1"),
        ("%0_long_name", "%1_long_name"),
        ("%" + "x" * 4000 + "1", "%" + "x" * 4000 + "2"),
    ],
)
def test_names_that_are_much_alike(one: str, other: str) -> None:
    old = [f"{one} = a.x", f"{other} = a.y", f"a.u {one}", f"a.v {other}"]
    assert changed(old, ["%0 = a.x", "%1 = a.y", "a.u %0", "a.v %1"]) == ([], [])
    assert changed(old, ["%0 = a.x", "%1 = a.y", "a.u %1", "a.v %1"]) == ([2], [2])


def test_several_results() -> None:
    old = ["%0:2 = a.x", "%1, %2 = a.y", "a.u %0#0, %0#1", "a.v %1, %2"]
    same = ["%5:2 = a.x", "%7, %6 = a.y", "a.u %5#0, %5#1", "a.v %7, %6"]
    assert changed(old, same) == ([], [])
    assert changed(old, [*same[:2], "a.u %5#1, %5#0", same[3]]) == ([2], [2])
    assert changed(old, [*same[:3], "a.v %6, %7"]) == ([3], [3])


def test_a_percent_sign_is_not_a_name() -> None:
    old = ["%0 = a.x", 'a.assert %0, "50% = too much"', "a.u %0"]
    new = ["%1 = a.x", 'a.assert %1, "50% = too much"', "a.u %1"]
    assert changed(old, new) == ([], [])
    assert changed(["a.u %"], ["a.u %0"]) == ([0], [0])


def test_a_location_may_stand_anywhere() -> None:
    old = ["func.func @f(%0: i32 loc(#loc1), %1: i32 loc(unknown)) {", '} loc("a"(#loc12))']
    new = ["func.func @f(%0: i32, %1: i32 loc(#loc7)) {", "}"]
    assert changed(old, new) == ([], [])
    assert changed(old, new, ignore=("ssa",)) == ([0, 1], [0, 1])


def test_values_of_a_jaxpr() -> None:
    old = [
        "{ lambda ; a:f32[8] b:f32[8]. let",
        "    c:f32[8] = mul a b  # in.py:3 (a)",
        "    d:f32[8] = sub c a",
        "  in (d,) }",
    ]
    same = [
        "{ lambda ; x:f32[8] y:f32[8]. let",
        "    z:f32[8] = mul x y  # of.py:3 (z)",
        "    w:f32[8] = sub z x",
        "  in (w,) }",
    ]
    other = [*same[:2], "    w:f32[8] = sub z y", "  in (w,) }"]
    assert changed(old, same, "jaxpr") == ([], [])
    assert changed(old, other, "jaxpr") == ([2], [2])
    assert changed(
        old, [s.replace("of.py", "in.py").replace("(z)", "(a)") for s in same], "jaxpr", ("ssa",)
    ) == ([], [])


def test_values_of_llo() -> None:
    old = ["  %s15 = sshll.u32 %s0, 4", "  %v2 = vld [%s15]", "  %v3 = vadd %v2, %v2"]
    same = ["  %s1_t = sshll.u32 %s9, 4", "  %v20 = vld [%s1_t]", "  %v2 = vadd %v20, %v20"]
    assert changed(old, same, "llo") == ([], [])
    assert changed(old, [*same[:2], "  %v2 = vadd %v20, %s1_t"], "llo") == ([2], [2])


def test_a_renumbering_of_passes_with_lines_between(passes: list[Path]) -> None:
    rng = random.Random(4)
    for path in passes:
        old = path.read_text().removesuffix("\n").split("\n")
        new = renumbered(old, rng)
        at = len(new) // 2
        new[at:at] = ["  a.inserted"]
        assert changed(old, new, ignore=("ssa",)) == ([], [at])

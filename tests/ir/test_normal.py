"""Normal forms: which differences are noise."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from pallas_debug.ir.normal import normal_form, sorted_attributes, stripped
from pallas_debug.ir.operations import NOISE, Kind, Module, Noise


def normal_lines(lines: Sequence[str], kind: Kind, ignore: Collection[Noise]) -> list[str | None]:
    """Normal form of each line of a whole text; None for a line that is only noise."""
    return [normal_form(line, kind, ignore) for line in stripped(lines, kind, ignore).lines]


def test_locations_and_their_aliases_go(passes: list[Path], dump: Path) -> None:
    for path in passes:
        lines = path.read_text().split("\n")
        normal = normal_lines(lines, "mlir", ("loc",))
        assert len(normal) == len(lines)
        for line, left in zip(lines, normal, strict=True):
            assert (left is None) == line.startswith("#loc")
            assert "loc(" not in (left or "")
    jaxpr = (dump / "jaxpr.txt").read_text().split("\n")
    assert not any("rows.py" in (line or "") for line in normal_lines(jaxpr, "jaxpr", ("loc",)))


def test_locations_spelled_out() -> None:
    lines = [
        '  %0 = a.b %1 : i32 loc(callsite("f"("a.py":1:2 to :3) at "g"("b(.py":2:1)))',
        "  %1 = a.c {name = \"loc(x)\"} : i32 loc(#loc3)",
    ]  # fmt: skip
    assert normal_lines(lines, "mlir", ("loc",)) == [
        "  %0 = a.b %1 : i32",
        '  %1 = a.c {name = "loc(x)"} : i32',
    ]


@pytest.mark.parametrize(
    "one,other,same",
    [
        ("f {a = 1, b = [2, 3]} : x", "f {b = [2, 3], a = 1} : x", True),
        ("f <{a = {c = 1, d = 2}, b}> : x", "f <{b, a = {d = 2, c = 1}}> : x", True),
        ('f {a = "}, b = 2", b = 1}', 'f {b = 1, a = "}, b = 2"}', True),
        ("f {a = 1, b = 2}", "f {a = 2, b = 1}", False),
        ("f [1, 2]", "f [2, 1]", False),
        ("f (%a, %b)", "f (%b, %a)", False),
        ("f {a = [2, 3]}", "f {a = [3, 2]}", False),
        ("f {in = [#t.v<\"32,{0,0}\">], out = 1}", "f {out = 1, in = [#t.v<\"32,{0,0}\">]}", True),
    ],
)  # fmt: skip
def test_the_order_of_attributes(one: str, other: str, same: bool) -> None:
    assert (sorted_attributes(one) == sorted_attributes(other)) is same


def test_llo_names_and_locations() -> None:
    line = '  %s15_s11 = sshll.u32 %s0, 4 /* loc("a.py":1:2 to :3) */'
    assert normal_lines([line], "llo", ("ssa", "loc")) == ["  % = sshll.u32 %, 4"]


def test_hostile_lines_stay_lines(passes: list[Path]) -> None:
    rng = random.Random(5)
    text = passes[0].read_text()
    for kind in ("mlir", "jaxpr", "llo", "bundles", "text"):
        for _ in range(10):
            piece = rng.choice(
                ["{" * 900, '"', "loc(" * 50, "\x1b[0m", "%" * 50, "[" * 90, "}" * 9]
            )
            at = rng.randrange(len(text))
            lines = (text[:at] + piece + text[at:]).split("\n")
            assert len(normal_lines(lines, kind, NOISE)) == len(lines)  # type: ignore[arg-type]


def test_deep_nesting_is_left_as_it_is() -> None:
    line = "f {a = " + "{" * 50_000
    assert sorted_attributes(line) == line
    assert Module([line]).names == [None]

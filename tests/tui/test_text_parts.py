"""Parts of the text pane, without a screen: cells and colours."""

from __future__ import annotations

import random

import pytest
from rich.cells import cell_len

from pallas_debug.tui.widgets.cells import (
    cells,
    marked,
    plain,
    spans,
    visible,
    without_locations,
    without_tabs,
)

LLO = [
    "$region0: #{add.1}",
    "  #allocation0 [shape = 'u32[]', space=smem, size = 0x4]",
    '    %7 = vsyncpa [#allocation3], 0 /* loc("rows.py":21:17 to :27) */',
    "    %v42 = vadd.f32 %v41, %v40",
]
BUNDLES = [
    "= control target key start",
    "LH: loop header",
    '   0x2   :  { (%p3) %v42_v2 = vadd.f32 %v41_v1, %v40_v0 /* loc("r.py":9:11) */  ;;  %s1 = sld 4 }',
    "   0x1 LB: { %20 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s15_s11, /*size=*/128 }",
]


@pytest.mark.parametrize(
    "text", ["plain", "宽字", "e\u0301" * 9, "a\u200db\ufe0f", "\U0001f469\u200d\U0001f467"]
)
def test_cells_are_those_that_the_terminal_takes(text: str) -> None:
    assert cells(text) == cell_len(visible(text))
    assert cells(text) == sum(cell_len(c) for c in visible(text))


def test_every_character_is_shown_or_stands_for_itself() -> None:
    for number in (*range(0x3100), *range(0xD800, 0xE000), *range(0xFE00, 0x10000), 0xE0001):
        shown = visible(chr(number))
        shown.encode()
        assert len(shown) == 1
        assert shown.isprintable() or number >= 0xE000 or not shown.isascii()
        assert ord(shown) not in (*range(0x20), *range(0x7F, 0xA0))
        assert (
            shown not in "\u061c\u200b\u200d\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff"
        )


def test_tabs_reach_their_stops_across_parts() -> None:
    parts = without_tabs([("宽\t", "value"), ("a\t\tb", "")])
    assert plain(parts) == "宽      a               b"
    assert [kind for _, kind in parts] == ["value", ""]


@pytest.mark.parametrize(
    "line, expected",
    [
        ("  %0 = arith.constant 1 : i32", {"value", "operation", "type", "literal"}),
        ("#loc1 = loc(callsite(#loc2 at #loc3))", {"location"}),
        ("    c:f32[128,256] <- a[...]  # softmax.py:7:8 (k)", {"location", "type"}),
        ("    x = y  # at most", {"comment"}),
        ('"string" // and a comment', {"comment"}),
        ("plain words", set()),
        (LLO[0], {"label"}),
        (LLO[1], {"label", "type", "literal"}),
        (LLO[2], {"label", "value", "operation", "location"}),
        (LLO[3], {"value", "operation"}),
        (BUNDLES[0], {"label"}),
        (BUNDLES[1], {"label"}),
        (BUNDLES[2], {"literal", "value", "operation", "location", "comment"}),
        (BUNDLES[3], {"literal", "value", "operation", "comment"}),
    ],
)
def test_every_stage_has_colours(line: str, expected: set[str]) -> None:
    parts = spans(line)
    assert plain(parts) == line
    assert {kind for _, kind in parts if kind} - {"string"} >= expected
    assert "rows.py" not in plain(without_locations(parts))


@pytest.mark.parametrize(
    "unit", ["loc(", 'loc("', "tensor<", "/* ", '"\\', "a.", "!x<", "# ", "-1e"]
)
def test_hostile_lines_come_to_an_end(unit: str) -> None:
    """A rule that backtracks exponentially would never end."""
    line = unit * (5_000 // len(unit))
    assert plain(spans(line)) == line


def test_marks_lie_over_parts_and_lose_nothing() -> None:
    rng = random.Random(5)
    for _ in range(300):
        line = "".join(rng.choice("ab%. ") for _ in range(30))
        edges = sorted(rng.sample(range(31), 6))
        marks = [(edges[0], edges[1], "x"), (edges[2], edges[3], "y"), (edges[4], edges[5], "x")]
        found = marked(spans(line), marks)
        assert plain(found) == line
        at = 0
        for text, kind in found:
            inside = [m for m in marks if m[0] <= at < m[1]]
            assert (kind in "xy" and kind != "") == bool(inside)
            at += len(text)


@pytest.mark.parametrize(
    "line, left",
    [
        ('%0 = a.b loc("rows.py":1:2)', "%0 = a.b"),
        ("func.func @f(%arg0: i32 loc(unknown)) {", "func.func @f(%arg0: i32) {"),
        ("} loc(#loc)", "}"),
        ("c:f32[8] <- a[...]  # /x/rows.py:7:8 (rows)", "c:f32[8] <- a[...]"),
        ('%7 = vsyncpa 0 /* loc("rows.py":21:17 to :27) */', "%7 = vsyncpa 0"),
        ("x = y  # at most 1", "x = y  # at most 1"),
    ],
)
def test_locations_are_left_out_except_for_hits_in_them(line: str, left: str) -> None:
    assert plain(without_locations(spans(line))) == left
    parts = marked(spans(line), [(len(line) - 3, len(line), "hit")])
    assert plain(without_locations(parts)).endswith(line[-3:])

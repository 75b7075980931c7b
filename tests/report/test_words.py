"""Small pieces of the report: numbers, markup, packed texts, the listing of bundles."""

from __future__ import annotations

import re

import pytest

from pallas_debug.profile.stats import Profile, ScheduleTexts
from pallas_debug.report import page, schedule, words
from pallas_debug.report.markup import Markup, escape, tag
from pallas_debug.report.pack import MAX_LINE, Packer, Text
from pallas_debug.report.parts.overview import COLOURS

BUNDLES = """\
     0   :  { %s0 = inlined_call_operand.hbm [shape: f32[8,128]] }
   0x1 LB: > { %v1 = vld [vmem:[%s0] sm:$0xff] /* loc("k.py":7:2 to :9) */  ;;  %v2 = vmov 0.0 } /* Start region 3 */
   0x2   : > { }
   0x3   :  { %v3 = vadd.f32 %v1, %v2 /* loc("k.py":8:2 to :9) */ } /* End region 3 */
"""


@pytest.mark.parametrize(
    "call,text",
    [
        (words.size(None), "–"),
        (words.size(0), "0 B"),
        (words.size(9_542), "9.3 KiB"),
        (words.size(3 << 20), "3 MiB"),
        (words.size(5 << 40), "5120 GiB"),
        (words.seconds(None), "–"),
        (words.seconds(0.0000151), "15.1 µs"),
        (words.seconds(0.0008), "0.8 ms"),
        (words.seconds(0.012), "12 ms"),
        (words.seconds(1.44), "1.4 s"),
        (words.number(None), "–"),
        (words.number(1541), "1,541"),
        (words.number(0.4215), "0.421"),
        (words.percent(None), "–"),
        (words.percent(0.713), "71 %"),
        (words.dimensions((1, None, 4)), "1 × ? × 4"),
    ],
)
def test_numbers(call: str, text: str) -> None:
    assert call == text


def luminance(colour: str) -> float:
    """Relative luminance of a colour, as WCAG 2 defines it."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    r, g, b = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


BEHIND = {
    "accent-soft": ("ink", "muted", "tk-op", "tk-value", "tk-type", "tk-string", "tk-number"),
    "bad-soft": ("bad",),
    "warn-soft": ("warn", "ink"),
    "added": ("ink",),
    "removed": ("ink",),
}
"""Texts on each background that not all texts are on."""


@pytest.mark.parametrize("scheme", ["light", "dark", "chosen dark"])
def test_every_colour_of_text_has_contrast_in_both_schemes(scheme: str) -> None:
    style = page.static(page.STYLES)
    blocks = re.findall(r"\{[^{}]*--bg: [^{}]*\}", style)
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[0]))
    if scheme != "light":
        found |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[scheme == "dark" or 2]))
    texts = [name for name in found if name in ("ink", "muted", "accent", "ok", "bad", "warn")]
    texts += [name for name in found if name.startswith("tk-")]
    assert len(texts) == 12
    pairs = [(text, on) for text in texts for on in ("bg", "surface", "sunken")]
    pairs += [(text, on) for on, of in BEHIND.items() for text in of]
    low = [(a, b, round(contrast(found[a], found[b]), 2)) for a, b in pairs]
    assert [pair for pair in low if pair[2] < 4.5] == []
    slices = re.findall(r"pd-slice-[\w-]+ \{ fill: (#[0-9a-f]{6})", style)
    assert len(slices) == COLOURS
    assert min(contrast(found["slice-ink"], colour) for colour in slices) >= 4.5


def test_markup_escapes_everything_but_itself() -> None:
    assert escape("<b>&\"'\x1b\u202e") == "&lt;b&gt;&amp;&quot;&#x27;\\x1b\\u202e"
    inner = tag("b", "<", title='"')
    assert inner == '<b title="&quot;">&lt;</b>'
    assert tag("p", inner, None, ["a", 1], class_="x", hidden=True, open=False) == (
        f'<p class="x" hidden>{inner}a1</p>'
    )
    assert tag("br") == "<br>"
    assert isinstance(inner, Markup)


def test_locations_are_removed_and_kept_as_chains() -> None:
    text = (
        "module {\n"
        "  func.func @k(%arg0: i32 loc(unknown)) {\n"
        "    %0 = arith.addi %arg0, %arg0 : i32 loc(#loc2)\n"
        '    %1 = arith.muli %0, %0 : i32 loc("f"("k.py":9:1 to :2))\n'
        "    return loc(unknown)\n"
        "  }\n"
        "}\n"
        '#loc1 = loc("k.py":7:1 to :2)\n'
        '#loc2 = loc(callsite(#loc1 at "k.py":20:3))\n'
    )
    packer = Packer()
    made = packer.text(Text(name="mosaic", text=text))
    assert made["text"].split("\n")[1:4] == [
        "  func.func @k(%arg0: i32) {",
        "    %0 = arith.addi %arg0, %arg0 : i32",
        "    %1 = arith.muli %0, %0 : i32",
    ]
    assert made["chains"] == [-1, 2, 0, 1, 1, 1, -1, 3]
    tables = packer.tables()
    assert tables["files"] == ["k.py"]
    assert tables["chains"] == [[0, 7, 0, 20], [0, 9]]


def test_texts_share_locations_only_where_their_aliases_are_the_same() -> None:
    passes = [
        f'  %0 = arith.addi %1, %1 : i32 loc(#loc1)\n#loc1 = loc("k.py":{line}:1 to :2)\n'
        for line in (7, 7, 8)
    ]
    packer = Packer()
    made = [packer.text(Text(name="a pass", text=text)) for text in passes]
    assert [text["chains"] for text in made] == [[0, 1], [0, 1], [1, 1]]
    assert packer.tables()["chains"] == [[0, 7], [0, 8]]


@pytest.mark.parametrize(
    "line,expected",
    [("x\x1b", "x\\x1b"), ("\té", "\té"), ("x" * (MAX_LINE + 1), f"{'x' * MAX_LINE} … 1 more")],
)
def test_packed_lines_are_visible_and_short(line: str, expected: str) -> None:
    packed = Packer().text(Text(name="log", text=f"first\n{line}\nlast"))
    first, shown, last = packed["text"].split("\n")
    assert (first, last) == ("first", "last")
    assert shown.startswith(expected)


def test_the_listing_has_an_instruction_per_line() -> None:
    profile = Profile(texts=ScheduleTexts(bundles=BUNDLES), kernel=None, compilation=None)
    packer = Packer()
    made, starts = schedule.listing(profile, packer)
    lines = made["text"].split("\n")
    assert len(starts) == len(profile.schedule.bundles) == 4
    assert "vld" in lines[starts[1] + 1] or "vld" in lines[starts[1]]
    assert any(line.strip() == "// end of region 3" for line in lines)
    values = zip(made["chains"][::2], made["chains"][1::2], strict=True)
    numbers = [number for number, count in values for _ in range(count)]
    chains = packer.tables()["chains"]
    rows = zip(numbers, lines, strict=True)
    located = [chains[n][1] for n, line in rows if n >= 0 and ("vld" in line or "vadd" in line)]
    assert located == [7, 8]
    assert schedule.strip(profile, starts) is None
    cut = Profile(texts=ScheduleTexts(bundles=BUNDLES[:-30]), kernel=None, compilation=None)
    assert schedule.listing(cut, packer)[0]["text"].endswith("// the listing is cut off here")

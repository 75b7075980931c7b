"""Descriptions of vector layouts from the compiler's dumps and messages, for both releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallas_debug import explain
from pallas_debug.explain import layouts

DATA = Path(__file__).parents[1] / "ir" / "data"
MESSAGES = Path(__file__).parent / "messages"


IN_WORDS = (
        ('#tpu.vpad<"32,{0,0},(8,128)">', "32-bit elements, tiles of 8 x 128"),
        ('#mosaic_tc.vpad<"32,{0,*},(8,128)">',
         "32-bit elements, tiles of 8 x 128, the same in all lanes"),
        ("32,{*,*},(8,128)",
         "32-bit elements, tiles of 8 x 128, the same in all sublanes and lanes"),
        ('vpad<"32,{0,*},(8,128),-1">',
         "32-bit elements, tiles of 8 x 128, the same in all lanes, laid out as a column, one "
         "element per sublane"),
        ('vpad<"32,{*,0},(8,128),-2">',
         "32-bit elements, tiles of 8 x 128, the same in all sublanes, laid out as a row along "
         "lanes"),
        ('vpad<"16,{8,64},(16,128)">',
         "16-bit elements, 2 to a 32-bit word, tiles of 16 x 128, beginning at sublane 8 and lane "
         "64"),
        ('vpad<"8,{0,0},(32,128)">', "8-bit elements, 4 to a 32-bit word, tiles of 32 x 128"),
)  # fmt: skip


def test_a_layout_in_words() -> None:
    for text, words in IN_WORDS:
        assert layouts.holds_layouts(text), text
        assert str(layouts.parse(text)) == words
        (line,) = layouts.describe(text)
        assert line.endswith(f": {words}")


def test_no_layout() -> None:
    assert layouts.parse('#tpu.vpad<"none">') is None
    assert layouts.describe('#tpu.vpad<"none">') == (
        "none: a scalar, or a value that is not in vector registers",
    )
    for text in ("", "f32[8,128]{1,0:T(8,128)}", "vector<8x128xf32>"):
        assert not layouts.holds_layouts(text)
        assert layouts.describe(text) == ()


def test_a_relayout_that_is_refused_says_what_it_is_and_what_is_wanted() -> None:
    found = explain.explain((MESSAGES / "relayout.txt").read_text().split("=== from: ")[1])
    assert found is not None
    assert found.details == (
        "value: vector<32x128xi1>",
        "actual: 32-bit elements, tiles of 8 x 128",
        "needed: 32-bit elements, tiles of 8 x 128, the same in all sublanes and lanes",
        "so it must be repeated over all sublanes",
        "so it must be repeated over all lanes",
    )


def test_an_operation_says_which_operand_has_which_layout() -> None:
    found = explain.explain((MESSAGES / "operation-layout.txt").read_text().split("=== from: ")[1])
    assert found is not None
    assert found.id == "operation-layout"
    plain = "32-bit elements, tiles of 8 x 128"
    assert found.details == (
        "tpu.dynamic_gather",
        f"  operand 0 %7, vector<128xf32>: {plain}",
        f"  operand 1 %14, vector<128xi32>: {plain}",
        f"  result 0, vector<128xf32>: {plain}",
    )


@pytest.mark.parametrize("dialect", ["tpu", "xir"])  # the latter in libtpu 0.0.52
def test_a_reshape_that_is_refused_is_named(dialect: str) -> None:
    found = explain.explain(
        "infer-vector-layout: unsupported shape cast\n"
        f'The MLIR operation involved:\n  %4 = "{dialect}.reshape"(%3) : '
        "(vector<8x120xf32>) -> vector<16x60xf32>"
    )
    assert found is not None
    assert found.details == ("the reshape: from vector<8x120xf32> to vector<16x60xf32>",)


@pytest.mark.parametrize("version", ["0.0.42", "0.0.50"])
def test_the_layouts_of_a_dump(version: str) -> None:
    """Dumps by the real compiler: relayouts say why, operations name their operands."""
    passes = next((DATA / f"libtpu-{version}").glob("rows-*")) / "v5e" / "passes"
    texts = [path.read_text() for path in passes.iterdir() if "layout" in path.name]
    described = [line for text in texts for line in layouts.describe(text)]
    assert any(line.endswith(".relayout") for line in described)
    assert "  so a value that is the same in all sublanes must begin at sublane 0" in described
    assert any(line.startswith("  operand 0 %") and "vector<8x1xf32>" in line for line in described)
    assert any("laid out as a column" in line for line in described)
    assert not any("%o_ref" in line for line in described)  # a store's first operand is the value


def test_why_a_value_has_to_move() -> None:
    def between(source: str, target: str) -> list[str]:
        one, other = layouts.parse(source), layouts.parse(target)
        assert one is not None
        assert other is not None
        return layouts.reasons(one, other)

    assert between("32,{0,0},(8,128)", "32,{0,0},(8,128)") == []
    assert between("32,{0,64},(8,128)", "16,{0,0},(16,128)") == [
        "it must move from lane 64 to 0",
        "its elements must change from 32 to 16 bits",
        "its tiles must be rearranged from 8 x 128 to 16 x 128",
    ]
    assert between("32,{*,0},(8,128),-2", "32,{0,0},(8,128),-1") == [
        "a value that is the same in all sublanes must begin at sublane 0",
        "rows must become columns, or vice versa",
    ]

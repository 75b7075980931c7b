"""Locations in compiler text, and the Python lines that they name."""

from __future__ import annotations

import pytest

from pallas_debug.ir.chains import Chains, first_source_line
from pallas_debug.ir.locations import unescape
from pallas_debug.model import SourceLine

E2003 = """\
INTERNAL: Mosaic failed to compile TPU kernel: E2003: CompileTimeMosaicUnprovenMemoryAccessAlignment:
cannot statically prove that index in dimension 1 is a multiple of 128

at location: loc("get:"("get/get"(callsite("kernel"("/x/bad.py":6:17 to :47) at "f"("/x/bad.py":8:9 to :20)))))

The MLIR operation involved:
  %4 = "tpu.vector_load"(%1, %2, %3) : (memref<8x512xf32>, index, index) -> vector<8x128xf32>
"""


@pytest.mark.parametrize(
    "text, lines",
    [
        ("no location at all", []),
        ('loc(unknown) loc("x_ref") loc(#loc7)', []),
        ('loc("rows.py":12:4)', [("rows.py", 12, None)]),
        ('#loc7 = loc("rows.py":12:4 to :30)', [("rows.py", 12, None)]),
        ('loc("rows.py":12:4 to 14:30)', [("rows.py", 12, None)]),
        ('loc("kernel"("rows.py":12:4))', [("rows.py", 12, "kernel")]),
        ('loc("kernel"( "rows.py":12:4))', [("rows.py", 12, "kernel")]),
        ('loc("get:"("get/get"("rows.py":1:2)))', [("rows.py", 1, "get/get")]),
        ('loc("a b/c d.py":1:2)', [("a b/c d.py", 1, None)]),
        ('loc("<lambda>"("a.py":1:2))', [("a.py", 1, "<lambda>")]),
        (
            'loc(callsite("g"("a.py":1:2) at callsite("f"("b.py":3:4) at "m"("c.py":5:6))))',
            [("a.py", 1, "g"), ("b.py", 3, "f"), ("c.py", 5, "m")],
        ),
        ('loc(fused["a.py":1:2, "b.py":3:4])', [("a.py", 1, None), ("b.py", 3, None)]),
        (
            r'loc("k \22q\22 \\ \C3\BC"("/h \C3\BC\22\\y.py":3:4))',
            [('/h ü"\\y.py', 3, 'k "q" \\ ü')],
        ),
        ('"quoted" words : "f"("a.py":1:2)', [("a.py", 1, "f")]),
        ('%0 = "tpu.load"(%1) {s = "(x"} : i32 loc("f"("a.py":1:2))', [("a.py", 1, "f")]),
        (E2003, [("/x/bad.py", 6, "kernel"), ("/x/bad.py", 8, "f")]),
    ],
)
def test_python_lines(text: str, lines: list[tuple[str, int, str | None]]) -> None:
    expected = [SourceLine(file=file, line=line, function=f) for file, line, f in lines]
    assert list(Chains(()).resolve(text)) == expected


@pytest.mark.parametrize(
    "message, line",
    [
        ("Check failed: rem == 0 (1024 vs. 0)", None),
        ('File "a.py":1:2 that is no location', None),
        ("at location: loc(unknown)", None),
        (E2003, SourceLine(file="/x/bad.py", line=6, function="kernel")),
        ('loc(unknown) and loc("a.py":1:2)', SourceLine(file="a.py", line=1)),
    ],
)
def test_first_source_line(message: str, line: SourceLine | None) -> None:
    assert first_source_line(message) == line


def test_unescape() -> None:
    assert unescape(r"plain ü \22\\22 a\0Ab \F0\9F\A6\80 \FF") == 'plain ü "\\22 a\nb 🦀 \udcff'


@pytest.mark.parametrize(
    "location, lines",
    [
        # Lowered on line 8, and used again on line 10; within a loop; in a helper.
        ('"a/a"(callsite("k"("f.py":8:2) at "k"("f.py":10:2)))', [10]),
        (
            '"scan/a/a"(callsite(callsite("k"("f.py":8:2) at "k"("f.py":10:2)) at "k"("f.py":7:1)))',
            [10, 7],
        ),
        (
            '"a/a"(callsite(callsite("h"("f.py":3:2) at "k"("f.py":8:2)) at '
            'callsite("h"("f.py":3:2) at "k"("f.py":9:2))))',
            [3, 9],
        ),
        # A stack of calls alone.
        ('"a/a"(callsite("h"("f.py":3:2) at "k"("f.py":8:2)))', [3, 8]),
        ('"a/a"("k"("f.py":8:2))', [8]),
        ('"a/b"(callsite("k"("f.py":8:2) at "k"("f.py":10:2)))', [8, 10]),
        ('"a/a"(callsite("k"("f.py":8:2) at', [8]),
    ],
)
def test_a_primitive_that_is_lowered_once_has_the_lines_of_its_uses(
    location: str, lines: list[int]
) -> None:
    assert [s.line for s in Chains(()).resolve(location)] == lines


def test_a_primitive_that_is_lowered_in_another_function_has_the_line_of_its_use() -> None:
    """The first use, in the body of `pl.when`, shows that it was lowered there."""
    chains = Chains(
        (
            '#loc1 = loc("k.<locals>._"("f.py":8:2))',
            '#loc2 = loc("k"("f.py":10:2))',
            "#loc3 = loc(callsite(#loc1 at #loc1))",
            "#loc4 = loc(callsite(#loc1 at #loc2))",
            '#loc5 = loc("h"("f.py":3:2))',
            "#loc6 = loc(callsite(#loc5 at #loc2))",
        )
    )
    assert [s.line for s in chains.resolve('"a/a"(#loc3)')] == [8]
    assert [s.line for s in chains.resolve('"a/a"(#loc4)')] == [10]
    assert [s.line for s in chains.resolve('"a/a"(#loc6)')] == [3, 10]

"""The trail of an operation through texts."""

from __future__ import annotations

from pallas_debug.ir.operations import Module
from pallas_debug.tui.model.trail import TrailRow, trail_rows


def test_fates_are_told_by_the_pass_that_did_it_whichever_way_one_looks() -> None:
    alias = '#loc1 = loc("a.py":3:1)\n'
    texts = [
        "module {\n  %0 = a.load %x loc(#loc1)\n}\n" + alias,
        "module {\n" + "  %0 = b.load %x loc(#loc1)\n" * 2 + "}\n" + alias,
        "module {\n}\n",
    ]

    def load() -> dict[str, Module]:
        return {str(n): Module.of(text) for n, text in enumerate(texts)}

    def fates(rows: list[TrailRow]) -> list[tuple[int, int | None, str, bool]]:
        return [(int(row.label), row.line, row.fate, row.here) for row in rows]

    assert fates(trail_rows(load, "0", 1)) == [
        (0, 1, "first", True),
        (1, 1, "split", False),
        (1, 2, "split", False),
        (2, None, "gone", False),
    ]
    assert fates(trail_rows(load, "1", 1))[0] == (0, 1, "first", False)
    texts.reverse()
    assert fates(trail_rows(load, "2", 1))[:2] == [(1, 1, "new", False), (1, 2, "new", False)]
    assert fates(trail_rows(load, "2", 1))[2] == (2, 1, "merged", True)

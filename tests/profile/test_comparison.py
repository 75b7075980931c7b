"""Two kernels side by side: figures and lines, ranked by what changed."""

from __future__ import annotations

from dataclasses import replace

from pallas_debug.model import SourceLine
from pallas_debug.profile.comparison import compare_stats
from pallas_debug.profile.figures import Figure
from pallas_debug.profile.lines import LineCost
from pallas_debug.profile.stats import Profile, ScheduleTexts, Stats


def stats(cycles: int | None, spills: int | None = 0, file: str = "k.py", **lines: float) -> Stats:
    """With the share of each line, named `a7` for the text `a` at line 7."""
    empty = Profile(texts=ScheduleTexts(), kernel=None, compilation=None).stats
    return replace(
        empty,
        kernel="k",
        versions={"libtpu": "1", "jax": "2"},
        bundles=Figure(value=100),
        spills=Figure(value=spills),
        cycles=replace(empty.cycles, total=Figure(value=cycles), compute=Figure(value=cycles)),
        lines=tuple(
            LineCost(
                source=SourceLine(
                    file=f"/somewhere/{file}", line=int(name[1:]), text=f"  {name[0]}"
                ),
                bundles=1,
                share=share,
                own_share=share,
            )
            for name, share in lines.items()
        ),
    )


def test_cycles_bundles_spills_and_bytes_come_first_and_the_same_ones_are_left_out() -> None:
    found = compare_stats(stats(1000, 10), stats(900, 30))
    assert [(f.name, f.change) for f in found.figures] == [
        ("cycles", 900 / 1000 - 1),
        ("spills", 2.0),
    ]
    assert not found.is_same
    assert found.versions == ()


def test_bytes_of_hbm_are_compared() -> None:
    old, new = (
        replace(s, traffic=replace(s.traffic, read=Figure(value=read, unit="bytes")))
        for s, read in ((stats(10), 4096), (stats(10), 1024))
    )
    (figure,) = compare_stats(old, new).figures
    assert (figure.name, figure.change) == ("copied from HBM", -0.75)


def test_unknown_and_from_zero_have_no_relative_change() -> None:
    found = {f.name: f.change for f in compare_stats(stats(None, 0), stats(5, 3)).figures}
    assert found == {"cycles": None, "spills": None}
    assert compare_stats(stats(None), stats(None)).is_same


def test_lines_are_matched_by_their_text_as_they_move() -> None:
    found = compare_stats(stats(1000, a7=0.5, b8=0.5), stats(800, a9=0.25, b10=0.5, c11=0.25))
    assert [(line.text, line.source.line, line.before, line.after) for line in found.lines] == [
        ("a", 9, 500, 200),
        ("c", 11, None, 200),
        ("b", 10, 500, 400),
    ]


def test_lines_of_a_copied_file_are_matched_by_their_text() -> None:
    found = compare_stats(stats(100, a7=0.5, b8=0.5), stats(90, file="copy.py", a9=0.4, c9=0.6))
    lines = [(x.text, x.source.file[-7:], x.before, x.after) for x in found.lines]
    assert lines == [
        ("c", "copy.py", None, 54),
        ("b", "re/k.py", 50, None),
        ("a", "copy.py", 50, 36),
    ]


def test_lines_of_the_same_text_are_matched_in_order() -> None:
    old = stats(100, a1=0.5, a5=0.5)
    new = stats(100, a2=0.5, a6=0.4, a7=0.1)
    lines = [(x.source.line, x.before, x.after) for x in compare_stats(old, new).lines]
    assert lines == [(6, 50, 40), (7, None, 10)]


def test_what_changed_most_in_cycles_ranks_first_in_either_direction() -> None:
    doubled, halved = (compare_stats(stats(100), stats(n)) for n in (200, 49))
    slightly, only_spills = (
        compare_stats(stats(100), stats(101)),
        compare_stats(stats(9), stats(9, 5)),
    )
    ranked = sorted([only_spills, slightly, doubled, halved], key=lambda c: c.rank)
    assert ranked == [halved, doubled, slightly, only_spills]


def test_versions_that_differ_are_named() -> None:
    new = replace(stats(1), versions={"libtpu": "3"})
    assert compare_stats(stats(1), new).versions == (("jax", "2", "-"), ("libtpu", "1", "3"))

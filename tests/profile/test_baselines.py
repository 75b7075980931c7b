"""Baselines: comparison, wording, files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pallas_debug.errors import UsageError
from pallas_debug.profile.changes import baselines
from pallas_debug.profile.changes.baselines import (
    Baseline,
    BaselineCost,
    BaselineError,
    compare,
    sentence,
)
from pallas_debug.profile.figures import Figure, missing
from pallas_debug.profile.stats import Profile, Stats


def stats(cycles: int | None, *, kernel: str = "rows", bundles: int = 90, spills: int = 0) -> Stats:
    empty = stats_of_nothing()
    total = Figure(value=cycles) if cycles is not None else replace(
        missing("the size of the grid is known only at run time"), formula="9 × n0"
    )  # fmt: skip
    return replace(
        empty,
        kernel=kernel,
        target="v5e",
        versions={"libtpu": "0.0.50"},
        bundles=Figure(value=bundles),
        spills=Figure(value=spills),
        cycles=replace(empty.cycles, total=total),
    )


def stats_of_nothing() -> Stats:
    from pallas_debug.profile.stats import ScheduleTexts

    return Profile(texts=ScheduleTexts(), kernel=None, compilation=None).stats


def of(cycles: int, version: str = "0.0.50", **cost: int) -> Baseline:
    return Baseline(kernels={"rows": {"v5e": {version: BaselineCost(cycles=cycles, **cost)}}})


OLD = "0.0.42"
UPDATE = "`pytest -o pallas_update_baselines=on`"


@pytest.mark.parametrize(
    "now, baseline, fails, message",
    [
        (950, of(1000), False, "950 cycles, within 5 % of its baseline of 1,000"),
        (1050, of(1000), False, "1,050 cycles, within 5 % of its baseline of 1,000"),
        (
            1051,
            of(1000, bundles=80, spills=0),
            True,
            "1,051 cycles, 5.1 % more than its baseline of 1,000; 5 % is allowed. Its bundles grew "
            "from 80 to 90 and its spills grew from 0 to 3. `pallas-debug stats` and "
            "`pallas-debug source --cost` show where they go; if the loss is intended, record it "
            f"with {UPDATE}.",
        ),
        (
            500,
            of(1000),
            False,
            f"500 cycles, 50.0 % fewer than its baseline of 1,000. Record the gain with {UPDATE}, "
            "or losing it later goes unnoticed.",
        ),
        (
            500,
            Baseline(),
            True,
            f"500 cycles, but b.json has no baseline for it. Record one with {UPDATE}, and commit "
            "the file.",
        ),
        (
            500,
            of(1000, OLD),
            True,
            "500 cycles, but b.json has baselines only for other versions (0.0.42: 1,000). Cycles "
            "of two compilers are not compared: look at what changed, record this version with "
            f"{UPDATE}, and commit the file.",
        ),
        (
            None,
            of(1000),
            True,
            "its cycles are unknown: 9 × n0, the size of the grid is known only at run time. Pass "
            "arrays with values for the arguments that decide it, or assert its bundles or spills "
            "instead.",
        ),
    ],
)
def test_outcomes(now: int | None, baseline: Baseline, fails: bool, message: str) -> None:
    (row,) = compare([stats(now, spills=3)], baseline, 0.05)
    assert sentence(row, "b.json") == f"rows on v5e, libtpu 0.0.50: {message}"
    assert row.fails == fails


def test_kernels_of_one_name_are_counted() -> None:
    rows = compare([stats(1), stats(2), stats(3, kernel="other")], Baseline(), 0.05)
    assert [row.kernel for row in rows] == ["rows", "rows#2", "other"]


def test_recording_keeps_what_is_known_of_others() -> None:
    rows = compare([stats(7), stats(None, kernel="other")], of(1000, OLD), 0.05)
    done = baselines.recorded(rows)
    assert [row.status for row in done] == ["recorded", "unknown"]
    new = of(1000, OLD).with_costs(done)
    assert new.versions("rows", "v5e") == {
        "0.0.42": BaselineCost(cycles=1000),
        "0.0.50": BaselineCost(cycles=7, bundles=90, spills=0),
    }
    assert baselines.decode(baselines.encode(new), "b.json") == new
    assert sentence(done[0], "b.json") == "rows on v5e, libtpu 0.0.50: 7 cycles, recorded in b.json"


@pytest.mark.parametrize("text, share", [("5%", 0.05), (" 2.5 % ", 0.025), (0.1, 0.1), (0, 0.0)])
def test_margins(text: str | float, share: float) -> None:
    assert baselines.margin(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["5", "-5%", "much", -0.1, ""])
def test_margins_that_are_none(text: str | float) -> None:
    with pytest.raises(UsageError, match=r"a margin is written as '5%' or 0\.05, not as"):
        baselines.margin(text)


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "b.json is truncated or not JSON .*: restore it, or delete it and record it again"),
        ("[]", "b.json is not a file of kernel baselines: name another file"),
        ('{"kind": "kernel-baseline", "schema": 9}', "by a newer version .schema 9; .*: update"),
        ('{"kind": "kernel-baseline", "schema": "x"}', "by a newer version .schema 'x'"),
        (
            '{"kind": "kernel-baseline", "schema": 1, "kernels": {"a": {"b": {"c": 1}}}}',
            "b.json is damaged: Expected `object`, got `int`.*Restore it, or delete it",
        ),
    ],
)
def test_files_that_are_none(text: str, message: str) -> None:
    with pytest.raises(BaselineError, match=message):
        baselines.decode(text, "b.json")

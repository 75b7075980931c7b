"""`pallas-debug diff --stats`: compare the costs of two kernels, or of the kernels of two dumps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pallas_debug import quantities
from pallas_debug.cli import output
from pallas_debug.cli.costs import Costed
from pallas_debug.cli.exits import Exit
from pallas_debug.findings.facts import line_text
from pallas_debug.profile.comparison import FigureChange, StatsComparison, compare_stats
from pallas_debug.profile.figures import shown
from pallas_debug.profile.schedule import ON_SPARSECORE
from pallas_debug.render import one_line

MAX_LINES = 10
"""Maximum number of lines listed per kernel on a terminal."""


def compare(
    pairs: Sequence[tuple[Costed, Costed]], alone: Sequence[Costed], *, as_json: bool
) -> int:
    """Compare the costs of kernels, and print the largest changes first."""
    compared = []
    unknown = []
    sides = [*(side for pair in pairs for side in pair), *alone]
    damaged = [side for side in sides if side.problems]
    for a, b in pairs:
        if a.unreadable or b.unreadable:
            continue
        if a.stats is None or b.stats is None:
            unknown.append(a if a.stats is None else b)
        else:
            old, new = a.kernel.line_text, b.kernel.line_text
            found = compare_stats(a.stats, b.stats, old_texts=old, new_texts=new)
            compared.append((a, b, found))
    compared.sort(key=lambda item: item[2].rank)
    code = Exit.CANNOT_RUN if damaged or (unknown and not compared) else Exit.OK
    for problem in dict.fromkeys(problem for side in damaged for problem in side.problems):
        output.message(problem)
    if as_json:
        document = {
            "comparisons": [_as_json(*item) for item in compared],
            "unpaired": [str(side.stored.folder) for side in alone],
            "without_schedule": [str(side.stored.folder) for side in unknown],
        }
        output.print_json("diff-stats", document)
        return code
    for a, b, comparison in compared:
        _print(a, b, comparison)
    for side in alone:
        output.message(f"{one_line(side.stored.folder)} has no counterpart, and is not compared")
    for side in unknown:
        why = ON_SPARSECORE if side.is_sparse else "it has no schedule, so its cost is unknown"
        output.message(f"{one_line(side.stored.folder)} is not compared: {why}")
    return code


def _print(a: Costed, b: Costed, comparison: StatsComparison) -> None:
    cycles = comparison.cycles
    before, after = cycles.before, cycles.after
    change = f" ({percent(cycles.change)})" if cycles.change is not None else ""
    where_ = f"{one_line(a.stored.folder)} -> {one_line(b.stored.folder)}"
    output.echo(output.visible(f"{b.kernel.own_name}: {before} -> {after} cycles{change}"))
    output.echo_wrapped(output.visible(f"  {where_}"), 4)
    for name, old, new in comparison.versions:
        output.echo(output.visible(f"  {name} {old} -> {new}"))
    if comparison.is_same:
        output.echo("  nothing changed")
    rows = [
        [f"  {_name(f)}", str(f.before), str(f.after), percent(f.change)]
        for f in comparison.figures
    ]
    if rows:
        output.print_table(["  figure", "before", "after", "change"], rows, right=(1, 2, 3))
    lines = [
        [
            f"  {line_text(line.source)}",
            _cycles(line.before),
            _cycles(line.after),
            f"{line.difference:+,.0f}",
            line.text or "",
        ]
        for line in comparison.lines[:MAX_LINES]
    ]
    if lines:
        output.print_table(
            ["  cycles of line", "before", "after", "change", ""], lines, right=(1, 2, 3)
        )
    if len(comparison.lines) > MAX_LINES:
        output.echo(f"  and {len(comparison.lines) - MAX_LINES} more lines")
    output.echo("")


def _name(change: FigureChange) -> str:
    """Name of a figure, with its unit if the name does not include it."""
    unit = change.after.unit or change.before.unit
    return f"{change.name} in bytes" if unit == "bytes" else change.name


def _cycles(value: float | None) -> str:
    return "-" if value is None else shown(round(value))


def percent(change: float | None) -> str:
    """Return a relative change, such as `-16.9 %`; `-` if it is unknown."""
    return "-" if change is None else quantities.percent(change, 1, signed=True)


def _as_json(a: Costed, b: Costed, comparison: StatsComparison) -> dict[str, Any]:
    return {
        "kernel": b.kernel.own_name,
        "old": str(a.stored.folder),
        "new": str(b.stored.folder),
        "old_target": a.stored.target,
        "new_target": b.stored.target,
        "cycles": comparison.cycles,
        "figures": comparison.figures,
        "lines": comparison.lines,
        "versions": {name: [old, new] for name, old, new in comparison.versions},
    }

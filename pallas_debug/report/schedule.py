"""Schedule of a kernel for the page: its bundles with an instruction per line, and its units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pallas_debug.ir.bundles import Bundle
from pallas_debug.model import SourceLine
from pallas_debug.profile.stats import Profile
from pallas_debug.report.bare import BareText, ChainsOfLine
from pallas_debug.report.pack import runs, shown


def listing(profile: Profile) -> tuple[BareText, list[int]]:
    """The bundles, an instruction per line, and the first line of each bundle."""
    lines: list[str] = []
    chains: list[ChainsOfLine] = []
    starts: list[int] = []
    bundles = profile.schedule.bundles
    for bundle, traces in zip(bundles, profile.tracing.traces, strict=True):
        starts.append(len(lines))
        for text in _remarks(bundle, ends=False):
            lines.append(text)
            chains.append(())
        head = _head(bundle)
        blank = " " * len(head)
        if not bundle.instructions and not bundle.unread:
            lines.append(head.rstrip())
            chains.append(())
        for instruction, trace in zip(bundle.instructions, traces, strict=True):
            lines.append(head + instruction.text)
            chains.append((trace.chain,) if trace.chain else ())
            head = blank
        for text in bundle.unread:
            lines.append(head + " ".join(text.split()))
            chains.append(())
            head = blank
        for text in _remarks(bundle, ends=True):
            lines.append(text)
            chains.append(())
    if profile.schedule.listing.is_cut:
        lines.append("// the listing is cut off here")
        chains.append(())
    return BareText(lines=lines, chains=chains), starts


def _head(bundle: Bundle) -> str:
    return f"{bundle.number:#7x} {bundle.mark:2} {'>' * min(bundle.depth, 4):4} "


def _remarks(bundle: Bundle, *, ends: bool) -> list[str]:
    if ends:
        return [f"// end of region {number}" for number in bundle.ends]
    return [f"// region {number}" for number in bundle.starts]


def strip(profile: Profile, starts: list[int]) -> dict[str, Any] | None:
    """Use of the units over the bundles, for the heat strip; None if the compiler wrote none.

    Loops are flat: first bundle, the one after the last, depth.
    """
    schedule = profile.schedule
    table = schedule.table
    if table is None or not table.rows:
        return None
    executions = profile.cycles.executions
    matched = schedule.is_matched
    return {
        "units": [shown(name) for name in table.names],
        "capacity": list(table.capacity),
        "columns": [runs(row[at] for row in table.rows) for at in range(len(table.names))],
        "count": len(table.rows),
        "numbers": [bundle.number for bundle in schedule.bundles] if matched else [],
        "starts": starts if matched else [],
        "runs": runs(round(times) for times in executions) if matched else [],
        "loops": [n for loop in schedule.loops for n in (loop.start, loop.stop, loop.depth)],
    }


def costs(
    profile: Profile, file: str | None, moved: Callable[[SourceLine], SourceLine]
) -> list[list[int | float]]:
    """Costs of the lines of a file: line, bundles, share, own share, spills, fills, copies."""
    lines = [(moved(cost.source), cost) for cost in profile.lines]
    return [
        [
            source.line,
            cost.bundles,
            round(cost.share, 5),
            round(cost.own_share, 5),
            cost.spills,
            cost.fills,
            cost.copies,
        ]
        for source, cost in lines
        if source.file == file
    ]

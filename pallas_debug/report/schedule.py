"""Schedule of a kernel for the page: its bundles with an instruction per line, and its units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pallas_debug.model import SourceLine
from pallas_debug.profile.stats import Profile
from pallas_debug.profile.tracing import NO_TRACE, Trace
from pallas_debug.report.pack import Packer, listed, runs, shown


def listing(profile: Profile, packer: Packer) -> tuple[dict[str, Any], list[int]]:
    """The bundles as a text, an instruction per line, and the first line of each bundle."""
    rows: list[tuple[str, Trace]] = []
    starts: list[int] = []
    for bundle, traces in zip(profile.schedule.bundles, profile.tracing.traces, strict=True):
        starts.append(len(rows))
        rows += [(f"// region {number}", NO_TRACE) for number in bundle.starts]
        head = f"{bundle.number:#7x} {bundle.mark:2} {'>' * min(bundle.depth, 4):4} "
        inside = [(i.text, trace) for i, trace in zip(bundle.instructions, traces, strict=True)]
        inside += [(" ".join(text.split()), NO_TRACE) for text in bundle.unread]
        for text, trace in inside or [("", NO_TRACE)]:
            rows.append(((head + text).rstrip(), trace))
            head = " " * len(head)
        rows += [(f"// end of region {number}", NO_TRACE) for number in bundle.ends]
    if profile.schedule.listing.is_cut:
        rows.append(("// the listing is cut off here", NO_TRACE))
    # Instructions share traces, whose chains take long to compare.
    distinct = {id(trace): trace for _, trace in rows}
    numbers = {key: packer.number(trace.chain) for key, trace in distinct.items()}
    chains = (numbers[id(trace)] for _, trace in rows)
    return listed("bundles", "bundles", [text for text, _ in rows], chains), starts


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
    """Costs of the lines of a file: line, share of the cycles, bundles, spills."""
    lines = [(moved(cost.source), cost) for cost in profile.lines]
    return [
        [source.line, round(cost.share, 5), cost.bundles, cost.spills]
        for source, cost in lines
        if source.file == file
    ]

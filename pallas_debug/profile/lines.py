"""Cost of each Python line: its bundles, their share, units, spills and copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pallas_debug.model import SourceLine
from pallas_debug.profile import units
from pallas_debug.profile.schedule import Schedule
from pallas_debug.profile.tracing import Chain, Place, Tracing


@dataclass(frozen=True, kw_only=True)
class LineCost:
    """Cost of a Python line. All numbers are derived from the compiler's schedule.

    A bundle is divided evenly among its instructions. An instruction counts for every line of its
    chain: the helper's, and those of the calls that led there.

    Attributes:
      bundles: number of bundles with an instruction of this line.
      share: share of the executed bundles, calls included.
      own_share: the same without what functions do that the line calls.
      instructions: number of instructions, calls included.
      units: number of instructions for each unit.
      spills, fills: stores and loads of registers that did not fit.
      copies: number of instructions that start a copy.
      derived: number of instructions whose line is that of their users or producers.
    """

    source: SourceLine
    bundles: int
    share: float
    own_share: float
    instructions: int
    units: Mapping[str, int] = field(default_factory=dict)
    spills: int = 0
    fills: int = 0
    copies: int = 0
    derived: int = 0


class _Tally:
    def __init__(self, source: SourceLine) -> None:
        self.source = source
        self.bundles: set[int] = set()
        self.weight = 0.0
        self.own = 0.0
        self.counts: Counter[str] = Counter()
        self.units: Counter[str] = Counter()


def line_costs(
    schedule: Schedule, tracing: Tracing, executions: Sequence[float] | None = None
) -> tuple[LineCost, ...]:
    """Add up the cost of each line, most expensive first.

    Args:
      executions: how often each bundle runs; by default once.
    """
    weights = [1.0] * len(schedule.bundles) if executions is None else executions
    total = sum(weights)
    tallies: dict[Place, _Tally] = {}
    for at, (bundle, traces) in enumerate(zip(schedule.bundles, tracing.traces, strict=True)):
        weight = weights[at] / len(traces) if traces else 0.0
        for instruction, trace in zip(bundle.instructions, traces, strict=True):
            name, text = instruction.opcode, instruction.text
            used = units.units_of(name, text)
            # A recursive call, or an instruction combined from two, has a line twice.
            for position, (place, line) in enumerate(_by_place(trace.chain).items()):
                tally = tallies.setdefault(place, _Tally(line))
                tally.bundles.add(at)
                tally.weight += weight
                tally.own += weight * (position == 0)
                tally.units.update(used)
                tally.counts["instructions"] += 1
                tally.counts["derived"] += trace.origin == "derived"
                tally.counts["spills"] += units.is_spill(name, text)
                tally.counts["fills"] += units.is_fill(name, text)
                tally.counts["copies"] += units.is_copy(name)
    found = (
        LineCost(
            source=tally.source,
            bundles=len(tally.bundles),
            share=tally.weight / total if total else 0.0,
            own_share=tally.own / total if total else 0.0,
            units=dict(tally.units.most_common()),
            **tally.counts,
        )
        for tally in tallies.values()
    )
    return tuple(sorted(found, key=lambda c: (-c.share, c.source.file, c.source.line)))


def bundles_of(tracing: Tracing, file: str, line: int) -> tuple[int, ...]:
    """Indices of the bundles with an instruction of a line, calls included."""
    return tuple(
        at
        for at, traces in enumerate(tracing.traces)
        if any(s.line == line and s.file == file for t in traces for s in t.chain)
    )


def of_file(costs: Iterable[LineCost], file: str) -> dict[int, LineCost]:
    """Costs of the lines of one file, by number."""
    return {cost.source.line: cost for cost in costs if cost.source.file == file}


def _by_place(chain: Chain) -> dict[Place, SourceLine]:
    found: dict[Place, SourceLine] = {}
    for line in chain:
        found.setdefault((line.file, line.line), line)
    return found

"""Cost of each Python line: its share of the cycles, bundles, units, spills and copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pallas_debug.model import SourceLine
from pallas_debug.profile import units
from pallas_debug.profile.costs import attributed, waiting
from pallas_debug.profile.schedule import Schedule
from pallas_debug.profile.tracing import Chain, Place, Trace, Tracing


@dataclass(frozen=True, kw_only=True)
class LineCost:
    """Cost of a Python line. All numbers are derived from the compiler's schedule.

    Cycles are attributed as in `Costs`. An instruction counts for every line of its chain: the line
    of the helper, and those of the calls that led there.

    Attributes:
      bundles: number of bundles with an instruction of this line.
      share: share of the cycles, waits and calls included.
      own_share: share of the cycles, calls excluded.
      units: number of instructions for each unit.
      spills, fills: number of stores and loads of spilled registers.
      copies: number of instructions that start a copy.
    """

    source: SourceLine
    bundles: int
    share: float
    own_share: float
    units: Mapping[str, int] = field(default_factory=dict)
    spills: int = 0
    fills: int = 0
    copies: int = 0


@dataclass(slots=True)
class _Tally:
    source: SourceLine
    bundles: int = 0
    last: int = -1
    cycles: float = 0.0
    own: float = 0.0
    spills: int = 0
    fills: int = 0
    copies: int = 0
    units: Counter[str] = field(default_factory=Counter)

    def add(self, bundle: int, used: Iterable[str]) -> None:
        """Count an instruction; instructions of a bundle must be added consecutively."""
        if bundle != self.last:
            self.last = bundle
            self.bundles += 1
        self.units.update(used)


def line_costs(
    schedule: Schedule,
    tracing: Tracing,
    executions: Sequence[float] | None = None,
    waits: Iterable[tuple[int, int, float]] = (),
) -> tuple[LineCost, ...]:
    """Return the cost of each line, most expensive first.

    Args:
      executions: number of times that each bundle runs; by default once.
      waits: waits for copies, as for `costs_of`.
    """
    tallies: dict[Place, _Tally] = {}
    of_trace: dict[int, list[_Tally]] = {}  # by identity, as instructions may share a trace

    def tallied(trace: Trace) -> list[_Tally]:
        if id(trace) not in of_trace:
            # A chain may contain a line twice: recursion, or an instruction combined from two.
            places = _by_place(trace.chain).items()
            of_trace[id(trace)] = [tallies.setdefault(p, _Tally(line)) for p, line in places]
        return of_trace[id(trace)]

    for at, (bundle, traces) in enumerate(zip(schedule.bundles, tracing.traces, strict=True)):
        for instruction, trace in zip(bundle.instructions, traces, strict=True):
            name, text = instruction.opcode, instruction.text
            known = tallied(trace)
            if not known:
                continue
            used = units.units_of(name, text)
            is_spill, is_fill = units.is_spill(name, text), units.is_fill(name, text)
            is_copy = units.is_copy(name)
            for tally in known:
                tally.add(at, used)
                tally.spills += is_spill
                tally.fills += is_fill
                tally.copies += is_copy
    total = 0.0
    runs = [1.0] * len(schedule.bundles) if executions is None else executions
    spent = [(trace, cycles) for _, trace, _, _, cycles in attributed(schedule, tracing, runs)]
    spent += [(waiting(tracing, at), cycles) for at, _, cycles in waits]
    for cause, cycles in spent:
        total += cycles
        known = tallied(cause) if cause is not None else []
        for n, tally in enumerate(known):
            tally.cycles += cycles
            tally.own += cycles if n == 0 else 0.0
    found = (
        LineCost(
            source=tally.source,
            bundles=tally.bundles,
            share=tally.cycles / total if total else 0.0,
            own_share=tally.own / total if total else 0.0,
            units=dict(tally.units.most_common()),
            spills=tally.spills,
            fills=tally.fills,
            copies=tally.copies,
        )
        for tally in tallies.values()
    )
    return tuple(sorted(found, key=lambda c: (-c.share, c.source.file, c.source.line)))


def of_file(costs: Iterable[LineCost], file: str) -> dict[int, LineCost]:
    """Return the costs of the lines of one file, by line number."""
    return {cost.source.line: cost for cost in costs if cost.source.file == file}


def _by_place(chain: Chain) -> dict[Place, SourceLine]:
    found: dict[Place, SourceLine] = {}
    for line in chain:
        found.setdefault(line.place, line)
    return found

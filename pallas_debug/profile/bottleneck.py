"""Bottleneck of a kernel: what its cycles are spent on, and its most expensive lines.

Cycles are spent on issuing, on waiting for results or for copies, and on loops and grid steps. The
shares are those of the estimate, and hold per iteration where it is a formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pallas_debug.model import SourceLine
from pallas_debug.profile.costs import CostReason, Costs
from pallas_debug.profile.schedule import Schedule
from pallas_debug.profile.traffic import Traffic
from pallas_debug.quantities import percent

REASONS: dict[CostReason, str] = {
    "issue": "issuing",
    "result": "waiting for results",
    "copy": "waiting for copies",
    "overhead": "loops and grid steps",
}

NAMED = 3
"""Maximum number of parts that a detail names."""

SMALL = 0.05
"""Minimum share of a part that is named."""

MAX_LINES = 4
"""Maximum number of lines."""

OTHER = "other copies"


@dataclass(frozen=True, kw_only=True)
class CycleShare:
    """Cycles that are spent on one thing.

    Attributes:
      reason: on what: `waiting for results`.
      share: share of all cycles.
      detail: the units, operands or loops with most of them.
    """

    reason: str
    share: float
    detail: str = ""

    def __str__(self) -> str:
        return f"{percent(self.share)} {self.reason}" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, kw_only=True)
class HotLine:
    """A line with many cycles of its own.

    Attributes:
      share: share of all cycles, those of functions that it calls excluded.
      reason: on what most of them are spent: `waiting for results of matmul`.
    """

    source: SourceLine
    share: float
    reason: str


def bottleneck(
    costs: Costs, schedule: Schedule, traffic: Traffic, operands: Sequence[str]
) -> Iterator[CycleShare]:
    """Describe what the cycles are spent on, most first; nothing if that is not known.

    Args:
      operands: names of the operands with blocks.
    """
    for reason, cycles in costs.by("reason"):
        part = costs.where(reason=reason)
        if reason == "copy":
            named = [(_operand(n, operands), c) for n, c in part.by("operand")]
            detail = _shares(named, cycles) + _cause(traffic)
        elif reason == "overhead":
            detail = ""
        else:
            detail = _shares(part.by("kind"), cycles) + _loop(part, schedule)
        name = next(text for known, text in REASONS.items() if known == reason)
        yield CycleShare(reason=name, share=cycles / costs.total, detail=detail)


def hottest(costs: Costs, operands: Sequence[str]) -> Iterator[HotLine]:
    """Return the lines with most cycles of their own, and what these are spent on."""
    for source, part in costs.lines()[:MAX_LINES]:
        share = part.total / costs.total
        if share >= SMALL:
            yield HotLine(source=source, share=share, reason=_reason(part, operands))


def _reason(part: Costs, operands: Sequence[str]) -> str:
    reason = part.by("reason")[0][0]
    most = part.where(reason=reason)
    if reason == "copy":
        return f"waiting for copies of {_operand(most.by('operand')[0][0], operands)}"
    if reason == "overhead":
        return REASONS["overhead"]
    kind = most.by("kind")[0][0]
    return f"waiting for results of {kind}" if reason == "result" else f"issuing {kind}"


def _operand(number: object, operands: Sequence[str]) -> str:
    is_named = isinstance(number, int) and number < len(operands)
    return operands[number] if isinstance(number, int) and is_named else OTHER


def _loop(part: Costs, schedule: Schedule) -> str:
    """Name the loop with most cycles, if there is more than one."""
    loop, most = part.by("loop")[0]
    if not isinstance(loop, int) or len(schedule.loops) == 1:
        return ""
    return f"; {percent(most / part.total)} in the loop at {schedule.loops[loop].start:#x}"


def _cause(traffic: Traffic) -> str:
    """Say whether a step waits for the bytes of its copies, or only for their latency."""
    copies, compute = traffic.copies_per_step.value, traffic.compute_per_step.value
    if copies is None or compute is None or traffic.bound not in ("memory", "latency"):
        return ""
    return f"; the bytes of a step take {copies:,.0f} cycles, its computation {compute:,.0f}"


def _shares(parts: Sequence[tuple[object, float]], total: float) -> str:
    shown = [(name, c / total) for name, c in parts[:NAMED] if c >= SMALL * total]
    return ", ".join(f"{name} {percent(share)}" for name, share in shown) or "in small parts"

"""Bottleneck of a kernel as a tree of shares, in at most five lines.

Cycles are of computing or of waiting for copies; computing is issuing, waiting for results, or
overhead of loops and steps; each part names the operand, unit, loop or line with most of it. The
shares are those of the estimate, and hold per iteration where it is a formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pallas_debug.findings.facts import line_text
from pallas_debug.profile.costs import Costs
from pallas_debug.profile.cycles import CycleEstimate
from pallas_debug.profile.schedule import Schedule
from pallas_debug.profile.traffic import Traffic
from pallas_debug.quantities import percent

_REASONS = {"issue": "issuing", "result": "waiting for results", "overhead": "loops and steps"}

NAMED = 3
"""Parts that a line names."""

SMALL = 0.05
"""Maximum share of a part that is not named."""


def bottleneck(
    costs: Costs,
    schedule: Schedule,
    cycles: CycleEstimate,
    traffic: Traffic,
    operands: Sequence[str],
) -> Iterator[str]:
    """Describe where the cycles go; nothing if that is not known.

    Args:
      operands: names of the operands with blocks.
    """
    if not costs.total:
        return
    total = costs.total
    copying = costs.where(reason="copy")
    is_open = cycles.total.value is None
    given = ", ".join(f"{name} = {value:,}" for name, value in cycles.assumed.items())
    of = f"of {cycles.total} cycles" + (f" with {given}" if given else "")
    of += ", per iteration" if is_open else ""
    waits = copying.total / total
    parts = [(_REASONS[str(r)], c) for r, c in costs.by("reason") if r != "copy"]
    yield (
        f"{percent(1 - waits)} computing, {percent(waits)} waiting for copies, {of}; "
        f"computing is {_shares(parts, total)} of them"
    )
    if waits > SMALL:
        named = [
            (operands[n] if isinstance(n, int) and n < len(operands) else "other copies", c)
            for n, c in copying.by("operand")
        ]
        yield f"waits for copies: {_shares(named, copying.total)}{_cause(traffic)}"
    issued = costs.where(reason="issue")
    if issued.total > SMALL * total:
        yield f"issuing, by unit: {_shares(issued.by('kind'), issued.total)}"
    late = costs.where(reason="result")
    if late.total > SMALL * total:
        loop, most = late.by("loop")[0]
        place = "outside of loops"
        if isinstance(loop, int):
            place = f"in the loop at bundle {schedule.loops[loop].start:#x}"
        yield (
            f"waiting for results of {_shares(late.by('kind'), late.total)}; "
            f"{percent(most / late.total)} of it {place}"
        )
    lines = [(line_text(source), part.total) for source, part in costs.lines()]
    if lines:
        yield f"lines: {_shares(lines, total)}"


def _cause(traffic: Traffic) -> str:
    """Say whether a step waits for the bytes of its copies, or only for their latency."""
    copies, compute = traffic.copies_per_step.value, traffic.compute_per_step.value
    if copies is None or compute is None or traffic.bound not in ("memory", "latency"):
        return ""
    return (
        f"; bound by {traffic.bound}: the bytes of a step take {copies:,.0f} cycles, "
        f"its computation {compute:,.0f}"
    )


def _shares(parts: Sequence[tuple[object, float]], total: float) -> str:
    shown = [(name, c / total) for name, c in parts[:NAMED] if c >= SMALL * total] if total else []
    return ", ".join(f"{name} {percent(share)}" for name, share in shown) or "in small parts"

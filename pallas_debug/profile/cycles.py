"""Estimate of a kernel's cycles from its bundles, loops and grid."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pallas_debug.model import Kernel
from pallas_debug.profile.estimate import compiler_estimate
from pallas_debug.profile.figures import Figure, Origin, missing
from pallas_debug.profile.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class CycleEstimate:
    """Cycles of one run of a kernel.

    Attributes:
      total: our estimate.
      compute: of it, cycles in which a bundle issues.
      waiting: of it, cycles in which the core waits for a copy.
      compiler: libtpu's own estimate.
      steps: grid steps.
      executions: how often each bundle runs; empty if unknown.
      assumptions: a sentence for each.
    """

    total: Figure
    compute: Figure
    waiting: Figure
    compiler: Figure
    steps: Figure
    executions: tuple[float, ...] = ()
    assumptions: tuple[str, ...] = ()


def estimate_cycles(
    schedule: Schedule, kernel: Kernel | None = None, estimate: str | None = None
) -> CycleEstimate:
    """Estimate a kernel's cycles.

    Args:
      estimate: the text of `estimate.txt`.
    """
    steps = grid_steps(kernel)
    counts, assumptions = _executions(schedule, steps.value)
    origin: Origin = "assumed" if assumptions else "derived"
    compute = Figure(
        value=round(sum(counts)) if schedule.bundles and counts else None,
        origin=origin,
        unit="cycles",
        note="one cycle for each bundle that runs",
    )
    return CycleEstimate(
        total=compute,
        compute=compute,
        waiting=missing("not estimated", unit="cycles"),
        compiler=compiler_estimate(estimate),
        steps=steps,
        executions=tuple(counts),
        assumptions=tuple(assumptions),
    )


def grid_steps(kernel: Kernel | None) -> Figure:
    """Number of grid points."""
    if kernel is None:
        return missing("the kernel's grid is unknown")
    unknown = [n for n, size in enumerate(kernel.grid) if size is None]
    known = math.prod(size for size in kernel.grid if size is not None)
    if unknown:
        factors = " × ".join(f"n{n}" for n in unknown)
        return Figure(
            value=None,
            note="the size of the grid is known only at run time",
            formula=f"{known:,} × {factors}" if known != 1 else factors,
        )
    return Figure(value=known, note="from the grid")


def _executions(schedule: Schedule, steps: int | float | None) -> tuple[list[float], list[str]]:
    counts = [1.0] * len(schedule.bundles)
    assumptions: list[str] = []
    for loop in schedule.loops:
        trips = steps if loop.depth == 0 else None
        if trips is None:
            trips = 1
            assumptions.append(f"the loop at bundle {loop.start:#x} is counted once")
        for at in range(loop.start, loop.stop):
            counts[at] *= trips
    return counts, assumptions

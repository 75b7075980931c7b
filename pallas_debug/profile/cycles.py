"""Estimate of a kernel's cycles from its bundles, loops, grid and copies.

The scalar core's instructions are evaluated (`walk.py`), so trip counts, and how often the body of
a `pl.when` runs, follow from the schedule itself. Regions that depend on data are assumed to be
entered; if a trip count depends on data, the estimate is a formula.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial

from pallas_debug.chips import CHIPS
from pallas_debug.errors import UsageError
from pallas_debug.ir.mosaic import COPY, operations
from pallas_debug.ir.operations import Module
from pallas_debug.model import Kernel
from pallas_debug.profile.blocks import BlockMap
from pallas_debug.profile.core.copies import copy_model
from pallas_debug.profile.core.given import given_scalars
from pallas_debug.profile.core.walk import UNKNOWN_ROUNDS, Walk, walk
from pallas_debug.profile.counts import (
    AssumedCounts,
    UnknownCount,
    assumed_counts,
    unknown_axes,
    unknown_loops,
)
from pallas_debug.profile.figures import Figure, Origin, missing
from pallas_debug.profile.schedule import Schedule

CYCLES, MILLISECONDS = "cycles", "ms"

CORES_SHARE = "cores share the grid"
"""Part of the assumption that each core runs a part of the grid."""

AS_CALLED = "scalar operands have their values in the first call"
"""Beginning of the assumption about scalar operands whose values are recorded in the dump."""

NO_DELAYS = (
    "each bundle takes one cycle: the table of delays after bundles is missing, or does not match"
)

AS_LOCAL = (
    "copies to other devices take as long as copies within a device: the cycles do not include the "
    "time on the links between devices"
)
"""Assumption about remote copies."""

ROUNDS = (
    f"for the shares of units, code and lines, loops of unknown length run {UNKNOWN_ROUNDS} times"
)
"""Assumption about shares of a kernel whose cycles are a formula."""

_TIME_BUDGET = 50_000
"""Scalar instructions that are walked for the time on the chip, before loops are extrapolated."""

_STATED = re.compile(r"^\s*estimated_cycles:\s*(\d{1,18})\s*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class CycleEstimate:
    """Cycles of one run of a kernel.

    Attributes:
      total: our estimate.
      least: our estimate if no region that depends on data is entered; equal to `total` if there is
        no such region.
      compute: cycles of `total` in which bundles issue or delay.
      waiting: cycles of `total` in which the core waits for copies.
      compiler: libtpu's own estimate.
      time: milliseconds of one run on the chip, with the cost of copies and grid steps as it was
        measured there; missing for chips without measurements.
      steps: number of grid steps.
      core_steps: number of grid steps that the estimated core runs.
      trips: iterations of each loop of the schedule, in order, over the whole kernel.
      executions: number of times that each bundle runs; empty if unknown.
      waits: waits for copies: the bundle that waits, the one that started the copy, and cycles.
      assumed: values that the caller assumed for counts known only at run time.
      copied: bytes copied, by direction such as `hbm_to_vmem`; None if some size depends on data.
      assumptions: one sentence for each assumption.
    """

    total: Figure
    least: Figure
    compute: Figure
    waiting: Figure
    compiler: Figure
    time: Figure
    steps: Figure
    core_steps: Figure
    trips: tuple[Figure, ...] = ()
    executions: tuple[float, ...] = ()
    waits: tuple[tuple[int, int, float], ...] = ()
    assumed: Mapping[str, int] = field(default_factory=dict)
    copied: dict[str, Figure] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()


def estimate_cycles(
    schedule: Schedule,
    kernel: Kernel | None = None,
    estimate: str | None = None,
    *,
    blocks: BlockMap | None = None,
    mosaic: Module | None = None,
    assume: Mapping[str, object] | None = None,
    walked: Walk | None = None,
) -> CycleEstimate:
    """Estimate a kernel's cycles.

    Args:
      estimate: text of `estimate.txt`.
      blocks: block map, for the values of scalar operands in the first call.
      mosaic: module before any pass, which shows whether copies go to other devices.
      assume: values of counts that are known only at run time, such as `{"n1": 12}`.
      walked: a walk with the values of the first call, if there was one.

    Raises:
      UsageError: a name in `assume` is no such count, or its value is impossible.
    """
    compiler = compiler_estimate(estimate)
    scalars = blocks.scalars if blocks is not None else ()
    steps = grid_steps(kernel, blocks)
    core_steps = _core_steps(schedule, kernel, blocks, steps)
    if assume and not schedule.bundles:
        raise UsageError("nothing can be assumed, because there is no listing of bundles")
    if not schedule.bundles:
        nothing = missing("there is no listing of bundles", unit=CYCLES)
        return CycleEstimate(
            total=nothing,
            least=nothing,
            compute=nothing,
            waiting=nothing,
            compiler=compiler,
            time=missing("there is no listing of bundles", unit=MILLISECONDS),
            steps=steps,
            core_steps=core_steps,
        )
    model, is_stand_in = copy_model(schedule.chip)
    given = given_scalars(schedule, scalars)
    walk_again = partial(walk, schedule)
    ours = walked or walk_again(model, given=given)
    first, assumed = ours, AssumedCounts()
    axes = unknown_axes(schedule, kernel, scalars)
    if assume:
        assumed = assumed_counts(assume, (*unknown_loops(schedule, first), *axes))
        given = given_scalars(schedule, (*scalars, *assumed.scalars))
        ours = walk_again(model, given=given, trips=assumed.trips)
        assumed.check(ours)
        steps = grid_steps(kernel, blocks, assumed.sizes)
        core_steps = _core_steps(schedule, kernel, blocks, steps, assumed.sizes)
    walk_again = partial(walk_again, given=given, trips=assumed.trips)
    read = ours.used.difference(assumed.named)
    assumptions = (*assumed, *_assumptions(schedule, ours, is_stand_in, read))
    if mosaic is not None and any(copy.is_remote for copy in operations(mosaic, COPY)):
        assumptions += (AS_LOCAL,)
    if steps.value and core_steps.value and core_steps.value < steps.value:
        cores = math.ceil(steps.value / core_steps.value)
        assumptions += (f"{cores} {CORES_SHARE}: one core's cycles, with HBM to itself",)
    origin: Origin = "assumed" if assumptions else "derived"
    if ours.unknown_loops:  # the formula does not rest on it
        assumptions += (ROUNDS,)
    is_open = bool(ours.unknown_loops) or not ours.is_complete
    loops = [c for c in unknown_loops(schedule, first, ours) if c.loop in ours.unknown_loops]
    counts = (*loops, *(axis for axis in axes if axis not in assumed.values))
    total = least = _total(schedule, ours, counts, origin)
    if ours.unknown_branches or ours.unknown_copies or ours.unknown_loops:
        skipping = walk_again(model, unknown="skip")
        least = _least(total, skipping)
    return CycleEstimate(
        total=total,
        least=least,
        compute=_known(ours.cycles - ours.waiting, origin, "bundles and their delays", is_open),
        waiting=_known(ours.waiting, origin, "waits for copies", is_open),
        compiler=compiler,
        time=_time(schedule, walk_again, is_open=is_open),
        steps=steps,
        core_steps=core_steps,
        trips=tuple(
            _known(
                ours.trips.get(loop.number, 0),
                origin,
                "",
                loop.number in ours.unknown_loops,
                unit="",
            )
            for loop in schedule.loops
        ),
        executions=tuple(ours.executions) if ours.is_complete else (),
        waits=tuple((at, start, cycles) for (at, start), cycles in sorted(ours.waits.items())),
        assumed=assumed.named,
        copied={
            direction: _known(value, origin, "started copies", is_open, unit="bytes")
            for direction, value in sorted(ours.copied.items())
        },
        assumptions=assumptions,
    )


def _total(
    schedule: Schedule, ours: Walk, counts: Sequence[UnknownCount], origin: Origin
) -> Figure:
    if not ours.is_complete:
        return missing("the walk through the schedule did not finish", unit=CYCLES)
    note = "bundles that run, their delays, and waits for copies"
    if not ours.unknown_loops:
        return Figure(value=round(ours.cycles), origin=origin, unit=CYCLES, note=note)
    unknown = {count.loop: count for count in counts if count.loop is not None}
    iterations, terms = ours.unknown_loops, []
    around = {number: _enclosing(schedule, number, unknown) for number in unknown}
    base = ours.cycles - UNKNOWN_ROUNDS * sum(c for n, c in iterations.items() if not around[n])
    for number, outer in around.items():
        inner = sum(c for n, c in iterations.items() if around[n][:1] == (number,))
        size = round((iterations[number] - inner) / UNKNOWN_ROUNDS ** len(outer))
        if size > 0:
            product = "·".join(unknown[n].name for n in (*outer[::-1], number))
            terms.append(f"{size:,} {product}")
    meanings = "; ".join(f"{count.name}, {count.meaning}" for count in counts)
    return Figure(
        value=None,
        origin=origin,
        unit=CYCLES,
        note=f"known only at run time: {meanings}",
        formula=" + ".join([f"{round(base):,}"] * (round(base) > 0) + terms),
    )


def _enclosing(schedule: Schedule, number: int, unknown: Container[int]) -> tuple[int, ...]:
    """Return the loops of unknown length around a loop, innermost first."""
    found = []
    parent = schedule.loops[number].parent
    while parent is not None:
        if parent in unknown:
            found.append(parent)
        parent = schedule.loops[parent].parent
    return tuple(found)


def _time(schedule: Schedule, walked: Callable[..., Walk], *, is_open: bool) -> Figure:
    """Return the milliseconds of one run, with copies as measured on the chip."""
    chip = CHIPS.get(schedule.chip or "")
    if chip is None or chip.calibration is None:
        name = schedule.chip or "this chip"
        return missing(f"no run times have been measured on {name}", unit=MILLISECONDS)
    if is_open:
        return missing("it depends on values known only at run time", unit=MILLISECONDS)
    model, _ = copy_model(chip.name, calibrated=True)
    run = walked(model, budget=_TIME_BUDGET)
    if not run.is_complete:
        return missing("the walk through the schedule did not finish", unit=MILLISECONDS)
    note = f"at {chip.clock / 1e9:g} GHz, with the measured cost of copies and grid steps"
    value = 1e3 * run.cycles / chip.clock
    return Figure(value=value, origin="assumed", unit=MILLISECONDS, note=note)


def _least(total: Figure, skipped: Walk) -> Figure:
    note = "no region, loop or copy that depends on data runs"
    if total.value is None or skipped.cycles < total.value:
        return _known(skipped.cycles, "assumed", note, not skipped.is_complete)
    return total


def _known(value: float, origin: Origin, note: str, is_open: bool, *, unit: str = CYCLES) -> Figure:
    if is_open or math.isnan(value):
        return missing("it depends on values known only at run time", unit=unit)
    return Figure(value=round(value), origin=origin, unit=unit, note=note)


def _assumptions(
    schedule: Schedule, ours: Walk, is_stand_in: bool, read: Set[str]
) -> tuple[str, ...]:
    """Return what an estimate rests on.

    Args:
      read: operands whose values in the first call were read.
    """
    found: list[str] = []
    if not schedule.knows_delays:
        found.append(NO_DELAYS)
    if read:
        found.append(f"{AS_CALLED} ({', '.join(sorted(read))})")
    if ours.unknown_branches:
        listed = ", ".join(
            f"{schedule.bundles[at].number:#x}" for at in sorted(ours.unknown_branches)[:8]
        )
        more = len(ours.unknown_branches) - 8
        found.append(
            "regions whose condition depends on data are entered every time (branches at bundles "
            f"{listed}{f' and {more} more' if more > 0 else ''})"
        )
    if ours.unknown_copies:
        found.append("copies whose condition or size depends on data are made every time")
    if any(map(math.isnan, ours.copied.values())):
        found.append("copies whose size depends on data take no longer than their latency")
    if ours.extrapolated:
        found.append("long loops are extrapolated: only some of their iterations were walked")
    if is_stand_in:
        name = schedule.chip or "an unknown chip"
        found.append(
            f"copies are as fast as on a similar chip, as libtpu has no estimate for {name}"
        )
    return tuple(found)


def grid_steps(
    kernel: Kernel | None, blocks: BlockMap | None = None, assumed: Mapping[int, int] | None = None
) -> Figure:
    """Return the number of grid points.

    Args:
      assumed: sizes by axis, for axes whose size is known only at run time.
    """
    if kernel is None:
        return missing("the kernel's grid is unknown")
    if None in kernel.grid and blocks is not None and blocks.grid:
        return Figure(value=blocks.points, origin="assumed", note="as in the first call")
    sizes = _sizes(kernel.grid, assumed)
    known = math.prod(size for size in sizes if size is not None)
    if None in sizes:
        axes = [axis for axis, size in enumerate(kernel.grid) if size is None]
        names = [operand.name for operand in kernel.of_kind("dynamic_grid")]
        open_ = [n for axis, n in zip(axes, names, strict=False) if sizes[axis] is None]
        factors = " × ".join(open_)
        return Figure(
            value=None,
            note="the size of the grid is known only at run time",
            formula=f"{known:,} × {factors}" if known != 1 else factors,
        )
    if assumed:
        return Figure(value=known, origin="assumed", note="as assumed")
    return Figure(value=known, note="from the grid")


def _sizes(grid: Sequence[int | None], assumed: Mapping[int, int] | None) -> tuple[int | None, ...]:
    return tuple((assumed or {}).get(axis, size) for axis, size in enumerate(grid))


def _core_steps(
    schedule: Schedule,
    kernel: Kernel | None,
    blocks: BlockMap | None,
    steps: Figure,
    assumed: Mapping[int, int] | None = None,
) -> Figure:
    """Return the grid points that one core runs: all, unless the compiler divided the grid."""
    if kernel is None or steps.value is None:
        return steps
    own_grid = blocks.grid if blocks is not None else ()
    sizes = own_grid or _sizes(kernel.grid, assumed)
    own = math.prod(schedule.core_bounds(tuple(size for size in sizes if size is not None)))
    if own == steps.value:
        return steps
    return replace(
        steps, value=own, note="from the grid, as the compiler divided it among the cores"
    )


def compiler_estimate(text: str | None) -> Figure:
    """Parse libtpu's own estimate from `estimate.txt`, a textproto; missing if there is none."""
    if text is None:
        return missing("libtpu wrote no estimate for this kernel", unit="cycles")
    found = [int(value) for value in _STATED.findall(text)]
    if not found:
        return missing("libtpu's estimate contains no cycles", unit="cycles")
    if not any(found):
        return missing(
            "libtpu estimated no cycles, as for blocks with several strides", unit="cycles"
        )
    return Figure(
        value=sum(found), origin="compiler", unit="cycles", note="libtpu's static LLO profile"
    )

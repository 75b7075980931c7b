"""Estimate of a kernel's cycles from its bundles, loops, grid and copies.

The scalar core's instructions are evaluated (`walk.py`), so trip counts, and how often the body of
a `pl.when` runs, follow from the schedule itself. Regions that depend on data are assumed to be
entered; if a trip count depends on data, the estimate is a formula.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace

from pallas_debug.ir.operations import Module
from pallas_debug.model import Kernel
from pallas_debug.profile.blocks import BlockMap
from pallas_debug.profile.core.copies import MEASURED, copy_model
from pallas_debug.profile.core.decode import DecodedBundle, decode
from pallas_debug.profile.core.given import GivenScalars, given_scalars
from pallas_debug.profile.core.walk import UNKNOWN_ROUNDS, Walk, walk
from pallas_debug.profile.figures import Figure, Origin, missing
from pallas_debug.profile.peaks import peaks_of
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

_REMOTE = re.compile(r"tpu\.enqueue_dma .*\bdevice_id\(")
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
      copied: bytes copied, by direction such as `hbm_to_vmem`; None if some size depends on data.
      copies: number of copies, by direction.
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
    copied: dict[str, Figure] = field(default_factory=dict)
    copies: dict[str, Figure] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()


def estimate_cycles(
    schedule: Schedule,
    kernel: Kernel | None = None,
    estimate: str | None = None,
    *,
    blocks: BlockMap | None = None,
    mosaic: Module | None = None,
) -> CycleEstimate:
    """Estimate a kernel's cycles.

    Args:
      estimate: text of `estimate.txt`.
      blocks: block map, for the values of scalar operands in the first call.
      mosaic: module before any pass, which shows whether copies go to other devices.
    """
    compiler = compiler_estimate(estimate)
    steps = grid_steps(kernel, blocks)
    core_steps = _core_steps(schedule, kernel, blocks, steps)
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
    decoded = decode(schedule)
    sharing = replace(model, shares_hbm=True)
    given = given_scalars(schedule, blocks.scalars if blocks is not None else ())
    ours = walk(schedule, sharing, unknown="enter", decoded=decoded, given=given)
    rounded = {s.name for s in (blocks.scalars if blocks is not None else ()) if s.is_rounded}
    assumptions = _assumptions(schedule, ours, is_stand_in, rounded)
    if mosaic is not None and any(
        name == "tpu.enqueue_dma" and _REMOTE.search(text)
        for name, text in zip(mosaic.names, mosaic.lines, strict=False)
    ):
        assumptions += (AS_LOCAL,)
    if steps.value and core_steps.value and core_steps.value < steps.value:
        cores = math.ceil(steps.value / core_steps.value)
        assumptions += (f"{cores} {CORES_SHARE}: one core's cycles, with HBM to itself",)
    origin: Origin = "assumed" if assumptions else "derived"
    if ours.unknown_loops:  # the formula does not rest on it
        assumptions += (ROUNDS,)
    is_open = bool(ours.unknown_loops) or not ours.is_complete
    total = least = _total(schedule, ours, origin)
    if ours.unknown_branches or ours.unknown_copies or ours.unknown_loops:
        skipping = walk(schedule, sharing, unknown="skip", decoded=decoded, given=given)
        least = _least(total, skipping)
    return CycleEstimate(
        total=total,
        least=least,
        compute=_known(ours.cycles - ours.waiting, origin, "bundles and their delays", is_open),
        waiting=_known(ours.waiting, origin, "waits for copies", is_open),
        compiler=compiler,
        time=_time(schedule, decoded, given, is_open=is_open),
        steps=steps,
        core_steps=core_steps,
        trips=tuple(
            _count(ours.trips.get(loop.number, 0), origin, loop.number in ours.unknown_loops)
            for loop in schedule.loops
        ),
        executions=tuple(ours.executions) if ours.is_complete else (),
        waits=tuple((at, start, cycles) for (at, start), cycles in sorted(ours.waits.items())),
        copied={
            direction: _known(value, origin, "started copies", is_open, unit="bytes")
            for direction, value in sorted(ours.copied.items())
        },
        copies={
            direction: _count(value, origin, is_open)
            for direction, value in sorted(ours.copies.items())
        },
        assumptions=assumptions,
    )


def _total(schedule: Schedule, ours: Walk, origin: Origin) -> Figure:
    if not ours.is_complete:
        return missing("the walk through the schedule did not finish", unit=CYCLES)
    note = "bundles that run, their delays, and waits for copies"
    if not ours.unknown_loops:
        return Figure(value=round(ours.cycles), origin=origin, unit=CYCLES, note=note)
    base = ours.cycles - UNKNOWN_ROUNDS * sum(ours.unknown_loops.values())
    names = _unknown_names(len(ours.unknown_loops))
    terms = " + ".join(
        f"{round(size):,} {name}"
        for (_, size), name in zip(sorted(ours.unknown_loops.items()), names, strict=True)
    )
    starts = ", ".join(
        f"{name} of the loop at bundle {schedule.loops[number].start:#x}"
        for (number, _), name in zip(sorted(ours.unknown_loops.items()), names, strict=True)
    )
    return Figure(
        value=None,
        origin=origin,
        unit=CYCLES,
        note=f"iterations known only at run time: {starts}",
        formula=f"{round(base):,} + {terms}" if round(base) > 0 else terms,
    )


def _time(
    schedule: Schedule, decoded: Sequence[DecodedBundle], given: GivenScalars, *, is_open: bool
) -> Figure:
    """Return the milliseconds of one run, with copies as measured on the chip."""
    model, peaks = MEASURED.get(schedule.chip or ""), peaks_of(schedule.chip)
    if model is None or peaks is None:
        name = schedule.chip or "this chip"
        return missing(f"no run times have been measured on {name}", unit=MILLISECONDS)
    if is_open:
        return missing("it depends on values known only at run time", unit=MILLISECONDS)
    measured = replace(model, shares_hbm=True)
    walked = walk(schedule, measured, decoded=decoded, given=given, budget=_TIME_BUDGET)
    if not walked.is_complete:
        return missing("the walk through the schedule did not finish", unit=MILLISECONDS)
    note = f"at {peaks.clock / 1e9:g} GHz, with the measured cost of copies and grid steps"
    value = 1e3 * walked.cycles / peaks.clock
    return Figure(value=value, origin="assumed", unit=MILLISECONDS, note=note)


def _least(total: Figure, skipped: Walk) -> Figure:
    note = "no region, loop or copy that depends on data runs"
    if total.value is None or skipped.cycles < total.value:
        return _known(skipped.cycles, "assumed", note, not skipped.is_complete)
    return total


def _unknown_names(count: int) -> list[str]:
    return ["n"] if count == 1 else [f"n{number}" for number in range(1, count + 1)]


def _known(value: float, origin: Origin, note: str, is_open: bool, *, unit: str = CYCLES) -> Figure:
    if is_open or math.isnan(value):
        return missing("it depends on values known only at run time", unit=unit)
    return Figure(value=round(value), origin=origin, unit=unit, note=note)


def _count(value: float, origin: Origin, is_open: bool) -> Figure:
    if is_open:
        return missing("it depends on values known only at run time")
    return Figure(value=round(value), origin=origin)


def _assumptions(
    schedule: Schedule, ours: Walk, is_stand_in: bool, rounded: Set[str]
) -> tuple[str, ...]:
    found: list[str] = []
    if not schedule.knows_delays:
        found.append(NO_DELAYS)
    if ours.used:
        found.append(f"{AS_CALLED} ({', '.join(sorted(ours.used))})")
    if ours.used & rounded:
        names = ", ".join(sorted(ours.used & rounded))
        found.append(f"{names}: computed in floats on a CPU, which a TPU may round differently")
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


def grid_steps(kernel: Kernel | None, blocks: BlockMap | None = None) -> Figure:
    """Return the number of grid points."""
    if kernel is None:
        return missing("the kernel's grid is unknown")
    unknown = [n for n, size in enumerate(kernel.grid) if size is None]
    known = math.prod(size for size in kernel.grid if size is not None)
    if unknown and blocks is not None and blocks.grid:
        return Figure(value=blocks.points, origin="assumed", note="as in the first call")
    if unknown:
        factors = " × ".join(f"n{n}" for n in unknown)
        return Figure(
            value=None,
            note="the size of the grid is known only at run time",
            formula=f"{known:,} × {factors}" if known != 1 else factors,
        )
    return Figure(value=known, note="from the grid")


def _core_steps(
    schedule: Schedule, kernel: Kernel | None, blocks: BlockMap | None, steps: Figure
) -> Figure:
    """Return the grid points that one core runs: all, unless the compiler divided the grid."""
    if kernel is None or steps.value is None:
        return steps
    sizes = blocks.grid if blocks is not None and blocks.grid else kernel.grid
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

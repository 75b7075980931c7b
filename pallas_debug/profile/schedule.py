"""Schedule of a kernel: its bundles, with units, loops, regions and branches.

Loops are found from backward branches. A branch takes effect after a few more bundles, its delay
slots. On an unknown chip, their number follows from where the region of the branch ends.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pallas_debug.chips import chip_of
from pallas_debug.ir.bundles import Bundle, BundleListing, Instruction, read_bundles
from pallas_debug.profile.units import UnitTable, align, read_utilization

if TYPE_CHECKING:
    from pallas_debug.profile.core.decode import DecodedBundle

_MAX_DELAY = 8
"""Maximum number of delay slots of an unknown chip."""

ANY_SIZE = (1 << 31) - 1
"""Size that libtpu reports for a grid dimension that is known only at run time."""

_BOUNDS = re.compile(r"^iteration_bounds: \((?P<sizes>\d{1,10}(?:, ?\d{1,10}){0,63}),?\)$", re.M)

ON_SPARSECORE = (
    "the kernel runs on the SparseCore, whose bundles libtpu lists in another assembly language "
    "and without tables: its cycles, units and lines are unknown, and `show DUMP sparsecore` "
    "prints the listing"
)
"""Reason why there are no figures for a kernel on the SparseCore."""


@dataclass(frozen=True, kw_only=True)
class ScheduledBranch:
    """Branch instruction.

    Attributes:
      bundle: index of the branch's bundle.
      target: index of the target bundle; None if the listing does not show it.
    """

    bundle: int
    instruction: Instruction
    target: int | None


@dataclass(frozen=True, kw_only=True)
class ScheduledLoop:
    """Loop in the schedule.

    Attributes:
      number: position among the loops, in order of their first bundles.
      start, stop: index of the first bundle, and one past the last, including delay slots.
      depth: number of enclosing loops.
      parent: number of the enclosing loop; None for an outermost loop.
      branch: the backward branch; None if there is none in the listing.
    """

    number: int
    start: int
    stop: int
    depth: int
    parent: int | None
    branch: ScheduledBranch | None

    @property
    def size(self) -> int:
        """Number of bundles of an iteration that takes no branch."""
        return self.stop - self.start

    def __contains__(self, bundle: int) -> bool:
        return self.start <= bundle < self.stop


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Bundles of a kernel, with the units they occupy.

    Attributes:
      listing: parsed listing of the bundles.
      table: counts per bundle and unit; None if the compiler wrote none.
      chip: name of the target without its topology; None if unknown.
      stalls: counts per cycle, before the compiler turned idle cycles into delays of the previous
        bundle; None if it wrote none.
      bounds: sizes of the part of the grid that a core runs; empty if not reported.
      is_sparse: whether the schedule is for the SparseCore, whose bundles are not read.
      problems: one sentence for each problem with the texts.
    """

    listing: BundleListing
    table: UnitTable | None = None
    chip: str | None = None
    stalls: UnitTable | None = None
    bounds: tuple[int, ...] = ()
    is_sparse: bool = False
    problems: tuple[str, ...] = ()

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        return self.listing.bundles

    @cached_property
    def is_matched(self) -> bool:
        """True if the table has one row for each bundle."""
        return self.table is not None and len(self.table.rows) == len(self.bundles)

    @cached_property
    def delays(self) -> tuple[int, ...]:
        """Idle cycles after each bundle, which are encoded in it but not shown in the listing.

        All are 0 if they are not known.
        """
        return self._aligned or (0,) * len(self.bundles)

    @property
    def knows_delays(self) -> bool:
        return self._aligned is not None

    @cached_property
    def _aligned(self) -> tuple[int, ...] | None:
        return align(self.table, self.stalls) if self.is_matched else None

    @cached_property
    def decoded(self) -> list[DecodedBundle]:
        """Instructions that a walk evaluates, by bundle."""
        from pallas_debug.profile.core.decode import decode  # which takes a schedule

        return decode(self)

    @cached_property
    def starts(self) -> dict[int, int]:
        """Index of the first bundle of each region, including empty regions."""
        found: dict[int, int] = {}
        for at, bundle in enumerate(self.bundles):
            for number in (*bundle.starts, *bundle.empties):
                found.setdefault(number, at)
        return found

    @cached_property
    def branches(self) -> tuple[ScheduledBranch, ...]:
        """All branches, in order."""
        return tuple(
            ScheduledBranch(bundle=at, instruction=i, target=self.starts.get(i.target or -1))
            for at, bundle in enumerate(self.bundles)
            for i in bundle.instructions
            if i.opcode.startswith("sbr")
        )

    @cached_property
    def delay_slots(self) -> int:
        """Number of bundles after a branch that run whether or not it is taken."""
        chip = chip_of(self.chip)
        if chip is not None:
            return chip.delay_slots
        seen: Counter[int] = Counter()
        for branch in self.branches:
            for slots in range(1, _MAX_DELAY + 1):
                at = branch.bundle + slots
                if at >= len(self.bundles):
                    break
                following = self.bundles[at + 1 : at + 2]
                if self.bundles[at].ends or any(b.starts or b.empties for b in following):
                    seen[slots] += 1
                    break
        return seen.most_common(1)[0][0] if seen else 0

    @cached_property
    def loops(self) -> tuple[ScheduledLoop, ...]:
        """All loops, outer loops first."""
        spans: dict[int, tuple[int, ScheduledBranch]] = {}
        back = [b for b in self.branches if b.target is not None and b.target <= b.bundle]
        starts = sorted({b.target for b in back if b.target is not None})
        for branch in back:
            if branch.target is not None:
                stop = min(branch.bundle + self.delay_slots + 1, len(self.bundles))
                # One bundle may stand for several slots, which end before the next loop.
                following = bisect.bisect_right(starts, branch.bundle)
                stop = min([stop, *starts[following : following + 1]])
                known = spans.get(branch.target)
                if known is None or known[0] < stop:
                    spans[branch.target] = stop, branch
        found: list[ScheduledLoop] = []
        around: list[ScheduledLoop] = []
        for start, (stop, branch) in sorted(spans.items(), key=lambda s: (s[0], -s[1][0])):
            while around and around[-1].stop <= start:
                around.pop()
            loop = ScheduledLoop(
                number=len(found),
                start=start,
                stop=stop,
                depth=len(around),
                parent=around[-1].number if around else None,
                branch=branch,
            )
            found.append(loop)
            around.append(loop)
        return tuple(found)

    def core_bounds(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        """Return the part of a grid that one core runs, as divided by the compiler."""
        if len(self.bounds) != len(grid):
            return grid
        bounds = tuple(
            size if own == ANY_SIZE else own for own, size in zip(self.bounds, grid, strict=True)
        )
        fits = all(0 < own <= size for own, size in zip(bounds, grid, strict=True))
        return bounds if fits else grid

    def loop_at(self, bundle: int) -> ScheduledLoop | None:
        """Return the innermost loop around the bundle with this index."""
        inside = [loop for loop in self.loops if loop.start <= bundle < loop.stop]
        return max(inside, key=lambda loop: loop.depth, default=None)


def schedule_of(
    bundles: str | None,
    utilization: str | None = None,
    delays: str | None = None,
    *,
    sparsecore: str | None = None,
    target: str | None = None,
) -> Schedule:
    """Read a schedule from the texts of `bundles.txt` and `utilization.txt`.

    Args:
      bundles: text of `bundles.txt`; None if the file is missing or cannot be read.
      delays: text of `delays.txt`.
      sparsecore: text of `sparsecore.txt`, which replaces the other files.
      target: name of the target that was compiled for, such as `v5e` or `v5e:2x4`.
    """
    listing = read_bundles(bundles or "")
    table = read_utilization(utilization) if utilization else None
    problems: list[str] = []
    is_sparse = bundles is None and sparsecore is not None
    if is_sparse:
        problems.append(ON_SPARSECORE)
    elif bundles is None:
        problems.append("there is no readable listing of bundles")
    elif not listing.bundles:
        problems.append("the listing contains no bundle")
    elif listing.is_cut:
        problems.append(
            f"the listing of bundles is cut off after bundle {listing.bundles[-1].number:#x}"
        )
    if utilization is not None and table is None:
        problems.append("the utilization has no table")
    elif table is not None and len(table.rows) != len(listing.bundles):
        problems.append(
            f"the utilization has {len(table.rows):,} rows for {len(listing.bundles):,} bundles"
        )
    chip = target.partition(":")[0] if target else None
    stalls = read_utilization(delays) if delays else None
    bounds = _BOUNDS.search(bundles or "")
    return Schedule(
        listing=listing,
        table=table,
        chip=chip,
        stalls=stalls,
        bounds=tuple(map(int, bounds["sizes"].split(","))) if bounds else (),
        is_sparse=is_sparse,
        problems=tuple(problems),
    )

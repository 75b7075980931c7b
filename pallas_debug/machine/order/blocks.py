"""Output blocks that several grid points of a parallel axis visit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.order import Access, Race
from pallas_debug.machine.grid import Window
from pallas_debug.machine.order.ledger import EventPlace
from pallas_debug.machine.order.regions import box_text
from pallas_debug.machine.sightings import access_of, shape_text, sighting_of
from pallas_debug.model import Finding

Point = tuple[int, ...]


@dataclass(eq=False, slots=True)
class BlockVisit:
    """Visits of an output block by the grid points that share their place on the parallel axes.

    Attributes:
      point: first grid point of the visits.
      store: first store.
      is_read: whether the block is read.
      reads_first: whether it is read before they have written to it.
      changes: whether their stores change what the block holds.
      is_covered: whether one of them writes all of it.
    """

    window: Window
    block: Point
    point: Point
    store: EventPlace | None = None
    is_read: bool = False
    reads_first: bool = False
    changes: bool = False
    is_covered: bool = False

    @property
    def is_equal(self) -> bool:
        """True if they write what others have written, without having read any of it."""
        return self.is_covered and not (self.changes or self.reads_first)

    def read(self) -> None:
        self.is_read = True
        self.reads_first = self.reads_first or self.store is None


Visits = Mapping[Any, Mapping[Point, BlockVisit]]
"""Visits of each block, by the coordinates of the grid points on the parallel axes."""


def equal(visits: Mapping[Point, BlockVisit]) -> tuple[BlockVisit, BlockVisit] | None:
    """Return two visits of a block to which all of several visits write the same."""
    first, *others = visits.values()
    if others and first.is_covered and all(visit.is_equal for visit in others):
        return first, others[0]
    return None


def shared(launch: Launch, axes: tuple[int, ...], all_visits: Visits) -> Iterator[Finding]:
    """Yield races for output blocks that several grid points of a parallel axis write.

    Args:
      axes: the parallel axes.
    """
    by_operand: dict[str, list[Mapping[Point, BlockVisit]]] = {}
    for visits in all_visits.values():
        if len(visits) > 1 and any(visit.store for visit in visits.values()):
            name = next(iter(visits.values())).window.operand.name
            by_operand.setdefault(name, []).append(visits)
    for blocks in by_operand.values():
        every = [visit for visits in blocks for visit in visits.values()]
        if all(map(equal, blocks)):
            continue  # a hint
        if any(visit.is_read for visit in every) and not any(v.reads_first for v in every):
            continue  # scratch of each core: its final content is not meant as a result
        count = sum(len(visits) - 1 for visits in blocks)
        yield _race(launch, axes, list(blocks[0].values()), count)


def _race(
    launch: Launch, axes: tuple[int, ...], visits: Sequence[BlockVisit], count: int
) -> Finding:
    later = [visit for visit in visits if visit.store is not None][:2][-1]
    earlier = next(visit for visit in visits if visit is not later)
    here, there, window = later.store, earlier.store, later.window
    assert here is not None
    name, shape = window.operand.name, shape_text(window.array)
    box = tuple(range(part.start, part.stop) for part in window.bounds(later.block)[0])
    point = there.point if there else earlier.point
    race = Race(
        here=access_of(here),
        there=Access(writes=True, grid_point=point, is_stored=there is not None),
        axes=launch.numbers(axis for axis in axes if here.point[axis] != point[axis]),
    )
    return sighting_of(
        launch,
        here,
        source=launch.block_line(window.operand) or here.step.site.line,
        other=there and there.step.site.line,
        operand=name,
        index=box_text(name, box),
        shape=shape,
        count=count,
        values=race.facts,
    ).of(Fault.DATA_RACE, what=f"block {later.block} of {name}, {shape},", race=race)

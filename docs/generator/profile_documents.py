"""Fields of the JSON documents about a kernel's schedule; see `documents.py`."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_debug.profile.comparison import FigureChange, LineChange
from pallas_debug.profile.stats import Stats
from pallas_debug.profile.timeline.timeline import Timeline
from pallas_debug.profile.whatif import WhatIf


@dataclass(frozen=True, kw_only=True)
class ComparedStats:
    """Costs of a kernel in two places, or on two targets.

    Attributes:
      kernel: its name in the new place.
      old, new: folders of the compilations.
      figures: figures that changed: cycles, bundles, spills and bytes, then the largest change.
      lines: lines whose cycles changed, largest change first.
      versions: versions of programs that differ, before and after.
    """

    kernel: str
    old: str
    new: str
    old_target: str
    new_target: str
    cycles: FigureChange
    figures: tuple[FigureChange, ...]
    lines: tuple[LineChange, ...]
    versions: dict[str, tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class DiffStatsDocument:
    """Output of `diff --stats --json`.

    Attributes:
      comparisons: comparisons, largest change first.
      unpaired: folders without a counterpart.
      without_schedule: folders whose cost is unknown, because they were dumped without a schedule.
    """

    comparisons: tuple[ComparedStats, ...]
    unpaired: tuple[str, ...]
    without_schedule: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TimelineDocument:
    """Output of `timeline --json`, for each kernel and target; times are in cycles."""

    timelines: tuple[Timeline, ...]


@dataclass(frozen=True, kw_only=True)
class StatsDocument:
    """Output of `stats --json`, for each kernel and target; every figure states its origin.

    Attributes:
      what_if: the change that `--what-if` asks for; null without it.
    """

    stats: tuple[Stats, ...]
    what_if: WhatIf | None

"""Check sites of a kernel, and the memory layout in which failures are recorded.

A `Site` is one place in a kernel that can fail a check. The rewritten kernel records failures in an
int32 output in scalar memory. The words of one site are

    the number of failures, and for the first one: the grid point, the iterations of the enclosing
    loops, and the site's values

There is one row of such records per parallel slice of the grid. `RecordLayout` computes the offset
of each word and reads the rows back; it is plain data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from pallas_debug.chips import LANES
from pallas_debug.model import SourceLine

MAX_LOOPS = 3
MAX_VALUES = 6


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place in a kernel that is checked.

    Attributes:
      check: name of the check: `user`, `nan`, `index`, `div`, `hint`.
      operation: the primitive, such as `div`; `block` for a block.
      operand: Python name of the accessed ref.
      values: name and dtype of each recorded value.
      details: static facts about the site: shape, dimension, bound.
      error: for a user's check, the error for jax to raise, as an error tree.
      step: position among the equations.
      loops: position of the start of each enclosing loop, outermost first.
    """

    check: str
    operation: str
    source: SourceLine | None
    operand: str | None = None
    values: tuple[tuple[str, str], ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    error: Any = None
    step: int = 0
    loops: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SiteFailure:
    """Failures recorded for one site: their number and the location of the first.

    Attributes:
      order: sort key that puts first failures in chronological order: by grid point, then by
        program order.
      loops: iterations of the enclosing loops, outermost first; -1 for a loop without a counter.
    """

    site: Site
    count: int
    order: tuple[int, ...]
    grid_point: tuple[int, ...]
    loops: tuple[int, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """Layout of a kernel's failure records.

    Attributes:
      grid_rank: number of grid dimensions that the kernel's author sees.
      batch: sizes of the leading dimensions added by `vmap`.
      slices: number of rows.
      capacity: maximum number of sites.
    """

    sites: tuple[Site, ...] = ()
    capacity: int
    grid_rank: int
    batch: tuple[int, ...]
    slices: int

    @property
    def record(self) -> int:
        """Number of words per site."""
        return 1 + self.grid_rank + MAX_LOOPS + MAX_VALUES

    @property
    def words(self) -> int:
        """Number of words per row, rounded up to whole lanes."""
        return math.ceil(self.capacity * self.record / LANES) * LANES

    def base(self, site: Any) -> Any:
        """Offset of the first word of a site's record, its failure count."""
        return site * self.record

    def read(self, rows: np.ndarray) -> list[SiteFailure]:
        """Return the sites that failed, ordered by first failure.

        Args:
          rows: `int32[slices, words]`, as written by the kernel.
        """
        rows = np.asarray(rows).reshape(-1, self.words)
        counts = rows[:, [self.base(site) for site in range(len(self.sites))]]
        failures = []
        for i in np.flatnonzero(counts.any(axis=0)):
            first = int(np.flatnonzero(counts[:, i])[0])
            failures.append(self._failure(int(i), rows[first], first, int(counts[:, i].sum())))
        return sorted(failures, key=lambda failure: failure.order)

    def _failure(self, site: int, row: np.ndarray, number: int, count: int) -> SiteFailure:
        base = self.base(site)
        words = row[base + 1 : base + self.record]
        point, words = words[: self.grid_rank], words[self.grid_rank :]
        loops, kept = words[: len(self.sites[site].loops)], words[MAX_LOOPS:]
        # The batch dimensions are the leading ones of the dimensions that form slices.
        per_example = self.slices // math.prod(self.batch)
        batch = np.unravel_index(number // per_example, self.batch) if self.batch else ()
        grid_point = (*map(int, batch), *map(int, point))
        pairs = zip(self.sites[site].loops, loops, strict=True)
        return SiteFailure(
            site=self.sites[site],
            count=count,
            order=(
                *grid_point,
                *(int(n) for pair in pairs for n in pair),
                self.sites[site].step,
                site,
            ),
            grid_point=grid_point,
            loops=tuple(map(int, loops)),
            values=_values(self.sites[site], kept),
        )


def _values(site: Site, words: np.ndarray) -> tuple[Any, ...]:
    return tuple(_value(word, dtype) for word, (_, dtype) in zip(words, site.values, strict=False))


def failure_values(site: Site, layout: RecordLayout, words: Any) -> list[Any]:
    """Decode the values of a traced record to the site's dtypes."""
    start = 1 + layout.grid_rank + MAX_LOOPS
    return [
        jax.lax.bitcast_convert_type(words[start + i], dtype)
        if dtype in ("float32", "uint32")
        else words[start + i].astype(dtype)
        for i, (_, dtype) in enumerate(site.values)
    ]


def _value(word: np.int32, dtype: str) -> Any:
    if dtype == "float32":
        return float(np.asarray(word, np.int32).view(np.float32))
    if dtype == "bool":
        return bool(word)
    if dtype == "uint32":
        return int(np.asarray(word, np.int32).view(np.uint32))
    return int(word)

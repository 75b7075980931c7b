"""What can be checked at an equation of a kernel, and the words in which a failure is kept.

A `Site` is one place in a kernel where something may go wrong. The rewritten kernel counts its
failures in an int32 output in scalar memory; the words of a site are

    how often it failed, and of the first time: the grid point, the iterations of the loops around
    it, and its values

There is one such row for each parallel slice of the grid. `RecordLayout` gives the place of each
word and reads the rows back; it is plain data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from pallas_debug.model import SourceLine

MAX_LOOPS = 3
MAX_VALUES = 4
LANES = 128


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place in a kernel that is checked.

    Attributes:
      check: which check looks at it: `user`, `nan`, `index`, `div`, `hint`, `uninitialized`.
      operation: the primitive, `div`; for a block, `block`.
      source: the line; None where jax kept none.
      operand: the ref that is accessed, by its Python name.
      values: name and dtype of each value that is kept.
      details: what is known of the site without running: shape, dimension, bound.
      error: for a user's check, what jax is to raise: an error tree.
      step: where among the equations it stands.
      loops: where among the equations each loop around it begins, outermost first.
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
    """What the words say of one site: how often it failed, and where first.

    Attributes:
      order: sorts first failures by the time at which they happened: grid point by grid point,
        and there as the program runs.
      loops: iterations of the enclosing loops, outermost first; -1 where a loop has no counter.
    """

    site: Site
    count: int
    order: tuple[int, ...]
    grid_point: tuple[int, ...]
    loops: tuple[int, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """Where the words of a kernel's sites lie.

    Attributes:
      grid_rank: dimensions of the grid that the kernel's author sees.
      batch: sizes of the dimensions that `vmap` added in front of them.
      slices: how many rows there are.
      capacity: sites that there is room for.
    """

    sites: tuple[Site, ...] = ()
    capacity: int
    grid_rank: int
    batch: tuple[int, ...]
    slices: int

    @property
    def record(self) -> int:
        """Words of one site."""
        return 1 + self.grid_rank + MAX_LOOPS + MAX_VALUES

    @property
    def words(self) -> int:
        """Of one row, rounded up to whole lanes."""
        return math.ceil(self.capacity * self.record / LANES) * LANES

    def base(self, site: Any) -> Any:
        """Where the words of a site begin: with how often it failed."""
        return site * self.record

    def checks(self, check: str) -> bool:
        """Whether any site is of this check."""
        return any(site.check == check for site in self.sites)

    def read(self, rows: np.ndarray) -> list[SiteFailure]:
        """The sites that failed, in the order of their first failures.

        Args:
          rows: `int32[slices, words]`, as the kernel left it.
        """
        rows = np.asarray(rows).reshape(-1, self.words)
        counts = rows[:, [self.base(i) for i in range(len(self.sites))]]
        failures = []
        for i in np.flatnonzero(counts.any(axis=0)):
            first = int(np.flatnonzero(counts[:, i])[0])
            failures.append(self._failure(int(i), rows[first], first, int(counts[:, i].sum())))
        return sorted(failures, key=lambda failure: failure.order)

    def _failure(self, site: int, row: np.ndarray, number: int, count: int) -> SiteFailure:
        words = row[self.base(site) + 1 : self.base(site) + self.record]
        point, words = words[: self.grid_rank], words[self.grid_rank :]
        loops, kept = words[: len(self.sites[site].loops)], words[MAX_LOOPS:]
        # The batch's dimensions come first among those that the slices count.
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
            values=tuple(
                _value(word, dtype)
                for word, (_, dtype) in zip(kept, self.sites[site].values, strict=False)
            ),
        )


def failure_values(site: Site, layout: RecordLayout, words: Any) -> list[Any]:
    """The values that a traced record keeps: of its words, those of the site's own dtypes."""
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


def slice_text(start: int, size: int, stride: Any = 1) -> str:
    """`8:16`, or `0:15:2` where it takes every second."""
    if not isinstance(stride, int) or not isinstance(size, int):
        return "…"
    step = f":{stride}" if stride != 1 else ""
    return f"{start}:{start + (size - 1) * stride + 1}{step}"


def shape_text(dtype: str, shape: Sequence[int]) -> str:
    """`float32[8, 128]`."""
    return f"{dtype}[{', '.join(map(str, shape))}]"

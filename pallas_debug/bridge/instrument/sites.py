"""Check sites of a kernel, and the memory layout in which failures are recorded.

A `Site` is one place in a kernel that can fail a check. The rewritten kernel records its first
failure in an int32 output in scalar memory. The words are

    the number of failures of the site that failed first, and for the first one: the number of the
    site, the grid point, and the site's values

There is one row of them per parallel slice of the grid. `RecordLayout` reads the rows back; it is
plain data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from pallas_debug.chips import LANES
from pallas_debug.model import SourceLine

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
    """

    check: str
    operation: str
    source: SourceLine | None
    operand: str | None = None
    values: tuple[tuple[str, str], ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    error: Any = None


@dataclass(frozen=True, kw_only=True)
class SiteFailure:
    """Failures recorded for one site: their number and the location of the first."""

    site: Site
    count: int
    grid_point: tuple[int, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """Layout of a kernel's failure records.

    Attributes:
      grid_rank: number of grid dimensions that the kernel's author sees.
      batch: sizes of the leading dimensions added by `vmap`.
      slices: number of rows.
    """

    sites: tuple[Site, ...] = ()
    grid_rank: int
    batch: tuple[int, ...]
    slices: int

    @property
    def first_value(self) -> int:
        """Number of the first word with a value."""
        return 2 + self.grid_rank

    @property
    def words(self) -> int:
        """Number of words per row, rounded up to whole lanes."""
        return math.ceil((self.first_value + MAX_VALUES) / LANES) * LANES

    def read(self, rows: np.ndarray) -> list[SiteFailure]:
        """Return the sites that failed first in a slice, in the order of the slices.

        Args:
          rows: `int32[slices, words]`, as written by the kernel.
        """
        rows = np.asarray(rows).reshape(-1, self.words)
        found: dict[int, SiteFailure] = {}
        for number in np.flatnonzero(rows[:, 0]):
            failure, site = self._failure(rows[number], int(number)), int(rows[number, 1])
            known = found.get(site)
            count = failure.count + (0 if known is None else known.count)
            found[site] = replace(known or failure, count=count)
        return list(found.values())

    def _failure(self, row: np.ndarray, number: int) -> SiteFailure:
        site = self.sites[row[1]]
        # The batch dimensions are the leading ones of the dimensions that form slices.
        per_example = self.slices // math.prod(self.batch)
        batch = np.unravel_index(number // per_example, self.batch) if self.batch else ()
        return SiteFailure(
            site=site,
            count=int(row[0]),
            grid_point=(*map(int, batch), *map(int, row[2 : self.first_value])),
            values=_values(site, row[self.first_value :]),
        )


def _values(site: Site, words: np.ndarray) -> tuple[Any, ...]:
    return tuple(_value(word, dtype) for word, (_, dtype) in zip(words, site.values, strict=False))


def failure_values(site: Site, layout: RecordLayout, words: Any) -> list[Any]:
    """Decode the values of a traced record to the site's dtypes."""
    return [
        jax.lax.bitcast_convert_type(words[i], dtype)
        if dtype in ("float32", "uint32")
        else words[i].astype(dtype)
        for i, (_, dtype) in enumerate(site.values, layout.first_value)
    ]


def _value(word: np.int32, dtype: str) -> Any:
    if dtype == "float32":
        return float(np.asarray(word, np.int32).view(np.float32))
    if dtype == "bool":
        return bool(word)
    if dtype == "uint32":
        return int(np.asarray(word, np.int32).view(np.uint32))
    return int(word)

"""Shared input of all static checks: one captured kernel, read once."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_debug.bridge.capture.calls import CallSite
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.jaxprs.index_lines import IndexLines
from pallas_debug.bridge.jaxprs.params import jaxprs_of
from pallas_debug.bridge.walk import index_maps
from pallas_debug.bridge.walk.events import Event, Walked
from pallas_debug.bridge.walk.index_maps import Block, Grid, Indices
from pallas_debug.findings.facts import array_text
from pallas_debug.findings.sighting import Sighting
from pallas_debug.model import Finding, SourceLine, Witness


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A kernel with its index maps evaluated and its jaxpr walked.

    Attributes:
      indices: block indices that each index map returns, by position.
      site: location of the call in the user's source.
    """

    captured: Capture
    grid: Grid
    indices: tuple[Indices, ...]
    walked: Walked
    site: CallSite

    @property
    def name(self) -> str:
        return self.captured.kernel.name

    @functools.cached_property
    def index_lines(self) -> IndexLines:
        return IndexLines(jaxprs_of(self.captured.params))

    def sighting(self, *, count: int = 1, targets: Sequence[str] = (), **witness: Any) -> Sighting:
        """Build a sighting for this kernel; `source` defaults to the kernel's first line."""
        witness["source"] = witness.get("source") or self.captured.kernel.source
        return Sighting(
            kernel=self.name,
            engine="static",
            witness=Witness(**witness),
            count=count,
            targets=tuple(targets),
        )

    def of_block(self, block: Block, **witness: Any) -> Sighting:
        """Build a sighting of an operand; `source` defaults to the line of its blocks."""
        given = {
            "source": self.block_line(block),
            "operand": block.name,
            "shape": array_text(block.dtype, block.shape),
        }
        return self.sighting(**given | witness)

    def position(self, block: Block) -> int:
        """Position of an operand with blocks among the kernel's refs."""
        return len(self.grid.tables) + block.position

    def stores(self, block: Block) -> list[Event]:
        """Events that may write to an operand, in program order."""
        position = self.position(block)
        return [
            event
            for event in self.walked.events
            if event.what != "read" and event.view.buffer.position == position
        ]

    def reads(self, block: Block) -> list[Event]:
        """Events that may read an operand, in program order."""
        position = self.position(block)
        return [
            event
            for event in self.walked.events
            for view in (event.view if event.what != "dma_start" else event.other,)
            if event.what != "write" and view and view.buffer.position == position
        ]

    def block_line(self, block: Block) -> SourceLine | None:
        """The line that determines an operand's blocks."""
        return block.block_source or self.site.line() or self.captured.kernel.source


@dataclass(kw_only=True)
class Result:
    """Findings of a group of checks, and what it could not judge.

    Attributes:
      left_out: what was not checked, and why.
    """

    findings: list[Finding] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def read(captured: Capture, tables: Mapping[int, np.ndarray], deadline: float) -> Subject:
    """Read a captured kernel.

    Raises:
      index_maps.NotReadable: the kernel contains nothing that can be analysed statically.
    """
    grid = index_maps.grid(captured)
    empty = 0 in grid.sizes
    return Subject(
        captured=captured,
        grid=grid,
        indices=tuple(
            index_maps.indices(captured, block.position, tables, deadline) for block in grid.blocks
        ),
        walked=Walked(events=()) if empty else index_maps.walk(captured, grid, tables, deadline),
        site=CallSite(captured.calls),
    )


def first_spot(bad: np.ndarray, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """First grid point at which an array is true, and the first loop iteration there.

    The array's last `rank` axes are those of the grid; the axes before belong to loops, innermost
    first, whose iterations are returned outermost first.
    """
    loops = bad.ndim - rank
    ordered = bad.transpose(*range(loops, bad.ndim), *reversed(range(loops)))
    spot = np.unravel_index(int(np.argmax(ordered)), ordered.shape)
    numbers = tuple(int(i) for i in spot)
    return numbers[:rank], numbers[rank:]


def at(values: np.ndarray, spot: Sequence[int]) -> int:
    """Look up a position of the full array in an array that broadcasts against it."""
    if values.ndim == 0:
        return int(values)
    last = spot[len(spot) - values.ndim :] if values.ndim <= len(spot) else spot
    place = tuple(i if n > 1 else 0 for i, n in zip(last, values.shape, strict=True))
    return int(values[place])


def points_of(bad: np.ndarray, sizes: Sequence[int]) -> int:
    """Number of grid points at which an array that broadcasts against the grid is true."""
    found = np.asarray(bad.any(axis=tuple(range(bad.ndim - len(sizes)))))
    repeats = [size for size, dim in zip(sizes, found.shape, strict=True) if dim == 1]
    return int(np.count_nonzero(found)) * math.prod(repeats)

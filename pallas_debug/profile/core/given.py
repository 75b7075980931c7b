"""Scalar operands whose values a dump has recorded, at the places where a schedule finds them.

XLA copies tables of scalar prefetch to SMEM before the kernel's first grid step, and passes sizes
of the grid, like tables of one element, in registers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pallas_debug.ir.bundles import Instruction
from pallas_debug.profile.blocks import ScalarValues
from pallas_debug.profile.core.copies import GRANULE
from pallas_debug.profile.core.operands import operand_addresses
from pallas_debug.profile.core.scalars import wrapped
from pallas_debug.profile.schedule import Schedule

LANES = 128
MAX_SUBLANES = 8
WORD = 4
"""Bytes of a word in SMEM."""


@dataclass(frozen=True, kw_only=True)
class GivenTable:
    """A table in SMEM: its words, by their offset."""

    name: str
    words: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class GivenScalars:
    """Values of scalar operands, where a schedule finds them.

    Attributes:
      registers: values that are passed in registers.
      passed: names of the operands that these belong to.
      copied: tables, by the bundle that starts the copy to SMEM.
    """

    registers: Mapping[str, int] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    copied: Mapping[int, GivenTable] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """Names of the operands that were found."""
        return frozenset((*self.passed, *(table.name for table in self.copied.values())))


def given_scalars(schedule: Schedule, scalars: Sequence[ScalarValues]) -> GivenScalars:
    """Find scalar operands in a schedule; those that are not found are left out."""
    if not scalars or not schedule.bundles:
        return GivenScalars()
    addresses = operand_addresses(schedule)
    by_number = {scalar.number: scalar for scalar in scalars}
    registers: dict[str, int] = {}
    passed: list[str] = []
    for register, operand in addresses.operands.items():
        scalar = by_number.get(operand.number)
        if scalar is not None and operand.is_by_value and len(scalar.values) == 1:
            registers[register] = wrapped(scalar.values[0])
            passed.append(scalar.name)
    copied: dict[int, GivenTable] = {}
    for at, i in addresses.starts.items():
        source = addresses.source(i) if _is_load(i) else None
        scalar = by_number.get(source.number) if source is not None else None
        if scalar is not None and _size(i) == _tiled_size(scalar.shape):
            words = dict(zip(_offsets(scalar.shape), map(wrapped, scalar.values), strict=True))
            copied[at] = GivenTable(name=scalar.name, words=words)
    return GivenScalars(registers=registers, passed=tuple(passed), copied=copied)


def _is_load(copy: Instruction) -> bool:
    """Whether XLA starts a copy to load a scalar operand: the kernel's own have a Python line."""
    return copy.opcode.endswith("_to_smem") and not copy.locations and copy.predicate is None


def _size(copy: Instruction) -> int | None:
    """Bytes of a copy; None if they are not constant."""
    size = copy.arguments[1] if len(copy.arguments) > 1 else ""
    return int(size) * GRANULE if size.isdecimal() and len(size) <= 10 else None


def _tiles(shape: Sequence[int]) -> tuple[int, int, int]:
    """Sublanes of a tile, and the number of tiles along the last two dimensions of an array."""
    rows = shape[-2] if len(shape) > 1 else 1
    sublanes = min(1 << max(rows - 1, 0).bit_length(), MAX_SUBLANES)
    return sublanes, -(-rows // sublanes), -(-shape[-1] // LANES)


def _tiled_size(shape: Sequence[int]) -> int | None:
    """Bytes of an array of words in tiles; None if it has no dimension."""
    if not shape:
        return None
    sublanes, down, across = _tiles(shape)
    return math.prod(shape[:-2]) * down * across * sublanes * LANES * WORD


def _offsets(shape: Sequence[int]) -> Iterator[int]:
    """Offset of each element, row by row: tiles follow one another, each of them row by row."""
    sublanes, down, across = _tiles(shape)
    rows = shape[-2] if len(shape) > 1 else 1
    for outer, row, column in itertools.product(
        range(math.prod(shape[:-2])), range(rows), range(shape[-1])
    ):
        tile = (outer * down + row // sublanes) * across + column // LANES
        yield (tile * sublanes + row % sublanes) * LANES + column % LANES

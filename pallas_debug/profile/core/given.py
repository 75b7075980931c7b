"""Scalar operands whose values a dump has recorded, located in the schedule.

XLA copies tables of scalar prefetch to SMEM before the kernel's first grid step, and passes sizes
of the grid, like tables of one element, in registers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pallas_debug.chips import LANES, SUBLANES, packing, similar_chip
from pallas_debug.ir.bundles import Instruction
from pallas_debug.profile.blocks import ScalarValues
from pallas_debug.profile.core.operands import operand_addresses
from pallas_debug.profile.core.scalars import wrapped
from pallas_debug.profile.schedule import Schedule

_MORE = {1: 0, 2: 16, 4: 32}
"""Maximum rows of padding beyond those of tiles of 8, by the number of elements in a word."""


@dataclass(frozen=True, kw_only=True)
class GivenTable:
    """Table in SMEM: words by offset."""

    name: str
    words: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class GivenScalars:
    """Recorded values of scalar operands, by the register or copy that provides them.

    Attributes:
      registers: values that are passed in registers.
      passed: names of the operands that are passed in registers.
      copied: tables by the bundle that starts the copy to SMEM.
    """

    registers: Mapping[str, int] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    copied: Mapping[int, GivenTable] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """Names of the operands that were found."""
        return frozenset((*self.passed, *(table.name for table in self.copied.values())))


def given_scalars(schedule: Schedule, scalars: Sequence[ScalarValues]) -> GivenScalars:
    """Locate scalar operands in a schedule; omits operands that are not found."""
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
        if scalar is not None and (words := _words(scalar, _size(i, schedule.chip))):
            copied[at] = GivenTable(name=scalar.name, words=words)
    return GivenScalars(registers=registers, passed=tuple(passed), copied=copied)


def _is_load(copy: Instruction) -> bool:
    """Return whether XLA, rather than the kernel, starts this copy, to load a scalar operand."""
    return copy.opcode.endswith("_to_smem") and not copy.locations and copy.predicate is None


def _size(copy: Instruction, chip: str | None) -> int | None:
    """Return the size of a copy in bytes; None if it is not constant."""
    size = copy.arguments[1] if len(copy.arguments) > 1 else ""
    return int(size) * similar_chip(chip).granule if size.isdecimal() and len(size) <= 10 else None


def _words(table: ScalarValues, size: int | None) -> dict[int, int]:
    """Return the words of SMEM that a table fills, by offset; empty if the layout is not known.

    Rows of 128 words are stored in consecutive tiles; elements narrower than 32 bits share a word
    with elements of the next rows.

    Args:
      size: number of bytes copied to SMEM.
    """
    shape, packed = table.shape, packing(table.bits)
    if not shape or not size or not table.values:
        return {}
    rows, columns = shape[-2] if len(shape) > 1 else 1, shape[-1]
    outer, across = math.prod(shape[:-2]), -(-columns // LANES)
    sublanes = min(1 << max(rows - 1, 0).bit_length(), SUBLANES)
    # The height of tiles in a single column does not matter: libtpu has several for narrow types.
    padded, rest = divmod(size, outer * across * LANES * table.bits // 8)
    if packed > 1 and (across > 1 or len(shape) < 2):
        return {}
    expected = -(-rows // sublanes) * sublanes
    if rest or padded % packed or not expected <= padded <= expected + _MORE[packed]:
        return {}
    words: dict[int, int] = {}
    places = itertools.product(range(outer), range(rows), range(columns))
    for (n, row, column), value in zip(places, table.values, strict=True):
        first = n * padded * across + row // sublanes * sublanes * across
        line = first + column // LANES * sublanes + row % sublanes
        at = line // packed * LANES + column % LANES
        element = (value & ((1 << table.bits) - 1)) << (line % packed * table.bits)
        words[at] = words.get(at, 0) | element
    return {at: wrapped(word) for at, word in words.items()}

"""Functional units of a TensorCore, the capacity of each, and which unit an opcode occupies.

`utilization.txt` has a row of capacities and one row of counts per bundle. Its columns are of two
kinds. VALU, VPOP, VLOAD, VSTORE and SALU are issue slots: an instruction takes one slot of its
bundle. MXU, XLU and EUP are units that stay busy for several cycles after an instruction is issued:
the column counts busy units. libtpu 0.0.52 writes MATMUL for MXU, with the same counts, and adds
MATPUSH. VLOAD:FILL and VSTORE:SPILL are the loads and stores of spilled registers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pallas_debug.ir.llo import SPILL_SLOT

MXU, PUSH, XLU, VALU, VPOP, EUP = "MXU", "MATPUSH", "XLU", "VALU", "VPOP", "EUP"
LOAD, FILL, STORE, SPILL, SALU = "VLOAD", "VLOAD:FILL", "VSTORE", "VSTORE:SPILL", "SALU"

MEANINGS = {
    MXU: "matrix units that are busy",
    PUSH: "matrix units that are being loaded with a matrix",
    XLU: "cross-lane units that are busy: transposes, permutations, reductions over lanes",
    VALU: "vector arithmetic",
    VPOP: "results taken from the MXU, XLU and EUP",
    EUP: "transcendental units that are busy: exponentials, reciprocals, square roots",
    LOAD: "vector loads, and waits on semaphores",
    FILL: "vector loads of spilled registers",
    STORE: "vector stores",
    SPILL: "vector stores that spill registers",
    SALU: "scalar arithmetic, branches, and starts of copies",
}
"""Meanings of the columns of `utilization.txt`. Other columns are shown without one."""

BUSY = (MXU, PUSH, XLU, EUP)
"""Columns that count busy units rather than issue slots."""

_RENAMED = {"MATMUL": MXU}
"""Column names of libtpu 0.0.52 and later, mapped to the earlier names."""

VECTOR = (MXU, XLU, VALU, VPOP, EUP, LOAD, STORE)
"""Units for vector and matrix work."""

_EUP = ("vrcp", "vpow2", "vexp2", "vlog2", "vrsqrt", "vtanh", "vsigmoid", "verf", "vsin", "vcos")
_NO_SLOT = ("inlined_call_operand", "sphi", "vphi", "pphi", "int_to_ptr", "control")
_WAITS = ("dma.done.wait", "vsyncadd", "vsyncpa", "vwait")
_MXU = ("vmatmul", "vmatprep", "vmatpush", "vdwg", "vlatch")

_MAX_OPCODES = 4096
"""Maximum number of opcodes whose units are cached; kernels have a few hundred."""


@dataclass(frozen=True, kw_only=True)
class UnitTable:
    """Capacities and counts per bundle, as reported by the compiler.

    Attributes:
      names: names of the columns, in order.
      capacity: capacity of each column.
      rows: counts of each column, for each bundle.
    """

    names: tuple[str, ...]
    capacity: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]

    @property
    def capacities(self) -> dict[str, int]:
        """Capacity of each column, by name."""
        return dict(zip(self.names, self.capacity, strict=True))

    def column(self, name: str) -> tuple[int, ...] | None:
        """Return the counts of a unit for each bundle; None if there is no such column."""
        if name not in self.names:
            return None
        at = self.names.index(name)
        return tuple(row[at] for row in self.rows)


_MAX_COLUMNS = 64
_NUMBERS = re.compile(r"\s*\d{1,9}(?:\s+\d{1,9})*\s*")


def read_utilization(text: str) -> UnitTable | None:
    """Parse the text of `utilization.txt`; None if it has no table.

    Unknown columns are kept. A row whose number of columns differs from the header ends the table.
    """
    names: tuple[str, ...] = ()
    numbers: list[tuple[int, ...]] = []
    known: dict[str, tuple[int, ...]] = {}  # cache, as most rows occur many times
    for line in text.split("\n"):
        if line.startswith("==") or not line.strip():
            continue
        if not names:
            given = (name.strip() for name in line.split(","))
            names = tuple(_RENAMED.get(name, name) for name in given)
            if len(names) > _MAX_COLUMNS:
                return None
            continue
        row = known.get(line)
        if row is None:
            row = tuple(map(int, line.split())) if _NUMBERS.fullmatch(line) else ()
            known[line] = row
        if len(row) != len(names):
            break
        numbers.append(row)
    if not numbers:
        return None
    return UnitTable(names=names, capacity=numbers[0], rows=tuple(numbers[1:]))


@lru_cache(_MAX_OPCODES)
def slot_of(opcode: str) -> str | None:
    """Return the issue slot that an instruction takes; None if it takes none."""
    if opcode.startswith(_NO_SLOT):
        return None
    if opcode.startswith("vpop"):
        return VPOP
    if opcode.startswith(("vld", *_WAITS)):
        return LOAD
    if opcode.startswith("vst") and not opcode.startswith("vstv"):
        return STORE
    if opcode.startswith(_MXU):
        return MXU
    if ".xlu" in opcode:
        return XLU
    return VALU if opcode.startswith("v") else SALU


def units_of(opcode: str, text: str = "") -> tuple[str, ...]:
    """Return the utilization columns to which an instruction contributes.

    Args:
      text: text of the instruction, which shows whether it loads or stores a spilled register.
    """
    slot = slot_of(opcode)
    if slot is None:
        return ()
    if opcode.startswith(_EUP):
        return (slot, EUP)
    if slot in (LOAD, STORE) and SPILL_SLOT.search(text):
        return (slot, FILL if slot == LOAD else SPILL)
    return (slot,)


@lru_cache(_MAX_OPCODES)
def is_vector(opcode: str) -> bool:
    """Return whether an instruction does vector or matrix work: no scalar work, no wait."""
    slot = slot_of(opcode)
    return slot in VECTOR and not opcode.startswith(_WAITS)


def is_spill(opcode: str, text: str) -> bool:
    """Return whether an instruction spills a register, to VMEM or SMEM."""
    return opcode.startswith(("vst", "sst")) and bool(SPILL_SLOT.search(text))


def is_fill(opcode: str, text: str) -> bool:
    """Return whether an instruction loads a spilled register."""
    return opcode.startswith(("vld", "sld")) and bool(SPILL_SLOT.search(text))


def shares(
    table: UnitTable, weights: Sequence[float] = (), *, start: int = 0, stop: int | None = None
) -> dict[str, float]:
    """Return the share of each unit's capacity that is used in consecutive bundles.

    Bundles beyond the table are ignored; a unit without capacity has no share.

    Args:
      weights: weight of each bundle of the table; by default they are equal.
    """
    rows = table.rows[start:stop]
    of_rows = weights[start:stop] or [1] * len(rows)
    total = sum(of_rows[: len(rows)])
    if not total:
        return {}
    return {
        name: sum(row[at] * w for row, w in zip(rows, of_rows, strict=False)) / (capacity * total)
        for at, (name, capacity) in enumerate(zip(table.names, table.capacity, strict=True))
        if capacity
    }


def is_copy(opcode: str) -> bool:
    """Return whether an instruction starts a copy."""
    return opcode.startswith("dma.") and not opcode.startswith("dma.done")


def align(final: UnitTable | None, before: UnitTable | None) -> tuple[int, ...] | None:
    """Find the number of idle cycles after each bundle; None if the tables do not match.

    Args:
      final: counts per bundle.
      before: counts per cycle, before idle cycles became delays. Units can be busy in idle cycles,
        too, so only issue slots are compared.
    """
    if final is None or before is None or final.names != before.names:
        return None
    slots = [at for at, name in enumerate(final.names) if name not in BUSY]
    delays = [0] * len(final.rows)
    at = 0
    for number, row in enumerate(final.rows):
        issued = [row[slot] for slot in slots]
        while at < len(before.rows) and [before.rows[at][slot] for slot in slots] != issued:
            if number == 0 or any(before.rows[at][slot] for slot in slots):
                return None
            delays[number - 1] += 1
            at += 1
        if at == len(before.rows):
            return None
        at += 1
    rest = before.rows[at:]
    return None if any(row[slot] for row in rest for slot in slots) else tuple(delays)

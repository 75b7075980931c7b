"""Memory sizes of each chip, by device kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ChipMemory:
    """Memory sizes of a TensorCore.

    Attributes:
      limit: bytes of VMEM that a kernel may use by default.
      capacity: bytes of VMEM.
      smem: bytes of SMEM.
    """

    limit: int
    capacity: int
    smem: int = MIB


CHIPS: Mapping[str, ChipMemory] = {
    "TPU v4": ChipMemory(limit=16 * MIB, capacity=16 * MIB),
    "TPU v5 lite": ChipMemory(limit=16 * MIB, capacity=128 * MIB),
    "TPU v5": ChipMemory(limit=16 * MIB, capacity=64 * MIB),
    "TPU v6 lite": ChipMemory(limit=32 * MIB, capacity=128 * MIB),
    "TPU7x": ChipMemory(limit=32 * MIB, capacity=64 * MIB),
}
"""Memory sizes by chip, as observed with libtpu 0.0.42 and 0.0.50."""

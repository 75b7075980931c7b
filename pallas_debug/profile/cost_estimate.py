"""`pl.CostEstimate` of a kernel that declares none, from counted work.

XLA takes a kernel's cost from this declaration; users ask how to get it (jax-ml/jax#29463).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pallas_debug.ir.bundles import Instruction
from pallas_debug.profile.blocks import BlockMap
from pallas_debug.profile.cycles import CycleEstimate
from pallas_debug.profile.figures import Figure, Origin, missing, total
from pallas_debug.profile.schedule import Schedule
from pallas_debug.profile.traffic import REGISTER, Traffic

_TRANSCENDENTALS = (
    *("vpow2", "vexp2", "vlog2", "vrsqrt", "vtanh"),
    *("vsigmoid", "verf", "vsin", "vcos"),
)
"""Opcode prefixes; a reciprocal, as of a division, is none."""

_WIDTH = re.compile(r"\.b?f(?P<bits>\d{1,2})\b")


@dataclass(frozen=True, kw_only=True)
class CountedCost:
    """Counted work of a kernel, as the arguments of `pl.CostEstimate`.

    Attributes:
      flops: operations of matrix products and vector instructions.
      transcendentals: exponentials, logarithms and the like of the transcendental unit.
      bytes_accessed: bytes from and to HBM.
    """

    flops: Figure
    transcendentals: Figure
    bytes_accessed: Figure

    @property
    def figures(self) -> dict[str, Figure]:
        """Figures by argument."""
        return {
            "flops": self.flops,
            "transcendentals": self.transcendentals,
            "bytes_accessed": self.bytes_accessed,
        }

    def __str__(self) -> str:
        known = ((name, figure.value) for name, figure in self.figures.items())
        arguments = ", ".join(f"{name}={round(v)}" for name, v in known if v is not None)
        return f"pl.CostEstimate({arguments})" if arguments else ""

    @property
    def missing(self) -> dict[str, str]:
        """Why arguments are unknown, by argument."""
        return {name: f.note for name, f in self.figures.items() if f.value is None}


def counted_cost(
    schedule: Schedule, cycles: CycleEstimate, traffic: Traffic, blocks: BlockMap | None
) -> CountedCost:
    """Count a kernel's work."""
    if cycles.core_steps.value != cycles.steps.value:
        shared = missing("cores share the grid, and what was counted is that of one core")
        return CountedCost(flops=shared, transcendentals=shared, bytes_accessed=shared)
    return CountedCost(
        flops=total(traffic.flops, traffic.vector_operations),
        transcendentals=_transcendentals(schedule, cycles),
        bytes_accessed=total(traffic.read, traffic.written, _resident(traffic, blocks)),
    )


def _resident(traffic: Traffic, blocks: BlockMap | None) -> Figure:
    """Return the bytes of operands that XLA placed in VMEM, as it does not for every caller."""
    operands = blocks.operands if blocks is not None else ()
    placed = [o for o in operands if o.name in traffic.resident]
    size = sum(math.ceil(math.prod(o.shape) * o.bits / 8) for o in placed)
    note = "operands that XLA placed in VMEM count once" if placed else ""
    origin: Origin = "assumed" if placed else "derived"
    return Figure(value=size, origin=origin, unit="bytes", note=note)


def _transcendentals(schedule: Schedule, cycles: CycleEstimate) -> Figure:
    if not cycles.executions or not cycles.total.is_known:
        return missing("the number of times the bundles run is unknown")
    elements = sum(
        count * _elements(bundle.instructions)
        for count, bundle in zip(cycles.executions, schedule.bundles, strict=True)
    )
    note = "all elements of a register for each instruction of the transcendental unit"
    return Figure(value=round(elements), origin=cycles.total.origin, note=note)


def _elements(instructions: Sequence[Instruction]) -> int:
    total = 0
    for instruction in instructions:
        if instruction.opcode.startswith(_TRANSCENDENTALS):
            width = _WIDTH.search(instruction.opcode)
            total += REGISTER * 32 // int(width["bits"] if width else 32)
    return total

"""Origins of a schedule's copies: the operands that they move, and where XLA placed these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pallas_debug.ir.bundles import Instruction
from pallas_debug.model import Kernel, SourceLine
from pallas_debug.profile.core.operands import call_operands, operand_addresses
from pallas_debug.profile.schedule import Schedule
from pallas_debug.profile.tracing import Tracing

_OF_PIPELINE = "base_bounds:"
"""Marker in the remark that libtpu attaches to every copy of the pipeline, about its window."""

REGISTER = ""
"""Memory space, in listings, of an operand of one element that is passed in a register."""


@dataclass(frozen=True, kw_only=True)
class CopyOrigin:
    """Operand that a copy moves.

    Attributes:
      operand: number among the operands with blocks; None if it could not be found.
      is_own: whether the kernel starts the copy, rather than the pipeline.
      instruction: instruction that starts the copy.
    """

    operand: int | None
    is_own: bool
    instruction: Instruction


def placements(schedule: Schedule, kernel: Kernel | None) -> dict[int, str]:
    """Return the memory spaces of operands with blocks that XLA did not place in HBM, by number."""
    first = _first_block(kernel)
    return {
        operand.number - first: operand.space
        for operand in call_operands(schedule).values()
        if operand.space != "hbm" and operand.number >= first
    }


def copy_origins(schedule: Schedule, kernel: Kernel | None) -> dict[int, CopyOrigin]:
    """Return the origins of a schedule's copies, by bundle index."""
    first = _first_block(kernel)
    addresses = operand_addresses(schedule)
    found = {}
    for at, i in addresses.starts.items():
        operand = addresses.copied(i)
        # XLA also adds copies, which load scalar operands and have no Python line.
        is_own = bool(i.locations) and not any(_OF_PIPELINE in remark for remark in i.remarks)
        found[at] = CopyOrigin(
            operand=None if operand is None or operand.number < first else operand.number - first,
            is_own=is_own,
            instruction=i,
        )
    return found


def own_lines(
    schedule: Schedule, tracing: Tracing, origins: Mapping[int, CopyOrigin]
) -> dict[int, SourceLine]:
    """Return the lines of the kernel that start copies, by bundle index."""
    found = {}
    for at, origin in origins.items():
        instructions = schedule.bundles[at].instructions
        for instruction, trace in zip(instructions, tracing.traces[at], strict=True):
            if origin.is_own and instruction is origin.instruction and trace.chain:
                found[at] = trace.chain[0]
    return found


def _first_block(kernel: Kernel | None) -> int:
    """Count the scalar operands of the call, which precede those with blocks."""
    scalars = ("dynamic_grid", "scalar_prefetch")
    return sum(o.kind in scalars for o in kernel.operands) if kernel else 0

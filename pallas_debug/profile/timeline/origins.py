"""Operand that each copy in a schedule moves, and where XLA placed the operands of the call."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from pallas_debug.ir.bundles import Instruction
from pallas_debug.model import Kernel
from pallas_debug.profile.schedule import Schedule
from pallas_debug.profile.units import is_copy

_CALL_OPERAND = "inlined_call_operand."
_INDEX = re.compile(r"\bindex: (?P<index>\d{1,6}), kind: (?P<kind>input|output)\b")
_SLOT = re.compile(r"\[(?P<slot>smem:\[#allocation[^\]]*\])")
_VALUE = re.compile(r"%[\w$.-]+")
_OF_PIPELINE = "base_bounds:"
"""In a remark on every copy that the pipeline makes, about the window that it moves."""

MAX_TRACED = 4096
"""Maximum instructions followed back from a copy to its operand."""


@dataclass(frozen=True, kw_only=True)
class CopyOrigin:
    """Operand that a copy moves.

    Attributes:
      operand: number among the operands with blocks; None if it could not be found.
      is_own: whether the kernel starts it, and not the pipeline.
      instruction: that starts it.
    """

    operand: int | None
    is_own: bool
    instruction: Instruction


def placements(schedule: Schedule, kernel: Kernel | None) -> dict[int, str]:
    """Memory spaces of operands with blocks that XLA did not place in HBM, by number."""
    first = _first_block(kernel)
    return {
        number - first: space
        for number, space in _call_operands(schedule).values()
        if space != "hbm" and number >= first
    }


def copy_origins(schedule: Schedule, kernel: Kernel | None) -> dict[int, CopyOrigin]:
    """Operands that the copies of a schedule move, by the index of their bundle."""
    first = _first_block(kernel)
    sources = _call_operands(schedule)
    defined: dict[str, Instruction] = {}
    stored: dict[str, list[Instruction]] = defaultdict(list)
    starts: dict[int, Instruction] = {}
    for at, bundle in enumerate(schedule.bundles):
        for i in bundle.instructions:
            defined.update(dict.fromkeys(i.results, i))
            if i.opcode.startswith("sst") and (slot := _SLOT.search(i.text)):
                stored[slot["slot"]].append(i)
            elif is_copy(i.opcode):
                starts[at] = i
    found = {}
    for at, i in starts.items():
        number = _traced(i, defined, stored, sources)
        operand = None if number is None or number < first else number - first
        # XLA adds copies, too: they load scalar operands, and have no Python line.
        is_own = bool(i.locations) and not any(_OF_PIPELINE in remark for remark in i.remarks)
        found[at] = CopyOrigin(operand=operand, is_own=is_own, instruction=i)
    return found


def _first_block(kernel: Kernel | None) -> int:
    """Number of operands of the call before those with blocks: scalars."""
    scalars = ("dynamic_grid", "scalar_prefetch")
    return sum(o.kind in scalars for o in kernel.operands) if kernel else 0


def _call_operands(schedule: Schedule) -> dict[str, tuple[int, str]]:
    """Number and memory space of the call's operands, by the value that holds the address."""
    found: dict[str, tuple[int, str]] = {}
    for bundle in schedule.bundles[:MAX_TRACED]:
        for i in bundle.instructions:
            if i.opcode.startswith(_CALL_OPERAND) and (match := _INDEX.search(i.text)):
                space = i.opcode.removeprefix(_CALL_OPERAND)
                found |= dict.fromkeys(i.results, (int(match["index"]), space))
    return found


def _traced(
    copy: Instruction,
    defined: Mapping[str, Instruction],
    stored: Mapping[str, list[Instruction]],
    sources: Mapping[str, tuple[int, str]],
) -> int | None:
    """Number of the call's operand nearest to the addresses of a copy."""
    # Source, size, destination: one of them is in HBM, or in CMEM on v4.
    wanted = 2 if copy.opcode.startswith(("dma.vmem", "dma.smem")) else 0
    addresses = copy.arguments[wanted : wanted + 1]
    queue = [value for address in addresses for value in _VALUE.findall(address)]
    seen = set(queue)
    for value in queue:  # grows
        if value in sources and sources[value][1] != "smem":
            return sources[value][0]
        instruction = defined.get(value)
        if instruction is None or len(seen) > MAX_TRACED:
            continue
        before = list(instruction.operands)
        if instruction.opcode.startswith("sld") and (slot := _SLOT.search(instruction.text)):
            before += [operand for store in stored[slot["slot"]] for operand in store.operands]
        for operand in before:
            if operand not in seen:
                seen.add(operand)
                queue.append(operand)
    return None

"""Operands of the call in a schedule: where XLA placed them, and which operand a copy reads."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from pallas_debug.ir.bundles import Instruction
from pallas_debug.ir.llo import VALUE
from pallas_debug.profile.core.copies import direction_of, memory_spaces
from pallas_debug.profile.schedule import Schedule
from pallas_debug.profile.units import is_copy

_CALL_OPERAND = "inlined_call_operand."
_INDEX = re.compile(r"\bindex: (?P<index>\d{1,6}), kind: (?P<kind>input|output)\b")
_SLOT = re.compile(r"\[(?P<slot>smem:\[#allocation[^\]]*\])")

MAX_TRACED = 4096
"""Maximum number of instructions to follow back from a copy to its operand."""


@dataclass(frozen=True, kw_only=True)
class CallOperand:
    """Operand of the kernel call.

    Attributes:
      number: position among the operands of the call; grid sizes and scalar prefetch come first.
      space: memory space of the operand, such as `hbm`; empty for a number in a register.
    """

    number: int
    space: str

    @property
    def is_by_value(self) -> bool:
        """True if the operand is a number that is passed in a register."""
        return not self.space


@dataclass(frozen=True, kw_only=True)
class OperandAddresses:
    """Definitions of the registers that hold addresses.

    Attributes:
      operands: operands of the call, by the register that holds the address or the number.
      starts: instructions that start copies, by bundle index.
    """

    operands: Mapping[str, CallOperand]
    starts: Mapping[int, Instruction]
    _defined: Mapping[str, Instruction] = field(repr=False)
    _stored: Mapping[str, list[Instruction]] = field(repr=False)
    _spaces: Mapping[str, str] = field(repr=False)

    def copied(self, copy: Instruction) -> CallOperand | None:
        """Return the call's operand nearest to the addresses of a copy; None if there is none."""
        # Source, size, destination: one of them is in HBM, or in CMEM on v4.
        wanted = 2 if direction_of(copy, self._spaces).startswith(("vmem", "smem")) else 0
        return self._traced(copy, wanted)

    def source(self, copy: Instruction) -> CallOperand | None:
        """Return the call's operand that a copy reads; None if it does not read one."""
        return self._traced(copy, 0)

    def _traced(self, copy: Instruction, argument: int) -> CallOperand | None:
        addresses = copy.arguments[argument : argument + 1]
        queue = [value for address in addresses for value in VALUE.findall(address)]
        seen = set(queue)
        for value in queue:  # grows during iteration
            if value in self.operands and self.operands[value].space != "smem":
                return self.operands[value]
            instruction = self._defined.get(value)
            if instruction is None or len(seen) > MAX_TRACED:
                continue
            before = list(instruction.operands)
            if instruction.opcode.startswith("sld") and (slot := _SLOT.search(instruction.text)):
                before += [
                    operand
                    for store in self._stored.get(slot["slot"], ())
                    for operand in store.operands
                ]
            for operand in before:
                if operand not in seen:
                    seen.add(operand)
                    queue.append(operand)
        return None


def call_operands(schedule: Schedule) -> dict[str, CallOperand]:
    """Return the operands of the call, by the register that holds the address or the number."""
    found: dict[str, CallOperand] = {}
    for bundle in schedule.bundles[:MAX_TRACED]:
        for i in bundle.instructions:
            if i.opcode.startswith(_CALL_OPERAND) and (match := _INDEX.search(i.text)):
                space = i.opcode.removeprefix(_CALL_OPERAND)
                operand = CallOperand(number=int(match["index"]), space=space)
                found |= dict.fromkeys(i.results, operand)
    return found


def operand_addresses(schedule: Schedule) -> OperandAddresses:
    """Collect the definitions needed to follow the addresses of copies back to operands."""
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
    return OperandAddresses(
        operands=call_operands(schedule),
        starts=starts,
        _defined=defined,
        _stored=stored,
        _spaces=memory_spaces(schedule.bundles),
    )

"""Cost model of copies: latency plus time per byte, by the memories involved and the chip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pallas_debug.chips import similar_chip
from pallas_debug.ir.bundles import Bundle, Instruction

_POINTERS = ("int_to_ptr.", "scalar_lea.", "inlined_call_operand.")
"""Opcode prefixes; the suffix is the memory that the result points into. v6e and later have no
`int_to_ptr.hbm`."""
_MOVES = ("smov", "sphi", "scalar_select", "sadd.")
_GENERAL = "general"
"""Opcode suffix of copies strided along several dimensions, which does not name the memories."""


FETCH = "hbm_to_vmem"


@dataclass(frozen=True, kw_only=True)
class CopyModel:
    """Latencies and bandwidths of one chip, in cycles and bytes per cycle.

    Attributes:
      latency: latency by direction, such as `hbm_to_vmem`; that of a fetch applies to the others.
      bandwidth: bandwidth by direction, with the same keys.
      granule: size in bytes of the unit in which `dma` instructions state sizes.
      start: cycles for which starting a copy occupies the scalar core, besides its bundle.
    """

    latency: Mapping[str, float]
    bandwidth: Mapping[str, float]
    granule: int = 32
    start: float = 0.0

    def time(self, direction: str, size: int) -> tuple[float, float]:
        """Return the cycles before the first byte arrives, and the cycles of the transfer."""
        latency = self.latency.get(direction, self.latency[FETCH])
        ends = max(direction.count("hbm"), 1)  # a copy within HBM reads and writes it
        bandwidth = self.bandwidth.get(direction, self.bandwidth[FETCH] / ends)
        return latency, size / bandwidth

    def hbm_time(self, direction: str, size: int) -> float:
        """Return the cycles for which a copy takes all of HBM's bandwidth."""
        return direction.count("hbm") * size / self.bandwidth[FETCH]

    def shared(self, direction: str, size: int) -> dict[str, float]:
        """Return the cycles for which a copy keeps others from HBM and from SMEM.

        libtpu's own estimate runs each copy at full speed.
        """
        taken = {"hbm": self.hbm_time(direction, size), "smem": self.time(direction, size)[1]}
        return {memory: cycles for memory, cycles in taken.items() if memory in direction}

    def scaled(self, *, latency: float, bandwidth: float, start: float) -> CopyModel:
        """Return the model with all latencies and bandwidths multiplied, and a cost of starting."""
        return replace(
            self,
            latency={direction: cycles * latency for direction, cycles in self.latency.items()},
            bandwidth={direction: b * bandwidth for direction, b in self.bandwidth.items()},
            start=start,
        )


def copy_model(chip: str | None, *, calibrated: bool = False) -> tuple[CopyModel, bool]:
    """Return the copy model for a chip, and whether it belongs to a stand-in for that chip.

    Args:
      calibrated: whether to correct libtpu's estimates by what run times say, where any are known.
    """
    row = similar_chip(chip)
    model = CopyModel(
        latency={direction: latency for direction, (latency, _) in row.copies.items()},
        bandwidth={d: bandwidth for d, (_, bandwidth) in row.copies.items() if bandwidth},
        granule=row.granule,
    )
    if calibrated and (found := row.calibration) is not None:
        model = model.scaled(latency=found.latency, bandwidth=found.bandwidth, start=found.start)
    return model, row.name != chip or row.borrows_copies


def memory_spaces(bundles: Iterable[Bundle]) -> dict[str, str]:
    """Map each pointer register to the memory that it points into: `hbm`, `vmem`, `smem`."""
    found: dict[str, str] = {}
    for bundle in bundles:
        for i in bundle.instructions:
            space = None
            if i.opcode.startswith(_POINTERS):
                space = i.opcode.rpartition(".")[2]
            elif i.opcode.startswith(_MOVES):
                space = next((found[o] for o in i.operands if o in found), None)
            if space:
                found.update(dict.fromkeys(i.results, space))
    return found


def direction_of(copy: Instruction, spaces: Mapping[str, str]) -> str:
    """Return the memories of a copy, such as `hbm_to_vmem`; `general` if they are unknown.

    Args:
      spaces: memory that each pointer register points into.
    """
    stated = copy.opcode.removeprefix("dma.")
    if stated != _GENERAL or len(copy.arguments) <= 2:
        return stated
    source, destination = (spaces.get(copy.arguments[n]) for n in (0, 2))
    return f"{source}_to_{destination}" if source and destination else stated

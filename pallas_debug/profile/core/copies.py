"""Time of a copy: a latency, and a time per byte that depends on the memories and the chip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pallas_debug.ir.bundles import Bundle, Instruction

GRANULE = 32
"""Bytes of the unit in which `dma` instructions state sizes."""

_POINTERS = ("int_to_ptr.", "scalar_lea.", "inlined_call_operand.")
"""Opcodes whose suffix is the memory that the result points into. v6e and later have no
`int_to_ptr.hbm`."""
_MOVES = ("smov", "sphi", "scalar_select", "sadd.")
_GENERAL = "general"
"""Opcode of copies whose blocks are strided along several dimensions. It names no memories."""


@dataclass(frozen=True, kw_only=True)
class CopyModel:
    """Latencies and bandwidths of one chip, in cycles and bytes per cycle.

    Attributes:
      latency: by direction, such as `hbm_to_vmem`; `default` for the others.
      bandwidth: likewise.
      shares_hbm: whether copies from and to HBM share its bandwidth. libtpu's own estimate has
        each of them at full speed.
    """

    latency: Mapping[str, float]
    bandwidth: Mapping[str, float]
    granule: int = GRANULE
    shares_hbm: bool = False
    default: str = field(default="hbm_to_vmem")

    def time(self, direction: str, size: int) -> tuple[float, float]:
        """Cycles before the first byte arrives, and cycles of the transfer."""
        latency = self.latency.get(direction, self.latency[self.default])
        bandwidth = self.bandwidth.get(direction, self.bandwidth[self.default])
        return latency, size / bandwidth

    def is_shared(self, direction: str) -> bool:
        """Whether a copy competes with others for HBM."""
        return self.shares_hbm and "hbm" in direction


def _model(bandwidth: float, **latency: float) -> CopyModel:
    return CopyModel(latency=latency, bandwidth={"hbm_to_vmem": bandwidth})


MODELS: Mapping[str, CopyModel] = {
    "v5e": _model(491.2, hbm_to_vmem=1133, vmem_to_hbm=439, hbm_to_smem=1133),
    "v5p": _model(
        1250.5,
        hbm_to_vmem=660,
        vmem_to_hbm=618,
        hbm_to_smem=487,
        vmem_to_smem=787,
        smem_to_hbm=516,
    ),
    "v6e": _model(
        776.4,
        hbm_to_vmem=544,
        vmem_to_hbm=452,
        hbm_to_smem=734,
        vmem_to_smem=589,
        smem_to_hbm=285,
    ),
    "tpu7x": _model(
        1688.9,
        hbm_to_vmem=687,
        vmem_to_hbm=590,
        hbm_to_smem=734,
        vmem_to_smem=591,
        smem_to_hbm=704,
    ),
}
"""Copies on each chip, in cycles, as in libtpu's own estimates: kernels that do nothing but copy
were compiled with libtpu 0.0.42 and 0.0.50, and solved for latency and bandwidth. On v5e the
bandwidth is 0.9 of the published one."""

_STAND_INS = {"v4": "v5p"}
"""Chips for which libtpu estimates nothing, and the nearest one."""


def copy_model(chip: str | None) -> tuple[CopyModel, bool]:
    """Return the model of a chip, and whether it is that of another one."""
    if chip is not None and chip in MODELS:
        return MODELS[chip], False
    return MODELS[_STAND_INS.get(chip or "", "v5e")], True


def memory_spaces(bundles: Iterable[Bundle]) -> dict[str, str]:
    """Memory that each register with a pointer points into: `hbm`, `vmem`, `smem`."""
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
      spaces: those of the registers with pointers.
    """
    stated = copy.opcode.removeprefix("dma.")
    if stated != _GENERAL or len(copy.arguments) <= 2:
        return stated
    source, destination = (spaces.get(copy.arguments[n]) for n in (0, 2))
    return f"{source}_to_{destination}" if source and destination else stated

"""Cost model of copies: latency plus time per byte, by the memories involved and the chip."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pallas_debug.ir.bundles import Bundle, Instruction

GRANULE = 32
_GRANULES = {"v4": 512}
"""Sizes in bytes of the unit in which `dma` instructions state sizes, where it is not `GRANULE`."""

_POINTERS = ("int_to_ptr.", "scalar_lea.", "inlined_call_operand.")
"""Opcode prefixes; the suffix is the memory that the result points into. v6e and later have no
`int_to_ptr.hbm`."""
_MOVES = ("smov", "sphi", "scalar_select", "sadd.")
_GENERAL = "general"
"""Opcode suffix of copies strided along several dimensions, which does not name the memories."""


@dataclass(frozen=True, kw_only=True)
class CopyModel:
    """Latencies and bandwidths of one chip, in cycles and bytes per cycle.

    Attributes:
      latency: latency by direction, such as `hbm_to_vmem`; `default` applies to the others.
      bandwidth: bandwidth by direction, with the same keys.
      granule: size in bytes of the unit in which `dma` instructions state sizes.
      shares_hbm: whether copies from and to HBM share its bandwidth, and those from and to SMEM its
        own. libtpu's own estimate runs each of them at full speed.
      start: cycles for which starting a copy occupies the scalar core, besides its bundle.
    """

    latency: Mapping[str, float]
    bandwidth: Mapping[str, float]
    granule: int = GRANULE
    shares_hbm: bool = False
    start: float = 0.0
    default: str = field(default="hbm_to_vmem")

    def time(self, direction: str, size: int) -> tuple[float, float]:
        """Return the cycles before the first byte arrives, and the cycles of the transfer."""
        latency = self.latency.get(direction, self.latency[self.default])
        ends = max(direction.count("hbm"), 1)  # a copy within HBM reads and writes it
        bandwidth = self.bandwidth.get(direction, self.bandwidth[self.default] / ends)
        return latency, size / bandwidth

    def hbm_time(self, direction: str, size: int) -> float:
        """Return the cycles for which a copy takes all of HBM's bandwidth."""
        return direction.count("hbm") * size / self.bandwidth[self.default]

    def shared(self, direction: str, size: int) -> dict[str, float]:
        """Return the cycles for which a copy keeps others from HBM and from SMEM."""
        if not self.shares_hbm:
            return {}
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

    def with_bandwidth(self, bandwidth: float) -> CopyModel:
        """Return the model with another bandwidth of HBM."""
        return replace(self, bandwidth={**self.bandwidth, self.default: bandwidth})


def _model(
    bandwidth: float, smem: Mapping[str, tuple[float, float]], **latency: float
) -> CopyModel:
    """Make a model.

    Args:
      bandwidth: bandwidth of HBM.
      smem: latency and bandwidth of copies from and to SMEM.
    """
    return CopyModel(
        latency=latency | {direction: cycles for direction, (cycles, _) in smem.items()},
        bandwidth={"hbm_to_vmem": bandwidth} | {direction: b for direction, (_, b) in smem.items()},
    )


MODELS: Mapping[str, CopyModel] = {
    "v5e": _model(
        491.2,
        {
            "hbm_to_smem": (1647, 32),
            "smem_to_hbm": (378, 32),
            "vmem_to_smem": (251, 32),
            "smem_to_vmem": (251, 32),
        },
        hbm_to_vmem=1133,
        vmem_to_hbm=439,
    ),
    "v5p": _model(
        1250.5,
        {
            "hbm_to_smem": (468, 27),
            "smem_to_hbm": (497, 27),
            "vmem_to_smem": (765, 23),
            "smem_to_vmem": (767, 23),
        },
        hbm_to_vmem=660,
        vmem_to_hbm=618,
    ),
    "v6e": _model(
        776.4,
        {
            "hbm_to_smem": (719, 35),
            "smem_to_hbm": (268, 29),
            "vmem_to_smem": (575, 35),
            "smem_to_vmem": (578, 35),
        },
        hbm_to_vmem=544,
        vmem_to_hbm=452,
    ),
    "tpu7x": _model(
        1688.9,
        {
            "hbm_to_smem": (717, 32),
            "smem_to_hbm": (688, 32),
            "vmem_to_smem": (574, 32),
            "smem_to_vmem": (578, 32),
        },
        hbm_to_vmem=687,
        vmem_to_hbm=590,
    ),
}
"""Copy models by chip, in cycles, fitted to libtpu's own estimates: kernels that only copy were
compiled with libtpu 0.0.42 and 0.0.50, and latency and bandwidth were derived from their estimates.
On v5e, the bandwidth of HBM is 0.9 of the published one, and `vmem_to_smem`, for which libtpu
estimates nothing, is as fast as `smem_to_vmem`, as on the other chips."""

MEASURED: Mapping[str, CopyModel] = {
    "v6e": MODELS["v6e"].scaled(latency=1.75, bandwidth=0.82, start=180),
}
"""Copy models by chip, calibrated on run times instead of libtpu's estimates: those that JAXBench
(https://github.com/aryatschand/JAXBench) measured for 22 functions of its model `gpt53`
(docs/reference/real-time.md)."""

_STAND_INS: Mapping[str, CopyModel] = {
    "v4": replace(MODELS["v5p"].with_bandwidth(925.6), granule=_GRANULES["v4"]),
}
"""Copy models of chips for which libtpu gives no estimate: the latencies of the nearest chip that
has one, and the same share of the published bandwidth."""


def copy_model(chip: str | None) -> tuple[CopyModel, bool]:
    """Return the copy model for a chip, and whether it belongs to a stand-in for that chip."""
    if chip is not None and chip in MODELS:
        return MODELS[chip], False
    return _STAND_INS.get(chip or "", MODELS["v5e"]), True


def granule_of(chip: str | None) -> int:
    """Return the size in bytes of the unit in which a chip's `dma` instructions state sizes."""
    return _GRANULES.get(chip or "", GRANULE)


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

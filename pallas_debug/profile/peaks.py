"""Published peaks of each chip, for one TensorCore, with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_DOCS = "https://docs.cloud.google.com/tpu/docs"


@dataclass(frozen=True, kw_only=True)
class ChipPeaks:
    """Published peaks of one TensorCore.

    Attributes:
      flops: matrix operations per second by operand type; a multiply-add counts as two.
      bandwidth: bytes per second from and to HBM; the chip's total where its cores form one device,
        as a single core may use all of it.
      clock: cycles per second; `flops` divided by the operations of the matrix units per cycle.
      source: page with the figures of the chip.
      links: bytes per second over all links to other chips, both directions together; None if the
        page does not state it.
      cores: number of TensorCores of the chip, over which its operations are divided.
    """

    flops: Mapping[str, float] = field(default_factory=dict)
    bandwidth: float
    clock: float
    source: str
    links: float | None = None
    cores: int = 1

    def flops_of(self, dtype: str) -> float | None:
        """Return the peak for operands of a type.

        bfloat16 is the widest type that matrix units multiply. A float32 product is split into
        three or six bfloat16 products, so its peak is that of bfloat16.
        """
        return self.flops.get(dtype, self.flops.get("bf16"))


PEAKS: Mapping[str, ChipPeaks] = {
    "v4": ChipPeaks(
        flops={"bf16": 137.5e12},
        bandwidth=1228e9,
        clock=1.05e9,
        source=f"{_DOCS}/v4",
        cores=2,
    ),
    "v5e": ChipPeaks(
        flops={"bf16": 197e12, "i8": 393e12},
        bandwidth=819e9,
        clock=1.5e9,
        source=f"{_DOCS}/v5e",
        links=400e9,
    ),
    "v5p": ChipPeaks(
        flops={"bf16": 229.5e12, "i8": 459e12},
        bandwidth=2765e9,
        clock=1.75e9,
        source=f"{_DOCS}/v5p",
        links=1200e9,
        cores=2,
    ),
    "v6e": ChipPeaks(
        flops={"bf16": 918e12, "i8": 1836e12},
        bandwidth=1638e9,
        clock=1.75e9,
        source=f"{_DOCS}/v6e",
        links=800e9,
    ),
    "tpu7x": ChipPeaks(
        flops={"bf16": 1153.5e12, "f8": 2307e12},
        bandwidth=3690e9,
        clock=2.2e9,
        source=f"{_DOCS}/tpu7x",
        cores=2,
    ),
}
"""Peaks by chip. Operations of a chip with two TensorCores are divided by two, as a kernel's
schedule is for one core; so is the bandwidth of tpu7x, whose cores are two devices."""


def peaks_of(target: str | None) -> ChipPeaks | None:
    """Return the peaks of a target's chip; None for an unknown chip."""
    return PEAKS.get((target or "").partition(":")[0])

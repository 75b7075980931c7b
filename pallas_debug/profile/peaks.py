"""Published peaks of each chip, for one TensorCore, with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_DOCS = "https://docs.cloud.google.com/tpu/docs"


@dataclass(frozen=True, kw_only=True)
class ChipPeaks:
    """Peaks of one TensorCore.

    Attributes:
      flops: matrix operations per second by type of the operands, a multiply-add counted as two.
      bandwidth: bytes per second from and to HBM; all of it where the cores make up one device, as
        one of them alone may use it.
      clock: cycles per second; `flops` divided by what the matrix units do in a cycle.
      source: page with the figures of the chip.
      links: bytes per second over all links of the chip to others, both directions together; None
        where the page does not state it.
      cores: TensorCores of the chip, among which its operations are divided.
    """

    flops: Mapping[str, float] = field(default_factory=dict)
    bandwidth: float
    clock: float
    source: str
    links: float | None = None
    cores: int = 1

    def flops_of(self, dtype: str) -> float | None:
        """Peak for operands of a type.

        Matrix units multiply bfloat16 at most. float32 is split into several products, so its peak
        is that of bfloat16, of which it needs three or six.
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
schedule is that of one; so is the bandwidth of tpu7x, whose cores are two devices."""


def peaks_of(target: str | None) -> ChipPeaks | None:
    """Peaks of a target's chip; None for an unknown one."""
    return PEAKS.get((target or "").partition(":")[0])

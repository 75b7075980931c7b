"""How fast copies between HBM and a core are, for each chip."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_debug.profile.figures import Figure, missing

_CLOCKS = {"v4": 1.05e9, "v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9, "tpu7x": 2.2e9}
_BANDWIDTHS = {"v4": 1.23e12, "v5e": 8.2e11, "v5p": 2.76e12, "v6e": 1.64e12, "tpu7x": 3.7e12}

_LATENCIES = {"v5e": 787, "v5p": 645, "v6e": 502, "tpu7x": 299}
"""Cycles that libtpu 0.0.42 adds for each copy, whatever its size.

From its static estimates of kernels with one step that copy 64 KiB to 2 MiB: the estimate is linear
in the size, and this is where the line begins. libtpu writes no such estimate for v4.
"""


@dataclass(frozen=True, kw_only=True)
class CopyRates:
    """What determines how long a copy takes.

    Attributes:
      clock: cycles per second.
      bandwidth: bytes per second between HBM and the core.
      latency: cycles from the start of a copy to its first byte.
    """

    clock: Figure
    bandwidth: Figure
    latency: Figure


def copy_rates(
    target: str, *, clock: float | None = None, bandwidth: float | None = None
) -> CopyRates:
    """Rates of a target.

    Args:
      target: its name: `v5e`, `v5e:2x4`.
      clock: in MHz, in place of the published one.
      bandwidth: in GB/s, likewise.
    """
    chip = target.partition(":")[0]
    known = _BANDWIDTHS.get(chip)
    return CopyRates(
        clock=_figure(_CLOCKS.get(chip), clock, 1e6, "Hz", f"clock of {target}"),
        bandwidth=_figure(known, bandwidth, 1e9, "bytes/s", f"HBM bandwidth of {target}"),
        latency=(
            Figure(
                value=_LATENCIES[chip],
                origin="assumed",
                unit="cycles",
                note="what libtpu's own estimates add for each copy",
            )
            if chip in _LATENCIES
            else missing(f"the latency of copies on {target} is unknown", unit="cycles")
        ),
    )


def _figure(
    known: float | None, chosen: float | None, scale: float, unit: str, what: str
) -> Figure:
    if chosen is not None:
        return Figure(value=chosen * scale, origin="assumed", unit=unit, note="as given")
    if known is None:
        return missing(f"the {what} is unknown", unit=unit)
    return Figure(value=known, origin="assumed", unit=unit, note=f"published {what}")

"""Clock rate of a core, and speed of its copies."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_debug.chips import chip_of
from pallas_debug.profile.core.copies import FETCH, CopyModel, copy_model
from pallas_debug.profile.figures import Figure, missing


@dataclass(frozen=True, kw_only=True)
class CopyRates:
    """Rates that convert cycles to time, and bytes to cycles.

    Attributes:
      clock: cycles per second.
      bandwidth: bytes per second between HBM and a core.
      latency: cycles of a fetch in addition to those of its transfer.
    """

    clock: Figure
    bandwidth: Figure
    latency: Figure

    @property
    def seconds(self) -> float:
        """Duration of a cycle in seconds."""
        return 1 / float(self.clock.value or 1)


def copy_rates(
    target: str, *, clock: float | None = None, bandwidth: float | None = None
) -> tuple[CopyRates, CopyModel]:
    """Return the rates of a target, and its copy model.

    Args:
      target: name of the target, such as `v5e` or `v5e:2x4`.
      clock: clock rate in MHz, which overrides the published one.
      bandwidth: bandwidth in GB/s, which overrides libtpu's.
    """
    chip = target.partition(":")[0]
    model, is_stand_in = copy_model(chip)
    peaks = chip_of(target)
    if clock is not None:
        hertz = Figure(value=clock * 1e6, origin="assumed", unit="Hz", note="as given")
    elif peaks is not None:
        hertz = Figure(value=peaks.clock, origin="assumed", unit="Hz", note=peaks.source)
    else:
        hertz = missing(f"the clock of {target} is unknown", unit="Hz")
    note = "as in libtpu's own estimates"
    if is_stand_in:
        note = f"of another chip: libtpu gives no estimates for {target}"
    per_cycle = model.time(FETCH, 1)[1]
    bytes_per_second = (
        missing(hertz.note, unit="bytes/s")
        if hertz.value is None
        else Figure(value=hertz.value / per_cycle, origin="assumed", unit="bytes/s", note=note)
    )
    if bandwidth is not None and hertz.value is not None:
        bytes_per_second = Figure(
            value=bandwidth * 1e9, origin="assumed", unit="bytes/s", note="as given"
        )
        model = model.with_bandwidth(bandwidth * 1e9 / hertz.value)
    latency = Figure(value=model.time(FETCH, 0)[0], origin="assumed", unit="cycles", note=note)
    rates = CopyRates(clock=hertz, bandwidth=bytes_per_second, latency=latency)
    return rates, model

"""Clock rate of a core, and speed of its copies."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_debug.chips import chip_of, similar_chip
from pallas_debug.profile.core.copies import FETCH, copy_model
from pallas_debug.profile.figures import Figure


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


def copy_rates(chip: str | None) -> CopyRates:
    """Return the rates of a chip, or those of a similar one if they are not known."""
    row = similar_chip(chip)
    model, is_stand_in = copy_model(chip)
    of = "of another chip, as libtpu gives no estimates for this one"
    note = of if is_stand_in else "as in libtpu's own estimates"
    return CopyRates(
        clock=Figure(
            value=row.clock,
            origin="assumed",
            unit="Hz",
            note=row.source if chip_of(chip) else "of another chip, as it is unknown for this one",
        ),
        bandwidth=Figure(
            value=row.clock / model.time(FETCH, 1)[1], origin="assumed", unit="bytes/s", note=note
        ),
        latency=Figure(value=model.time(FETCH, 0)[0], origin="assumed", unit="cycles", note=note),
    )

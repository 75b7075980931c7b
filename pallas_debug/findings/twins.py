"""Faults of copies that go together, as of two operands that a kernel fetches side by side."""

from __future__ import annotations

from pallas_debug.findings.wording.order import SIDES
from pallas_debug.model import Finding


def semaphores_of(finding: Finding) -> set[str]:
    """Semaphores that the copies of a finding signal."""
    given = (finding.values.get("semaphore"), finding.values.get("other semaphore"))
    return {one for one in given if one is not None}


def are_twins(finding: Finding, cause: Finding) -> bool:
    """Return whether two copies that go together, as of two operands, meet the same fault.

    Their sides run at the same places, equally often, with the same slots.
    """
    if finding.operand is None or cause.operand is None or finding.grid_point is None:
        return False
    of_other = ("other grid point", "other loop iteration", SIDES)
    places = []
    for one in (finding, cause):
        slots = sorted(name.partition("[")[2] for name in semaphores_of(one))
        places.append((one.grid_point, one.loop, one.count, slots, *map(one.values.get, of_other)))
    first, second = ((one.witness.line or ("", 0), one.operand) for one in (cause, finding))
    return places[0] == places[1] and first[1] != second[1] and first < second

"""The cases of all kinds of faults: what each says, why, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pallas_debug.findings import bounds, memory, mismatch, numbers, order, refused
from pallas_debug.findings.case import Case
from pallas_debug.findings.faults import Fault

TABLE: Mapping[Fault, Sequence[Case]] = {
    **refused.CASES,
    **bounds.CASES,
    **numbers.CASES,
    **memory.CASES,
    **mismatch.CASES,
    **order.CASES,
}

"""Cases of faults that prevent compilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pallas_debug.findings.case import Case
from pallas_debug.findings.faults import Fault

CASES: Mapping[Fault, Sequence[Case]] = {
    Fault.UNSUPPORTED_CAST: [
        Case(
            "{old} is cast to {new}",
            "TPUs have no cast between the two",
            "keep bfloat16, or cast through float32 outside the kernel",
        )
    ],
}

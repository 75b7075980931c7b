"""libtpu's own estimate of a kernel's cycles: `estimate.txt`, a textproto."""

from __future__ import annotations

import re

from pallas_debug.profile.figures import Figure, missing

_CYCLES = re.compile(r"^\s*estimated_cycles:\s*(\d{1,18})\s*$", re.MULTILINE)


def compiler_estimate(text: str | None) -> Figure:
    """Read the compiler's estimate; missing if there is none."""
    if text is None:
        return missing("libtpu wrote no estimate for this kernel", unit="cycles")
    found = [int(value) for value in _CYCLES.findall(text)]
    if not found:
        return missing("libtpu's estimate contains no cycles", unit="cycles")
    return Figure(
        value=sum(found), origin="compiler", unit="cycles", note="libtpu's static LLO profile"
    )

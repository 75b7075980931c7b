"""Parser of XLA's program around a kernel, as printed by the compiler."""

from __future__ import annotations

import re

_KERNEL_CALL = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[^\s=%]+) = .*\btpu_custom_call\b", re.MULTILINE
)


def kernel_calls(hlo: str) -> frozenset[str]:
    """Return the names of the operations that call a kernel; others are copies and fusions."""
    return frozenset(match["name"] for match in _KERNEL_CALL.finditer(hlo))

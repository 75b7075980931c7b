"""Details from a message that complete its entry: sizes, replacements, kernel names."""

from __future__ import annotations

import re
from dataclasses import replace

from pallas_debug.explain import memory
from pallas_debug.explain.formulas import INSTEAD
from pallas_debug.model import Explanation, Kernel

_KERNEL = re.compile(
    r"MLIR module name `(?P<module>[^`]+)`"
    r"|pallas_call (?P<call>[\w.<>]+) (?:at \S+:\d+|captures|should)"
    r"|in kernel `(?P<kernel>[^`]+)`"
    r"|while it compiled (?P<compiled>\w+);"
    r"|allocating on stack for %(?P<stack>[\w-]+?)(?:\.\d+)? ="
    r"|callsite\(\"(?:[\w.<>]+\.)?(?P<site>\w+)\"\("
    r"|XLA label: (?P<label>[\w-]+?)(?:\.\d+)? = custom-call"
)
_GENERIC = {"kernel", "tpu_custom_call", "custom-call", "pallas_call", "anonymous", "main"}
"""Names that messages use for a kernel without a name of its own."""

_PRIMITIVE = re.compile(r"Pallas TPU lowering(?: for \S+)?: (?P<name>\w+)")
_WIDE = re.compile(r"Ref dtype: (?P<wide>(?P<kind>float|u?int)64)\. Value dtype: \w+32\b")
_MISMATCH = re.compile(r"^\s+\* (.+)$", re.MULTILINE)
_CARRIES = re.compile(
    r"^\s*(?:\* )?((?:The input carry|the input carry|\w+_fun output) .+?[.;]?)$", re.MULTILINE
)


def applied(entry: Explanation, text: str, kernel: Kernel | None = None) -> Explanation:
    """Apply an entry to one message: add its details and advice, drop the recogniser."""
    details, advice = tuple(_details(entry.id, text, kernel)), _advice(entry.id, text)
    entry = replace(entry, pattern="", marks=(), ambiguous=False, general=False)
    return replace(entry, details=details, advice=advice or entry.advice)


def kernel_name(text: str) -> str | None:
    """Name of the kernel that a message refers to, if any."""
    for match in _KERNEL.finditer(text):
        name = next(value for value in match.groups() if value)
        if name not in _GENERIC:
            return name
    return None


def _details(id: str, text: str, kernel: Kernel | None) -> list[str]:
    if id in ("scoped-vmem-overflow", "vmem-capacity", "smem-overflow"):
        return memory.overflow(text, kernel)
    if id == "specs-mismatch":
        return _MISMATCH.findall(text)
    if id in ("loop-carry", "branch-results"):
        return _CARRIES.findall(text)
    return []


def _advice(id: str, text: str) -> str | None:
    """Advice for one message; None if it is that of the entry."""
    if id == "unimplemented-primitive" and (match := _PRIMITIVE.search(text)):
        return INSTEAD.get(match["name"])
    if id == "store-dtype" and (match := _WIDE.search(text)):
        return f"declare {match['kind']}32, not {match['wide']}: jax computes in 32 bits"
    return None

"""Allocations behind a VMEM or SMEM overflow.

libtpu has three messages. Above the scoped limit it prints two sums; above the chip's capacity, a
table of the largest allocations; and if a single allocation is too large, that one.
"""

from __future__ import annotations

import re

from pallas_debug.model import Kernel
from pallas_debug.quantities import size_text

_SUMS = (
    re.compile(r"Scoped allocation with size (?P<used>\S+) and limit (?P<limit>\S+) exceeded"),
    re.compile(r"Used (?P<used>\S+) of (?P<limit>\S+) (?P<space>[vs]mem)\. Exceeded"),
)
_ONE = re.compile(
    r"Allocation \(size=(?P<used>\d{1,18})\) would exceed memory \(size=(?P<limit>\d{1,18})\) :: "
    r"#allocation\d+ \[shape = '(?P<shape>[^']*)', space=(?P<space>\w+),.*?tag = '(?P<tag>[^']*)'"
)
_ROW = re.compile(r"^\s*\d+\. Size: (?P<size>\S+)$", re.MULTILINE)
_TAG = re.compile(r"^\s*(?:Tag|XLA label): (?P<tag>.*)$", re.MULTILINE)
WINDOW = re.compile(
    r"(?P<side>input|output) window allocation for operator \w+ (?P<number>\d{1,9})"
    r"(?:\. The window shape is (?P<window>\S+), while the full shape is (?P<full>\S+)\.)?"
)
"""Tag of an allocation for the block of an operand."""

_PREFETCHED = re.compile(r"prefetched SMEM operand (?P<number>\d{1,9})")
BUFFERS = re.compile(r"\b(?P<count>\d{1,9}) buffering levels?\b")
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_AMOUNT = re.compile(r"(?P<number>\d{1,18}(?:\.\d{1,9})?)(?P<unit>[BKMG]?)")


def overflow(message: str, kernel: Kernel | None = None) -> list[str]:
    """Return lines about the overflow that a message reports: the sums, then what it names.

    Args:
      message: message of the compiler.
      kernel: for the names of its operands.
    """
    one = _ONE.search(message)
    if one is not None:
        used, shape = int(one["used"]), one["shape"].partition("{")[0]
        needed = _needed(used, int(one["limit"]), one["space"])
        return [needed, _allocation(one["tag"], used, kernel, shape)]
    match = next(filter(None, (pattern.search(message) for pattern in _SUMS)), None)
    if match is None:
        return []
    space = match.groupdict().get("space") or "vmem"
    rows = list(_ROW.finditer(message))
    ends = [row.start() for row in rows[1:]] + [len(message)]
    tags = [_TAG.search(message, row.end(), end) for row, end in zip(rows, ends, strict=False)]
    return [
        _needed(_bytes(match["used"]), _bytes(match["limit"]), space),
        *(
            _allocation(tag["tag"] if tag else "", _bytes(row["size"]), kernel)
            for row, tag in zip(rows, tags, strict=True)
        ),
    ]


def _needed(used: int, limit: int, space: str) -> str:
    return f"needs {size_text(used)} of {space.upper()}, the limit is {size_text(limit)}"


def _allocation(tag: str, size: int, kernel: Kernel | None, shape: str = "") -> str:
    """Describe an allocation by its tag; the size includes all buffers of a block."""
    what, buffers = tag[:80] or "unnamed", 1
    if (window := WINDOW.search(tag)) is not None:
        number, shape, full = int(window["number"]), window["window"], window["full"]
        what = _name(kernel, window["side"], number) or f"{window['side']} {number}"
        shape = f"{shape} of {full}" if full != shape else shape or ""
        levels = BUFFERS.search(tag)
        buffers = int(levels["count"]) if levels else 1
    elif (prefetched := _PREFETCHED.search(tag)) is not None:
        number = int(prefetched["number"])
        what = _name(kernel, "input", number) or f"scalar prefetch {number}"
    elif "spill" in tag:
        what = "spilled registers"
    elif tag.startswith("scratch"):
        what = "scratch"
    words = [f"  {what}: {size_text(size)}", shape, f"{buffers} buffers" if buffers > 1 else ""]
    return ", ".join(filter(None, words))


def _name(kernel: Kernel | None, side: str, number: int) -> str | None:
    """The operand's name; the compiler counts scalar prefetch among the inputs."""
    if kernel is None:
        return None
    kinds = ("dynamic_grid", "scalar_prefetch", "input") if side == "input" else ("output",)
    operands = [operand for operand in kernel.operands if operand.kind in kinds]
    return operands[number].name if number < len(operands) else None


def _bytes(text: str) -> int:
    match = _AMOUNT.match(text)
    return int(float(match["number"]) * _UNITS[match["unit"]]) if match else 0

"""Allocations behind a VMEM or SMEM overflow.

libtpu has three messages. Above the scoped limit it prints two sums; above the chip's capacity, a
table of the largest allocations; and if a single allocation is too large, that one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pallas_debug.model import Kernel

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
_WINDOW = re.compile(
    r"(?P<side>input|output) window allocation for operator \w+ (?P<number>\d{1,9})\. "
    r"The window shape is (?P<window>\S+), while the full shape is (?P<full>\S+)\."
)
_PREFETCHED = re.compile(r"prefetched SMEM operand (?P<number>\d{1,9})")
_BUFFERS = re.compile(r"has (?P<count>\d{1,9}) buffering levels")
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_AMOUNT = re.compile(r"(?P<number>\d{1,18}(?:\.\d{1,9})?)(?P<unit>[BKMG]?)")


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """A single VMEM or SMEM allocation.

    Attributes:
      what: the operand's name if known, else `input 0`, `scratch`, `spilled registers`.
      block: dtype and shape of the block or buffer, as XLA writes it: `f32[512,4096]`.
      whole: dtype and shape of the whole operand.
      buffers: number of buffers of the block.
      bytes: sum over all buffers.
    """

    what: str
    bytes: int
    block: str = ""
    whole: str = ""
    buffers: int = 1

    def __str__(self) -> str:
        words = [f"{self.what}: {amount(self.bytes)}"]
        if self.block:
            words.append(self.block + (f" of {self.whole}" if self.whole else ""))
        if self.buffers > 1:
            words.append(f"{self.buffers} buffers")
        return ", ".join(words)


@dataclass(frozen=True, kw_only=True)
class Overflow:
    """Bytes of a memory that were used, and its limit.

    Attributes:
      allocations: largest first; the compiler may name only some, or none.
    """

    space: str
    used: int
    limit: int
    allocations: tuple[Allocation, ...] = ()


def amount(count: float) -> str:
    """Format bytes: `16.0 MiB`, `512 KiB`, `96 B`."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}".replace(".0 ", " ")
    return f"{count:.0f} B"


def overflow(message: str, kernel: Kernel | None = None) -> Overflow | None:
    """Parse the overflow that a message reports, if any.

    Args:
      message: message of the compiler.
      kernel: for the names of its operands.
    """
    one = _ONE.search(message)
    if one is not None:
        held = _allocation(one["tag"], int(one["used"]), kernel)
        if not held.block:
            held = replace(held, block=one["shape"].partition("{")[0])
        return Overflow(
            space=one["space"], used=int(one["used"]), limit=int(one["limit"]), allocations=(held,)
        )
    for pattern in _SUMS:
        match = pattern.search(message)
        if match is not None:
            return Overflow(
                space=match.groupdict().get("space") or "vmem",
                used=_bytes(match["used"]),
                limit=_bytes(match["limit"]),
                allocations=_table(message, kernel),
            )
    return None


def _table(message: str, kernel: Kernel | None) -> tuple[Allocation, ...]:
    rows = list(_ROW.finditer(message))
    ends = [row.start() for row in rows[1:]] + [len(message)]
    found = []
    for row, end in zip(rows, ends, strict=False):
        tag = _TAG.search(message, row.end(), end)
        found.append(_allocation(tag["tag"] if tag else "", _bytes(row["size"]), kernel))
    return tuple(found)


def _allocation(tag: str, size: int, kernel: Kernel | None) -> Allocation:
    window = _WINDOW.search(tag)
    if window is not None:
        number = int(window["number"])
        levels = _BUFFERS.search(tag)
        return Allocation(
            what=_name(kernel, window["side"], number) or f"{window['side']} {number}",
            bytes=size,
            block=window["window"],
            whole=window["full"] if window["full"] != window["window"] else "",
            buffers=int(levels["count"]) if levels else 1,
        )
    prefetched = _PREFETCHED.search(tag)
    if prefetched is not None:
        number = int(prefetched["number"])
        what = _name(kernel, "input", number) or f"scalar prefetch {number}"
        return Allocation(what=what, bytes=size)
    if "spill" in tag:
        return Allocation(what="spilled registers", bytes=size)
    if tag.startswith("scratch"):
        return Allocation(what="scratch", bytes=size)
    return Allocation(what=tag[:80] or "unnamed", bytes=size)


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

"""VMEM map: what takes how much of the core's memory."""

from __future__ import annotations

from pallas_debug.profile.memory import AllocatedMemory, MemoryMap
from pallas_debug.report import words
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts.common import measured, table


def memory_part(memory: MemoryMap) -> Markup:
    """A bar of the whole, and a row for each allocation."""
    if not memory.uses:
        return Markup()
    capacity = memory.capacity.value
    used = memory.vmem.value
    of = f" of {words.size(int(capacity))}" if capacity else ""
    caption = f"Memory: {words.size(None if used is None else int(used))}{of} of VMEM, by operand"
    total = sum(float(use.size.value or 0) for use in memory.uses if use.space == "vmem")
    return tag(
        "div",
        _map(memory, total) if total else None,
        table(
            caption,
            ["what", "space", "size", "of the kernel’s", "buffers", "padding"],
            [_row(use, total) for use in memory.uses],
            numeric=(2, 3, 4, 5),
        ),
    )


def _map(memory: MemoryMap, total: float) -> Markup:
    """The allocations side by side, as wide as they are large."""
    at = 0.0
    parts: list[Markup] = []
    for number, use in enumerate(use for use in memory.uses if use.space == "vmem"):
        width = float(use.size.value or 0) / total * 1000
        label = f"{use.name}: {words.size(int(use.size.value or 0))}"
        rect = tag(
            "g",
            tag("title", label),
            tag("rect", x=f"{at:.2f}", width=f"{max(width, 0.5):.2f}", height="26"),
            tag("text", use.name, x=f"{at + 4:.2f}", y="17") if width > 90 else None,
            class_=f"pd-slice pd-slice-{'spill' if use.role == 'spill' else number % 6}",
        )
        parts.append(rect)
        at += width
    return tag(
        "svg",
        parts,
        class_="pd-map",
        viewBox="0 0 1000 26",
        role="img",
        aria_label="VMEM of the kernel, each allocation as wide as it is large; the table has them",
    )


def _row(use: AllocatedMemory, total: float) -> list[Child]:
    size = use.size.value
    of_kernel: Child = words.MISSING
    if size is not None and use.space == "vmem" and total:
        share = float(size) / total
        of_kernel = measured(share, words.percent(share))
    return [
        tag("span", use.name, class_="pd-dim" if use.role == "internal" else None),
        use.space,
        words.size(None if size is None else int(size)),
        of_kernel,
        words.number(use.buffers),
        words.size(use.padding),
    ]

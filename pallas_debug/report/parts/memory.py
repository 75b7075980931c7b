"""VMEM map: how much of the core's memory each allocation takes."""

from __future__ import annotations

from pallas_debug.profile.memory import AllocatedMemory, MemoryMap
from pallas_debug.report import words
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts.common import measured, table


def memory_part(memory: MemoryMap) -> Markup:
    """A row for each allocation, with its share of the kernel's VMEM."""
    if not memory.uses:
        return Markup()
    limit = memory.limit.value
    used = memory.vmem.value
    of = f", of {words.size(int(limit))} that the kernel may use" if limit else ""
    if memory.is_limit_raisable:
        of += f" (vmem_limit_bytes can raise that to {words.size(int(memory.capacity.value or 0))})"
    total = sum(float(use.size.value or 0) for use in memory.uses if use.space == "vmem")
    return table(
        f"{words.size(None if used is None else int(used))} of VMEM{of}; by operand",
        ["what", "space", "size", "share", "buffers", "padding"],
        [_row(use, total) for use in memory.uses],
        numeric=(2, 3, 4, 5),
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

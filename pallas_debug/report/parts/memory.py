"""VMEM map: how much of the core's memory each allocation takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pallas_debug.profile.memory import AllocatedMemory, MemoryMap
from pallas_debug.report import words
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts.common import Segment, measured, stacked, table


def memory_part(memory: MemoryMap) -> Markup:
    """A bar of the whole, and a row for each allocation."""
    if not memory.uses:
        return Markup()
    limit = memory.limit.value
    used = memory.vmem.value
    of = f", of {words.size(int(limit))} that the kernel may use" if limit else ""
    if memory.is_limit_raisable:
        of += f" (vmem_limit_bytes can raise that to {words.size(int(memory.capacity.value or 0))})"
    caption = f"{words.size(None if used is None else int(used))} of VMEM{of}; by operand"
    total = sum(float(use.size.value or 0) for use in memory.uses if use.space == "vmem")
    segments = list(_segments(memory))
    return tag(
        "div",
        stacked([one for one in segments if one is not None], _ABOUT) if total else None,
        table(
            caption,
            ["what", "space", "size", "share", "buffers", "padding"],
            [_row(*pair, total) for pair in zip(memory.uses, segments, strict=True)],
            numeric=(2, 3, 4, 5),
        ),
    )


_ABOUT = "VMEM of the kernel, each allocation as wide as it is large; the table has them"


def _segments(memory: MemoryMap) -> Iterator[Segment | None]:
    """Each allocation's part of the bar; None for what is not in VMEM."""
    numbers = itertools.count()
    for use in memory.uses:
        if use.space != "vmem":
            yield None
            continue
        size = int(use.size.value or 0)
        number = None if use.role == "spill" else next(numbers)
        yield Segment(use.name, size, words.size(size), number)


def _row(use: AllocatedMemory, segment: Segment | None, total: float) -> list[Child]:
    size = use.size.value
    of_kernel: Child = words.MISSING
    if size is not None and use.space == "vmem" and total:
        share = float(size) / total
        of_kernel = measured(share, words.percent(share))
    swatch = tag(
        "svg",
        tag("rect", width="10", height="10", rx="2"),
        class_=f"pd-swatch {segment.colour if segment else ''}".strip(),
        viewBox="0 0 10 10",
        aria_hidden="true",
        focusable="false",
    )
    return [
        [swatch, tag("span", use.name, class_="pd-dim" if use.role == "internal" else None)],
        use.space,
        words.size(None if size is None else int(size)),
        of_kernel,
        words.number(use.buffers),
        words.size(use.padding),
    ]

"""VMEM map: how much of the core's memory each allocation takes."""

from __future__ import annotations

from collections.abc import Iterator

from pallas_debug.profile.memory import AllocatedMemory, MemoryMap
from pallas_debug.report import words
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts.common import measured, table


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
    return tag(
        "div",
        _map(memory, total) if total else None,
        table(
            caption,
            ["what", "space", "size", "share", "buffers", "padding"],
            [
                _row(use, slice_, total)
                for use, slice_ in zip(memory.uses, _slices(memory), strict=True)
            ],
            numeric=(2, 3, 4, 5),
        ),
    )


def _map(memory: MemoryMap, total: float) -> Markup:
    """The allocations side by side, as wide as they are large.

    Widths are percentages, so that labels keep their size on a narrow screen. Each part is an `svg`
    of its own, which clips its label.
    """
    at = 0.0
    parts: list[Markup] = []
    for use, slice_ in zip(memory.uses, _slices(memory), strict=True):
        if slice_ is None:
            continue
        width = float(use.size.value or 0) / total * 100
        label = f"{use.name}: {words.size(int(use.size.value or 0))}"
        rect = tag(
            "svg",
            tag("title", label),
            tag("rect", width="100%", height="26"),
            tag("text", use.name, x="4", y="17") if width > 9 else None,
            x=f"{at:.3f}%",
            width=f"{max(width, 0.05):.3f}%",
            height="26",
            class_=f"pd-slice {slice_}",
        )
        parts.append(rect)
        at += width
    return tag(
        "svg",
        parts,
        class_="pd-map",
        height="26",
        role="img",
        aria_label="VMEM of the kernel, each allocation as wide as it is large; the table has them",
    )


COLOURS = 12
"""Colours of allocations; with more, they repeat with a dashed outline."""


def _slices(memory: MemoryMap) -> Iterator[str | None]:
    """The class of each allocation's part of the bar; None for what is not in VMEM."""
    number = 0
    for use in memory.uses:
        if use.space != "vmem":
            yield None
            continue
        if use.role == "spill":
            yield "pd-slice-spill"
            continue
        again = " pd-slice-again" if number // COLOURS % 2 else ""
        yield f"pd-slice-{number % COLOURS}{again}"
        number += 1


def _row(use: AllocatedMemory, slice_: str | None, total: float) -> list[Child]:
    size = use.size.value
    of_kernel: Child = words.MISSING
    if size is not None and use.space == "vmem" and total:
        share = float(size) / total
        of_kernel = measured(share, words.percent(share))
    swatch = tag(
        "svg",
        tag("rect", width="10", height="10", rx="2"),
        class_=f"pd-swatch {slice_ or ''}".strip(),
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

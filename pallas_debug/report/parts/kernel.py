"""A kernel apart from its compilations: its grid, its operands and their blocks."""

from __future__ import annotations

import math

from pallas_debug.findings.facts import array_text, line_text
from pallas_debug.model import Kernel, Operand
from pallas_debug.report import words
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts.common import table


def subtitle(kernel: Kernel) -> Markup:
    """Line where it is defined, and its grid."""
    parts: list[Child] = []
    if kernel.source is not None:
        parts.append(
            tag("span", line_text(kernel.source), title=kernel.source.file, class_="pd-place")
        )
    parts.append(tag("span", f"grid {grid(kernel)}"))
    return tag("p", parts, class_="pd-where")


def grid(kernel: Kernel) -> str:
    """`1 × 2 × 4 = 8 steps`, `2 × ? steps (? is known only at run time)`, `none`."""
    if not kernel.grid:
        return "none"
    shown = words.dimensions(kernel.grid)
    if None in kernel.grid:
        return f"{shown} steps (? is known only at run time)"
    if len(kernel.grid) == 1:
        return shown
    return f"{shown} = {math.prod(n for n in kernel.grid if n is not None):,} steps"


def operands_table(kernel: Kernel) -> Markup:
    """Operands in the order in which the kernel receives them."""
    if not kernel.operands:
        return Markup()
    return table(
        f"Operands of {kernel.name}",
        ["operand", "array", "block", "memory"],
        [_row(operand) for operand in kernel.operands],
    )


def _row(operand: Operand) -> list[Child]:
    kind = tag("span", f" {operand.kind.replace('_', ' ')}", class_="pd-dim")
    return [
        [tag("code", operand.name), kind],
        tag("code", array_text(operand.dtype, operand.shape)),
        _block(operand),
        ", ".join(filter(None, (operand.memory_space, operand.pipeline))),
    ]


def _block(operand: Operand) -> Child:
    if operand.block_shape is None:
        return words.MISSING
    shape = ", ".join("squeezed" if n is None else str(n) for n in operand.block_shape)
    if operand.index_map is None:
        return tag("code", shape)
    return tag(
        "details",
        tag("summary", tag("code", shape)),
        tag("pre", operand.index_map, tabindex="0", aria_label=f"index map of {operand.name}"),
    )

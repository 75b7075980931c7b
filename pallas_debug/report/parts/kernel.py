"""A kernel apart from its compilations: operands, grid, parameters."""

from __future__ import annotations

import math

from pallas_debug.findings.facts import array_text, line_text
from pallas_debug.model import Kernel, Operand
from pallas_debug.report import words
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts.common import facts, table


def subtitle(kernel: Kernel) -> Markup:
    """Line where it is defined, and its grid."""
    parts: list[Child] = []
    if kernel.source is not None:
        parts.append(
            tag("span", line_text(kernel.source), title=kernel.source.file, class_="pd-place")
        )
    parts.append(tag("span", f"grid {grid(kernel)}"))
    if kernel.mesh:
        axes = ", ".join(f"{name} {size}" for name, size in kernel.mesh.items())
        parts.append(tag("span", f"mesh {axes}"))
    if kernel.chip:
        parts.append(tag("span", f"traced for {kernel.chip}"))
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
        ["operand", "kind", "array", "block", "memory", "buffering"],
        [_row(operand) for operand in kernel.operands],
    )


def _row(operand: Operand) -> list[Child]:
    array = array_text(operand.dtype, operand.shape)
    return [
        tag("code", operand.name),
        operand.kind.replace("_", " "),
        tag("code", array),
        _block(operand),
        operand.memory_space,
        operand.pipeline or "default",
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


def kernel_facts(kernel: Kernel) -> Markup:
    """Facts that jax knows about the kernel."""
    cost = kernel.cost_estimate
    estimate = (
        f"{cost.flops:,} operations, {cost.transcendentals:,} transcendentals, "
        f"{words.size(cost.bytes_accessed)}"
        if cost is not None
        else None
    )
    aliases = ", ".join(f"input {a} is output {b}" for a, b in kernel.aliases)
    return facts(
        [
            ("declared cost", estimate),
            ("dimension semantics", ", ".join(kernel.dimension_semantics)),
            ("aliases", aliases),
            *(
                (name, tag("code", value))
                for name, value in kernel.compiler_params.items()
                if name != "dimension_semantics"
            ),
            *((name, value) for name, value in kernel.metadata.items()),
            ("versions", ", ".join(f"{n} {v}" for n, v in kernel.versions.items())),
            ("digest", tag("code", kernel.digest[:16])),
        ]
    )

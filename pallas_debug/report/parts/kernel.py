"""A kernel apart from its compilations: operands and their blocks, grid, parameters."""

from __future__ import annotations

import math

from pallas_debug.findings.facts import array_text, line_text
from pallas_debug.model import Kernel, Operand
from pallas_debug.profile.blocks import BlockMap, OperandBlocks
from pallas_debug.report import words
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts.common import facts, mark, table


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


def operands_table(kernel: Kernel, blocks: BlockMap | None = None) -> Markup:
    """Operands in the order in which the kernel receives them, with the visits of their blocks."""
    if not kernel.operands:
        return Markup()
    visited = {operand.name: operand for operand in blocks.operands} if blocks is not None else {}
    unknown = f"; the block map is unknown: {blocks.unknown}" if blocks and blocks.unknown else ""
    return table(
        f"Operands of {kernel.name}{unknown}",
        [
            "operand",
            "array",
            "block",
            "memory",
            "blocks",
            "touched",
            "copies",
            "revisits",
            "remarks",
        ],
        [_row(operand, visited.get(operand.name)) for operand in kernel.operands],
        numeric=(4, 5, 6, 7),
        prose=(8,),
    )


def _row(operand: Operand, blocks: OperandBlocks | None) -> list[Child]:
    kind = tag("span", f" {operand.kind.replace('_', ' ')}", class_="pd-dim")
    memory = operand.memory_space
    if operand.pipeline:
        memory += f", {operand.pipeline}"
    visits = blocks.visits if blocks is not None else None
    copied = visits if blocks is not None and blocks.is_pipelined else None
    return [
        [tag("code", operand.name), kind],
        tag("code", array_text(operand.dtype, operand.shape)),
        _block(operand),
        memory,
        words.number(blocks.total if blocks is not None and blocks.dimensions else None),
        words.number(visits.distinct if visits else None),
        words.number(copied.copies if copied else None),
        words.number(copied.revisits if copied else None),
        _remarks(blocks) if blocks is not None else words.MISSING,
    ]


def _remarks(operand: OperandBlocks) -> Child:
    found: list[Child] = []
    if operand.unknown is not None:
        found.append(mark("warn", f"unknown: {operand.unknown}"))
    if not operand.is_pipelined:
        found.append(f"in {operand.space}: the kernel copies it itself")
    visits = operand.visits
    if visits is not None:
        if visits.outside:
            found.append(mark("bad", f"outside the array at {visits.outside:,} grid points"))
        if visits.untouched:
            found.append(mark("warn", f"{visits.untouched:,} elements never touched"))
        if visits.partial:
            found.append(f"{visits.partial:,} blocks reach past the array")
    if operand.tables:
        found.append(f"for the values of {', '.join(operand.tables)} in one call")
    found += operand.left_out
    return [tag("span", text, class_="pd-remark") for text in found] or words.MISSING


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

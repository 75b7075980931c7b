"""Block map: how the grid goes through the blocks of each operand."""

from __future__ import annotations

from pallas_debug.profile.blocks import BlockMap, OperandBlocks
from pallas_debug.report import words
from pallas_debug.report.markup import Child, Markup, tag
from pallas_debug.report.parts.common import mark, table


def blocks_table(blocks: BlockMap) -> Markup:
    """A row for each operand: its blocks, how often they are copied, what is never touched."""
    if blocks.unknown is not None:
        return tag("p", f"The block map is unknown: {blocks.unknown}.", class_="pd-dim")
    if not blocks.operands:
        return Markup()
    steps = words.dimensions(blocks.grid) or "one point"
    points = f" = {words.number(blocks.points)} points" if len(blocks.grid) > 1 else ""
    return table(
        f"Blocks over the grid of {steps}{points}",
        ["operand", "block", "blocks", "touched", "copies", "revisits", "remarks"],
        [_row(operand) for operand in blocks.operands],
        numeric=(2, 3, 4, 5),
        prose=(6,),
    )


def _row(operand: OperandBlocks) -> list[Child]:
    visits = operand.visits
    shape = ", ".join("squeezed" if n is None else f"{n:,}" for n in operand.block_shape)
    return [
        [tag("code", operand.name), tag("span", f" {operand.kind}", class_="pd-dim")],
        tag("code", shape) if operand.dimensions else words.MISSING,
        words.number(operand.total) if operand.dimensions else words.MISSING,
        words.number(visits.distinct if visits else None),
        words.number(visits.copies if visits and operand.is_pipelined else None),
        words.number(visits.revisits if visits and operand.is_pipelined else None),
        _remarks(operand),
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

"""Advice: rows are taken from a table by a product with a one-hot matrix."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived, derived_share
from pallas_debug.profile.advice.program import LOADS, PASSED_ON, ProgramOperation, shape_of
from pallas_debug.profile.advice.subject import AdviceSubject, PlacedInstruction

MIN_SHARE = 0.25
"""Minimum share of the executed bundles that the product and its matrix take."""

ROW_BUNDLES = 3
"""Bundles to copy 128 elements of a row: address, load and store; 2 were observed."""

_CONVERSIONS = PASSED_ON | {
    *("arith.sitofp", "arith.uitofp", "arith.truncf", "arith.extf", "tpu.sitofp", "tpu.truncf"),
    *("tpu.extf", "arith.select"),
}
_ROWS_OF = re.compile(r"dot_dimension_numbers<\[1\], \[0\], ")
_OVER_LANES = re.compile(r"dimensions = array<i32: 1>")


def advise_one_hot(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound or not subject.executions:
        return
    for operation in program.named("tpu.matmul"):
        shapes = _shapes(operation)
        mask = _mask(subject, operation) if shapes is not None else None
        if shapes is None or mask is None:
            continue
        compare, indices = mask
        rows, table = shapes
        times = subject.times(operation.line)
        lines = dict.fromkeys((program.source(operation), program.source(compare)))
        work = [p for line in lines for p in subject.at(line)]
        share, bundles = subject.share(work), _bundles(work)
        points = subject.core_points
        if not times or not points or share < MIN_SHARE:
            continue
        taken = bundles / points / times
        copied = rows * -(-table[1] // 128) * ROW_BUNDLES
        if taken < 2 * copied:
            continue
        read = subject.operand(indices.operands[0])
        name = read.name if read is not None else "the indices"
        yield KIND.advice(
            source=program.source(operation),
            operand=read.name if read is not None else None,
            message=(
                f"{rows} rows are taken from a table of {table[0]:,} by a product with a "
                f"one-hot matrix of ({rows}, {table[0]}): about {taken:,.0f} bundles in each "
                f"step, while copying {rows} rows takes about {copied:,}"
            ),
            remedy=(
                f"copy each row by its index: pass {name} as scalar prefetch, and copy "
                "table_ref[pl.ds(ids_ref[n], 1), :] for each n; or, if the table is in HBM, "
                "fetch only the rows that are needed, with an index map that reads the indices"
            ),
            evidence=(
                derived("rows of the product", rows),
                derived("rows of the table", table[0]),
                derived_share("share of the executed bundles", share),
                counted("bundles of the product and its one-hot matrix", round(taken)),
                derived(
                    "bundles to copy the rows",
                    copied,
                    f"{ROW_BUNDLES} for each 128 elements of a row",
                ),
            ),
        )


def _bundles(instructions: list[PlacedInstruction]) -> float:
    """Count the executed bundles that contain one of these instructions."""
    return sum({placed.bundle: placed.weight for placed in instructions}.values())


def _shapes(operation: ProgramOperation) -> tuple[int, tuple[int, int]] | None:
    """Return the rows of the left operand of a plain product, and the shape of the right one."""
    if not _ROWS_OF.search(operation.text):
        return None
    types = re.findall(r"vector<[^>]*>", operation.text)
    found = [shape_of(text) for text in types[:2]]
    if len(types) != 4 or found[0] is None or found[1] is None:
        return None
    left, right = found[0][0], found[1][0]
    return (left[0], (right[0], right[1])) if len(left) == 2 == len(right) else None


def _mask(
    subject: AdviceSubject, operation: ProgramOperation
) -> tuple[ProgramOperation, ProgramOperation] | None:
    """Return the comparison that yields the left operand, and the load of the indices."""
    program = subject.program
    compare = program.origin(operation.operands[0], operation.line, _CONVERSIONS)
    if compare is None or compare.name != "arith.cmpi" or "arith.cmpi eq," not in compare.text:
        return None
    origins = [program.origin(value, compare.line) for value in compare.operands[:2]]
    iota = [o for o in origins if o is not None and o.name == "tpu.iota"]
    loads = [o for o in origins if o is not None and o.name in LOADS]
    if len(iota) != 1 or len(loads) != 1 or not _OVER_LANES.search(iota[0].text):
        return None
    return compare, loads[0]


KIND = AdviceKind(
    name="one-hot-gather",
    title="A gather by a product with a one-hot matrix",
    condition=(
        "The left operand of a product comes from a comparison of loaded indices with the "
        f"columns; together they take at least {MIN_SHARE:.0%} of the executed bundles, and twice "
        f"as many as copying the rows, at {ROW_BUNDLES} bundles for 128 elements."
    ),
    remedy="Copy each row by its index, passed as scalar prefetch.",
    rule=advise_one_hot,
)

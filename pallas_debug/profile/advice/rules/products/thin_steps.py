"""Advice: each grid step multiplies a few rows by a matrix that other steps use, too."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.profile.advice.advice import Advice, AdviceKind, derived
from pallas_debug.profile.advice.pipelines import depends
from pallas_debug.profile.advice.program import LOADS, STORES, ProgramOperation, shape_of
from pallas_debug.profile.advice.rules.row_loop import memory_of
from pallas_debug.profile.advice.steady import SteadyOperand, steady_cycles
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.advice.tiles import SUBLANES
from pallas_debug.profile.blocks import BlockMap, OperandBlocks

MIN_GAIN = 0.25
"""Minimum share of the estimated cycles that the change must save."""

MIN_MATRIX = 128 * 128
"""Minimum elements of the matrix; with a smaller one, other work determines the step's length."""

LONGER = 1.1
"""Time of a step with up to 8 rows, relative to a step with fewer.

Compiled kernels on v5e and v6e: 1.07 and 1.10 for attention to 2,048 keys, 1.08 and 1.10 in blocks
of 512 keys, 1.11 and 1.15 with keys in int8, 1.11 and 1.12 for products with a 512 by 512 matrix.
"""

_CONTRACTED = re.compile(r"dot_dimension_numbers<\[(?P<left>\d(?:, \d)*)\], \[\d(?:, \d)*\], ")


@dataclass(frozen=True, kw_only=True)
class _ThinProducts:
    """Products of a step that all have few rows.

    Attributes:
      first: the first product.
      rows: rows of each product.
      left: operand whose rows are multiplied.
      right: operands from which the matrices are computed.
      times: number of steps that use the same matrices.
    """

    first: ProgramOperation
    rows: int
    left: OperandBlocks
    right: tuple[OperandBlocks, ...]
    times: int


def advise_thin_steps(subject: AdviceSubject) -> Iterator[Advice]:
    program, blocks, step = subject.program, subject.blocks, subject.step
    if blocks is None or step is None or not subject.cycles:
        return
    found = _products(subject, blocks)
    if found is None or subject.depends_on_tables:
        return
    together = min(found.times, SUBLANES // found.rows)
    then = _together(subject, blocks, found, together, step.compute * LONGER)
    if together < 2 or then > (1 - MIN_GAIN) * subject.cycles:
        return
    rows = "1 row" if found.rows == 1 else f"{found.rows} rows"
    *names, last = [operand.name for operand in found.right]
    matrices = f"{', '.join(names)} and {last}" if names else last
    yield KIND.advice(
        source=program.source(found.first),
        operand=found.left.name,
        message=(
            f"each of the {blocks.points:,} grid steps multiplies {rows} of {found.left.name} "
            f"by blocks of {matrices} that {found.times} steps share; a vector register has "
            f"{SUBLANES} rows, and the MXU takes as long for all of them"
        ),
        remedy=(
            f"let one step do the work of {together}, with {together} times the rows in the "
            f"blocks of {found.left.name} and of the outputs, and multiply them at once as "
            f"the rows of one matrix: about {then:,.0f} of {subject.cycles:,.0f} cycles"
        ),
        evidence=(
            derived("grid steps", blocks.points),
            derived("steps with the same matrices", found.times),
            derived("rows in each", found.rows),
            derived("cycles of a step", round(step.compute), unit="cycles"),
            derived("estimated cycles", round(subject.cycles), unit="cycles"),
            derived("estimated cycles with more rows in a step", round(then), unit="cycles"),
        ),
    )


def _together(
    subject: AdviceSubject, blocks: BlockMap, found: _ThinProducts, together: int, compute: float
) -> float:
    """Estimate the cycles if a step takes what several do.

    Args:
      together: number of current steps in a step.
      compute: compute cycles of such a step.
    """
    steps = subject.core_points / max(together, 1)
    right = {operand.name for operand in found.right}
    moving = []
    for operand in blocks.pipelined:
        if operand.name in subject.resident:
            continue
        visits = operand.visits
        count: float = visits.copies if visits else blocks.points
        distinct = visits.distinct if visits else blocks.points
        if operand.name in right:
            count, size = max(count / together, distinct), float(operand.block_bytes)
        else:
            count, size = count / together, float(operand.block_bytes * together)
        moving.append(
            SteadyOperand(
                direction="in" if operand.kind == "input" else "out",
                size=size,
                copies=count / subject.cores,
                buffers=operand.buffers,
            )
        )
    return steady_cycles(subject, moving, steps=steps, compute=compute)


def _products(subject: AdviceSubject, blocks: BlockMap) -> _ThinProducts | None:
    """Return the products of a step; None if one has many rows or a matrix of its own."""
    program = subject.program
    products = [o for o in program.named("tpu.matmul") if not program.is_conditional(o.line)]
    if not products or len(products) != sum(1 for _ in program.named("tpu.matmul")):
        return None
    named = {operand.name: operand for operand in blocks.pipelined}
    rows: set[int] = set()
    right: dict[str, OperandBlocks] = {}
    left: dict[str, OperandBlocks] = {}
    for product in products:
        count, size = product_sizes(product)
        rows.add(count)
        sources = [_inputs(subject, product, place) for place in (0, 1)]
        if size < MIN_MATRIX or not all(sources):
            return None
        for name in sources[1] or ():
            if name in named:
                right[name] = named[name]
        for name in sources[0] or ():
            if name in named:
                left[name] = named[name]
    left = {name: operand for name, operand in left.items() if name not in right}
    if len(rows) != 1 or not 0 < max(rows) <= SUBLANES // 2 or not right or not left:
        return None
    moving = max(left.values(), key=lambda o: o.visits.distinct if o.visits is not None else 0)
    distinct = [
        o.visits.distinct if o.visits is not None else blocks.points for o in right.values()
    ]
    times = blocks.points // max(max(distinct), 1)
    if not all(o.name in right or _is_thin(o, max(rows), max(distinct)) for o in blocks.pipelined):
        return None  # work on many rows takes longer with more of them
    if moving.visits is None or moving.visits.distinct < times:
        return None  # the steps multiply the same rows
    outputs = [o for o in blocks.pipelined if o.kind == "output"]
    if any(o.visits is None or o.visits.distinct < times for o in outputs):
        return None  # steps accumulate into each other's results
    if not _is_reset(subject, blocks, moving, tuple(right.values())):
        return None
    return _ThinProducts(
        first=products[0],
        rows=max(rows),
        left=moving,
        right=tuple(right.values()),
        times=times,
    )


def _is_thin(operand: OperandBlocks, rows: int, others: int) -> bool:
    """Return whether an operand keeps its blocks for other rows of the product, or has few rows."""
    changes = operand.visits is None or operand.visits.distinct > others
    return not changes or math.prod(d.size for d in operand.dimensions[:-1]) <= rows


def product_sizes(product: ProgramOperation) -> tuple[int, int]:
    """Return the rows of a product's left operand, and the elements of its right one."""
    types = re.findall(r"vector<[^>]*>", product.text)
    contracted = _CONTRACTED.search(product.text)
    shapes = [shape_of(text) for text in types[:2]]
    if contracted is None or len(shapes) != 2 or shapes[0] is None or shapes[1] is None:
        return 0, 0
    summed = math.prod(shapes[0][0][int(n)] for n in contracted["left"].split(", "))
    return math.prod(shapes[0][0]) // max(summed, 1), math.prod(shapes[1][0])


def _inputs(subject: AdviceSubject, product: ProgramOperation, place: int) -> set[str] | None:
    """Return the names of the inputs of a factor; None if it depends on anything else."""
    program = subject.program
    sources = program.sources_of(product.operands[place], product.line)
    if sources is None:
        return None
    found = set()
    for load in sources:
        if load.name not in LOADS:
            continue
        operand = subject.operand(memory_of(program, load) or "")
        if operand is None or (place == 1 and operand.kind != "input"):
            return None
        if operand.kind == "input":
            found.add(operand.name)
    return found


def _is_reset(
    subject: AdviceSubject, blocks: BlockMap, left: OperandBlocks, right: tuple[OperandBlocks, ...]
) -> bool:
    """Return whether no data is passed in scratch or outputs between steps with different rows.

    Values that are kept must be reset in a branch that reads an index inside of the axes that
    select the rows, such as at the first block of keys.
    """
    program = subject.program
    axes = [
        axis
        for axis in range(len(blocks.grid))
        if depends(left, axis) and not any(depends(o, axis) for o in right)
    ]
    kept = set()
    for access in program.named(*LOADS):
        memory = memory_of(program, access) or ""
        operand = subject.operand(memory)
        if operand is None or operand.kind == "input" or "vector<" not in access.text:
            continue
        if program.final_users(access):  # ignore the unused load before each store
            kept.add(memory)
    if not kept:
        return True
    inner = program.counters[max(axes) + 1 :] if axes else ()
    stored = set()
    for store in program.named(*STORES):
        for branch in program.operations_around(store.line):
            if branch.name != "scf.if":
                continue
            read = program.sources_of(branch.operands[0], branch.line) or ()
            if any(counter in o.operands for o in read for counter in inner):
                stored.add(memory_of(program, store))
    return kept <= stored


KIND = AdviceKind(
    name="thin-steps",
    title="A product of a few rows in every grid step",
    condition=(
        f"Each product of a grid step has at most {SUBLANES // 2} rows, the steps with other rows "
        f"multiply by the same blocks and do not depend on each other, and up to {SUBLANES} rows "
        f"per step would save at least {MIN_GAIN:.0%} of the estimated cycles."
    ),
    remedy="Process more rows per step, such as all query heads that share a key head.",
    rule=advise_thin_steps,
)

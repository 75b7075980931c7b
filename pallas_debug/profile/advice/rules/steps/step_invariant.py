"""Advice: each grid step recomputes values that are the same in all steps."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import (
    Advice,
    AdviceKind,
    counted,
    derived,
    derived_share,
    percent,
)
from pallas_debug.profile.advice.constancy import (
    GridAxes,
    axes_of_values,
    repeated_operations,
    steps_of_each,
)
from pallas_debug.profile.advice.moves import computes, is_vector_instruction
from pallas_debug.profile.advice.program import STORES, MosaicProgram, ProgramOperation
from pallas_debug.profile.advice.rules.invariant import (
    ARITHMETIC,
    CHEAP,
    most_of,
    registers_made,
    registers_of,
)
from pallas_debug.profile.advice.subject import AdviceSubject, selected
from pallas_debug.profile.blocks import BlockMap

MIN_SHARE = 0.25
"""Minimum share of a step's vector instructions that computing the values once would save."""

MIN_STEPS = 4
"""Minimum grid steps for each that has values of its own."""

MIN_GAIN = 0.15
"""Minimum share of a step's cycles that is saved where the values have to be fetched again."""


@dataclass(frozen=True, kw_only=True)
class _Repeated:
    """Values that steps recompute.

    Attributes:
      axes: grid axes on which the values depend.
      count: instructions that compute them in a step.
      registers: registers that they take.
      instructions: vector instructions of a step.
    """

    axes: GridAxes
    source: SourceLine
    count: int
    registers: int
    instructions: int
    share: float

    @property
    def saved(self) -> int:
        """Instructions that are saved if the values are loaded instead."""
        return self.count - self.registers

    @property
    def size(self) -> int:
        """Bytes of the values."""
        return self.registers * 4096


def advise_step_invariant(subject: AdviceSubject) -> Iterator[Advice]:
    blocks = subject.blocks
    if blocks is None or subject.is_memory_bound:
        return
    known = axes_of_values(subject, blocks)
    candidates = (_repeated(subject, blocks, known, axes) for axes in set(known.values()))
    found = max((c for c in candidates if c is not None), key=_rank, default=None)
    if found is None:
        return
    kib = f"{found.size // 1024:,} KiB"
    numbers = [str(axis) for axis in sorted(found.axes)]
    of_axes = f"{'axis' if len(numbers) == 1 else 'axes'} {' and '.join(numbers)} of the grid"
    runs = steps_of_each(blocks, found.axes)
    if not found.axes:
        cause = "neither on inputs nor on the grid point"
        how = f"stays at one block, of {kib}"
        when = "in the first step"
    else:
        cause = f"only on {of_axes}, not on inputs"
        how = f"only depends on {of_axes}, in blocks of {kib}"
        when = f"in the first of {runs} steps"
    scratch = (
        f"; or, if one core runs all steps in order, compute them {when} and keep them in a "
        "scratch buffer"
        if runs > 1
        else ""
    )
    steps = subject.core_points
    yield KIND.advice(
        source=found.source,
        message=(
            f"each of the {steps:,.0f} grid steps recomputes values that depend {cause}: about "
            f"{found.count} of the {found.instructions} vector instructions of a step"
        ),
        remedy=(
            "compute them once, outside the kernel, and pass them as an input whose index map "
            f"{how}{scratch}"
        ),
        evidence=(
            derived("grid steps", round(steps)),
            derived("different values among them", _distinct(blocks, found.axes)),
            counted("vector instructions of a step", found.instructions),
            derived("of them, those that compute the same each time", found.count),
            derived("registers to load instead", found.registers),
            derived_share("share of the executed bundles", found.share),
        ),
    )


def _distinct(blocks: BlockMap, axes: GridAxes) -> int:
    """Return the number of steps whose values differ."""
    return math.prod(blocks.grid[axis] for axis in axes)


def _rank(repeated: _Repeated) -> tuple[int, int]:
    return repeated.saved, -len(repeated.axes)


def _repeated(
    subject: AdviceSubject, blocks: BlockMap, known: dict[int, GridAxes], axes: GridAxes
) -> _Repeated | None:
    """Return the values that depend on these axes, if computing them once would save enough."""
    program = subject.program
    operations = repeated_operations(subject, known, axes)
    if not operations or subject.core_points < MIN_STEPS * _distinct(blocks, axes):
        return None
    varying = varying_instructions(program, operations)
    instructions = [p for line in varying for p in subject.at(line)]
    loop = subject.loop_of(instructions)
    if loop is None or not subject.is_of_grid(loop):
        return None  # hoisted by the compiler, or reported by the rule for loops
    inside = selected(subject.inside(loop), is_vector_instruction)
    inside = [p for p in inside if subject.schedule.loop_at(p.bundle) is loop]
    computing = [p for p in instructions if subject.schedule.loop_at(p.bundle) is loop]
    computing = selected(computing, computes)
    source = most_of(computing)
    if source is None:
        return None
    found = _Repeated(
        axes=axes,
        source=source,
        count=len(computing) - sum(varying.values()),
        registers=registers_of(program, operations),
        instructions=len(inside),
        share=subject.share(inside),
    )
    if found.saved < MIN_SHARE * len(inside) or found.share < MIN_SHARE:
        return None
    return found if not axes or _pays(subject, blocks, found) else None


def _pays(subject: AdviceSubject, blocks: BlockMap, found: _Repeated) -> bool:
    """Return whether fetching the values takes less time than computing them."""
    step, rate = subject.step, subject.bytes_per_cycle
    if step is None or not rate:
        return False
    if (subject.vmem or 0) + 2 * found.size > (subject.vmem_limit or math.inf):
        return False
    copies = step.copies + found.size / rate / steps_of_each(blocks, found.axes)
    compute = step.compute * (1 - found.share * found.saved / found.instructions)
    return max(copies, compute) < (1 - MIN_GAIN) * step.total


def varying_instructions(
    program: MosaicProgram, operations: list[ProgramOperation]
) -> dict[SourceLine, int]:
    """Return the lines of the operations, each with the instruction count of its other operations.

    Omits lines with other operations whose instruction count is not known.
    """
    lines = {operation.line for operation in operations}
    costly: set[SourceLine] = set()
    others: dict[SourceLine, int] = defaultdict(int)
    unclear: set[SourceLine] = set()
    for operation in program.operations:
        source = program.source(operation)
        if source is None or "vector<" not in operation.text or operation.name in CHEAP:
            continue
        if operation.line in lines:
            costly.add(source)
        elif operation.name in (*ARITHMETIC, "tpu.dynamic_rotate", "tpu.rotate"):
            # A rotation takes one instruction to issue and one to read its result.
            each = 1 if operation.name in ARITHMETIC else 2
            others[source] += each * registers_made(operation)
        elif operation.name not in STORES:
            unclear.add(source)
    return {source: others[source] for source in costly if source not in unclear}


KIND = AdviceKind(
    name="step-invariant",
    title="Values that every grid step recomputes",
    condition=(
        "Lines of a kernel depend neither on inputs nor on the grid point, or only on some axes of "
        f"the grid, so that at least {MIN_STEPS} steps compute the same; the compiler left them in "
        f"the loop over the grid, and their instructions are at least {percent(MIN_SHARE, 1)} of "
        "its vector instructions."
    ),
    remedy="Compute them once, outside the kernel, and pass them as an input.",
    rule=advise_step_invariant,
)

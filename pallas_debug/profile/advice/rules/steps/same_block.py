"""Advice: several steps recompute values from a block of an input that stays the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import (
    Advice,
    AdviceKind,
    applies,
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
from pallas_debug.profile.advice.moves import computes
from pallas_debug.profile.advice.pipelines import depends
from pallas_debug.profile.advice.program import LOADS, ProgramOperation
from pallas_debug.profile.advice.rules.copying.small_blocks import advise_small_blocks
from pallas_debug.profile.advice.rules.invariant import CHEAP, registers_of
from pallas_debug.profile.advice.rules.products.product_order import advise_product_order
from pallas_debug.profile.advice.rules.steps.step_invariant import (
    advise_step_invariant,
    varying_instructions,
)
from pallas_debug.profile.advice.steady import cycles_of_compute
from pallas_debug.profile.advice.subject import AdviceSubject, PlacedInstruction
from pallas_debug.profile.blocks import BlockMap

MIN_STEPS = 4
"""Minimum consecutive steps with the same block."""

MIN_SHARE = 0.35
"""Minimum share of the executed bundles whose vector work is only that on the same block. Where it
was 36 to 59 %, to load the values instead saved 29 to 54 % of the computation on v5e and v6e; where
it was 27 %, nothing was saved in one case, since other work then waited for itself."""

MIN_GAIN = 0.15
"""Minimum share of the estimated cycles that is saved if these bundles do not run."""

MAX_LINES = 4
"""Maximum lines that the message lists."""


@dataclass(frozen=True, kw_only=True)
class _Same:
    """Values that steps recompute from blocks that stay.

    Attributes:
      operations: the operations on them, in order.
      lines: lines that work on nothing else.
      steps: consecutive steps with the same blocks.
      share: share of the executed bundles whose vector work is all on these lines.
    """

    operations: tuple[ProgramOperation, ...]
    lines: tuple[SourceLine, ...]
    steps: int
    share: float


def advise_same_block(subject: AdviceSubject) -> Iterator[Advice]:
    blocks, step = subject.blocks, subject.step
    if blocks is None or step is None or subject.is_memory_bound or not subject.cycles:
        return
    known = axes_of_values(subject, blocks, of_inputs=True)
    candidates = [_same(subject, blocks, known, axes) for axes in set(known.values())]
    found = max((c for c in candidates if c is not None), key=_share, default=None)
    if found is None or found.share < MIN_SHARE:
        return
    after = cycles_of_compute(subject, (1 - found.share) * step.compute)
    if after is None or after > (1 - MIN_GAIN) * subject.cycles:
        return
    if applies(subject, advise_step_invariant, advise_small_blocks, advise_product_order):
        return  # these remedies leave less of it, or nothing
    names = dict.fromkeys(_inputs(subject, found.operations))
    of_names, stay = " and ".join(names), "stays" if len(names) == 1 else "stay"
    registers = registers_of(subject.program, list(found.operations))
    yield KIND.advice(
        source=found.lines[0],
        operand=next(iter(names)) if len(names) == 1 else None,
        message=(
            f"{_lines_text(found.lines)} only on {of_names}, whose "
            f"{'block' if len(names) == 1 else 'blocks'} {stay} the same for {found.steps} steps: "
            f"{percent(found.share, 1)} of the executed bundles do no other vector work"
        ),
        remedy=(
            "compute these values once: outside the kernel, if that is done rarely, as for "
            f"weights; or, if one core runs all steps in order, in the first of the {found.steps} "
            "steps, and keep them in a scratch buffer"
        ),
        evidence=(
            derived("steps with the same blocks", found.steps),
            derived("registers to load instead", registers),
            derived_share("share of the executed bundles", found.share),
        ),
    )


def _same(
    subject: AdviceSubject, blocks: BlockMap, known: dict[int, GridAxes], axes: GridAxes
) -> _Same | None:
    program, steps = subject.program, steps_of_each(blocks, axes)
    if steps < MIN_STEPS or not _moves(blocks, axes):
        return None
    operations = repeated_operations(subject, known, axes)
    if all(operation.name in CHEAP for operation in operations):
        return None
    only = [line for line, n in varying_instructions(program, operations).items() if not n]
    share = _exclusive(subject, (p for line in only for p in subject.at(line)))
    lines = sorted(only, key=lambda line: line.place)
    if not share or not any(True for _ in _inputs(subject, operations)):
        return None
    return _Same(operations=tuple(operations), lines=tuple(lines), steps=steps, share=share)


def _share(same: _Same) -> float:
    return same.share


def _moves(blocks: BlockMap, axes: GridAxes) -> bool:
    """Return whether other blocks change in steps that have the same indices along these axes."""
    inner = range(max(axes, default=-1) + 1, len(blocks.grid))
    return any(depends(o, axis) for o in blocks.pipelined for axis in inner)


def _exclusive(subject: AdviceSubject, instructions: Iterable[PlacedInstruction]) -> float:
    """Return the share of the executed bundles whose vector work is among these instructions."""
    chosen = {id(placed) for placed in instructions}
    weights: dict[int, float] = {}
    others: set[int] = set()
    for placed in subject.instructions:
        if computes(placed.opcode):
            weights[placed.bundle] = placed.weight
            if id(placed) not in chosen:
                others.add(placed.bundle)
    total = sum(weight for bundle, weight in weights.items() if bundle not in others)
    return total / subject.executed if subject.executed else 0.0


def _inputs(subject: AdviceSubject, operations: Iterable[ProgramOperation]) -> Iterator[str]:
    """Yield the names of the inputs that operations load."""
    for operation in operations:
        operand = subject.operand(operation.operands[0]) if operation.name in LOADS else None
        if operand is not None:
            yield operand.name


def _lines_text(lines: tuple[SourceLine, ...]) -> str:
    numbers = sorted({line.line for line in lines})
    if len(numbers) == 1:
        return f"line {numbers[0]} works"
    if len(numbers) > MAX_LINES:
        return f"{len(numbers)} lines from {numbers[0]} to {numbers[-1]} work"
    *others, last = map(str, numbers)
    return f"lines {', '.join(others)} and {last} work"


KIND = AdviceKind(
    name="same-block",
    title="Values that steps recompute from the same block",
    condition=(
        f"Lines work only on inputs whose blocks stay the same for at least {MIN_STEPS} steps, "
        f"while other blocks change; at least {MIN_SHARE:.0%} of the executed bundles do no other "
        f"vector work, and without them, the kernel would save at least {MIN_GAIN:.0%} of the "
        "estimated cycles. How much is saved is not predicted: other work may wait for itself."
    ),
    remedy="Compute them once, outside the kernel or in the first of these steps.",
    rule=advise_same_block,
)

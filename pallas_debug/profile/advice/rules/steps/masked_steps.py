"""Advice: grid steps compute scores that are masked completely."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import Advice, AdviceKind, derived
from pallas_debug.profile.advice.pipelines import depends, idle_bundles
from pallas_debug.profile.advice.program import MosaicProgram, ProgramOperation
from pallas_debug.profile.advice.rules.mask import MaskValues
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.blocks import BlockMap

MIN_GAIN = 0.15
"""Minimum share of the estimated cycles that the change must save."""

MAX_POINTS = 4096
"""Maximum grid points at which a mask is evaluated."""

MIN_MASKED = -1e4
"""Largest number that counts as masking a score: its exponential is 0."""

_NUMBER = re.compile(r"arith\.constant (?:dense<)?(?P<number>-\d[\d.]{0,20}(?:[eE][+-]?\d{1,3})?)")
_INFINITE = re.compile(r"arith\.constant (?:dense<)?0xFF80(?:0000)?\b")
_SAME = frozenset(("vector.broadcast", "vector.shape_cast", "tpu.reshape"))


def advise_masked_steps(subject: AdviceSubject) -> Iterator[Advice]:
    program, blocks, step = subject.program, subject.blocks, subject.step
    if blocks is None or step is None or not subject.cycles:
        return
    if subject.is_memory_bound or len(program.counters) != len(blocks.grid):
        return
    for chosen in program.named("arith.select"):
        if "xi1>" not in chosen.text or program.is_conditional(chosen.line):
            continue
        if program.loops_around(chosen.line):
            continue
        masked, runs = _masked_points(program, blocks, chosen)
        if not masked or not subject.bytes_per_cycle:
            continue
        work = step.compute - idle_bundles(subject, subject.core_points)
        # Steps that do nothing end before the blocks for the next step have arrived.
        streamed = [o for o in blocks.pipelined if o.name not in subject.resident]
        size = sum(o.block_bytes for o in streamed if o.kind == "input")
        waiting = subject.latency + size / subject.bytes_per_cycle
        saved = (masked * work - runs * waiting) / subject.cores
        source = _source(program, chosen)
        if source is None or saved < MIN_GAIN * subject.cycles:
            continue
        axes = [n for n, name in enumerate(program.counters) if _reads(program, chosen, name)]
        inputs = [
            o.name
            for o in blocks.pipelined
            if o.kind == "input" and depends(o, axes[-1]) and o.name not in subject.resident
        ]
        points = blocks.points
        yield KIND.advice(
            source=source,
            message=(
                f"at {masked:,} of {points:,} grid points, the mask is false everywhere, but "
                f"each still computes scores, all of which are masked, for about {work:,.0f} "
                "cycles"
            ),
            remedy=(
                "put the work of a step under pl.when, so that it runs only at grid points "
                "where the mask is true somewhere"
                + (
                    f", and let the index maps of {', '.join(inputs)} stay at the last block "
                    "that is needed, which is then not fetched again"
                    if inputs
                    else ""
                )
            ),
            evidence=(
                derived("grid points at which the mask is false everywhere", masked),
                derived("grid points", points),
                derived("cycles of a step's work", round(work), unit="cycles"),
                derived("cycles that leaving them out saves", round(saved), unit="cycles"),
                derived("estimated cycles", round(subject.cycles), unit="cycles"),
            ),
        )
        return


def _masked_points(
    program: MosaicProgram, blocks: BlockMap, chosen: ProgramOperation
) -> tuple[int, int]:
    """Count the grid points at which a selection yields only a number that masks scores.

    Also returns the number of runs of consecutive such points. Both are 0 if a block of an output
    is written only at such points.
    """
    grid = blocks.grid
    mask, one, other = chosen.operands[:3]
    if _is_masking(program, other, chosen.line):
        is_true = False
    elif _is_masking(program, one, chosen.line):
        is_true = True
    else:
        return 0, 0
    axes = [n for n, name in enumerate(program.counters) if _reads(program, chosen, name)]
    if not axes or math.prod(grid) > MAX_POINTS:
        return 0, 0
    names = [program.counters[axis] for axis in axes]
    known: dict[tuple[int, ...], bool] = {}
    count = runs = 0
    was_masked = False
    outputs = [o for o in blocks.pipelined if o.kind == "output"]
    of_block = [n for n in range(len(grid)) if any(depends(o, n) is not False for o in outputs)]
    written: dict[tuple[int, ...], bool] = {}
    for point in itertools.product(*map(range, grid)):
        place = tuple(point[axis] for axis in axes)
        if place not in known:
            values = MaskValues(program, dict(zip(names, place, strict=True)))
            known[place] = values.is_everywhere(mask, chosen.line, is_true=is_true)
        count += known[place]
        runs += known[place] and not was_masked
        was_masked = known[place]
        block = tuple(point[axis] for axis in of_block)
        written[block] = written.get(block, False) or not known[place]
    return (count, runs) if all(written.values()) else (0, 0)


def _source(program: MosaicProgram, chosen: ProgramOperation) -> SourceLine | None:
    """Return the line of a selection, or of its mask if a cached `jnp.where` has no line."""
    compare = program.origin(chosen.operands[0], chosen.line, _SAME)
    made = (o for o in (chosen, compare) if o is not None)
    return next((line for o in made if (line := program.source(o)) is not None), None)


def _reads(program: MosaicProgram, chosen: ProgramOperation, counter: str) -> bool:
    """Return whether the mask of a selection depends on a grid index."""
    return program.depends_on(chosen.operands[0], chosen.line, counter)


def _is_masking(program: MosaicProgram, value: str, line: int) -> bool:
    made = program.origin(value, line, _SAME)
    if made is None or made.name != "arith.constant":
        return False
    number = _NUMBER.search(made.text)
    if number is not None:
        return float(number["number"]) <= MIN_MASKED
    return _INFINITE.search(made.text) is not None


KIND = AdviceKind(
    name="masked-steps",
    title="Grid steps whose scores are all masked",
    condition=(
        "A mask that depends only on the grid point, not on data, replaces scores by a number "
        f"below {MIN_MASKED:,.0f} and masks all of them at some grid points, where the kernel "
        "still computes; no output block is visited only by such grid points, and skipping them "
        f"would save at least {MIN_GAIN:.0%} of the estimated cycles."
    ),
    remedy="Skip the work at these grid points with `pl.when`.",
    rule=advise_masked_steps,
)

"""Advice: each grid step recomputes values that are the same in all steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import (
    Advice,
    AdviceKind,
    counted,
    derived,
    derived_share,
    percent,
)
from pallas_debug.profile.advice.moves import computes, is_vector_instruction
from pallas_debug.profile.advice.program import LOADS, STORES, MosaicProgram, ProgramOperation
from pallas_debug.profile.advice.rules.invariant import (
    ARITHMETIC,
    CHEAP,
    most_of,
    registers_made,
    registers_of,
)
from pallas_debug.profile.advice.subject import AdviceSubject, selected

MIN_SHARE = 0.25
"""Minimum share of a step's vector instructions that computing the values once would save."""

MIN_STEPS = 4
"""Minimum grid steps."""

_OTHERS = ("scf.", "tpu.trace", "tpu.prng", "tpu.sem", "tpu.device", "func.", "cf.")


def advise_step_invariant(subject: AdviceSubject) -> Iterator[Advice]:
    program, blocks = subject.program, subject.blocks
    if blocks is None or subject.is_memory_bound:
        return
    steps = subject.core_points
    operations = _invariant(program)
    if steps < MIN_STEPS or not operations:
        return
    varying = _varying_instructions(program, operations)
    instructions = [p for line in varying for p in subject.at(line)]
    loop = subject.loop_of(instructions)
    if loop is None or not subject.is_of_grid(loop):
        return  # hoisted by the compiler, or reported by the rule for loops
    inside = selected(subject.inside(loop), is_vector_instruction)
    inside = [p for p in inside if subject.schedule.loop_at(p.bundle) is loop]
    computing = [p for p in instructions if subject.schedule.loop_at(p.bundle) is loop]
    computing = selected(computing, computes)
    registers = registers_of(program, operations)
    count = len(computing) - sum(varying.values())
    saved = count - registers
    share = subject.share(inside)
    source = most_of(computing)
    if source is None or saved < MIN_SHARE * len(inside) or share < MIN_SHARE:
        return
    size = registers * 4
    yield KIND.advice(
        source=source,
        message=(
            f"each of the {steps:,.0f} grid steps recomputes values that depend neither on "
            f"inputs nor on the grid point: about {count} of the {len(inside)} vector "
            "instructions of a step"
        ),
        remedy=(
            "compute them once, outside the kernel, and pass them as an input whose index map "
            f"stays at one block, of {size:,} KiB; or, if one core runs all steps in order, "
            "compute them in the first step and keep them in a scratch buffer"
        ),
        evidence=(
            derived("grid steps", round(steps)),
            counted("vector instructions of a step", len(inside)),
            derived("of them, those that compute the same each time", count),
            derived("registers to load instead", registers),
            derived_share("share of the executed bundles", share),
        ),
    )


def _invariant(program: MosaicProgram) -> list[ProgramOperation]:
    """Return vector operations whose results are the same in all steps, except in branches."""
    changing = set(program.counters)
    for loop in program.loops:
        changing.update((loop.counter, *loop.carried))
    arguments = set(program.arguments)
    known: set[int] = set()
    found = []
    for operation in program.operations:
        if operation.name in (*LOADS, *STORES) or operation.name.startswith(_OTHERS):
            continue
        made = [program.producer(o, operation.line) for o in operation.operands]
        if not changing.isdisjoint(operation.operands) or arguments & set(operation.operands):
            continue
        if any(m is None or m.line not in known for m in made):
            continue  # an operand is not known, such as a region's argument
        known.add(operation.line)
        if "vector<" not in operation.text or program.loops_around(operation.line):
            continue
        if not program.is_conditional(operation.line):
            found.append(operation)
    return found


def _varying_instructions(
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
        "Lines of a kernel depend neither on inputs nor on the grid point; the compiler left them "
        f"in the loop over the grid, and their instructions are at least {percent(MIN_SHARE, 1)} "
        "of its vector instructions."
    ),
    remedy="Compute them once, outside the kernel, and pass them as an input.",
    rule=advise_step_invariant,
)

"""Advice: a loop computes values in each iteration that no iteration changes."""

from __future__ import annotations

import math
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
from pallas_debug.profile.advice.program import (
    LOADS,
    STORES,
    MosaicProgram,
    ProgramLoop,
    ProgramOperation,
)
from pallas_debug.profile.advice.subject import (
    AdviceSubject,
    Place,
    PlacedInstruction,
    selected,
    starting,
)

MIN_SHARE = 0.15
"""Minimum share of the loop's vector instructions that hoisting would save."""

MIN_BUNDLES = 0.1
"""Minimum share of the executed bundles that belong to the loop."""

MAX_COLUMN = 32
"""Maximum registers of a repeated column, so that they fit beside the values that a loop computes;
32 did in loops compiled for v5e and v6e."""

MIN_CYCLES = 12
"""Minimum cycles of any iteration: loads, arithmetic, and the branch."""

REGISTER = 8 * 128
"""Number of 32-bit elements in a vector register."""

CHEAP = (*LOADS, "vector.broadcast", "vector.shape_cast", "arith.constant", "tpu.iota")
ARITHMETIC = (
    *("arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.negf"),
    *("arith.maximumf", "arith.minimumf", "arith.select", "math.absf"),
)
_RECIPROCAL = "vrcp"
_RENAMES = ("vphi", "vmov")
EFFECTS = ("tpu.enqueue_dma", "tpu.wait_dma", "tpu.wait_dma2", "scf.while", "func.call")
_RANDOM = ("tpu.prng_random_bits", "tpu.prng_set_seed_32", "tpu.stochastic_convert")


def advise_invariant(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    found: set[SourceLine | None] = set()
    for loop in program.loops:
        if loop.trips is not None and loop.trips < 2:
            continue
        operations = _invariant(program, loop)
        for advice in (
            *_divisions(subject, loop, operations),
            *_columns(subject, loop, operations),
        ):
            found.add(advice.source)
            yield advice
        places = _places(program, loop, operations)
        instructions = [p for place in places for p in subject.by_place.get(place, ())]
        scheduled = subject.own_loop_of(instructions)
        if scheduled is None:
            continue
        inside = selected(subject.inside(scheduled), is_vector_instruction)
        computing = [p for p in instructions if p.bundle in scheduled]
        computing = selected(computing, computes)
        # A hoisted value is loaded in each iteration, unless it stays in registers.
        saved = len(computing) - registers_of(program, operations)
        share = subject.share(inside)
        if saved < MIN_SHARE * len(inside) or share < MIN_BUNDLES:
            continue
        source = most_of(computing)
        if source is None or source in found:
            continue  # already reported for an enclosing loop
        found.add(source)
        yield KIND.advice(
            source=source,
            message=(
                "each iteration recomputes values that no iteration changes: "
                f"{len(computing)} of the loop's {len(inside)} vector instructions"
            ),
            remedy=(
                "compute them before the loop; if they are too large for the vector "
                "registers, keep them in a VMEM scratch buffer"
            ),
            evidence=(
                *([derived("iterations", loop.trips)] if loop.trips is not None else []),
                counted("vector instructions of the loop", len(inside)),
                counted("of them, those that compute the same each time", len(computing)),
                derived("registers to load instead", len(computing) - saved),
                derived_share("share of the executed bundles", share),
            ),
        )


def _divisions(
    subject: AdviceSubject, loop: ProgramLoop, operations: list[ProgramOperation]
) -> Iterator[Advice]:
    """Return advice on divisions by loop-invariant values whose reciprocals stay in the loop."""
    program = subject.program
    lines = {operation.line for operation in operations}
    places: set[Place] = set()
    for operation in program.operations:
        if operation.name != "arith.divf" or operation.line not in loop or operation.line in lines:
            continue
        source = program.source(operation)
        if source is None or len(operation.operands) < 2 or "vector<" not in operation.text:
            continue
        divisor = program.producer(operation.operands[1], operation.line)
        if divisor is None or (divisor.line in loop and divisor.line not in lines):
            continue
        origin = program.origin(operation.operands[1], operation.line)
        if origin is not None and origin.name == "arith.constant":
            continue  # such as the division of a mean
        if source.place in places:
            continue
        places.add(source.place)
        scheduled = subject.own_loop_of(starting(subject.at(source), _RECIPROCAL))
        if scheduled is None:
            continue
        line = [p for p in subject.at(source) if p.bundle in scheduled]
        reciprocals = len(starting(line, _RECIPROCAL))
        inside = selected(subject.inside(scheduled), is_vector_instruction)
        computing = [p for p in selected(line, computes) if not p.opcode.startswith(_RENAMES)]
        others = [
            o.name
            for o in program.operations
            if o.line in loop and "vector<" in o.text and program.source(o) == source
        ]
        others = [name for name in others if name not in (*CHEAP, *STORES)]
        if all(name in ARITHMETIC for name in others):
            # Each other operation, and the product that replaces the division, is 1 per register.
            saved = len(computing) - len(others) * reciprocals
        else:
            saved = 2 * reciprocals  # the reciprocal, and reading its result
        share = subject.share(inside)
        if saved < MIN_SHARE * len(inside) or share < MIN_BUNDLES:
            continue
        yield KIND.advice(
            source=source,
            message=(
                "each iteration divides by values that no iteration changes and recomputes "
                f"{reciprocals} {'reciprocal' if reciprocals == 1 else 'reciprocals'}: "
                f"{saved} of the loop's {len(inside)} vector instructions"
            ),
            remedy=(
                "compute the reciprocal before the loop, as 1.0 / d, and multiply by it in "
                "the loop; the last bit may be rounded differently"
            ),
            evidence=(
                *([derived("iterations", loop.trips)] if loop.trips is not None else []),
                counted("vector instructions of the loop", len(inside)),
                counted("of them, reciprocals", reciprocals),
                derived("of them, those that a product does not need", saved),
                derived_share("share of the executed bundles", share),
            ),
        )


def _columns(
    subject: AdviceSubject, loop: ProgramLoop, operations: list[ProgramOperation]
) -> Iterator[Advice]:
    """Return advice on loop-invariant columns that are repeated along lanes in each iteration."""
    program = subject.program
    lines = {operation.line for operation in operations}
    columns: dict[SourceLine, list[tuple[int, int]]] = defaultdict(list)
    for operation in program.named("vector.broadcast"):
        column = operation.operand_shape
        whole = operation.shape
        source = program.source(operation)
        if operation.line not in lines or source is None or column is None or whole is None:
            continue
        if len(column[0]) == 2 == len(whole[0]) and column[0][1] == 1 < whole[0][1]:
            columns[source].append((whole[0][0], whole[0][1]))
    for source, shapes in columns.items():
        moves = starting(subject.at(source), "vperm")
        scheduled = subject.own_loop_of(moves)
        if scheduled is None:
            continue
        inside = subject.inside(scheduled)
        moves = [p for p in moves if p.bundle in scheduled]
        # If everything else is fast, the busiest slot determines the length of the loop.
        others = [p for p in inside if _takes_long(p.opcode) and p.source != source]
        registers = sum(math.ceil(rows / 8) for rows, _ in shapes)
        if others or len(moves) != registers or registers > MAX_COLUMN:
            continue
        slots = subject.slots(scheduled)
        if slots.get("MXU") or slots.get("EUP"):
            continue
        cycles = subject.cycles_of(scheduled)
        less = {"VPOP": len(moves)}
        needed = max(subject.busiest(slots, less), MIN_CYCLES)
        share = subject.share(inside)
        if share * (1 - needed / cycles) < MIN_SHARE:
            continue
        rows, width = shapes[0]
        yield KIND.advice(
            source=source,
            message=(
                f"each iteration repeats the same column of {rows} rows along the lanes, in "
                f"{len(moves)} moves of the cross-lane unit, and waits for them: it takes "
                f"{cycles} cycles, but only about {needed} without them"
            ),
            remedy=(
                f"repeat the column before the loop, with jnp.broadcast_to(…, ({rows}, "
                f"{width})), and use the result in it"
            ),
            evidence=(
                *([derived("iterations", loop.trips)] if loop.trips is not None else []),
                counted("moves of the cross-lane unit in each", len(moves)),
                derived("cycles of each", cycles, "bundles and their delays", unit="cycles"),
                derived("cycles that the others need", needed, unit="cycles"),
                derived_share("share of the executed bundles", share),
            ),
        )


def _takes_long(opcode: str) -> bool:
    """Return whether an instruction is for a unit with a latency of 50 cycles or more."""
    return opcode.startswith(("vperm", "vrot", "vxpose", "vmat")) or ".xlane." in opcode


def _invariant(program: MosaicProgram, loop: ProgramLoop) -> list[ProgramOperation]:
    """Return the vector operations of a loop whose results are the same in all iterations."""
    body = program.body(loop)
    if any(o.name in EFFECTS for o in body):
        return []
    written = {v for o in body if o.name in STORES for v in o.operands if v in program.arguments}
    if any(o.name in STORES and written.isdisjoint(o.operands) for o in body):
        return []  # a store into a view whose memory is not known
    inner = {other.counter for other in program.loops if other.line in loop}
    changing = {loop.counter, *loop.carried, *inner}
    changing.update(v for other in program.loops if other.line in loop for v in other.carried)
    varying: set[int] = set()
    found = []
    for operation in body:
        made = (program.producer(o, operation.line) for o in operation.operands)
        if (
            not changing.isdisjoint(operation.operands)
            or any(m is not None and m.line in varying for m in made)
            or (operation.name in LOADS and not _is_constant(program, operation, written))
            or operation.name.startswith(("scf.", "tpu.trace", "tpu.prng"))
            or operation.name in (*STORES, *_RANDOM)
        ):
            varying.add(operation.line)
        elif "vector<" in operation.text:
            found.append(operation)
    return found


def _is_constant(program: MosaicProgram, load: ProgramOperation, written: set[str]) -> bool:
    """Return whether a load reads an operand that the loop does not write."""
    memory = load.operands[0] if load.operands else ""
    return memory in program.arguments and memory not in written


def _places(
    program: MosaicProgram, loop: ProgramLoop, operations: list[ProgramOperation]
) -> set[Place]:
    """Return the lines on which these are the loop's only vector operations."""
    lines = {operation.line for operation in operations}
    found: dict[Place, bool] = {}
    for operation in program.operations:
        if operation.line not in loop or "vector<" not in operation.text:
            continue
        source = program.source(operation)
        if source is not None and operation.name not in CHEAP:
            place = source.file, source.line
            found[place] = found.get(place, True) and operation.line in lines
    return {place for place, is_invariant in found.items() if is_invariant}


def registers_of(program: MosaicProgram, operations: list[ProgramOperation]) -> int:
    """Count the vector registers of results that other operations use."""
    lines = {operation.line for operation in operations}
    total = 0
    for operation in operations:
        users = program.users(operation)
        if operation.name in CHEAP or all(user.line in lines for user in users):
            continue
        total += registers_made(operation)
    return total


def registers_made(operation: ProgramOperation) -> int:
    """Count the vector registers of an operation's result."""
    shape = operation.shape
    if shape is None:
        return 0
    bits = 16 if shape[1] in ("bf16", "f16", "i16") else 32
    return math.ceil(math.prod(shape[0]) * bits / 32 / REGISTER)


def most_of(instructions: list[PlacedInstruction]) -> SourceLine | None:
    """Return the line with most of these instructions."""
    counts: dict[SourceLine, int] = defaultdict(int)
    for placed in instructions:
        if placed.source is not None:
            counts[placed.source] += 1
    return max(counts, key=lambda source: counts[source], default=None)


KIND = AdviceKind(
    name="invariant",
    title="A loop that computes the same values in every iteration",
    condition=(
        "Lines of a loop, or the reciprocals of its divisions, depend on nothing that its "
        "iterations change, and their instructions, which the compiler left in the loop, are at "
        f"least {percent(MIN_SHARE, 1)} of its vector instructions. Or each iteration repeats "
        f"such a column, of at most {MAX_COLUMN} registers, along the lanes, nothing else in it "
        f"takes long, and the wait for it is at least {percent(MIN_SHARE, 1)} of the executed "
        "bundles."
    ),
    remedy="Compute them once, before the loop.",
    rule=advise_invariant,
)

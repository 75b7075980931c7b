"""Advice: a loop with independent iterations works on one row or one number at a time."""

from __future__ import annotations

from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived, derived_share
from pallas_debug.profile.advice.program import (
    LOADS,
    MAX_DEPTH,
    STORES,
    MosaicProgram,
    ProgramLoop,
    ProgramOperation,
    shape_of,
)
from pallas_debug.profile.advice.subject import AdviceSubject, PlacedInstruction, starting
from pallas_debug.profile.advice.tiles import LANES

MIN_TRIPS = 8
"""Minimum iterations of a loop over rows: as many as a vector register has sublanes."""

MIN_SHARE = 0.1
"""Minimum share of the executed bundles that belong to the loop."""

_SCALAR = ("memref.load", "memref.store")
MIN_UNROLLED = 4
"""Minimum rows in an iteration of the scheduled loop for a gather to count as unrolled."""

Index = tuple[int, int]
"""Affine index of an access: factor of the loop's counter, and constant."""

REDUCTIONS = ("arith.addf", "arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf")
_EFFECTS = ("tpu.enqueue_dma", "tpu.wait_dma2", "tpu.wait_dma", "tpu.semaphore_signal", "scf.while")


def advise_row_loop(subject: AdviceSubject) -> Iterator[Advice]:
    return _advise(subject, is_scalar=False)


def advise_scalar_loop(subject: AdviceSubject) -> Iterator[Advice]:
    return _advise(subject, is_scalar=True)


def _advise(subject: AdviceSubject, *, is_scalar: bool) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    for loop in program.loops_of(MIN_TRIPS):
        body = program.body(loop)
        named = independent_stores(program, loop, body)
        if not named:
            named = (_sums if is_scalar else _scattered)(program, loop, body)
        if not named or not is_narrow(body, is_scalar):
            continue
        source = program.source(named[0])
        accesses = ("sst", "smul.f32", "sadd.f32") if is_scalar else ("vld", "vst")
        scheduled = subject.own_loop_of(starting(subject.at(source), *accesses))
        if scheduled is None:
            continue
        inside = subject.inside(scheduled)
        share = subject.share(inside)
        is_gather = _is_gather(program, body)
        if share < MIN_SHARE or (is_gather and rows_at_once(body, inside) >= MIN_UNROLLED):
            continue
        vector = starting(inside, "vld", "vst")
        evidence = [
            derived("iterations", loop.trips),
            counted("bundles of each", scheduled.size),
            *([] if is_scalar else [counted("vector loads and stores in each", len(vector))]),
            derived_share("share of the executed bundles", share),
        ]
        operand = subject.operand(memory_of(program, named[0]) or "")
        if is_scalar:
            kind = SCALAR_LOOP
            message = (
                f"the scalar unit computes {loop.trips} numbers one by one, in {scheduled.size} "
                "bundles each; "
                + (
                    "the iterations do not depend on each other"
                    if named[0].name in STORES
                    else "each iteration only combines its number with the previous ones"
                )
            )
            remedy = (
                f"put {operand.name if operand is not None else 'the result'} and its inputs in "
                "VMEM instead of SMEM, and compute it as a whole vector"
                if named[0].name in STORES
                else "put the summed values in VMEM instead of SMEM, and reduce them as a whole "
                "vector"
            )
        else:
            kind = ROW_LOOP
            message = (
                f"each of the {loop.trips} iterations loads and stores one row, in "
                f"{scheduled.size} bundles; a vector register has 8 rows, and the iterations do "
                "not depend on each other"
            )
            remedy = (
                "process 8 rows in each iteration with unroll=8, so that their loads overlap"
                if is_gather
                else "process at least 8 rows in each iteration with pl.ds(pl.multiple_of(i * 8, "
                "8), 8), or the whole block without a loop"
            )
        yield kind.advice(
            source=source,
            operand=operand.name if operand is not None else None,
            message=message,
            remedy=remedy,
            evidence=tuple(evidence),
        )


def independent_stores(
    program: MosaicProgram,
    loop: ProgramLoop,
    body: list[ProgramOperation],
    *,
    may_sum: bool = False,
) -> list[ProgramOperation]:
    """Return the stores of a loop, if no iteration reads or writes places that another writes.

    Args:
      may_sum: whether the loop may carry sums to which each iteration adds, and which it does not
        use otherwise.
    """
    if loop.carried and not (may_sum and _carried_sums(program, loop, body)):
        return []
    if any(o.name in _EFFECTS or o.name == "scf.for" for o in body):
        return []
    stores = [o for o in body if o.name in STORES]
    written: dict[str, tuple[Index, ...]] = {}
    for store in stores:
        memory = memory_of(program, store)
        index = indices_of(program, loop, store)
        if memory is None or index is None or (memory in written and written[memory] != index):
            return []
        if not any(step for step, _ in index):
            return []  # all iterations write the same element
        written[memory] = index
    for load in (o for o in body if o.name in LOADS):
        memory = memory_of(program, load)
        if memory in program.arguments and memory not in written:
            continue  # another operand, which no iteration writes
        if memory is None or indices_of(program, loop, load) != written.get(memory):
            return []
    return stores


def _sums(
    program: MosaicProgram, loop: ProgramLoop, body: list[ProgramOperation]
) -> list[ProgramOperation]:
    """Return the combining operations of a loop that only reduces numbers, such as a sum."""
    if not is_straight(body) or any(o.name in STORES for o in body):
        return []
    return _carried_sums(program, loop, body)


def _carried_sums(
    program: MosaicProgram, loop: ProgramLoop, body: list[ProgramOperation]
) -> list[ProgramOperation]:
    """Return the combining operations of a loop, if all that it carries is what they combine."""
    found = []
    for operation in body:
        if operation.name in REDUCTIONS and len(operation.operands) == 2:
            carried = [o for o in operation.operands if o in loop.carried]
            others = [o for o in operation.operands if o not in loop.carried]
            users = program.users(operation)
            if len(carried) != 1 or [u.name for u in users] != ["scf.yield"]:
                continue
            if any(program.depends_on(others[0], operation.line, c) for c in loop.carried):
                return []
            found.append(operation)
    passed = set(loop.carried)
    rest = [o for o in body if o not in found and o.name != "scf.yield"]
    if len(found) != len(passed) or any(passed.intersection(o.operands) for o in rest):
        return []
    return found


def _scattered(
    program: MosaicProgram, loop: ProgramLoop, body: list[ProgramOperation]
) -> list[ProgramOperation]:
    """Return the store of a loop that puts rows of other operands at places listed in a table."""
    if loop.carried or not is_straight(body):
        return []
    stores = [o for o in body if o.name in STORES]
    # Before each store, jax loads what was there, and does not use it.
    loaded = {memory_of(program, o) for o in body if o.name in LOADS and program.users(o)}
    if len(stores) != 1 or memory_of(program, stores[0]) in loaded:
        return []
    if not loaded <= set(program.arguments):
        return []
    for value in index_values(stores[0]):
        if any(s.name in LOADS for s in program.sources_of(value, stores[0].line) or ()):
            return stores
    return []


def memory_of(program: MosaicProgram, access: ProgramOperation) -> str | None:
    """Return the memory of an access: a load's first operand, or a store's first or second."""
    at = 1 if access.name in ("memref.store", "vector.store") else 0
    return access.operands[at] if len(access.operands) > at else None


def index_values(access: ProgramOperation) -> tuple[str, ...]:
    """Return the index values of an access."""
    at = 2 if access.name in ("memref.store", "vector.store") else 1
    bracket = access.text[access.text.find("[") + 1 : access.text.find("]")]
    count = len([part for part in bracket.split(",") if part.strip()])
    return access.operands[at : at + count]


def indices_of(
    program: MosaicProgram, loop: ProgramLoop, access: ProgramOperation
) -> tuple[Index, ...] | None:
    """Return each index as a multiple of the loop's counter plus a constant; None if not affine."""
    found = []
    for value in index_values(access):
        index = affine_index(program, loop, value, access.line)
        if index is None:
            return None
        found.append(index)
    return tuple(found)


def affine_index(
    program: MosaicProgram, loop: ProgramLoop, value: str, line: int, depth: int = 0
) -> Index | None:
    """Return a value as a multiple of the loop's counter plus a constant; None if not affine."""
    if value == loop.counter:
        return 1, 0
    constant = program.constant(value, line)
    if constant is not None:
        return 0, constant
    origin = program.producer(value, line)
    if origin is None or depth > MAX_DEPTH:
        return None
    parts = [affine_index(program, loop, o, origin.line, depth + 1) for o in origin.operands[:2]]
    if not parts or (first := parts[0]) is None:
        return None
    if origin.name in ("arith.index_cast", "tpu.assume_multiple"):
        return first
    if len(parts) != 2 or (second := parts[1]) is None:
        return None
    if origin.name == "arith.addi":
        return first[0] + second[0], first[1] + second[1]
    if origin.name == "arith.subi":
        return first[0] - second[0], first[1] - second[1]
    if origin.name == "arith.muli" and 0 in (first[0], second[0]):
        return first[0] * second[1] + second[0] * first[1], first[1] * second[1]
    return None


def _is_gather(program: MosaicProgram, body: list[ProgramOperation]) -> bool:
    """Return whether a row is loaded or stored at an index that the loop reads from memory."""
    for access in body:
        if access.name not in LOADS + STORES or access.name in _SCALAR:
            continue
        for value in index_values(access):
            sources = program.sources_of(value, access.line)
            if sources is None or any(s.name in LOADS for s in sources):
                return True
    return False


def rows_at_once(body: list[ProgramOperation], inside: list[PlacedInstruction]) -> float:
    """Return the rows stored per iteration of the scheduled loop, which may be unrolled."""
    widths = [v[-1] for o in body if o.name in STORES for v in vectors_of(o)[-1:] if v]
    registers = sum(-(-width // LANES) for width in widths)
    stored = starting(inside, "vst")
    return len(stored) / registers if registers else 0.0


def is_straight(body: list[ProgramOperation]) -> bool:
    """Return whether the operations of a loop have no effects and include no loop or branch."""
    return not any(o.name in (*_EFFECTS, "scf.for", "scf.if") for o in body)


def is_narrow(body: list[ProgramOperation], is_scalar: bool) -> bool:
    """Return whether all loads and stores access one row, or one number, at a time."""
    accesses = [o for o in body if o.name in LOADS or o.name in STORES]
    if is_scalar:
        has_arithmetic = any(o.name.startswith("arith.") and o.name.endswith("f") for o in body)
        return has_arithmetic and bool(accesses) and all(o.name in _SCALAR for o in accesses)
    for access in accesses:
        if access.name == "memref.load":
            continue  # a number, such as the index of a row
        vector = vectors_of(access)
        if not vector:
            return False
        sizes = vector[-1]
        if len(sizes) < 2 or sizes[-2] != 1 or sizes[-1] < 2:
            return False
    return any(o.name not in _SCALAR for o in accesses)


def vectors_of(access: ProgramOperation) -> list[tuple[int, ...]]:
    """Return the shapes of the vectors in the type of an access, except masks."""
    found = []
    for part in access.text.split("vector<")[1:]:
        shape = shape_of(f"vector<{part.partition('>')[0]}>")
        if shape is not None and shape[1] != "i1":
            found.append(shape[0])
    return found


ROW_LOOP = AdviceKind(
    name="row-loop",
    title="A loop over single rows",
    condition=(
        f"A loop of at least {MIN_TRIPS} iterations loads and stores one row in each, and no "
        "iteration depends on another."
    ),
    remedy="Process at least 8 rows in each iteration.",
    rule=advise_row_loop,
)
SCALAR_LOOP = AdviceKind(
    name="scalar-loop",
    title="Arithmetic on single numbers",
    condition=(
        f"A loop of at least {MIN_TRIPS} iterations computes a floating-point number in SMEM in "
        "each, and no iteration depends on another, or the numbers are only summed."
    ),
    remedy="Put the operands in VMEM, and compute whole vectors.",
    rule=advise_scalar_loop,
)

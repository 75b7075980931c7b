"""Advice: a loop works on one row or one number at a time, and no iteration needs another one."""

from __future__ import annotations

from collections.abc import Callable

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived
from pallas_debug.profile.advice.program import (
    MosaicProgram,
    ProgramLoop,
    ProgramOperation,
    shape_of,
)
from pallas_debug.profile.advice.subject import AdviceSubject, selected

MIN_TRIPS = 8
"""Minimum iterations of a loop over rows: as many as a vector register has sublanes."""

_LOADS = ("vector.load", "tpu.vector_load", "tpu.load", "memref.load")
_STORES = ("vector.store", "tpu.vector_store", "tpu.store", "memref.store")
_SCALAR = ("memref.load", "memref.store")
_OTHERS = ("tpu.enqueue_dma", "tpu.wait_dma2", "tpu.wait_dma", "tpu.semaphore_signal", "scf.while")


def advise_row_loop(subject: AdviceSubject) -> tuple[Advice, ...]:
    return _advise(subject, is_scalar=False)


def advise_scalar_loop(subject: AdviceSubject) -> tuple[Advice, ...]:
    return _advise(subject, is_scalar=True)


def _advise(subject: AdviceSubject, *, is_scalar: bool) -> tuple[Advice, ...]:
    program = subject.program
    if program is None or subject.is_memory_bound:
        return ()
    found = []
    for loop in program.loops:
        if loop.trips is None or loop.trips < MIN_TRIPS:
            continue
        body = [o for o in program.operations if o.line in loop]
        stores = _independent_stores(program, loop, body)
        if not stores or not _is_narrow(body, is_scalar):
            continue
        source = program.source(stores[0])
        accesses = ("sst", "smul.f32", "sadd.f32") if is_scalar else ("vld", "vst")
        scheduled = subject.loop_of(selected(subject.at(source), _starts_with(accesses)))
        if scheduled is None or scheduled.depth == 0:
            continue
        inside = subject.inside(scheduled)
        vector = selected(inside, lambda name: name.startswith(("vld", "vst")))
        evidence = [
            derived("iterations", loop.trips),
            counted("bundles of each", scheduled.size),
            counted("vector loads and stores in each", len(vector)),
            derived("share of the executed bundles", subject.share(inside)),
        ]
        operand = subject.operand(_memory_of(program, stores[0]) or "")
        name = operand.name if operand is not None else "the array"
        if is_scalar:
            kind = SCALAR_LOOP.name
            message = (
                f"the scalar unit computes {loop.trips} numbers one by one, in {scheduled.size} "
                f"bundles each; the iterations do not depend on each other"
            )
            remedy = (
                f"put {name} and what it is computed from in VMEM instead of SMEM, and compute it "
                "as a whole vector"
            )
        else:
            kind = ROW_LOOP.name
            message = (
                f"each of the {loop.trips} iterations loads and stores one row, in "
                f"{scheduled.size} bundles; a vector register has 8 rows, and the iterations do "
                "not depend on each other"
            )
            remedy = (
                "process 8 rows or more in each iteration, with "
                "pl.ds(pl.multiple_of(i * 8, 8), 8), or the whole block without a loop"
            )
        found.append(
            Advice(
                kind=kind,
                source=source,
                operand=operand.name if operand is not None else None,
                message=message,
                remedy=remedy,
                evidence=tuple(evidence),
            )
        )
    return tuple(found)


def _starts_with(prefixes: tuple[str, ...]) -> Callable[[str], bool]:
    return lambda opcode: opcode.startswith(prefixes)


def _independent_stores(
    program: MosaicProgram, loop: ProgramLoop, body: list[ProgramOperation]
) -> list[ProgramOperation]:
    """Stores of a loop, if no iteration reads or writes what another one writes."""
    if loop.carried or any(o.name in _OTHERS or o.name == "scf.for" for o in body):
        return []
    stores = [o for o in body if o.name in _STORES]
    written: dict[str, tuple[tuple[bool, int], ...]] = {}
    for store in stores:
        memory = _memory_of(program, store)
        index = _indices(program, loop, store)
        if memory is None or index is None or (memory in written and written[memory] != index):
            return []
        written[memory] = index
    for load in (o for o in body if o.name in _LOADS):
        index = _indices(program, loop, load)
        memory = _memory_of(program, load)
        if index is None or memory is None or (memory in written and written[memory] != index):
            return []
    return stores


def _memory_of(program: MosaicProgram, access: ProgramOperation) -> str | None:
    """The memory that is read or written, which is a load's first operand and a store's second."""
    at = 1 if access.name in ("memref.store", "vector.store") else 0
    return access.operands[at] if len(access.operands) > at else None


def _indices(
    program: MosaicProgram, loop: ProgramLoop, access: ProgramOperation
) -> tuple[tuple[bool, int], ...] | None:
    """For each index, whether it is the loop's counter times one, and its constant otherwise.

    None if an index is neither; or if there is none with the counter, so that all iterations access
    the same element.
    """
    at = 2 if access.name in ("memref.store", "vector.store") else 1
    bracket = access.text[access.text.find("[") + 1 : access.text.find("]")]
    count = len([part for part in bracket.split(",") if part.strip()])
    found: list[tuple[bool, int]] = []
    for value in access.operands[at : at + count]:
        constant = program.constant(value, access.line)
        if constant is not None:
            found.append((False, constant))
            continue
        name, line = value, access.line
        origin = program.producer(name, line)
        while origin is not None and origin.name == "arith.index_cast":
            name, line = origin.operands[0], origin.line
            origin = program.producer(name, line)
        if name != loop.counter:
            return None
        found.append((True, 0))
    return tuple(found) if any(moves for moves, _ in found) else None


def _is_narrow(body: list[ProgramOperation], is_scalar: bool) -> bool:
    """Whether all loads and stores are of one row, or of one number."""
    accesses = [o for o in body if o.name in _LOADS or o.name in _STORES]
    if is_scalar:
        has_arithmetic = any(o.name.startswith("arith.") and o.name.endswith("f") for o in body)
        return has_arithmetic and all(o.name in _SCALAR for o in accesses)
    for access in accesses:
        shape = shape_of(access.text) if access.name not in _SCALAR else None
        vector = _vectors(access)
        if shape is None or not vector:
            return False
        sizes = vector[-1]
        if len(sizes) < 2 or sizes[-2] != 1 or sizes[-1] < 2:
            return False
    return bool(accesses)


def _vectors(access: ProgramOperation) -> list[tuple[int, ...]]:
    """Shapes of the vectors in an access's type, without that of a mask."""
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
        "iteration depends on another one."
    ),
    remedy="Process 8 rows or more in each iteration.",
    rule=advise_row_loop,
)
SCALAR_LOOP = AdviceKind(
    name="scalar-loop",
    title="Arithmetic on single numbers",
    condition=(
        f"A loop of at least {MIN_TRIPS} iterations computes a floating-point number in SMEM in "
        "each, and no iteration depends on another one."
    ),
    remedy="Put the operands in VMEM, and compute whole vectors.",
    rule=advise_scalar_loop,
)

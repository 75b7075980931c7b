"""Advice: blocks of an input are so narrow that its registers are mostly empty."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived
from pallas_debug.profile.advice.moves import is_vector_instruction
from pallas_debug.profile.advice.program import (
    LOADS,
    MAX_VISITED,
    PASSED_ON,
    STORES,
    ProgramOperation,
    shape_of,
)
from pallas_debug.profile.advice.rules.products.broadcast_product import places_of_pairs
from pallas_debug.profile.advice.subject import AdviceSubject, starting
from pallas_debug.profile.advice.tiles import LANES, SUBLANES, registers_for
from pallas_debug.profile.blocks import OperandBlocks

MAX_LANES = 32
"""Maximum lanes of 128 that a narrow block fills."""

MAX_SUBLANES = 2
"""Maximum sublanes of 8 that a narrow block fills."""

MIN_REGISTERS = 32
"""Minimum number of registers that a narrow block occupies."""

MIN_SHARE = 0.5
"""Minimum share of all inputs' registers that a narrow block occupies."""

MAX_REDUCED = 64
"""Maximum lanes of a narrow block that is reduced over lanes; reducing rows is cheaper."""

MIN_GAIN = 0.15
"""Minimum share of the estimated cycles that full registers would save."""

_TURNED = ("tpu.matmul", "tpu.transpose", "vector.transpose")
"""Operations that depend on which dimension is narrow."""

_REDUCED = re.compile(r"\[(?P<axes>\d{1,2}(?:, \d{1,2}){0,7})\] : vector<(?P<shape>[\dx]+)x")

_MEMORY = re.compile(r"memref<(?:\d{1,9}x){1,7}(?P<lanes>\d{1,9})x[a-z]")


@dataclass(frozen=True, kw_only=True)
class Fill:
    """Use of vector registers by a block.

    Attributes:
      registers: number of registers that the block occupies.
      full: number of full registers that would hold the same elements.
      lanes, sublanes: number of lanes and sublanes of a register that contain elements.
    """

    registers: int
    full: int
    lanes: int
    sublanes: int

    @property
    def is_narrow(self) -> bool:
        few = self.lanes <= MAX_LANES or self.sublanes <= MAX_SUBLANES
        return few and self.registers >= MIN_REGISTERS and self.registers >= 4 * self.full

    @property
    def is_narrow_to_reduce(self) -> bool:
        """True if the block counts as narrow if it is reduced over its lanes."""
        few = self.lanes <= MAX_REDUCED
        return few and self.registers >= MIN_REGISTERS and self.registers >= 2 * self.full


@dataclass
class Uses:
    """Operations of a kernel on a narrow block.

    Attributes:
      operations: operations on values as narrow as the block.
      is_turned: whether an operation needs the narrow dimension where it is.
      is_reduced: whether the block is reduced over its narrow dimension.
      is_spread: whether a column is repeated along the lanes, for which it has to be a column.
        Operations on the repeated column use whole registers.
    """

    operations: list[ProgramOperation] = field(default_factory=list)
    is_turned: bool = False
    is_reduced: bool = False
    is_spread: bool = False


def advise_narrow_block(subject: AdviceSubject) -> Iterator[Advice]:
    blocks = subject.blocks
    if blocks is None or places_of_pairs(subject):
        return  # most time goes to the pairs of rows, in three dimensions
    inputs = [o for o in blocks.pipelined if o.kind == "input" and len(o.dimensions) >= 2]
    filled = [(operand, _fill(operand)) for operand in inputs]
    total = sum(fill.registers for _, fill in filled)
    for operand, fill in filled:
        if fill.registers < MIN_SHARE * total:
            continue
        if fill.lanes > MAX_LANES and subject.is_memory_bound:
            continue  # rows of one element are copied without padding
        loads = list(_loads(subject, operand))
        source = _source(subject, loads)
        uses = uses_of(subject, loads, fill)
        if source is None or uses.is_turned or uses.is_spread:
            continue
        if not (fill.is_narrow_to_reduce if uses.is_reduced else fill.is_narrow):
            continue
        if _saved(subject, loads, uses, fill) < MIN_GAIN * (subject.cycles or subject.executed):
            continue
        at_line = starting(subject.at(source), "vld")
        yield _advice(operand, fill, source, len(at_line), uses.is_reduced)


def _fill(operand: OperandBlocks) -> Fill:
    sizes = [d.size for d in operand.dimensions]
    return Fill(
        registers=registers_for(sizes, operand.bits),
        full=-(-math.prod(sizes) * operand.bits // (SUBLANES * LANES * 32)),
        lanes=min(sizes[-1], LANES),
        sublanes=min(sizes[-2], SUBLANES),
    )


def _saved(subject: AdviceSubject, loads: list[ProgramOperation], uses: Uses, fill: Fill) -> float:
    """Return the bundles that the kernel would not run if the block filled its registers."""
    lines = {subject.program.source(o) for o in (*loads, *uses.operations)}
    work = [p for line in lines for p in subject.at(line) if is_vector_instruction(p.opcode)]
    return subject.share(work) * subject.executed * (1 - fill.full / fill.registers)


def _loads(subject: AdviceSubject, operand: OperandBlocks) -> Iterator[ProgramOperation]:
    """Yield the operations that read an operand directly."""
    for operation in subject.program.named(*LOADS):
        read = subject.operand(operation.operands[0]) if operation.operands else None
        if read is not None and read.name == operand.name:
            yield operation


def uses_of(subject: AdviceSubject, made: list[ProgramOperation], fill: Fill) -> Uses:
    """Follow values through operations whose results are as narrow.

    Args:
      made: operations that load or compute the values.
    """
    program = subject.program
    found = Uses()
    widest = max(MAX_LANES, min(fill.lanes, MAX_REDUCED))
    seen, waiting = {operation.line for operation in made}, list(made)
    while waiting and len(seen) < MAX_VISITED:
        for user in program.users(waiting.pop()):
            shape = user.shape
            if user.line in seen or "vector<" not in user.text or shape is None:
                continue
            if user.name in _TURNED:
                found.is_turned = True
            elif user.name == "vector.multi_reduction":
                if _is_over_lanes(user) and fill.lanes <= MAX_REDUCED:
                    found.is_reduced = True
                    found.operations.append(user)
                    seen.add(user.line)
                    waiting.append(user)
                else:
                    found.is_turned = True
            elif user.name == "vector.broadcast" and max(shape[0][-1:], default=0) > widest:
                found.is_spread = fill.lanes <= MAX_REDUCED
            elif user.name in STORES:
                found.is_turned = found.is_turned or _is_beside_others(user)
            elif user.name in PASSED_ON or (shape[0] and shape[0][-1] <= widest):
                found.operations.append(user)
                seen.add(user.line)
                waiting.append(user)
    return found


def _is_beside_others(store: ProgramOperation) -> bool:
    """Return whether a store writes few lanes of wider memory: the narrow dimension matters."""
    memory = _MEMORY.search(store.text)
    vector = shape_of(store.text.partition(" loc(")[0].replace("memref<", ""))
    if memory is None or vector is None or not vector[0]:
        return False
    return vector[0][-1] < min(int(memory["lanes"]), MAX_REDUCED + 1)


def _is_over_lanes(reduction: ProgramOperation) -> bool:
    """Return whether a reduction is over the last axis alone."""
    found = _REDUCED.search(reduction.text)
    if found is None:
        return False
    return found["axes"] == str(found["shape"].count("x"))


def _source(subject: AdviceSubject, loads: list[ProgramOperation]) -> SourceLine | None:
    """Return the line with the most load instructions."""
    counts: dict[SourceLine, int] = {}
    for load in loads:
        line = subject.program.source(load)
        if line is not None:
            counts[line] = len(starting(subject.at(line), "vld"))
    best = max(counts, key=lambda line: counts[line], default=None)
    return best if best is not None and counts[best] else None


def _shape_text(sizes: Iterable[int]) -> str:
    return f"({', '.join(map(str, sizes))})"


def _advice(
    operand: OperandBlocks, fill: Fill, source: SourceLine, loads: int, is_reduced: bool
) -> Advice:
    sizes = [d.size for d in operand.dimensions]
    shape = _shape_text(sizes)
    if fill.lanes <= MAX_REDUCED:
        long = min(max(sizes[-2], LANES), operand.shape[-2])
        filled = f"{fill.lanes} of {LANES} lanes"
        remedy = (
            "make the last dimension of the array a long one: transpose it outside the kernel, "
            f"for blocks such as {_shape_text((*sizes[:-2], sizes[-1], long))}, "
            + (
                "and reduce over the second-to-last dimension, which adds whole registers"
                if is_reduced
                else "or reshape it if no operation depends on its rows"
            )
        )
    else:
        filled = f"{fill.sublanes} of {SUBLANES} sublanes"
        rows = max(math.prod(sizes[:-1]), SUBLANES)
        remedy = (
            "make the second-to-last dimension of the array a long one: reshape it outside the "
            f"kernel, for blocks such as ({rows}, {sizes[-1]})"
        )
    return KIND.advice(
        operand=operand.name,
        source=source,
        message=(
            f"a block of {shape} of {operand.name} fills {filled}: it takes {fill.registers:,} "
            f"vector registers instead of {fill.full:,}, and as many instructions for each "
            "operation on it" + (" and each reduction over its lanes" if is_reduced else "")
        ),
        remedy=remedy,
        evidence=(
            derived(f"registers that a block of {operand.name} takes", fill.registers),
            derived("full registers that would hold it", fill.full),
            counted("instructions of this line that load", loads),
        ),
    )


KIND = AdviceKind(
    name="narrow-block",
    title="Blocks that fill few lanes or sublanes",
    condition=(
        f"The blocks of an input fill at most {MAX_LANES} of {LANES} lanes or {MAX_SUBLANES} of "
        f"{SUBLANES} sublanes, or {MAX_REDUCED} lanes if they are reduced over them, and take at "
        "least half of the registers of all inputs; the kernel does not multiply them as "
        "matrices, transpose them, reduce them over another axis or repeat them along the lanes; "
        f"full registers would save at least {MIN_GAIN:.0%} of the estimated cycles."
    ),
    remedy="Transpose or reshape the array outside the kernel, so that its last two dimensions "
    "are long and no reduction is over a short last one.",
    rule=advise_narrow_block,
)

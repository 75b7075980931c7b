"""Advice: a kernel computes on values with a short last dimension, in mostly empty registers."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from pallas_debug.profile.advice.advice import (
    Advice,
    AdviceKind,
    applies,
    counted,
    derived,
    derived_share,
)
from pallas_debug.profile.advice.program import LOADS, PASSED_ON, STORES, ProgramOperation
from pallas_debug.profile.advice.rules.copying.narrow_block import advise_narrow_block
from pallas_debug.profile.advice.rules.row_loop import memory_of
from pallas_debug.profile.advice.subject import AdviceSubject, Place
from pallas_debug.profile.advice.tiles import LANES, SUBLANES, registers_for

MIN_SHARE = 0.5
"""Minimum share of the executed bundles that work on such values.

For kernels with a share of 85 to 99 %, versions with the long dimension along lanes took 0.07 to
0.24 of the cycles (states of 256 by 16, 256 by 32 and 512 by 8 elements), and versions that sum
groups of 8, 16 and 32 lanes by a product took 0.15 to 0.60.
"""

MAX_LANES = 32
"""Maximum elements of the last dimension."""

MIN_REGISTERS = 32
"""Minimum number of registers that a value occupies."""

MIN_EMPTY = 4
"""Minimum number of registers, as a multiple of the full registers that would hold the value."""

MAX_AROUND = 32
"""Maximum operations to visit around an operation; a row becomes a column in one to three."""

_ELEMENTWISE = re.compile(r"arith\.(?:add|sub|mul|div|maximum|minimum|maxnum|minnum)f|math\.\w+")
_REDUCTION = "vector.multi_reduction"
_CASTS = ("vector.shape_cast", "tpu.reshape")


@dataclass
class _Narrow:
    """Use of values of one narrow shape by a kernel.

    Attributes:
      kept: scratch that contains such a value, or text for a value that a loop carries.
      lanes: last dimension of a value that was reshaped to this shape, if there is one.
    """

    shape: tuple[int, ...]
    first: ProgramOperation
    lines: set[Place] = field(default_factory=set)
    kept: str | None = None
    lanes: int | None = None
    is_reduced: bool = False

    @property
    def registers(self) -> int:
        return registers_for(self.shape)

    @property
    def full(self) -> int:
        return -(-math.prod(self.shape) // (SUBLANES * LANES))


def advise_narrow_values(subject: AdviceSubject) -> Iterator[Advice]:
    found = _found(subject)
    if found is None:
        return
    narrow, share = found
    size = ", ".join(map(str, narrow.shape))
    columns = narrow.shape[-1]
    if narrow.lanes is not None:
        where = f"keep the {narrow.lanes} lanes together"
        remedy = (
            f"{where}, and sum groups of {columns} of them by a product with a matrix of 128 by "
            "128 that is 1 where both lanes belong to the same group, with "
            "precision=lax.Precision.HIGHEST, which also repeats each sum along its group; if "
            "rows are summed, too, sum them before the product"
        )
    else:
        turned = ", ".join(map(str, (*narrow.shape[:-2], columns, narrow.shape[-2])))
        remedy = (
            f"make the long dimension the last one: keep ({turned}) in {narrow.kept}, so that "
            f"rows of {narrow.shape[-2]} elements are used as loaded; pass values of {columns} "
            "elements as columns, with a last dimension of 1"
        )
    yield KIND.advice(
        source=subject.program.source(narrow.first),
        message=(
            f"values of f32[{size}] fill {columns} of {LANES} lanes: each takes "
            f"{narrow.registers} vector registers instead of {narrow.full}, and {share:.0%} "
            "of the executed bundles work on them".replace("%", " %")
        ),
        remedy=remedy,
        evidence=(
            counted("registers of such a value", narrow.registers),
            derived("registers that would hold as many elements", narrow.full),
            derived_share("share of the executed bundles", share),
        ),
    )


def places_of_narrow(subject: AdviceSubject) -> frozenset[Place]:
    """Return the lines that work on the values that this advice is about."""
    found = _found(subject)
    return frozenset(found[0].lines) if found is not None else frozenset()


def _found(subject: AdviceSubject) -> tuple[_Narrow, float] | None:
    """Return the narrow values that most of the executed bundles work on, and their share."""
    program = subject.program
    if subject.is_memory_bound:
        return None
    if any(True for _ in program.named("tpu.matmul", "tpu.transpose", "vector.transpose")):
        return None  # these depend on which dimension is narrow
    best: tuple[_Narrow, float] | None = None
    for narrow in _narrow(subject).values():
        if narrow.kept is None and not (narrow.lanes is not None and narrow.is_reduced):
            continue
        share = subject.share(p for line in narrow.lines for p in subject.by_place.get(line, ()))
        if share >= MIN_SHARE and (best is None or share > best[1]):
            best = narrow, share
    return best if best is not None and not applies(subject, advise_narrow_block) else None


def _narrow(subject: AdviceSubject) -> dict[tuple[int, ...], _Narrow]:
    """Collect narrow values by shape."""
    found: dict[tuple[int, ...], _Narrow] = {}
    users: dict[tuple[int, ...], list[ProgramOperation]] = defaultdict(list)
    for operation in subject.program.operations:
        if _ELEMENTWISE.fullmatch(operation.name) is None:
            continue
        shape = _shape(operation)
        if shape is None:
            continue
        found.setdefault(shape, _Narrow(shape=shape, first=operation))
        users[shape].append(operation)
    for shape, operations in users.items():
        narrow = found[shape]
        if narrow.registers < MIN_REGISTERS or narrow.registers < MIN_EMPTY * narrow.full:
            continue
        for operation in operations:
            _follow(subject, narrow, operation)
    return {s: n for s, n in found.items() if n.lines}


def _follow(subject: AdviceSubject, narrow: _Narrow, operation: ProgramOperation) -> None:
    """Record an operation on a narrow value, with its producers and users."""
    program = subject.program
    around = [operation, *program.users(operation)]
    for value in operation.operands:
        made = program.producer(value, operation.line)
        if made is None:
            loops = [loop for loop in program.loops_around(operation.line) if value in loop.carried]
            narrow.kept = narrow.kept or ("the loop's carry" if loops else None)
            continue
        around.append(made)
        spread: ProgramOperation | None = made
        while spread is not None and spread.name in PASSED_ON and len(around) < MAX_AROUND:
            spread = program.producer(spread.operands[0], spread.line)
            around += [spread] if spread is not None else []
        if made.name in LOADS:
            operand = subject.operand(memory_of(program, made) or "")
            if operand is not None and operand.kind == "scratch" and _shape(made) == narrow.shape:
                narrow.kept = operand.name
        elif made.name in _CASTS:
            whole = made.operand_shape
            if whole is not None and whole[0] and whole[0][-1] % LANES == 0:
                narrow.lanes = whole[0][-1]
    for other in around:
        if other.name == _REDUCTION:
            narrow.is_reduced = True
        if other.name in (*STORES, *LOADS, *PASSED_ON, _REDUCTION) or other is operation:
            source = program.source(other)
            if source is not None:
                narrow.lines.add(source.place)


def _shape(operation: ProgramOperation) -> tuple[int, ...] | None:
    """Return the shape of an f32 result, if its last dimension is short but not 1."""
    shape = operation.shape
    if shape is None or len(shape[0]) < 2 or shape[1] != "f32":
        return None
    return shape[0] if 1 < shape[0][-1] <= MAX_LANES else None


KIND = AdviceKind(
    name="narrow-values",
    title="Arithmetic on values that fill few lanes",
    condition=(
        f"Values with at most {MAX_LANES} elements in the last dimension take at least "
        f"{MIN_REGISTERS} registers, {MIN_EMPTY} times as many as needed; they are kept in "
        "scratch, carried by a loop, or are groups of lanes that are reduced; and at least "
        f"{MIN_SHARE:.0%} of the executed bundles work on them."
    ),
    remedy="Make the long dimension the last one; sum groups of lanes by a product.",
    rule=advise_narrow_values,
)

"""Advice: an operand or a product is transposed in the kernel in every grid step."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Collection, Iterator

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import (
    Advice,
    AdviceKind,
    counted,
    derived,
    derived_share,
    percent,
)
from pallas_debug.profile.advice.moves import is_transpose
from pallas_debug.profile.advice.program import PASSED_ON, STORES, ProgramOperation
from pallas_debug.profile.advice.steady import cycles_of_compute
from pallas_debug.profile.advice.subject import AdviceSubject, PlacedInstruction, selected, starting
from pallas_debug.profile.units import MXU

MIN_SHARE = 0.1
"""Minimum share of the executed bundles that transpose the operand and do not use the MXU."""

MIN_WAIT = 0.08
"""Minimum share of the computation in which the MXU waits for transposes; where it was 8 to 24 %,
the remedy saved 11 to 38 %."""

MIN_GAIN = 0.05
"""Minimum share of the estimated cycles that is saved, after the cycles of transposing outside."""

START = {"v6e": 64, "tpu7x": 64}
"""Cycles that the MXU always waits for its first operands, on chips where it is not 32: products
compiled without a transpose wait 27 to 33 on v5e and 28 to 66 on v6e. With operands that the MXU
transposes while loading, the wait is about twice as long."""

IN_FLIGHT = 160
"""Maximum cycles between two instructions that belong to the same transpose."""

_CONTRACTED = re.compile(r"dot_dimension_numbers<\[(?P<left>\d)\], \[(?P<right>\d)\]")
_CONVERSIONS = PASSED_ON | {"arith.extf", "arith.truncf"}
_ELEMENTWISE = (PASSED_ON - {"vector.broadcast", "tpu.broadcast", "vector.extract"}) | {
    *("arith.extf", "arith.truncf", "arith.negf"),
    *("math.exp", "math.exp2", "math.log", "math.tanh", "math.sqrt", "math.rsqrt", "math.absf"),
}
"""Operations on a value that can equally be applied to its transpose."""


def advise_transpose(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    products = {p.bundle for p in subject.instructions if p.opcode.startswith("vmat")}
    found: dict[tuple[str, SourceLine], Advice] = {}
    for operation in program.named("tpu.transpose", "vector.transpose", "tpu.matmul"):
        source = program.source(operation)
        feeds = selected(subject.at(source), is_transpose)
        loaded = _loaded(subject, operation)
        if source is None or not feeds or loaded is None:
            continue
        if program.is_conditional(operation.line):
            continue  # may run only in the first of several steps
        users = [user for user, _ in program.final_users(operation, _CONVERSIONS)]
        if users and all(user.name in STORES for user in users):
            continue  # the transpose is the result, so XLA would have to transpose it instead
        operand = subject.operand(loaded.operands[0])
        if operand is None or operand.kind != "input":
            continue
        uses = [user for user, _ in program.final_users(operation) if user.name == "tpu.matmul"]
        lines = dict.fromkeys(program.source(o) for o in (operation, *uses))
        pushed = any(_is_push_of_transposed(p.opcode) for line in lines for p in subject.at(line))
        if pushed and all(use.operands[1] in operation.results for use in uses):
            continue  # a right operand, which the MXU transposes
        lost, least = _lost(subject, feeds, 2 if pushed else 1), MIN_WAIT
        if lost is not None:
            cycles, share = lost
            part = percent(share, 1)
            cost = f"the MXU waits for it for about {cycles:,.0f} cycles, {part} of the computation"
            evidence = derived("cycles in which the MXU waits for it", round(cycles), unit="cycles")
        else:
            share, least = subject.share(p for p in feeds if p.bundle not in products), MIN_SHARE
            cost = f"{percent(share, 1)} of the executed bundles use the transpose units"
            evidence = derived_share(
                "share of the executed bundles with such an instruction", share
            )
        if share < least:
            continue
        outside, saved = _outside(subject, operand.name), _saved(subject, share)
        if outside and saved and saved - outside < MIN_GAIN * (subject.cycles or 0):
            continue
        shape = "x".join(str(n) for n in operand.block_shape or operand.shape if n is not None)
        found[operand.name, source] = KIND.advice(
            source=source,
            operand=operand.name,
            message=(
                f"every grid step transposes {operand.name} ({shape} {operand.dtype}) right after "
                f"loading it: {cost}"
            ),
            remedy=(
                f"pass {operand.name} transposed: transpose the array once, outside the kernel, "
                "and swap the two dimensions of its BlockSpec" + _remark(outside, saved)
            ),
            evidence=(
                counted("instructions of this line that use a transpose unit", len(feeds)),
                evidence,
            ),
        )
    yield from found.values()
    yield from _products(subject, products)


def _outside(subject: AdviceSubject, operand: str) -> float | None:
    """Return the cycles of transposing an array outside the kernel; None if unknown."""
    blocks = subject.blocks.pipelined if subject.blocks is not None else ()
    size = sum((o.total or 0) * o.block_bytes for o in blocks if o.name == operand)
    if not size or not subject.bytes_per_cycle:
        return None
    return 2 * size / subject.bytes_per_cycle  # it is read and written


def _saved(subject: AdviceSubject, share: float) -> float | None:
    """Return the cycles of the whole kernel that are saved with a share of the computation.

    None if that is unknown, or if copies are to be ignored.
    """
    if subject.step is None or subject.ignores_copies:
        return None
    after = cycles_of_compute(subject, (1 - share) * subject.step.compute)
    return subject.cycles - after if subject.cycles and after else None


def _remark(outside: float | None, saved: float | None) -> str:
    """Return a remark on the cycles of transposing an array outside; empty if unknown."""
    if outside is None:
        return ""
    saving = f" and saves about {saved:,.0f}" if saved else ""
    return (
        f"; unless it is stored that way, this takes about {outside:,.0f} cycles per call{saving}"
    )


def _lost(
    subject: AdviceSubject, feeds: list[PlacedInstruction], starts: int
) -> tuple[float, float] | None:
    """Return the cycles that the MXU waits for transposes in each iteration, and their share.

    None if the loop does not use the MXU.

    Args:
      starts: number of MXU start-up waits to deduct.
    """
    loop, table = subject.loop_of(feeds), subject.schedule.table
    used = table.column(MXU) if table is not None else None
    if (
        loop is None
        or used is None
        or len(used) < loop.stop
        or not any(used[loop.start : loop.stop])
    ):
        return None
    delays = subject.schedule.delays
    inside = starting(subject.inside(loop), "vmat")
    last = max((p.bundle for p in inside), default=loop.stop)  # later ones transpose a result
    at = sorted({p.bundle for p in feeds if loop.start <= p.bundle <= last})
    idle = 0
    for one, other in itertools.pairwise(at):
        between = [1 + delays[n] for n in range(one, other)]
        if sum(between) <= IN_FLIGHT:
            idle += sum(c for n, c in enumerate(between, one) if not used[n])
    if not at:
        return None
    cycles = max(idle - starts * START.get(subject.schedule.chip or "", 32), 0)
    weights = subject.executions or [1.0] * len(delays)
    total = sum(map(operator.mul, weights, (1 + delay for delay in delays)))
    if subject.step is not None:
        total = max(subject.step.compute * subject.core_points, total)
    return cycles, cycles * weights[at[0]] / total


def _products(subject: AdviceSubject, busy: Collection[int]) -> Iterator[Advice]:
    """Yield advice on products that are transposed; swapping the operands would make it needless.

    Args:
      busy: bundles that use the MXU.
    """
    program = subject.program
    for operation in program.named("tpu.transpose", "vector.transpose"):
        source = program.source(operation)
        feeds = selected(subject.at(source), is_transpose)
        made = program.origin(operation.operands[0], operation.line, _ELEMENTWISE)
        if source is None or not feeds or made is None or made.name != "tpu.matmul":
            continue
        users = [user for user, _ in program.final_users(made, _ELEMENTWISE)]
        dimensions = _CONTRACTED.search(made.text)
        shape = made.shape
        if [u.line for u in users] != [operation.line] or dimensions is None or shape is None:
            continue  # both the product and its transpose are used
        share = subject.share(p for p in feeds if p.bundle not in busy)
        if share < MIN_SHARE or program.is_conditional(operation.line):
            continue
        sizes, line = "x".join(map(str, shape[0])), program.source(made)
        passed = (
            "; ideally with the right operand passed transposed and contracted over 1"
            if dimensions["right"] == "0"
            else ""
        )
        where = f", at line {line.line}" if line is not None and line != source else ""
        yield KIND.advice(
            source=source,
            message=(
                f"every grid step transposes the result of a product ({sizes} {shape[1]}): "
                f"{percent(share, 1)} of the executed bundles use the transpose units but not the "
                "MXU"
            ),
            remedy=(
                f"swap the operands of the product{where}, so that its result is transposed: "
                f"lax.dot_general(right, left, ((({dimensions['right']},), "
                f"({dimensions['left']},)), ((), ())), preferred_element_type=jnp.float32)" + passed
            ),
            evidence=(
                counted("instructions of this line that use a transpose unit", len(feeds)),
                derived_share(
                    "share of the executed bundles with such an instruction, and none for the MXU",
                    share,
                ),
            ),
        )


def _is_push_of_transposed(opcode: str) -> bool:
    return opcode.startswith("vmatpush") and ".xpose" in opcode


def _loaded(subject: AdviceSubject, operation: ProgramOperation) -> ProgramOperation | None:
    """Return the load of a transposed value, if it is unchanged except for its type."""
    program = subject.program
    transposed = operation.operands[:1]
    if operation.name == "tpu.matmul":
        found = _CONTRACTED.search(operation.text)
        if found is None or len(operation.operands) < 2:
            return None
        # Without a transpose, the left operand contracts its last dimension, the right its first.
        is_transposed = int(found["left"]) == 0, int(found["right"]) == 1
        transposed = tuple(o for o, t in zip(operation.operands, is_transposed, strict=False) if t)
    for operand in transposed:
        origin = program.origin(operand, operation.line, _CONVERSIONS)
        if origin is not None and origin.name in ("vector.load", "tpu.vector_load", "tpu.load"):
            return origin
    return None


KIND = AdviceKind(
    name="transpose",
    title="An operand or a product is transposed in every grid step",
    condition=(
        "A block of an input is transposed right after loading and not only stored, and the MXU "
        f"waits for it for at least {MIN_WAIT:.0%} of the computation; or, without a product, at "
        f"least {MIN_SHARE:.0%} of the executed bundles use the transpose units; and to transpose "
        f"the array outside would save at least {MIN_GAIN:.0%} of the estimated cycles, besides "
        "those that it takes. Or a product is transposed, and only its transpose is used."
    ),
    remedy="Transpose the array once, outside the kernel, or swap the operands of the product.",
    rule=advise_transpose,
)

"""Advice: an f32 input that is rounded to bf16 in the kernel, or an f32 output of bf16 values."""

from __future__ import annotations

from collections.abc import Container, Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, derived, derived_share
from pallas_debug.profile.advice.pipelines import copies, size_text
from pallas_debug.profile.advice.program import LOADS, STORES, MosaicProgram, ProgramOperation
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.blocks import OperandBlocks

MIN_GAIN = 0.15
"""Minimum share of a step's copy cycles saved by halving the operand's bytes."""

MIN_FETCHED = 4
"""Minimum fetches of an input for which converting it before each call pays off: the conversion
reads it once in f32, and writes and reads it in bf16."""

_ROUNDS = ("arith.truncf", "tpu.truncf")


def advise_wide_operand(subject: AdviceSubject) -> Iterator[Advice]:
    program, blocks, step = subject.program, subject.blocks, subject.step
    rate = subject.bytes_per_cycle
    if blocks is None or step is None or not rate:
        return
    if not subject.is_memory_bound or not subject.core_points:
        return
    yield from _outputs(subject, step.copies, step.compute)
    for operand in blocks.pipelined:
        if operand.kind != "input" or operand.bits != 32 or operand.name in subject.resident:
            continue
        loads = accesses_of(subject, operand, LOADS)
        if not loads or not all(_is_rounded(program, load) for load in loads):
            continue
        count = operand.visits.copies if operand.visits else copies(operand, blocks.grid)
        if operand.unknown is not None:
            count = blocks.points  # which the estimate assumes
        if not count or not operand.total:
            continue
        moved = count * operand.block_bytes
        saved = min(moved / 2 / rate / blocks.points, step.copies - step.compute)
        if saved < MIN_GAIN * step.copies:
            continue
        times = count / operand.total
        yield KIND.advice(
            operand=operand.name,
            source=program.source(loads[0]),
            message=(
                f"{operand.name} is fetched in f32, {size_text(moved)} in total"
                + (", if each step needs a different block" if operand.unknown is not None else "")
                + ", and rounded to bf16 when it is loaded; the kernel waits for its copies"
            ),
            remedy=(
                f"pass {operand.name} in bf16, with half the bytes: "
                + (
                    f"it is fetched {times:.0f} times, so converting it before the call pays off"
                    if times >= MIN_FETCHED
                    else "store it in bf16, which is possible for weights; converting it "
                    "before each call takes longer than this saves"
                )
            ),
            evidence=(
                derived(f"bytes fetched of {operand.name}", moved, unit="bytes"),
                derived("times that each block is fetched", round(times, 1)),
                derived("cycles of a step's copies", round(step.copies), unit="cycles"),
                derived("cycles of a step that are saved", round(saved), unit="cycles"),
                derived_share("share of the step", saved / step.total),
            ),
        )


def _outputs(subject: AdviceSubject, copies_take: float, computing: float) -> Iterator[Advice]:
    """Return advice on f32 outputs that only contain bf16 values."""
    program = subject.program
    blocks, rate = subject.blocks, subject.bytes_per_cycle
    assert blocks is not None
    assert rate
    for operand in blocks.pipelined:
        if operand.kind != "output" or operand.bits != 32 or operand.name in subject.resident:
            continue
        stores = accesses_of(subject, operand, STORES, ignored=LOADS)
        if not stores or not all(_is_widened(program, store) for store in stores):
            continue
        count = operand.visits.copies if operand.visits else copies(operand, blocks.grid)
        moved = (count or 0) * operand.block_bytes
        saved = min(moved / 2 / rate / blocks.points, copies_take - computing)
        if saved < MIN_GAIN * copies_take:
            continue
        yield KIND.advice(
            operand=operand.name,
            source=program.source(stores[0]),
            message=(
                f"{operand.name} is written in f32, {size_text(moved)} in total, although "
                "each value is converted from bf16; the kernel waits for its copies"
            ),
            remedy=(
                f"make {operand.name} a bf16 array, with half the bytes and no loss, and "
                "convert it where it is used"
            ),
            evidence=(
                derived(f"bytes written of {operand.name}", moved, unit="bytes"),
                derived("cycles of a step's copies", round(copies_take), unit="cycles"),
                derived("cycles of a step that are saved", round(saved), unit="cycles"),
                derived_share("share of the step", saved / max(copies_take, computing)),
            ),
        )


def accesses_of(
    subject: AdviceSubject,
    operand: OperandBlocks,
    wanted: Container[str],
    ignored: Container[str] = (),
    dtypes: Container[str] = ("float32",),
) -> list[ProgramOperation]:
    """Return the loads or stores of an operand; empty if it has other accesses, such as copies.

    Args:
      wanted: names of the operations to return.
      ignored: names of operations to ignore.
      dtypes: element types of operands to consider; there is nothing to return for others.
    """
    program = subject.program
    found = []
    for value in program.arguments:
        accessed = subject.operand(value)
        if accessed is None or accessed.name != operand.name or accessed.dtype not in dtypes:
            continue
        for operation in program.operations:
            if value not in operation.operands or operation.name in ignored:
                continue
            if operation.name not in wanted:
                return []
            found.append(operation)
    return found


def _is_widened(program: MosaicProgram, store: ProgramOperation) -> bool:
    """Return whether the stored value was converted from bf16."""
    vectors = [v for v in store.operands if program.producer(v, store.line)]
    for value in vectors:
        made = program.origin(value, store.line)
        if made is not None and made.name == "arith.extf":
            before = made.operand_shape
            return before is not None and before[1] == "bf16"
    return False


def _is_rounded(program: MosaicProgram, load: ProgramOperation) -> bool:
    users = program.final_users(load)
    return bool(users) and all(user.name in _ROUNDS and user.dtype == "bf16" for user, _ in users)


KIND = AdviceKind(
    name="wide-operand",
    title="An array in f32 that is used in bf16",
    condition=(
        "A kernel rounds everything that it loads from an f32 input to bf16 at once and waits for "
        f"its copies, and half of this input's bytes would save at least {MIN_GAIN:.0%} of their "
        "cycles. Or everything that it stores to an output was converted from bf16."
    ),
    remedy="Pass the array in bf16: store it that way, or convert it before it is fetched many "
    "times.",
    rule=advise_wide_operand,
)

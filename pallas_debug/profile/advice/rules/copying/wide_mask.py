"""Advice: a mask is fetched in 32 bits, although its values are only compared with a constant."""

from __future__ import annotations

from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, derived, derived_share
from pallas_debug.profile.advice.pipelines import copies, size_text
from pallas_debug.profile.advice.program import LOADS, MosaicProgram, ProgramOperation
from pallas_debug.profile.advice.rules.copying.wide_operand import accesses_of
from pallas_debug.profile.advice.subject import AdviceSubject

MIN_GAIN = 0.15
"""Minimum share of a step's cycles that the change must save."""

MIN_FETCHED = 2
"""Minimum fetches of an input for which comparing it before each call pays off: the comparison
reads four bytes of each value and writes one."""

TILE = 32
"""Rows of a tile of int8."""

_DTYPES = frozenset(("bool", "int32", "uint32", "float32"))
_COMPARES = frozenset(("arith.cmpi", "arith.cmpf"))


def advise_wide_mask(subject: AdviceSubject) -> Iterator[Advice]:
    program, blocks, step = subject.program, subject.blocks, subject.step
    rate = subject.bytes_per_cycle
    if blocks is None or step is None or not rate:
        return
    if not subject.is_memory_bound or not subject.core_points:
        return
    for operand in blocks.pipelined:
        if operand.kind != "input" or operand.bits != 32 or operand.name in subject.resident:
            continue
        loads = accesses_of(subject, operand, LOADS, dtypes=_DTYPES)
        if not loads or not all(_is_compared(program, load) for load in loads):
            continue
        count = operand.visits.copies if operand.visits else copies(operand, blocks.grid)
        if not count or not operand.total or operand.unknown is not None:
            continue
        moved, times = count * operand.block_bytes, count / operand.total
        fewer = 0.75 * moved / rate / blocks.points
        # To widen values of int8 takes hardly longer than to load four times as many registers.
        saved = step.total - max(step.copies - fewer, step.compute)
        if saved < MIN_GAIN * step.total:
            continue
        if operand.dtype == "bool":
            how = "XLA converts an array of bool to int32 before each call"
        elif times >= MIN_FETCHED:
            how = f"it is fetched {times:.0f} times, so comparing it before the call pays off"
        else:
            how = "store it in int8; comparing it before each call takes longer than this saves"
        yield KIND.advice(
            operand=operand.name,
            source=program.source(loads[0]),
            message=(
                f"{operand.name} is fetched with 32 bits for each value, {size_text(moved)} in "
                "total, although it is only compared with a constant; the kernel waits for its "
                "copies"
            ),
            remedy=(
                "pass the result of the comparison in int8, with a quarter of the bytes, and test "
                f"for {operand.name}[...].astype(jnp.int32) != 0: {how}"
            ),
            evidence=(
                derived(f"bytes fetched of {operand.name}", moved, unit="bytes"),
                derived("times that each block is fetched", round(times, 1)),
                derived("cycles of a step's copies", round(step.copies), unit="cycles"),
                derived("cycles of a step that are saved", round(saved), unit="cycles"),
                derived_share("share of the step", saved / step.total),
            ),
        )


def _is_compared(program: MosaicProgram, load: ProgramOperation) -> bool:
    """Return whether a loaded value is used only in comparisons with constants.

    Single rows do not count: they would be parts of a tile.
    """
    users, shape = program.final_users(load), load.shape
    if shape is None or len(shape[0]) < 2 or shape[0][-2] % TILE:
        return False
    return bool(users) and all(
        user.name in _COMPARES
        and any(
            made is not None and made.name == "arith.constant"
            for made in (program.origin(o, user.line) for o in user.operands)
        )
        for user, _ in users
    )


KIND = AdviceKind(
    name="wide-mask",
    title="A mask in 32 bits",
    condition=(
        f"A kernel loads an input of 32 bits in whole tiles of {TILE} rows, only compares it with "
        "constants, and waits for its copies; a quarter of its bytes would save at least "
        f"{MIN_GAIN:.0%} of a step's cycles."
    ),
    remedy="Compare before the call, and pass the result in int8.",
    rule=advise_wide_mask,
)

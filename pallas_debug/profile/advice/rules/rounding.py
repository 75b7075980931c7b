"""Advice: values are rounded to bf16 and converted back to f32 between operations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived
from pallas_debug.profile.advice.compaction import MIN_BUNDLES, MIN_LESS, MIN_USE, bundles_less
from pallas_debug.profile.advice.program import MosaicProgram, ProgramOperation
from pallas_debug.profile.advice.subject import AdviceSubject, selected
from pallas_debug.profile.units import VALU

_PACK, _UNPACK = "vpack.c.", "vunpack.c."
"""Opcode prefixes; `vpack.c.bf16` of libtpu 0.0.42 is `vpack.c.f32.bf16` in 0.0.50."""

_ARITHMETIC = frozenset(
    (
        *("arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.maximumf"),
        *("arith.minimumf", "math.exp", "math.exp2", "math.log", "math.tanh", "math.rsqrt"),
    )
)


@dataclass(kw_only=True)
class _Line:
    """Conversions on a line: all, and those of values that are converted back immediately."""

    packs: int = 0
    needless_packs: int = 0
    unpacks: int = 0
    needless_unpacks: int = 0


def advise_rounding(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    lines: dict[SourceLine, _Line] = defaultdict(_Line)
    explicit = _count_conversions(program, lines)
    _count_arithmetic(program, lines)
    for loop in subject.schedule.loops:
        saved: dict[SourceLine, int] = {}
        for source, line in lines.items():
            inside = [p for p in subject.at(source) if subject.schedule.loop_at(p.bundle) is loop]
            packs, unpacks = (
                sum(_converts(p.opcode, kind) for p in inside) for kind in (_PACK, _UNPACK)
            )
            saved[source] = _part(packs, line.needless_packs, line.packs) + _part(
                unpacks, line.needless_unpacks, line.unpacks
            )
        needless = sum(saved.values())
        limits = bundles_less(subject, loop, {VALU: needless}) if needless else None
        inside = subject.inside(loop)
        if limits is None or subject.share(inside) < MIN_BUNDLES:
            continue
        now, without = limits
        source = max(saved, key=lambda line: saved[line])
        yield KIND.advice(
            source=source,
            message=(
                "values are rounded to bf16 and converted back to f32 before they are used: "
                f"{needless} conversions in a loop of {loop.size} bundles; without them, its "
                f"busiest slot needs {without} bundles instead of {now}"
            ),
            remedy=_remedy(is_explicit=source in explicit),
            evidence=(
                counted(
                    "conversions in the loop",
                    len(selected(inside, lambda name: _converts(name, (_PACK, _UNPACK)))),
                ),
                derived("of them, those of values that are converted back", needless),
                counted("bundles of the loop", loop.size),
                derived("bundles that the busiest slot needs", now),
                derived("the same without these conversions", without),
            ),
        )


def _converts(opcode: str, kind: str | tuple[str, ...]) -> bool:
    return opcode.startswith(kind) and "bf16" in opcode


def _remedy(*, is_explicit: bool) -> str:
    if is_explicit:
        return (
            "unless the rounding is intended, remove the conversion to bf16, and keep the value "
            "in f32 until it is stored or multiplied"
        )
    return (
        "convert operands to f32 once, after loading, and results to bf16 once, before storing: "
        "this chip computes in f32 in between anyway, and fewer bits are lost"
    )


def _part(instructions: int, needless: int, total: int) -> int:
    return math.floor(instructions * needless / total) if total else 0


def _count_conversions(
    program: MosaicProgram, lines: dict[SourceLine, _Line]
) -> frozenset[SourceLine]:
    """Count the program's own conversions; return the lines that round values needlessly."""
    found = set()
    for operation, source in _on_vectors(program, "arith.extf"):
        lines[source].unpacks += 1
        maker = program.origin(operation.operands[0], operation.line)
        if maker is not None and maker.name == "arith.truncf":
            lines[source].needless_unpacks += 1
            found.add(source)
    for operation, source in _on_vectors(program, "arith.truncf"):
        lines[source].packs += 1
        users = program.final_users(operation)
        if users and all(user.name == "arith.extf" for user, _ in users):
            lines[source].needless_packs += 1
            found.add(source)
    return frozenset(found)


def _count_arithmetic(program: MosaicProgram, lines: dict[SourceLine, _Line]) -> None:
    """Count conversions that the compiler inserts around bf16 arithmetic, where it does so."""
    for operation, source in _on_vectors(program, *_ARITHMETIC):
        if operation.dtype != "bf16":
            continue
        for operand in operation.operands:
            maker = program.origin(operand, operation.line)
            if maker is None or maker.name == "arith.constant":
                continue
            lines[source].unpacks += 1
            if maker.name in _ARITHMETIC:
                lines[source].needless_unpacks += 1
        lines[source].packs += 1
        users = program.final_users(operation)
        if users and all(user.name in _ARITHMETIC for user, _ in users):
            lines[source].needless_packs += 1


def _on_vectors(
    program: MosaicProgram, *names: str
) -> Iterator[tuple[ProgramOperation, SourceLine]]:
    for operation in program.named(*names):
        source = program.source(operation)
        if source is not None and operation.operands and "vector<" in operation.text:
            yield operation, source


KIND = AdviceKind(
    name="rounding",
    title="Values rounded to bf16 between operations",
    condition=(
        "Values are converted to bf16 and back, by the program or because the chip has no "
        f"arithmetic in bf16; the busiest issue slot of the loop needs at least {MIN_USE:.0%} of "
        f"its bundles, and at least {MIN_LESS:.0%} fewer without these conversions."
    ),
    remedy="Convert to f32 once, after loads, and to bf16 once, before stores.",
    rule=advise_rounding,
)

"""Advice: an expression takes more instructions than an equivalent one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived, derived_share
from pallas_debug.profile.advice.compaction import MIN_BUNDLES, MIN_LESS, MIN_USE, bundles_less
from pallas_debug.profile.advice.program import MosaicProgram, ProgramOperation
from pallas_debug.profile.advice.subject import AdviceSubject, PlacedInstruction
from pallas_debug.profile.units import VALU

OF_ROOTS = 6
"""VALU instructions saved per register by multiplying by a reciprocal square root instead of
dividing by a square root: 7 with v6e, 16 with v5e."""

OF_POWERS = 5
"""VALU instructions saved per register by a square root instead of such a power, which handles
special cases: 5.6 to 6.9 with v5e and v6e."""

OF_SIGMOIDS = 12
"""VALU instructions saved per register by `0.5 + 0.5 * jnp.tanh(0.5 * x)` instead of
`1 / (1 + jnp.exp(-x))`, where reciprocals are refined: 13 with v5e. On v6e they are not refined,
and 1 is saved."""

_REFINED = "vweird"
"""Instruction that detects the special cases of a refined reciprocal."""

MAX_USERS = 16
"""Maximum operations to visit to find a line for an operation that has none."""

_SPLAT = re.compile(
    r"arith\.constant (?:dense<)?(?P<value>-?\d[\d.]{0,12}(?:[eE][+-]?\d{1,3})?)[> ]"
)
_OPERATIONS = ("arith.divf", "math.powf")
_ROOTS = {0.5: "jnp.sqrt(x)", -0.5: "lax.rsqrt(x)", 1.5: "x * jnp.sqrt(x)"}
"""Cheaper expressions for a power, by exponent; two consecutive roots would not be cheaper."""


@dataclass(frozen=True, kw_only=True)
class _Costly:
    """Expression for which there is a cheaper equivalent.

    Attributes:
      chain: line of the expression, and those of the calls that lead to it.
      opcodes: instructions that occur once for each register.
      saved: VALU instructions that are saved for each register.
      needs: instruction whose absence means that nothing is saved; empty if there is none.
    """

    chain: tuple[SourceLine, ...]
    opcodes: tuple[str, ...]
    saved: int
    what: str
    remedy: str
    needs: str = ""


def advise_arithmetic(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    found = {}
    candidates = (_costly(program, operation) for operation in program.named(*_OPERATIONS))
    for costly in dict.fromkeys(c for c in candidates if c is not None):
        # The compiler may attribute instructions to the line of a helper or of its call.
        lines = [subject.at(source) for source in costly.chain]
        opcode = costly.opcodes[0]
        placed = next((line for line in lines if _count(line, opcode)), [])
        loop = subject.loop_of([p for p in placed if p.opcode.startswith(opcode)])
        if loop is None:
            continue
        line = [p for p in placed if p.bundle in loop]
        if costly.needs and not _count(line, costly.needs):
            continue
        registers = min(_count(line, name) for name in costly.opcodes)
        less = {VALU: costly.saved * registers, "EUP": (len(costly.opcodes) - 1) * registers}
        limits = bundles_less(subject, loop, less)
        share = subject.share(subject.inside(loop))
        if limits is None or share < MIN_BUNDLES:
            continue
        now, without = limits
        found[costly.chain[0]] = KIND.advice(
            source=costly.chain[0],
            message=(
                f"{costly.what}, for {registers} registers in a loop of {loop.size} bundles, whose "
                f"busiest slot needs {now} of them, but at most {without} without it"
            ),
            remedy=costly.remedy,
            evidence=(
                counted("registers of the expression in the loop", registers),
                counted("bundles of the loop", loop.size),
                derived("bundles that the busiest slot needs", now),
                derived("the same with the other expression, at most", without),
                derived_share("share of the executed bundles", share),
            ),
        )
    yield from found.values()


def _count(instructions: list[PlacedInstruction], opcode: str) -> int:
    return sum(placed.opcode.startswith(opcode) for placed in instructions)


def _costly(program: MosaicProgram, operation: ProgramOperation) -> _Costly | None:
    chain = _chain(program, operation)
    if not chain or len(operation.operands) < 2 or "vector<" not in operation.text:
        return None
    other = program.origin(operation.operands[1], operation.line)
    if other is None:
        return None
    if operation.name == "arith.divf" and other.name == "math.sqrt":
        return _Costly(
            chain=chain,
            opcodes=("vrsqrt", "vrcp"),
            saved=OF_ROOTS,
            what="a division by a square root, which computes a root and a reciprocal",
            remedy=(
                "multiply by lax.rsqrt(…) instead of dividing by jnp.sqrt(…); the last bit may be "
                "rounded differently"
            ),
        )
    if operation.name == "arith.divf" and _is_one_and_exponential(program, other):
        return _Costly(
            chain=chain,
            opcodes=("vrcp",),
            saved=OF_SIGMOIDS,
            what="a sigmoid computed by an exponential and a division, which refines a reciprocal",
            remedy=(
                "compute 1 / (1 + jnp.exp(-x)) as 0.5 + 0.5 * jnp.tanh(0.5 * x); it may differ by "
                "1e-7, so smaller results lose their relative precision"
            ),
            needs=_REFINED,
        )
    splat = _SPLAT.search(other.text) if operation.name == "math.powf" else None
    exponent = float(splat["value"]) if splat is not None else None
    if exponent is None or exponent not in _ROOTS:
        return None
    return _Costly(
        chain=chain,
        opcodes=("vrsqrt",),
        saved=OF_POWERS,
        what=f"a power with exponent {exponent:g}, which handles special cases",
        remedy=f"compute {_ROOTS[exponent]}, which is equal except for rounding unless x is "
        "negative",
    )


def _chain(program: MosaicProgram, operation: ProgramOperation) -> tuple[SourceLine, ...]:
    """Return the lines of an operation, or of its users if it has none, as in jax's functions."""
    waiting = [operation]
    for _ in range(MAX_USERS):
        if not waiting:
            break
        current = waiting.pop(0)
        chain = program.module.source(current.line)
        if chain:
            return chain
        waiting += program.users(current)
    return ()


def _is_one_and_exponential(program: MosaicProgram, operation: ProgramOperation) -> bool:
    """Return whether an operation adds 1 to an exponential."""
    if operation.name != "arith.addf":
        return False
    made = [program.origin(value, operation.line) for value in operation.operands]
    names = {one.name for one in made if one is not None}
    ones = [_SPLAT.search(one.text) for one in made if one is not None]
    return names == {"math.exp", "arith.constant"} and any(
        one is not None and float(one["value"]) == 1.0 for one in ones
    )


KIND = AdviceKind(
    name="arithmetic",
    title="An expression with a cheaper equivalent",
    condition=(
        "A division by a square root, a power with exponent 0.5, -0.5 or 1.5, or a sigmoid "
        "computed by an exponential and a division, on chips that refine reciprocals; the busiest "
        f"issue slot of its loop needs at least {MIN_USE:.0%} of the loop's bundles, and at least "
        f"{MIN_LESS:.0%} fewer with the cheaper expression."
    ),
    remedy="Multiply by `lax.rsqrt`; compute roots with `jnp.sqrt` or `lax.rsqrt`, and a sigmoid "
    "with `jnp.tanh`.",
    rule=advise_arithmetic,
)

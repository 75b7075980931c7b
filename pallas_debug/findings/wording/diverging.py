"""Wording of the first divergence between two runs, of one kernel or of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pallas_debug.findings.faults import Fault, Judge
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording.facts import Point, loop, where
from pallas_debug.model import Finding, SourceLine

DivergenceKind = Literal["values", "stores", "places", "blocks", "operands"]
"""Kind of difference: a stored value, whether there is a store, where it stores to, the block that
an operand has at a grid point, or an operand before the kernel runs."""


@dataclass(frozen=True, kw_only=True)
class DivergingRun:
    """One of two runs at the point where they diverge.

    Attributes:
      line: line of the store; None if there is none.
      iterations: iterations of the enclosing loops.
      what: value, elements or block; empty if the run does not store.
      count: number of stores to the operand at this grid point, if the runs differ in it.
    """

    line: SourceLine | None = None
    iterations: Point = ()
    what: str = ""
    count: int = 0


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first difference between the runs of two kernels.

    Attributes:
      kernel: name of our kernel.
      digest: digest of our kernel.
      reference: name of the function that calls the other kernel.
      operand: operand's name in our kernel.
      element: element of the operand: `m_ref[3, 0]`.
      point: grid point; None if the operands differ before the kernel runs.
      call: number of the kernel's call, from 1; 0 if there is only one.
    """

    kind: DivergenceKind
    kernel: str
    digest: str
    reference: str
    operand: str
    element: str
    point: Point | None
    ours: DivergingRun
    theirs: DivergingRun
    call: int = 0


def sentence(found: Divergence) -> str:
    """Line of a message: where the runs diverge, with both sides."""
    ours, theirs = found.ours, found.theirs
    by = f"`{found.reference}`"
    if found.kind == "operands":
        call = f"call {found.call}" if found.call else "the kernel"
        return (
            f"the operands of {call} differ before it runs: {found.element} is {ours.what}, but "
            f"{theirs.what} for {by}"
        )
    start = f"the kernels first diverge{_at(found)}: "
    if found.kind == "blocks":
        block = f"{found.operand} has block {ours.what}"
        return f"{start}{block}, but block {theirs.what} in the kernel of {by}"
    if found.kind == "stores":
        has = ours if ours.what else theirs
        whose, other = ("", f"the kernel of {by}") if has is ours else (f" of {by}", "this one")
        return (
            f"{start}{where(has.line)}{whose} stores to {found.operand}{loop(has.iterations)}, "
            f"but {other} does not: they store to it {ours.count:,} and {theirs.count:,} times at "
            "this grid point"
        )
    verb = "is" if found.kind == "values" else "stores to"
    here, there = where(ours.line), where(theirs.line, ours.line)
    if found.kind == "places":
        return f"{start}{here} {verb} {ours.what}, but {there} of {by} to {theirs.what}"
    if ours.line == theirs.line and ours.iterations == theirs.iterations:
        return f"{start}{here} stores {ours.what} to {found.element}, but {theirs.what} in {by}"
    other_loop = loop(theirs.iterations) if theirs.iterations != ours.iterations else ""
    return (
        f"{start}{found.element} {verb} {ours.what} at {here}, but {theirs.what} at "
        f"{there}{other_loop} of {by}"
    )


def _at(found: Divergence) -> str:
    call = f" in call {found.call}" if found.call else ""
    point = f" at grid point {found.point}" if found.point else ""
    return f"{call}{point}{loop(found.ours.iterations or found.theirs.iterations)}"


def cause(found: Divergence) -> tuple[str, str]:
    """Return cause and advice."""
    here, by = where(found.ours.line), f"`{found.reference}`"
    if found.kind == "operands":
        return (
            "the computation before the kernel differs",
            "compare the operands of this call in both functions",
        )
    if found.kind == "blocks":
        return "the index maps differ", f"compare the index maps of {found.operand}"
    if found.kind == "places":
        return "an index differs", "compare both indices and the values they are computed from"
    if found.kind == "stores":
        return (
            "a condition or the number of iterations differs between the kernels",
            "compare the pl.when conditions and the loops around that line in both kernels",
        )
    there = where(found.theirs.line, found.ours.line)
    if found.ours.line == found.theirs.line:
        return (
            f"{here} does not compute the same as in {by}",
            "compare the values that the line loads in both kernels, and the kernels' parameters "
            "and dtypes",
        )
    return (
        f"{here} does not compute the same as {there} of {by}",
        "compare these lines and the values they load",
    )


AGREE = (
    "no store in either kernel differs by more than the tolerance: look at the code around the "
    "kernels"
)

AROUND = (
    "the stores of the kernels agree, so the code around them differs",
    "compare what both functions do with the results of their kernels",
)

AGREE_AS_FAR = "no compared store differs by more than the tolerance"


def not_compared(clauses: Sequence[str]) -> str:
    """Line of a message: stores that are not compared."""
    return f"not compared: {'; '.join(clauses)}"


def not_known(reason: str) -> str:
    """Line of a message: why the runs could not be compared."""
    return f"where the kernels first diverge is unknown: {reason}"


_RUNS = {"checks": "with checks", "machine": "on the kernel machine", "tpu interpret": "for races"}


def engines_disagree(
    seen: Sighting, *, engines: Sequence[Judge], element: str, values: Sequence[object]
) -> Finding:
    """Report two runs of a function with different results.

    Args:
      engines: engines that ran it.
      element: an element that differs.
      values: value of that element in each run.
    """
    (one, other), (first, second) = (_RUNS[engine] for engine in engines), values
    return seen.with_values({"element": element, one: str(first), other: str(second)}).found(
        Fault.ENGINES_DISAGREE,
        f"the interpreted runs {one} and {other} give different results: {element} is {first} in "
        f"one and {second} in the other",
        "the kernel depends on something that no engine guarantees: the order of its grid "
        "points, what a buffer holds before it is written, or when a copy arrives",
        "look for outputs that are read, or revisited after another block, and for copies without "
        "a wait",
    )

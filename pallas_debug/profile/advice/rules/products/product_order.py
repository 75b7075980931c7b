"""Advice: a product of three matrices that would take fewer operations in the other order."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.profile.advice.advice import Advice, AdviceKind, derived, derived_share
from pallas_debug.profile.advice.program import PASSED_ON, MosaicProgram, ProgramOperation, shape_of
from pallas_debug.profile.advice.steady import cycles_of_compute
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.advice.tiles import LANES

MIN_GAIN = 0.25
"""Minimum share of the estimated cycles that the other order must save."""

MAX_RATIO = 0.5
"""Maximum number of operations in the other order, relative to the present one."""

LEAST = 0.3
"""Minimum time of the products in the other order, relative to the present one: results have to be
taken from the MXU and stored.

Compiled kernels with an eighth to a sixth of the operations: 0.18 to 0.25 on v5e, 0.39 on v6e.
"""

_CHANGED = frozenset(("arith.truncf", "arith.extf"))
_CONTRACTED = re.compile(
    r"dot_dimension_numbers<\[(?P<left>\d+)\], \[(?P<right>\d+)\], \[\d+\], \[\d+\], \[[\d, ]*\], "
    r"\[\], \[\]>"
)
_ZERO = re.compile(r"arith\.constant dense<0\.0+e\+00>")
_VECTOR = re.compile(r"vector<[^>]*>")


@dataclass(frozen=True, kw_only=True)
class _Matrices:
    """Shapes of a product, each as rows and columns, and the dimensions that it contracts."""

    left: tuple[int, int]
    right: tuple[int, int]
    contracted: tuple[int, int]

    @property
    def summed(self) -> int:
        return self.left[self.contracted[0]]

    @property
    def kept(self) -> tuple[int, int]:
        return self.left[1 - self.contracted[0]], self.right[1 - self.contracted[1]]


def advise_product_order(subject: AdviceSubject) -> Iterator[Advice]:
    program, step = subject.program, subject.step
    if step is None or not subject.cycles or subject.is_memory_bound:
        return
    for outer in program.named("tpu.matmul"):
        for place in (0, 1):
            inner = _inner(program, outer, place)
            advice = _advice(subject, inner, outer, place) if inner is not None else None
            if advice is not None:
                yield advice


def _inner(program: MosaicProgram, outer: ProgramOperation, place: int) -> ProgramOperation | None:
    """Return the product that is only a factor of another; None if there is none."""
    inner = program.origin(outer.operands[place], outer.line, PASSED_ON | _CHANGED)
    if inner is None or inner.name != "tpu.matmul" or len(inner.operands) < 3:
        return None
    users = [user for user, _ in program.final_users(inner, PASSED_ON | _CHANGED)]
    added = program.producer(inner.operands[2], inner.line)
    if users != [outer] or added is None or not _ZERO.search(added.text):
        return None
    if program.loops_around(inner.line) != program.loops_around(outer.line):
        return None
    if program.operations_around(inner.line) != program.operations_around(outer.line):
        return None
    return inner


def _advice(
    subject: AdviceSubject, inner: ProgramOperation, outer: ProgramOperation, place: int
) -> Advice | None:
    program = subject.program
    first, second = _matrices(inner), _matrices(outer)
    if first is None or second is None or not subject.cycles or subject.step is None:
        return None
    # The product of `first` has a dimension that `second` contracts, and one that it keeps.
    contracted, kept = second.summed, second.kept[place]
    if sorted(first.kept) != sorted((contracted, kept)):
        return None
    summed, other = _padded(first.summed), _padded(second.kept[1 - place])
    now = _padded(first.kept[0]) * _padded(first.kept[1]) * (summed + other)
    then = other * summed * (_padded(contracted) + _padded(kept))
    share = subject.share(
        p for operation in (inner, outer) for p in subject.at(program.source(operation))
    )
    ratio = then / now
    compute = subject.step.compute * (1 - share + share * max(ratio, LEAST))
    cycles = cycles_of_compute(subject, compute)
    if ratio > MAX_RATIO or cycles is None or cycles > (1 - MIN_GAIN) * subject.cycles:
        return None
    sizes = " by ".join(map(str, first.kept))
    example = (
        "compute x @ (a @ b) as (x @ a) @ b" if place else "compute (a @ b) @ x as a @ (b @ x)"
    )
    return KIND.advice(
        source=program.source(inner),
        message=(
            f"this product is a matrix of {sizes} that is only multiplied by another: both take "
            f"{now / 1e6:,.0f} million multiplications, and {then / 1e6:,.0f} in the other order"
        ),
        remedy=(
            f"multiply in the other order: {example}: about {cycles:,.0f} of "
            f"{subject.cycles:,.0f} cycles; results are rounded differently"
        ),
        evidence=(
            derived("multiplications of both products", now, "sizes rounded up to 128"),
            derived("multiplications in the other order", then, "sizes rounded up to 128"),
            derived_share("share of the executed bundles", share),
            derived("estimated cycles", round(subject.cycles), unit="cycles"),
            derived("estimated cycles in the other order", round(cycles), unit="cycles"),
        ),
    )


def _matrices(product: ProgramOperation) -> _Matrices | None:
    contracted = _CONTRACTED.search(product.text)
    shapes = [shape_of(text) for text in _VECTOR.findall(product.text)[:2]]
    if contracted is None or any(shape is None or len(shape[0]) != 2 for shape in shapes):
        return None
    (left, _), (right, _) = (shape for shape in shapes if shape is not None)
    return _Matrices(
        left=(left[0], left[1]),
        right=(right[0], right[1]),
        contracted=(int(contracted["left"]), int(contracted["right"])),
    )


def _padded(size: int) -> int:
    return math.ceil(size / LANES) * LANES


KIND = AdviceKind(
    name="product-order",
    title="Three matrices that are multiplied in the slower order",
    condition=(
        "A product is only a factor of another one, without arithmetic in between, the other order "
        f"takes at most {MAX_RATIO:.0%} of the multiplications, and saves at least {MIN_GAIN:.0%} "
        "of the estimated cycles."
    ),
    remedy="Compute x @ (a @ b) as (x @ a) @ b, where the inner size is small.",
    rule=advise_product_order,
)

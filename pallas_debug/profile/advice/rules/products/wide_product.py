"""Advice: a matrix product is computed in a wider type than that of its operands."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived, derived_share
from pallas_debug.profile.advice.program import PASSED_ON, ProgramOperation
from pallas_debug.profile.advice.subject import AdviceSubject, starting
from pallas_debug.profile.peaks import peaks_of

_MOVED = PASSED_ON | {"tpu.transpose", "vector.transpose"}
_PASSES = re.compile(r"#tpu\.contract_precision<(?P<name>\w+)>")
_PRODUCTS = ("vmatmul", "vmatprep", "vmatpush")
_SEVERAL_PASSES = ("fp32",)

MIN_SHARE = 0.15
"""Minimum share of the executed bundles spent on a product of int8 values in floats."""


def advise_wide_product(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    yield from _of_integers(subject)
    for operation in program.named("tpu.matmul"):
        narrow = [_narrow(subject, operation, operand) for operand in operation.operands[:2]]
        precision = _PASSES.search(operation.text)
        if not any(narrow) or precision is None or precision["name"] not in _SEVERAL_PASSES:
            continue  # at default precision, the product is as fast in f32 as in bf16
        source = program.source(operation)
        products = starting(subject.at(source), *_PRODUCTS)
        if not products:
            continue
        dtype = narrow[0] or narrow[1]
        if all(narrow):
            what = f"of two operands that were {dtype}"
            why = f"where the product of {dtype} values is exact in f32"
            remedy = (
                "multiply the operands as they are, without astype and precision, and request f32 "
                "sums with preferred_element_type=jnp.float32"
            )
        else:
            side = "left" if narrow[0] else "right"
            what = f"although its {side} operand was {dtype}"
            why = "for several passes over the operands"
            remedy = (
                f"keep the {side} operand as it is; if {dtype} is precise enough for the other "
                f"one, as for probabilities, convert that one to {dtype}; remove precision, and "
                "request f32 sums with preferred_element_type=jnp.float32"
            )
        yield KIND.advice(
            source=source,
            message=(
                f"a matrix product in f32 with precision {precision['name']} {what}: "
                f"{len(products)} instructions for the MXU, {why}"
            ),
            remedy=remedy,
            evidence=(
                counted("MXU instructions of this line", len(products)),
                derived("operands that were converted to f32", sum(map(bool, narrow))),
                derived_share("share of the executed bundles", subject.share(subject.at(source))),
            ),
        )


def _of_integers(subject: AdviceSubject) -> Iterator[Advice]:
    """Yield advice on products of int8 values converted to floats, if the MXU supports int8."""
    program = subject.program
    peaks = peaks_of(subject.schedule.chip)
    if peaks is None or "i8" not in peaks.flops:
        return
    for operation in program.named("tpu.matmul"):
        made = [program.origin(o, operation.line, _MOVED) for o in operation.operands[:2]]
        types = [
            shape[1]
            for m in made
            if m is not None and m.name in ("arith.sitofp", "tpu.sitofp")
            if (shape := m.operand_shape) is not None
        ]
        source = program.source(operation)
        products = starting(subject.at(source), *_PRODUCTS)
        lines = {program.source(m) for m in made if m is not None} | {source}
        share = subject.share(p for line in lines for p in subject.at(line))
        if types != ["i8", "i8"] or not products or share < MIN_SHARE:
            continue
        yield KIND.advice(
            source=source,
            message=(
                f"a floating-point matrix product of two operands that were int8: {len(products)} "
                "instructions for the MXU, plus the conversions; the MXU multiplies int8 "
                "directly, at twice the rate of bf16, and sums exactly in int32"
            ),
            remedy=(
                "multiply the operands as they are, with preferred_element_type=jnp.int32, and "
                "convert the sums"
            ),
            evidence=(
                counted("MXU instructions of this line", len(products)),
                derived("operands that were converted from int8", 2),
                derived_share("share of the executed bundles, with the conversions", share),
            ),
        )


def _narrow(subject: AdviceSubject, operation: ProgramOperation, operand: str) -> str | None:
    """Return the type from which an operand was converted to f32; None if it was not."""
    program = subject.program
    origin = program.origin(operand, operation.line, _MOVED)
    if origin is None or origin.name != "arith.extf":
        return None
    before = origin.operand_shape
    return before[1] if before is not None and before[1] == "bf16" else None


KIND = AdviceKind(
    name="wide-product",
    title="A product in a wider type than its operands",
    condition=(
        "A matrix product in f32 with `precision=HIGHEST`, one of whose operands was converted "
        "from bf16; without a precision, a product in f32 takes no longer. Or a floating-point "
        "product of operands that were int8, on a chip whose matrix unit multiplies int8, if it "
        f"takes at least {MIN_SHARE:.0%} of the executed bundles."
    ),
    remedy=(
        "Multiply in bf16 with `preferred_element_type=jnp.float32`: products of bf16 values are "
        "exact; in int8 with `preferred_element_type=jnp.int32`."
    ),
    rule=advise_wide_product,
)

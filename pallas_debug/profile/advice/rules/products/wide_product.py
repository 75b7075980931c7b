"""Advice: a matrix product in several passes, of operands that were bf16."""

from __future__ import annotations

import re

from pallas_debug.profile.advice.advice import (
    Advice,
    AdviceKind,
    counted,
    derived,
    derived_share,
)
from pallas_debug.profile.advice.program import PASSED_ON, ProgramOperation, shape_of
from pallas_debug.profile.advice.subject import AdviceSubject, selected

_MOVED = PASSED_ON | {"tpu.transpose", "vector.transpose"}
_PASSES = re.compile(r"#tpu\.contract_precision<(?P<name>\w+)>")
_PRODUCTS = ("vmatmul", "vmatprep", "vmatpush")
_SEVERAL_PASSES = ("fp32",)


def advise_wide_product(subject: AdviceSubject) -> tuple[Advice, ...]:
    program = subject.program
    if program is None or subject.is_memory_bound:
        return ()
    found = []
    for operation in program.named("tpu.matmul"):
        narrow = [_narrow(subject, operation, operand) for operand in operation.operands[:2]]
        precision = _PASSES.search(operation.text)
        if not any(narrow) or precision is None or precision["name"] not in _SEVERAL_PASSES:
            continue  # without a precision, the product takes no longer in f32 than in bf16
        source = program.source(operation)
        products = selected(subject.at(source), lambda name: name.startswith(_PRODUCTS))
        if not products:
            continue
        dtype = narrow[0] or narrow[1]
        if all(narrow):
            what = f"of two operands that were {dtype}"
            why = f"where the product of {dtype} values is exact in f32"
            remedy = (
                "multiply the operands as they are, without astype and precision, and ask for f32 "
                "sums with preferred_element_type=jnp.float32"
            )
        else:
            side = "left" if narrow[0] else "right"
            what = f"although its {side} operand was {dtype}"
            why = "for several passes over the operands"
            remedy = (
                f"leave the {side} operand as it is, and if {dtype} is precise enough for the "
                "other one, as it is for probabilities, convert that one to it; leave out "
                "precision, and ask for f32 sums with preferred_element_type=jnp.float32"
            )
        found.append(
            Advice(
                kind=KIND.name,
                source=source,
                message=(
                    f"a matrix product in f32 with precision {precision['name']} {what}: "
                    f"{len(products)} instructions for the MXU, {why}"
                ),
                remedy=remedy,
                evidence=(
                    counted("MXU instructions of this line", len(products)),
                    derived("operands that were converted to f32", sum(map(bool, narrow))),
                    derived_share(
                        "share of the executed bundles", subject.share(subject.at(source))
                    ),
                ),
            )
        )
    return tuple(found)


def _narrow(subject: AdviceSubject, operation: ProgramOperation, operand: str) -> str | None:
    """Type from which an operand was converted to f32; None if it was not."""
    program = subject.program
    assert program is not None
    origin = program.origin(operand, operation.line, _MOVED)
    if origin is None or origin.name != "arith.extf":
        return None
    before = shape_of(origin.text.partition(" to ")[0])
    return before[1] if before is not None and before[1] == "bf16" else None


KIND = AdviceKind(
    name="wide-product",
    title="A product in f32 of bf16 operands",
    condition=(
        "A matrix product in f32 with `precision=HIGHEST`, of which an operand was converted from "
        "bf16. Without a precision, a product in f32 takes no longer."
    ),
    remedy=(
        "Multiply in bf16 with `preferred_element_type=jnp.float32`: products of bf16 values are "
        "exact."
    ),
    rule=advise_wide_product,
)

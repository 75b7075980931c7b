"""Advice: a matrix product in f32 of operands that were bf16."""

from __future__ import annotations

import re

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived
from pallas_debug.profile.advice.program import PASSED_ON, ProgramOperation, shape_of
from pallas_debug.profile.advice.subject import AdviceSubject, selected

_MOVED = PASSED_ON | {"tpu.transpose", "vector.transpose"}
_PASSES = re.compile(r"#tpu\.contract_precision<(?P<name>\w+)>")
_PRODUCTS = ("vmatmul", "vmatprep", "vmatpush")


def advise_wide_product(subject: AdviceSubject) -> tuple[Advice, ...]:
    program = subject.program
    if program is None or subject.is_memory_bound:
        return ()
    found = []
    for operation in program.named("tpu.matmul"):
        narrow = [_narrow(subject, operation, operand) for operand in operation.operands[:2]]
        if None in narrow:
            continue
        source = program.source(operation)
        products = selected(subject.at(source), lambda name: name.startswith(_PRODUCTS))
        wide = [p for p in products if ".f32" in p.opcode]
        if not wide:
            continue  # the compiler multiplies in bf16 all the same
        precision = _PASSES.search(operation.text)
        stated = f" with precision {precision['name']}" if precision else ""
        found.append(
            Advice(
                kind=KIND.name,
                source=source,
                message=(
                    f"a matrix product in f32{stated} of two operands that were {narrow[0]}: "
                    f"{len(products)} instructions for the MXU, where the product of {narrow[0]} "
                    "values is exact in f32"
                ),
                remedy=(
                    "multiply the operands as they are, without astype and precision, and ask for "
                    "f32 sums with preferred_element_type=jnp.float32"
                ),
                evidence=(
                    counted("MXU instructions of this line", len(products)),
                    counted("of them, in f32", len(wide)),
                    derived("share of the executed bundles", subject.share(subject.at(source))),
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
        "Both operands of a matrix product were converted from bf16, and the compiler multiplies "
        "in f32."
    ),
    remedy="Multiply in bf16 with `preferred_element_type=jnp.float32`: the products are exact.",
    rule=advise_wide_product,
)

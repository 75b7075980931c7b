"""Advice: a product with few columns is reduced over them, in registers that are mostly empty."""

from __future__ import annotations

from collections.abc import Iterator

from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived, derived_share
from pallas_debug.profile.advice.moves import is_vector_instruction
from pallas_debug.profile.advice.rules.copying.narrow_block import MAX_REDUCED, Fill, uses_of
from pallas_debug.profile.advice.subject import AdviceSubject, selected
from pallas_debug.profile.advice.tiles import LANES, SUBLANES, registers_for

MIN_SHARE = 0.3
"""Minimum share of the executed bundles that work on the result and not on the product. Swapping
the operands saved 10 % of the cycles where this share was 20 %, and 47 % where it was 48 %: the
result takes the same time to leave the MXU in either case."""


def advise_narrow_product(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    for product in program.named("tpu.matmul"):
        shape, source = product.shape, program.source(product)
        if shape is None or len(shape[0]) != 2 or source is None:
            continue
        rows, columns = shape[0]
        fill = Fill(
            registers=registers_for((rows, columns)),
            full=-(-rows * columns // (SUBLANES * LANES)),
            lanes=min(columns, LANES),
            sublanes=min(rows, SUBLANES),
        )
        if columns < 2 or not fill.is_narrow_to_reduce:
            continue
        uses = uses_of(subject, [product], fill)
        if not uses.is_reduced or uses.is_turned or uses.is_spread:
            continue
        lines = dict.fromkeys(program.source(user) for user in uses.operations)
        busy = {placed.bundle for placed in subject.at(source)}
        working = [p for line in lines if line not in (None, source) for p in subject.at(line)]
        working = [p for p in selected(working, is_vector_instruction) if p.bundle not in busy]
        share = subject.share(working)
        if share < MIN_SHARE:
            continue
        yield KIND.advice(
            source=source,
            message=(
                f"the product of ({rows}, {columns}) fills {columns} of {LANES} lanes and is "
                f"reduced over them: it takes {fill.registers} vector registers instead of "
                f"{fill.full}, and {share:.0%} of the executed bundles work on it, not on the "
                "product itself".replace("%", " %")
            ),
            remedy=(
                "swap the operands of the product, so that its result is transposed: pass the "
                "right one transposed, and multiply with lax.dot_general(right, left, (((1,), "
                "(1,)), ((), ())), preferred_element_type=jnp.float32), for a result of "
                f"({columns}, {rows}); reduce it over axis 0, and store it that way"
            ),
            evidence=(
                derived("registers that the result takes", fill.registers),
                derived("full registers that would hold it", fill.full),
                counted("instructions on it in bundles without the product", len(working)),
                derived_share("share of the executed bundles with such an instruction", share),
            ),
        )


KIND = AdviceKind(
    name="narrow-product",
    title="A product with few columns that is reduced over them",
    condition=(
        f"A product has at most {MAX_REDUCED} columns, is reduced over them, and is neither "
        f"multiplied nor transposed; at least {MIN_SHARE:.0%} of the executed bundles work on its "
        "result, not on the product itself."
    ),
    remedy="Swap the operands of the product, and reduce its rows.",
    rule=advise_narrow_product,
)

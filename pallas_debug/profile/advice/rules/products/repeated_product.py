"""Advice: a step multiplies a few rows by the same matrix several times, such as head by head."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from pallas_debug.profile.advice.advice import Advice, AdviceKind, derived, derived_share
from pallas_debug.profile.advice.program import LOADS, PASSED_ON, MosaicProgram, ProgramOperation
from pallas_debug.profile.advice.rules.products.thin_steps import MIN_MATRIX, product_sizes
from pallas_debug.profile.advice.rules.row_loop import index_values, memory_of
from pallas_debug.profile.advice.steady import cycles_of_compute
from pallas_debug.profile.advice.subject import AdviceSubject
from pallas_debug.profile.advice.tiles import SUBLANES

MIN_GAIN = 0.25
"""Minimum share of the estimated cycles that the change must save."""

MIN_PRODUCTS = 4
"""Minimum number of products by the same matrix."""

LONGER = 1.6
"""Time of a product of all rows, relative to one of several products that overlap.

Compiled kernels on v5e and v6e: 1.4 to 1.6 for 4 to 16 heads of 1 to 4 rows, of which each attends
to 512 or 1,024 keys.
"""

MAX_TOGETHER = 16
"""Maximum rows that take as long as one."""

MAX_DEPTH = 12
"""Maximum operations between a load and a product."""

_ROUNDED = ("arith.truncf", "arith.extf", "vector.transpose", "tpu.transpose")


@dataclass(frozen=True, kw_only=True)
class _Repeated:
    """Products of few rows by the same matrix.

    Attributes:
      products: the products, in order.
      rows: rows of each.
      operand: name of the operand that the matrix is loaded from.
    """

    products: tuple[ProgramOperation, ...]
    rows: int
    operand: str


def advise_repeated_product(subject: AdviceSubject) -> Iterator[Advice]:
    program, step = subject.program, subject.step
    if step is None or not subject.cycles or subject.is_memory_bound:
        return
    found = _repeated(subject)
    if not found:
        return
    count = min(len(group.products) for group in found)
    rows = max(group.rows for group in found)
    together = min(count, MAX_TOGETHER // rows)
    share = _share_of_copies(subject, count)
    compute = step.compute * (1 - share + share * min(LONGER / together, 1.0))
    cycles = cycles_of_compute(subject, compute)
    if cycles is None or cycles > (1 - MIN_GAIN) * subject.cycles:
        return
    names = " and ".join(dict.fromkeys(group.operand for group in found))
    rows_text = "1 row" if rows == 1 else f"{rows} rows"
    yield KIND.advice(
        source=program.source(found[0].products[0]),
        operand=found[0].operand,
        message=(
            f"{count} products, each of {rows_text}, are by the same matrix of {names}, which "
            f"is loaded into the MXU for each of them; a vector register has {SUBLANES} rows"
        ),
        remedy=(
            f"multiply all {count * rows} rows at once, as one matrix, with all that follows "
            f"on all rows: about {cycles:,.0f} of {subject.cycles:,.0f} cycles"
        ),
        evidence=(
            derived("products by the same matrix", count),
            derived("rows of each", rows),
            derived_share("share of the executed bundles that repeat for each", share),
            derived("estimated cycles", round(subject.cycles), unit="cycles"),
            derived("estimated cycles with one product", round(cycles), unit="cycles"),
        ),
    )


def _repeated(subject: AdviceSubject) -> list[_Repeated]:
    """Return groups of products of few rows by the same matrix, in order."""
    program = subject.program
    groups: dict[tuple[object, ...], list[ProgramOperation]] = defaultdict(list)
    for product in program.named("tpu.matmul"):
        rows, size = product_sizes(product)
        loops = program.loops_around(product.line)
        if not 0 < rows <= SUBLANES // 2 or size < MIN_MATRIX or len(product.operands) < 2:
            continue
        key = _expression(subject, product.operands[1], product.line)
        if key is not None and not program.is_conditional(product.line):
            types = product.text.partition("dimension_numbers")[2].partition(" loc(")[0]
            groups[key, types, loops[0].line if loops else 0].append(product)
    found = []
    for (matrix, *_), products in groups.items():
        operand = subject.operand(_memory(matrix))
        if len(products) < MIN_PRODUCTS or operand is None or _is_chain(program, products):
            continue
        rows, _ = product_sizes(products[0])
        found.append(_Repeated(products=tuple(products), rows=rows, operand=operand.name))
    return found


def _is_chain(program: MosaicProgram, products: list[ProgramOperation]) -> bool:
    """Return whether the rows of a product depend on the result of another one."""
    lines = {product.line for product in products}
    for product in products:
        sources = program.sources_of(product.operands[0], product.line)
        if sources is None or any(source.line in lines for source in sources):
            return True
    return False


def _expression(
    subject: AdviceSubject, value: str, line: int, depth: int = 0
) -> tuple[object, ...] | None:
    """Return a key that is equal for equal values from the same place of an input; else None."""
    program = subject.program
    made = program.producer(value, line)
    if made is None or not made.operands or depth > MAX_DEPTH:
        return None
    types = made.text.rpartition(" : ")[2].partition(" loc(")[0]
    if made.name in LOADS:
        memory = memory_of(program, made) or ""
        operand = subject.operand(memory)
        if operand is None or operand.kind != "input":
            return None
        places = tuple(program.identity(index, made.line) for index in index_values(made))
        return memory, types, *places
    if made.name not in PASSED_ON and made.name not in _ROUNDED:
        return None
    inner = _expression(subject, made.operands[0], made.line, depth + 1)
    return None if inner is None else (made.name, types, inner)


def _memory(key: object) -> str:
    while isinstance(key, tuple) and isinstance(key[-1], tuple):
        key = key[-1]
    return str(key[0]) if isinstance(key, tuple) else ""


def _share_of_copies(subject: AdviceSubject, count: int) -> float:
    """Return the share of bundles of lines that the program contains `count` times."""
    program = subject.program
    counts: Counter[tuple[str, int, str]] = Counter()
    for operation in program.operations:
        source = program.source(operation)
        if source is not None and "vector<" in operation.text:
            counts[source.file, source.line, operation.name] += 1
    lines = {(file, line) for (file, line, _), number in counts.items() if number >= count}
    return subject.share(p for place in lines for p in subject.by_place.get(place, ()))


KIND = AdviceKind(
    name="repeated-product",
    title="Products of a few rows, one after another, by the same matrix",
    condition=(
        f"At least {MIN_PRODUCTS} products of at most {SUBLANES // 2} rows each, of which none "
        "needs the result of another, multiply by the same matrix; one product of all rows would "
        f"save at least {MIN_GAIN:.0%} of the estimated cycles."
    ),
    remedy="Multiply the rows of all, such as of all query heads of a group, at once.",
    rule=advise_repeated_product,
)

"""Advice: a loop spills vector registers, and the spills determine its length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pallas_debug.model import SourceLine
from pallas_debug.profile.advice.advice import Advice, AdviceKind, counted, derived
from pallas_debug.profile.advice.compaction import MIN_BUNDLES, MIN_LESS, MIN_USE, bundles_less
from pallas_debug.profile.advice.rules.products.vector_product import loops_of_products
from pallas_debug.profile.advice.subject import AdviceSubject, PlacedInstruction
from pallas_debug.profile.schedule import ScheduledLoop
from pallas_debug.profile.units import FILL, LOAD, SPILL, STORE, is_fill, is_spill


def advise_spills(subject: AdviceSubject) -> Iterator[Advice]:
    if subject.is_memory_bound:
        return
    products = loops_of_products(subject)
    for loop in subject.schedule.loops:
        if loop.number in products:
            continue  # the loop spills the sum of a product, which the MXU would accumulate
        limits = _limits(subject, loop)
        if limits is None:
            continue
        with_spills, without = limits
        inside = [p for p in subject.inside(loop) if subject.schedule.loop_at(p.bundle) is loop]
        # Each slice would wait for its own reductions over lanes, while a block overlaps them:
        # slices of layer_norm_backward (v5p) and softmax_backward (v4) take 1.0 to 2.7 times as
        # long.
        if any(".xlane." in p.opcode for p in inside):
            continue
        spills = [p for p in inside if is_spill(p.opcode, p.instruction.text) and _is_vector(p)]
        fills = [p for p in inside if is_fill(p.opcode, p.instruction.text) and _is_vector(p)]
        if not spills and not fills:
            continue
        if subject.share(inside) < MIN_BUNDLES:
            continue
        lines = _lines(subject, spills or fills)
        first = lines[0] if lines else None
        most = Counter(lines).most_common(1)[0][0] if lines else None
        begins = (
            f"; they begin at line {first.line}"
            if first is not None and most is not None and first != most
            else ""
        )
        yield KIND.advice(
            source=most,
            message=(
                f"{len(spills)} spills and {len(fills)} fills of vector registers in a loop "
                f"of {loop.size} bundles{begins}; without them, its busiest slot needs "
                f"{without} bundles instead of {with_spills}"
            ),
            remedy=(
                "process fewer rows at a time: loop over slices of the block, so that what is "
                "live at once, above all the loop's carry, fits in the vector registers"
            ),
            evidence=(
                counted("spills in the loop", len(spills)),
                counted("fills in the loop", len(fills)),
                counted("bundles of the loop", loop.size),
                derived("bundles that the busiest slot needs", with_spills),
                derived("the same without spills and fills", without),
            ),
        )


def _limits(subject: AdviceSubject, loop: ScheduledLoop) -> tuple[int, int] | None:
    """Return the bundles of a loop's busiest issue slot, with and without spills and fills.

    None if they are not the limit.
    """
    totals = subject.slots(loop)
    if SPILL not in totals or FILL not in totals:
        return None
    return bundles_less(subject, loop, {LOAD: totals[FILL], STORE: totals[SPILL]})


def _is_vector(placed: PlacedInstruction) -> bool:
    return placed.opcode.startswith("v")


def _lines(subject: AdviceSubject, instructions: list[PlacedInstruction]) -> list[SourceLine]:
    """Return the lines that compute spilled or filled values, in order.

    Values that a loop carries are also attributed to the line of the loop, which is left out.
    """
    loops: set[tuple[str, int]] = set()
    for operation in subject.program.named("scf.for", "scf.while"):
        source = subject.program.source(operation)
        if source is not None:
            loops.add(source.place)
    found: list[SourceLine] = []
    of_loops: list[SourceLine] = []
    for placed in instructions:
        made = [d for o in placed.instruction.operands for d in subject.definitions.get(o, ())[:1]]
        lines = []
        for one in (*made, placed):
            # The first location may be shared by several lines, which the tracing resolves.
            own = subject.schedule.listing.sources(one.instruction)
            lines += [line for line in (one.source, *own[1:]) if own and line is not None]
        if placed.source is not None:
            lines.append(placed.source)
        found += [line for line in lines if line.place not in loops][:1]
        of_loops += lines[:1]
    return found or of_loops


KIND = AdviceKind(
    name="spills",
    title="Spilled vector registers determine the length of a loop",
    condition=(
        f"The busiest issue slot of a loop needs at least {MIN_USE:.0%} of its bundles, and at "
        f"least {MIN_LESS:.0%} fewer without spills and fills. The loop does not reduce over "
        "lanes, since slices would wait for each reduction."
    ),
    remedy="Process the block in smaller slices, so that fewer values are live at once.",
    rule=advise_spills,
)

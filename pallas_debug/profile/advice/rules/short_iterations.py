"""Advice: iterations of a loop wait for their own results, although they could overlap."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from pallas_debug.profile import units
from pallas_debug.profile.advice.advice import (
    Advice,
    AdviceKind,
    counted,
    derived,
    derived_share,
    percent,
)
from pallas_debug.profile.advice.program import ProgramLoop, ProgramOperation, shape_of
from pallas_debug.profile.advice.rules.products.thin_product import advise_thin_product
from pallas_debug.profile.advice.rules.products.vector_product import loops_of_products
from pallas_debug.profile.advice.rules.row_loop import independent_stores, is_narrow
from pallas_debug.profile.advice.subject import AdviceSubject, starting
from pallas_debug.profile.advice.tiles import registers_for
from pallas_debug.profile.schedule import ScheduledLoop

MIN_TRIPS = 8
"""Minimum iterations of a loop."""

TOGETHER = 4
"""Number of iterations that the advice merges into one."""

MAX_STORES = 8
"""Maximum registers that an iteration stores, so that four iterations leave enough registers."""

MAX_USED = 0.25
"""Maximum use of the busiest vector unit in the loop."""

MIN_GAIN = 0.25
"""Minimum share of the executed bundles that the change must save."""


def advise_short_iterations(subject: AdviceSubject) -> Iterator[Advice]:
    program = subject.program
    if subject.is_memory_bound:
        return
    # A product of few rows, or on the vector unit, is better hoisted or merged than interleaved.
    products = loops_of_products(subject)
    thin = {advice.source for advice in advise_thin_product(subject)}
    for loop in program.loops_of(MIN_TRIPS):
        body = program.body(loop)
        stores = independent_stores(program, loop, body, may_sum=True)
        if not stores or is_narrow(body, is_scalar=False) or is_narrow(body, is_scalar=True):
            continue
        if any(program.source(o) in thin for o in body if o.name == "tpu.matmul"):
            continue
        advice = _of_loop(subject, loop, stores, products)
        if advice is not None:
            yield advice


def _of_loop(
    subject: AdviceSubject,
    loop: ProgramLoop,
    stores: list[ProgramOperation],
    products: Collection[int],
) -> Advice | None:
    source = subject.program.source(stores[0])
    stored = starting(subject.at(source), "vst")
    scheduled = subject.own_loop_of(stored)
    if scheduled is None or scheduled.number in products:
        return None
    if not 0 < len(stored) <= MAX_STORES:
        return None
    cycles = subject.cycles_of(scheduled)
    if len(stored) >= 2 * sum(map(_registers, stores)):
        return None  # the compiler has unrolled the loop, which newer jax leaves to it
    needed, unit = _busiest(subject, scheduled)
    # Four interleaved iterations take one iteration plus three times its busiest unit's cycles.
    together = (cycles + (TOGETHER - 1) * needed) / TOGETHER
    share = subject.share(subject.inside(scheduled))
    gain = (1 - together / cycles) * share
    if not unit or needed > MAX_USED * cycles or gain < MIN_GAIN:
        return None
    return KIND.advice(
        source=source,
        message=(
            f"each of the {loop.trips} iterations takes {cycles} cycles, and {unit}, the busiest "
            f"vector unit, works in {percent(needed, cycles)} of them: it waits for its own "
            "results, although the iterations do not depend on each other"
        ),
        remedy=(
            f"process {TOGETHER} times as many rows in each iteration, or pass unroll={TOGETHER} "
            "to the loop, so that the work of some fills the waits of others"
        ),
        evidence=(
            derived("iterations", loop.trips),
            counted("bundles of each", scheduled.size),
            derived("cycles of each", cycles, "bundles and their delays", unit="cycles"),
            derived(f"cycles that {unit} works in each", round(needed, 1), unit="cycles"),
            derived_share("share of the executed bundles", share),
        ),
    )


def _registers(store: ProgramOperation) -> int:
    """Count the vector registers that a store writes; tiles of narrower types have more rows."""
    kinds = [shape_of(part) for part in re.findall(r"vector<[^>]*>", store.text)]
    values = [kind for kind in kinds if kind is not None and kind[1] != "i1"]
    if not values:
        return 0
    sizes, kind = values[-1]
    found = re.match(r"[a-z]+(\d+)", kind)
    return registers_for(sizes, int(found[1]) if found else 32)


def _busiest(subject: AdviceSubject, loop: ScheduledLoop) -> tuple[float, str]:
    """Return the cycles per iteration of the busiest vector unit, and its name."""
    table = subject.schedule.table
    slots = subject.slots(loop)
    if table is None or not slots:
        return 0.0, ""
    return max(
        (slots[name] / capacity, name)
        for name, capacity in zip(table.names, table.capacity, strict=True)
        if name in units.VECTOR and capacity
    )


KIND = AdviceKind(
    name="short-iterations",
    title="A loop whose iterations wait for their own results",
    condition=(
        f"No iteration of a loop of at least {MIN_TRIPS} depends on another, except that they add "
        "to sums, each stores at most "
        f"{MAX_STORES} registers, its busiest vector unit is used to at most {MAX_USED:.0%}, and "
        f"{TOGETHER} iterations side by side would save at least {MIN_GAIN:.0%} of the executed "
        "bundles."
    ),
    remedy="Process more rows in each iteration, or unroll the loop.",
    rule=advise_short_iterations,
)

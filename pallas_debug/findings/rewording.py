"""Rewording of findings by their consequences: causes and advice that only both together show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pallas_debug.findings.faults import Fault
from pallas_debug.findings.wording.facts import names_in, where
from pallas_debug.findings.wording.order import CORES, PARALLEL, SIDES, WRITES
from pallas_debug.findings.wording.semaphores import NOT_AWAITED, SIGNALLED_BY
from pallas_debug.model import Finding


def reworded(finding: Finding, by: Sequence[Finding]) -> Finding:
    """Reword a finding by its consequences; the first of each kind counts.

    For example, a left-over signal shows which wait a race lacks.
    """
    if finding.kind is Fault.OUTPUT_REVISITED:
        return of_wrong_map(finding, by)
    if finding.kind is Fault.OUT_OF_BOUNDS_READ:
        return of_last_fetch(finding, by)
    if finding.kind is not Fault.DATA_RACE:
        return finding
    for one in reversed(by):
        match one.kind:
            case Fault.SEMAPHORE_LEFT_OVER:
                finding = of_unheard_signal(finding, one)
            case Fault.DEADLOCK:
                finding = of_other_slot(finding, one)
            case Fault.OUTPUT_NOT_WRITTEN if one.operand == finding.operand:
                finding = of_shared_places(finding)
            case Fault.DATA_RACE:
                finding = of_line_for_one(finding)
            case Fault.UNINITIALIZED_READ:
                finding = of_carried_state(finding, one)
    return finding


def is_of_other_slot(race: Finding, stuck: Finding) -> bool:
    """Return whether a race is with a copy on another semaphore of a deadlock's array.

    Nothing has waited for that copy.
    """
    array = str(stuck.operand).partition("[")[0]
    left = names_in(stuck.values.get(NOT_AWAITED, ""))
    signalled = (race.values.get("semaphore"), race.values.get("other semaphore"))
    return any(name in left and name.partition("[")[0] == array for name in signalled if name)


def of_other_slot(race: Finding, stuck: Finding) -> Finding:
    """Reword a race with a copy for which the kernel waits on another semaphore of the array.

    Args:
      stuck: the `Deadlock` finding of that wait.
    """
    if not is_of_other_slot(race, stuck) or "waited for" in race.values:
        return race
    array = str(stuck.operand).partition("[")[0]
    signalled = (race.values.get("semaphore"), race.values.get("other semaphore"))
    semaphore = next(name for name in signalled if name and name.partition("[")[0] == array)
    wait = f"line {stuck.source.line}" if stuck.source else "the next wait"
    return replace(
        race,
        cause=f"the copy signals {semaphore}, but {wait} waits for {stuck.operand}: they use "
        "different slots",
        advice=f"start the copy with the buffer and semaphore of the slot that {wait} waits for",
    )


def of_unheard_signal(race: Finding, left: Finding) -> Finding:
    """Reword a race with another device's copy, or between cores, that a signal was meant to order.

    Args:
      left: the `SemaphoreLeftOver` of the signal, which has too few waits, or none.
    """
    sender = race.values.get("other sender") or race.values.get("sender")
    line = f", in line {left.source.line}," if left.source else ""
    if sender is None:
        return replace(
            race,
            cause=f"{left.operand} is signalled{line} but nothing waits for it: this access may "
            "come before the event that it signals",
            advice=f"wait for {left.operand} before this access",
        )
    if SIGNALLED_BY in left.values and left.values.get("waits") != "0":
        return replace(
            race,
            cause=f"{left.operand} is signalled more often than it is waited for: {sender} may "
            "copy before the signal meant for it",
            advice=f"wait for {left.operand} before each copy, and send as many signals before "
            "the first copy as there are buffers to fill",
        )
    return replace(
        race,
        cause=f"{left.operand} is signalled{line} but nothing waits for it: {sender} may copy "
        "before it is signalled to",
        advice=f"wait for {left.operand} before the copy starts",
    )


def of_shared_places(race: Finding) -> Finding:
    """Reword a race along a parallel axis that leaves other elements unwritten.

    In another order, the grid points would still write to the same elements.
    """
    if PARALLEL not in race.values or race.values.get(SIDES) != WRITES:
        return race
    return replace(
        race,
        cause="the grid points write to the same elements and leave others unwritten",
        advice="give each grid point its own elements",
    )


def of_line_for_one(race: Finding) -> Finding:
    """Reword a race of two cores that both run a line, with the other races of the same line."""
    is_one = race.source is not None and race.source == race.other
    if CORES not in race.values or race.values.get(SIDES) != WRITES or not is_one:
        return race
    return replace(
        race,
        cause=f"both cores run {where(race.source)} and write the same elements",
        advice="run this part only on the core that it is meant for, under a pl.when, or let each "
        "core write its own elements",
    )


def of_carried_state(race: Finding, read: Finding) -> Finding:
    """Reword a race along a parallel axis along which a buffer also carries values.

    Args:
      read: the `UninitializedRead` of that buffer.
    """
    axes = race.values.get(PARALLEL)
    if axes is None or read.values.get(PARALLEL) != axes:
        return race
    return replace(
        race,
        advice=f'make grid dimension {axes} "arbitrary" in dimension_semantics: {read.operand} '
        "carries values along it",
    )


def of_wrong_map(revisit: Finding, by: Sequence[Finding]) -> Finding:
    """Reword a revisited output block if the index map never returns some of the others."""
    left = [one for one in by if one.kind is Fault.OUTPUT_NOT_WRITTEN]
    if not any(one.operand == revisit.operand for one in left):
        return revisit
    return replace(
        revisit,
        cause="the index map returns the same block for grid points that compute different ones, "
        "and leaves others out",
        advice="let the index map return the block that each grid point computes",
    )


def of_last_fetch(read: Finding, by: Sequence[Finding]) -> Finding:
    """Reword an index past the end of a table, for a copy that nothing waits for.

    There is nothing left to fetch, so an index within bounds would not fix that wait.
    """
    left = [one for one in by if one.kind is Fault.DMA_NOT_AWAITED and one.source is not None]
    if not left or read.source is None or left[0].source == read.source:
        return read
    return replace(
        read, advice=f"do not start the copy in {where(left[0].source)} when nothing is left to "
                     "fetch",
    )  # fmt: skip

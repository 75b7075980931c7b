"""Findings of different kinds that are caused by the same slip: which follows from which."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from pallas_debug.findings import twins
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.rewording import is_of_other_slot
from pallas_debug.findings.wording import bounds, facts, semaphores, writers
from pallas_debug.findings.wording.order import CORES, PARALLEL, SIDES, UNDER_WAY, WRITES
from pallas_debug.model import Finding


def is_not_before(finding: Finding, cause: Finding) -> bool:
    """Return whether a finding is at the cause's grid point or later, or a point is unknown."""
    at, before = finding.grid_point, cause.grid_point
    if at is None or before is None or len(at) != len(before):
        return True
    if before != at or len(finding.loop) != len(cause.loop):
        return before <= at
    return cause.loop <= finding.loop


def is_of_same_output(a: Finding, b: Finding) -> bool:
    return (a.kernel, a.operand) == (b.kernel, b.operand) and a.operand is not None


def _is_of_line(finding: Finding, cause: Finding) -> bool:
    return finding.source is not None and finding.source == cause.source


def is_cast_of_nan(finding: Finding) -> bool:
    """Return whether a NaN is cast to an integer, which only shows that something made it."""
    return finding.kind is Fault.NARROWING_LOSS and finding.values.get("operand 0") == "nan"


def _lacks_store(finding: Finding, cause: Finding) -> bool:
    """Return whether the part of an output that is read is the part that no line stores to."""
    if _is_left_in_input(finding, cause):
        return True
    return cause.values.get(facts.WHY) == "no store" and is_of_same_output(finding, cause)


def _is_left_in_input(finding: Finding, cause: Finding) -> bool:
    """Return whether an input is read that shares memory with an output of the cause."""
    output = finding.values.get(facts.SHARES)
    outputs = [cause.operand, *cause.values.get(writers.LIKEWISE, "").split(", ")]
    return output is not None and output in outputs


def _is_left_for_another(finding: Finding, cause: Finding) -> bool:
    """Return whether an index map returns some blocks twice and never returns others."""
    others = finding.values.get(writers.LIKEWISE, "").split(", ")
    is_same, why = is_of_same_output(finding, cause), finding.values.get(facts.WHY)
    if why == "stores":  # the one that is left out is where another is replaced
        return is_same and _is_of_line(finding, cause)
    return why == "left out" and (is_same or cause.operand in others)


def _is_of_short_map(finding: Finding, cause: Finding) -> bool:
    """Return whether a block specification that leaves blocks out also causes the finding."""
    return cause.values.get(facts.WHY) == "left out" and _is_of_line(finding, cause)


def _is_computed(finding: Finding, cause: Finding) -> bool:
    """Return whether an overflow or a lossy cast follows a read of unwritten integers, or of others
    at the same line.
    """
    are_integers = str(cause.witness.shape).startswith(("int", "uint"))
    return (are_integers or _is_of_line(finding, cause)) and is_not_before(finding, cause)


def _is_indexed_by(finding: Finding, cause: Finding) -> bool:
    """Return whether an index out of bounds was read from the unwritten operand."""
    given = facts.names_in(finding.values.get("index from", ""))
    tables = {table.partition("[")[0] for table in given}
    is_made = cause.operand in tables or (_is_of_scalars(cause) and _is_of_others(finding, cause))
    return is_made and is_not_before(finding, cause)


def _is_of_scalars(unwritten: Finding) -> bool:
    """Return whether the unwritten values are scalars, which determine places and conditions."""
    return str(unwritten.witness.shape).endswith(" in SMEM")


def _lacks_wait(finding: Finding, cause: Finding) -> bool:
    """Return whether the race is with a copy that is never awaited, or one of those next to it."""
    if _is_of_extra_copy(cause, finding):
        return False
    if twins.semaphores_of(finding) & twins.semaphores_of(cause):
        return True
    return any(
        one.kind is Fault.DMA_NOT_AWAITED and _signal_alike(finding, one)
        for one in cause.consequences
    )


def _is_of_extra_copy(finding: Finding, cause: Finding) -> bool:
    """Return whether a copy races with one that was started once too often.

    Waiting for the first copy before the second starts would take the bytes that another wait
    needs.
    """
    is_beside = finding.values.get(SIDES) == WRITES or UNDER_WAY in finding.values
    is_awaited = int(cause.values.get("waits", "0")) > 0 and cause.grid_point is not None
    is_alike = is_of_same_output(finding, cause) or _is_of_line(finding, cause)
    return is_beside and is_awaited and is_alike and _signal_one_array(finding, cause)


def _leaves_as_well(finding: Finding, cause: Finding) -> bool:
    """Return whether both copies fill the same buffer, and the other was left unawaited first."""
    return _signal_alike(finding, cause) and _time(cause) < _time(finding)


def _signal_alike(a: Finding, b: Finding) -> bool:
    """Return whether copies to one buffer signal semaphores of one array."""
    return is_of_same_output(a, b) and _signal_one_array(a, b)


def _signal_one_array(a: Finding, b: Finding) -> bool:
    arrays = [{name.partition("[")[0] for name in twins.semaphores_of(one)} for one in (a, b)]
    return bool(arrays[0] & arrays[1])


def _time(finding: Finding) -> tuple[object, ...]:
    return finding.grid_point or (), finding.loop, finding.witness.line or ("", 0)


def _waits_instead(finding: Finding, cause: Finding) -> bool:
    """Return whether the kernel waits on this semaphore while the racing copy signals another."""
    if finding.operand in twins.semaphores_of(cause):
        return False
    is_named = finding.operand in facts.names_in(cause.values.get("waited for", ""))
    return is_named or is_of_other_slot(cause, finding)


def _is_of_same_copies(finding: Finding, cause: Finding) -> bool:
    """Return whether copies of one line write where others do, or are not waited for."""
    both = finding.values.get(SIDES), cause.values.get(SIDES)
    is_one = WRITES in both and _share_copies(finding, cause)
    is_one = is_one or (both == (WRITES, WRITES) and _signal_same(finding, cause))
    is_one = is_one or _lack_one_wait(finding, cause) or _lack_one_signal(finding, cause)
    is_one = is_one or _run_one_line(finding, cause)
    return (is_one and _place(cause) < _place(finding)) or _is_twin_race(finding, cause)


def _is_twin_race(finding: Finding, cause: Finding) -> bool:
    """Return whether a line reads what twins bring, or each races with itself."""
    is_one = _is_of_line(finding, cause) or all(len(_lines(one)) == 1 for one in (finding, cause))
    is_apart = bool(twins.semaphores_of(cause)) and not _signal_one_array(finding, cause)
    return is_one and is_apart and twins.are_twins(finding, cause)


def _is_next_wait(finding: Finding, cause: Finding) -> bool:
    """Return whether a wait comes after one that never ends, for a copy that goes together."""
    return _is_of_others(finding, cause) and twins.are_twins(finding, cause)


def _run_one_line(finding: Finding, cause: Finding) -> bool:
    """Return whether two cores both run a copy to one place in a line meant for one of them.

    The other core does not run what the intended core does there, such as a wait.
    """
    cores = [set(race.values.get(CORES, "").split(", ")) for race in (finding, cause)]
    is_pair = cores[0] == cores[1] != {""} and cause.values.get(SIDES) == WRITES
    return is_pair and len(_lines(cause)) == 1 and not is_of_same_output(finding, cause)


def _lack_one_wait(a: Finding, b: Finding) -> bool:
    """Return whether both races are with copies on one semaphore that nothing waits for."""
    shared = twins.semaphores_of(a) & twins.semaphores_of(b)
    return any(
        follower.kind is Fault.DMA_NOT_AWAITED
        and follower.values.get("waits") == "0"
        and follower.values.get("semaphore") in shared
        for follower in (*a.consequences, *b.consequences)
    )


def _signal_same(a: Finding, b: Finding) -> bool:
    """Return whether pairs of lines do the same, as for the first step of a loop and the others.

    Those may signal semaphores of another slot: the first index of each is not compared.
    """
    kinds = [{re.sub(r"\[\d+", "[", name) for name in twins.semaphores_of(one)} for one in (a, b)]
    return is_of_same_output(a, b) and kinds[0] == kinds[1]


def _lack_one_signal(a: Finding, b: Finding) -> bool:
    """Return whether copies of other devices, from one line, arrive where two lines still read."""
    return is_of_same_output(a, b) and bool(_arrivals(a) & _arrivals(b))


def _arrivals(race: Finding) -> set[tuple[str, str, int]]:
    """Semaphores and lines of the sides of a race that are copies from another device."""
    sides = (("", race.source), ("other ", race.other))
    return {
        (race.values[f"{side}semaphore"], line.file, line.line)
        for side, line in sides
        if line is not None and {f"{side}sender", f"{side}semaphore"} <= set(race.values)
    }


def _is_left_out(finding: Finding, cause: Finding) -> bool:
    """Return whether two copies fill the same place, and the read is where one should have gone."""
    is_double = cause.values.get(SIDES) == WRITES and is_of_same_output(finding, cause)
    return is_double and not _goes_astray(cause, finding)


def _goes_astray(finding: Finding, cause: Finding) -> bool:
    """Return whether a copy reads a missing source.

    A copy to a device that may not have begun has no other side.
    """
    if finding.other is None:
        return False
    return SIDES in finding.values and _share_copies(finding, cause)


def _share_copies(finding: Finding, cause: Finding) -> bool:
    return is_of_same_output(finding, cause) and bool(_lines(finding) & _lines(cause))


def _lines(finding: Finding) -> set[tuple[str, int]]:
    sides = (finding.source, finding.other)
    return {side.place for side in sides if side is not None}


def _place(race: Finding) -> tuple[object, ...]:
    """Sort key of races: those with the same line on both sides come first."""
    return len(_lines(race)), race.grid_point or (), race.witness.line or ("", 0)


def _is_brought(finding: Finding, cause: Finding) -> bool:
    """Return whether a copy to the output is never awaited, or goes elsewhere."""
    if SIDES in cause.values and _share_copies(finding, cause):
        return True
    return any(
        one.kind is Fault.DMA_NOT_AWAITED
        and _is_of_line(finding, one)
        and (is_of_same_output(finding, one) or _names_semaphore(one))
        for one in (cause, *cause.consequences)
    )


def _names_semaphore(left: Finding) -> bool:
    """Return whether an engine reported the semaphore of a copy, not its destination."""
    return left.operand == left.values.get("semaphore", "").partition("[")[0]


def _is_overwritten(finding: Finding, cause: Finding) -> bool:
    """Return whether a NaN that the checks saw may be in no result.

    The checks compare with the final outputs, in which unwritten elements are NaN as well. The
    machine follows each NaN to the results, and would have found one that reaches them.
    """
    return _is_of_others(finding, cause)


def _is_of_others(finding: Finding, cause: Finding) -> bool:
    """Return whether the machine reported the cause but not the finding."""
    return "machine" in cause.engines and "machine" not in finding.engines


def _is_of_same_block(finding: Finding, cause: Finding) -> bool:
    """Return whether grid points race for the block that an index map returns repeatedly."""
    is_parallel = PARALLEL in finding.values and is_of_same_output(finding, cause)
    return is_parallel and _is_of_line(finding, cause)


def _is_given_nothing(finding: Finding, cause: Finding) -> bool:
    """Return whether a kernel updates an array in HBM in place that is not an input.

    Or computes the places that it writes from missing scalars.
    """
    is_array = str(cause.witness.shape).endswith(" in HBM")
    return (is_array and is_of_same_output(finding, cause)) or _is_of_scalars(cause)


def _may_vary(finding: Finding, cause: Finding) -> bool:
    """Return whether a race, rather than rounding, may have changed the results of another run."""
    return finding.kernel == cause.kernel


def _is_signalled_alike(finding: Finding, cause: Finding) -> bool:
    """Return whether a line signals two semaphores too often, by the same number."""
    lines = [one.other and one.other.place for one in (finding, cause)]
    counts = [one.values.get("count") for one in (finding, cause)]
    is_one = None not in lines and lines[0] == lines[1] and counts[0] == counts[1]
    return is_one and (cause.witness.line or ("", 0)) < (finding.witness.line or ("", 0))


def _is_same_semaphore(finding: Finding, cause: Finding) -> bool:
    return finding.operand is not None and finding.operand == cause.operand


def _has_gone_elsewhere(finding: Finding, cause: Finding) -> bool:
    """Return whether a copy is left on the semaphore for which another device waits forever.

    Or on the semaphore of a wait that names another one: then nothing waits for the copy.
    """
    semaphore = finding.values.get("semaphore")
    others = facts.names_in(cause.values.get(semaphores.NOT_AWAITED, ""))
    return semaphore is not None and semaphore in (cause.operand, *others)


def _is_fetched_past_end(finding: Finding, cause: Finding) -> bool:
    """Return whether a copy from past the end, or from a place read past a table's end, is left.

    The machine stops at a copy whose place is read from past the end of a table. There is one step
    more than there are blocks to fetch.
    """
    position, bound = (cause.values.get(name) for name in (bounds.POSITION, bounds.BOUND))
    is_next = bound is not None and position == bound and not finding.grid_point
    return _is_of_line(finding, cause) or (is_next and _is_of_others(finding, cause))


def _is_source_of_copy(finding: Finding, cause: Finding) -> bool:
    """Return whether the source and destination of a copy use one index of the same operand."""
    return _is_of_line(finding, cause) and _is_of_same_index(finding, cause)


def _is_brought_back(finding: Finding, cause: Finding) -> bool:
    """Return whether a later line writes its update back to where it was read."""
    lines = [one.witness.line or ("", 0) for one in (cause, finding)]
    return lines[0] < lines[1] and _is_of_same_index(finding, cause)


def _is_of_same_index(a: Finding, b: Finding) -> bool:
    """Return whether the same index is used for the same operand at one place of the run."""
    places = [(one.index, one.grid_point or (), one.loop) for one in (a, b)]
    return a.index is not None and is_of_same_output(a, b) and places[0] == places[1]


def _is_not_heard(finding: Finding, cause: Finding) -> bool:
    """Return whether another device or core takes part in a race, and no wait takes this signal.

    Or waits take some of the signals of other devices, but not all.
    """
    senders = {"sender", "other sender"} & set(cause.values)
    if finding.values.get("waits") == "0":
        return bool(senders) or CORES in cause.values
    return bool(senders) and semaphores.SIGNALLED_BY in finding.values


_OF_CORES = (
    *(Fault.DATA_RACE, Fault.DEADLOCK, Fault.UNINITIALIZED_READ, Fault.UNSEEDED_RANDOM_BITS),
)
"""Faults that a parallel grid dimension may cause, the most general first."""


def is_of_same_dimension(finding: Finding, cause: Finding) -> bool:
    """Return whether a parallel dimension causes both, and the finding comes after the cause."""
    shared = _parallel(finding) & _parallel(cause)
    return bool(shared) and _rank(cause) < _rank(finding)


def _parallel(finding: Finding) -> frozenset[str]:
    return frozenset(finding.values.get(PARALLEL, "").split(", ")) - {""}


def _rank(finding: Finding) -> tuple[object, ...]:
    kind, line = _OF_CORES.index(finding.kind), finding.witness.line or ("", 0)
    return kind, finding.grid_point or (), line, finding.operand or ""


SLIPS: Mapping[tuple[Fault, Fault], Callable[[Finding, Finding], bool]] = {
    (Fault.NAN_PRODUCED, Fault.OUTPUT_NOT_WRITTEN): _is_overwritten,
    (Fault.UNINITIALIZED_READ, Fault.OUTPUT_NOT_WRITTEN): _lacks_store,
    (Fault.UNINITIALIZED_READ, Fault.OUTPUT_REVISITED): _is_left_in_input,
    (Fault.OUT_OF_BOUNDS_READ, Fault.UNINITIALIZED_READ): _is_indexed_by,
    (Fault.OUT_OF_BOUNDS_WRITE, Fault.UNINITIALIZED_READ): _is_indexed_by,
    (Fault.INTEGER_OVERFLOW, Fault.UNINITIALIZED_READ): _is_computed,
    (Fault.NARROWING_LOSS, Fault.UNINITIALIZED_READ): _is_computed,
    (Fault.DMA_NOT_AWAITED, Fault.OUT_OF_BOUNDS_READ): _is_fetched_past_end,
    (Fault.DMA_NOT_AWAITED, Fault.OUT_OF_BOUNDS_WRITE): _is_of_line,
    (Fault.DMA_NOT_AWAITED, Fault.DATA_RACE): _lacks_wait,
    (Fault.DMA_NOT_AWAITED, Fault.DMA_NOT_AWAITED): _leaves_as_well,
    (Fault.DATA_RACE, Fault.DMA_NOT_AWAITED): _is_of_extra_copy,
    (Fault.DMA_NOT_AWAITED, Fault.DEADLOCK): _has_gone_elsewhere,
    (Fault.OUT_OF_BOUNDS_READ, Fault.OUT_OF_BOUNDS_WRITE): _is_source_of_copy,
    (Fault.OUT_OF_BOUNDS_WRITE, Fault.OUT_OF_BOUNDS_READ): _is_brought_back,
    (Fault.OUTPUT_NOT_WRITTEN, Fault.BLOCK_OUT_OF_BOUNDS): is_of_same_output,
    (Fault.OUTPUT_NOT_WRITTEN, Fault.OUT_OF_BOUNDS_WRITE): is_of_same_output,
    (Fault.OUTPUT_REVISITED, Fault.BLOCK_OUT_OF_BOUNDS): is_of_same_output,
    (Fault.OUTPUT_NOT_WRITTEN, Fault.OUTPUT_REVISITED): _is_left_for_another,
    (Fault.DEADLOCK, Fault.DATA_RACE): _waits_instead,
    (Fault.DEADLOCK, Fault.WAIT_SIZE_MISMATCH): _is_same_semaphore,
    (Fault.DEADLOCK, Fault.DEADLOCK): _is_next_wait,
    (Fault.DATA_RACE, Fault.DATA_RACE): _is_of_same_copies,
    (Fault.DATA_RACE, Fault.OUTPUT_NOT_WRITTEN): _is_of_short_map,
    (Fault.DATA_RACE, Fault.OUTPUT_REVISITED): _is_of_same_block,
    (Fault.DATA_RACE, Fault.UNINITIALIZED_READ): _goes_astray,
    (Fault.UNINITIALIZED_READ, Fault.DATA_RACE): _is_left_out,
    (Fault.OUTPUT_NOT_WRITTEN, Fault.DMA_NOT_AWAITED): _is_brought,
    (Fault.OUTPUT_NOT_WRITTEN, Fault.DATA_RACE): _is_brought,
    (Fault.OUTPUT_NOT_WRITTEN, Fault.UNINITIALIZED_READ): _is_given_nothing,
    (Fault.LOW_PRECISION_PRODUCT, Fault.DATA_RACE): _may_vary,
    (Fault.SEMAPHORE_LEFT_OVER, Fault.DATA_RACE): _is_not_heard,
    (Fault.SEMAPHORE_LEFT_OVER, Fault.SEMAPHORE_LEFT_OVER): _is_signalled_alike,
    (Fault.SEMAPHORE_LEFT_OVER, Fault.DEADLOCK): _is_same_semaphore,
}
"""Rules by kinds of consequence and cause: whether both findings show the same slip."""

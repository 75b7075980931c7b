"""Merging of findings of one kind that one slip causes in several operands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pallas_debug.findings.faults import Fault
from pallas_debug.findings.wording import bounds, writers
from pallas_debug.findings.wording.order import CORES, PARALLEL, SIDES
from pallas_debug.model import Finding


def of_one_slip(findings: Iterable[Finding]) -> list[Finding]:
    """Merge the effects of one slip on several operands: the first finding names the others.

    Such slips are index maps or grids with too many steps, blocks that a grid leaves out, an index
    with which several places are accessed, and a line that starts copies to several buffers.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        key = _slip(finding)
        if any(_are_apart(finding, one) for one in groups.get(key, ())):
            key = (id(finding),)
        groups.setdefault(key, []).append(finding)
    return _without_named(
        replace(_likewise(first, others), count=max(one.count for one in (first, *others)))
        if others
        else first
        for first, *others in groups.values()
    )


_OF_INDEX_MAPS = (*(Fault.BLOCK_OUT_OF_BOUNDS, Fault.X64_INDEX_MAP, Fault.OUTPUT_REVISITED),)

_OUT_OF_BOUNDS = (Fault.OUT_OF_BOUNDS_READ, Fault.OUT_OF_BOUNDS_WRITE)


def _are_apart(a: Finding, b: Finding) -> bool:
    """Return whether two findings about one operand are not the same finding for two places."""
    return a.operand == b.operand and (a.kind is not b.kind or a.kind is Fault.DATA_RACE)


def _slip(finding: Finding) -> tuple[object, ...]:
    """Key shared by findings about several operands or places that are caused by one slip."""
    values, line = finding.values, finding.witness.line
    place = finding.kind, finding.kernel, finding.grid_point
    if bounds.GRID_AXIS in values:
        return *place, values[bounds.GRID_AXIS], values.get("block"), finding.advice
    if finding.kind in _OF_INDEX_MAPS and line is not None and finding.only_if is None:
        given = (values.get(name) for name in ("block", "element"))
        return *place, line, *given, finding.cause, finding.advice
    start = values.get(bounds.POSITION, values.get("start"))
    if finding.kind in _OUT_OF_BOUNDS and start is not None and line is not None:
        device = values.get("device")
        bound = values.get(bounds.BOUND)
        return _OUT_OF_BOUNDS, *place[1:], finding.loop, device, start, bound
    if finding.kind is Fault.DATA_RACE and (copies := _copying(finding)):
        sides = (values.get(name) for name in (SIDES, CORES, PARALLEL, "sender", "other sender"))
        return *place, finding.loop, copies, *sides
    return (id(finding),)


def _copying(race: Finding) -> tuple[object, ...]:
    """Lines of the sides of a race that are copies, here and on the other side."""
    sides = (("semaphore", race.source), ("other semaphore", race.other))
    lines = [line and line.place if name in race.values else None for name, line in sides]
    return tuple(lines) if any(lines) else ()


def _likewise(found: Finding, others: Sequence[Finding]) -> Finding:
    if found.kind in _OUT_OF_BOUNDS:
        return bounds.with_other_reads(found, others)
    return writers.likewise(found, others)


def _without_named(findings: Iterable[Finding]) -> list[Finding]:
    """Drop findings of another engine about an operand that a finding of the same line also names.

    An unwritten output has no line of its own.
    """

    def named_as(finding: Finding, operand: str | None) -> tuple[object, ...]:
        of_output = finding.kind is Fault.OUTPUT_NOT_WRITTEN
        line = None if of_output else finding.witness.line
        return finding.kind, finding.kernel, line, operand

    given = list(findings)
    named = {
        named_as(finding, operand)
        for finding in given
        if (names := finding.values.get(writers.LIKEWISE)) is not None
        for operand in names.split(", ")
    }
    return [one for one in given if named_as(one, one.operand) not in named]

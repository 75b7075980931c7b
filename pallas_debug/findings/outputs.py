"""Unwritten outputs of a kernel: whether they are a fault, by how their values are used.

The only module that decides this. An output that the calling program does not use need not be
written. The Python caller of the program may ignore one that the program returns among other
results, which no engine can see: then the finding states this condition, and does not count.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding

Box = tuple[tuple[int, int], ...]
"""Start and stop along each axis of an array."""


def hull(a: Box, b: Box) -> Box:
    """Return the smallest box that contains two boxes."""
    pairs = zip(a, b, strict=True)
    return tuple((min(x[0], y[0]), max(x[1], y[1])) for x, y in pairs)


def hull_of(boxes: Sequence[Box | None]) -> Box | None:
    """Return the smallest box that contains all of these; None if one of them is unknown."""
    known = [box for box in boxes if box is not None]
    return functools.reduce(hull, known) if known and len(known) == len(boxes) else None


@dataclass(frozen=True, kw_only=True)
class OutputUse:
    """Uses of the values of a kernel's output in the program that calls it.

    Attributes:
      results: numbers of the program's results that depend on them.
      count: number of the program's results.
      is_certain: whether the program also uses them otherwise, e.g. in a print.
      program: name of the jitted function; None for a call of the kernel on its own.
      read: box that contains all that the program reads of them, if it only slices them.
    """

    results: frozenset[int]
    count: int
    is_certain: bool = False
    program: str | None = None
    read: Box | None = None

    @property
    def is_dropped(self) -> bool:
        """True if the program computes nothing from them."""
        return not self.results and not self.is_certain

    @property
    def is_used(self) -> bool:
        """True if they are used: every result that the program returns depends on them."""
        return self.is_certain or 0 < len(self.results) == self.count

    @property
    def condition(self) -> str | None:
        """Clause that states on what condition they are used; None if that is known."""
        if self.is_used or self.is_dropped:
            return None
        several = len(self.results) > 1
        numbers = "] or [".join(map(str, sorted(self.results)))
        name = "the kernel" if self.program is None else f"`{self.program}`"
        word = "results" if several else "result"
        return f"the caller of {name} uses {word} [{numbers}] of {self.count}"


OutputUses = Mapping[str, OutputUse]
"""Uses of all of a kernel's outputs, by name."""


def most(uses: Sequence[OutputUse]) -> OutputUse:
    """Return the most extensive use, if several programs call the same kernel."""
    chosen = max(uses, key=lambda use: (use.is_used, not use.is_dropped))
    return replace(chosen, read=hull_of([use.read for use in uses]))


def is_unread(finding: Finding, read: Box | None) -> bool:
    """Return whether a finding is about elements of an output that the program never reads.

    Args:
      read: box that contains all that the program reads of the output; None if that is unknown.
    """
    if finding.kind is not Fault.OUTPUT_NOT_WRITTEN or read is None:
        return False
    boxes = _boxes(finding.witness.index or "")
    return bool(boxes) and not any(_overlap(box, read) for box in boxes)


def _boxes(index: str) -> list[Box]:
    """Read the regions of an index, `o_ref[0:8, 0:128]`; empty if it does not list all of them."""
    regions = _REGION.findall(index)
    if not regions or " more region" in index:
        return []
    sizes = [region.split(", ") for region in regions]
    bounds = [[tuple(map(int, size.split(":")[:2])) for size in region] for region in sizes]
    return [tuple((start, stop) for start, stop in region) for region in bounds]


_REGION = re.compile(r"\[(\d+:\d+(?::\d+)?(?:, \d+:\d+(?::\d+)?)*)\]")


def _overlap(a: Box, b: Box) -> bool:
    if len(a) != len(b):
        return True
    pairs = zip(a, b, strict=True)
    return all(x[0] < y[1] and y[0] < x[1] for x, y in pairs)


def without_unused(findings: Iterable[Finding], uses: OutputUses) -> tuple[Finding, ...]:
    """Drop findings about unused outputs or parts, and state the condition of uncertain ones.

    If a kernel writes none of its outputs, all count as used: it is called for at least one of
    them.

    Args:
      findings: findings of one kernel.
    """
    found = [
        f
        for f in findings
        if (use := uses.get(f.operand or "")) is None or not is_unread(f, use.read)
    ]
    names = {f.operand for f in found if f.kind is Fault.OUTPUT_NOT_WRITTEN}
    if not uses or names.issuperset(uses):
        return tuple(map(certain, found))
    kept: list[Finding] = []
    for finding in found:
        use = uses.get(finding.operand or "")
        if finding.kind is not Fault.OUTPUT_NOT_WRITTEN or use is None:
            kept.append(finding)
        elif not use.is_dropped:
            kept.append(replace(finding, only_if=use.condition))
    return tuple(kept)


def certain(finding: Finding) -> Finding:
    """Mark the use of an unwritten output as known; return other findings unchanged."""
    is_of_output = finding.kind is Fault.OUTPUT_NOT_WRITTEN and finding.only_if is not None
    return replace(finding, only_if=None) if is_of_output else finding

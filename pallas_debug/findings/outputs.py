"""Unwritten outputs of a kernel: whether they are a fault, by how their values are used.

The only module that decides this. An output that the calling program does not use need not be
written. The Python caller of the program may ignore one that the program returns among other
results, which no engine can see: then the finding states this condition, and does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding


@dataclass(frozen=True, kw_only=True)
class OutputUse:
    """Uses of the values of a kernel's output in the program that calls it.

    Attributes:
      results: numbers of the program's results that depend on them.
      count: number of the program's results.
      is_certain: whether the program also uses them otherwise, e.g. in a print.
      program: name of the jitted function; None for a call of the kernel on its own.
    """

    results: frozenset[int]
    count: int
    is_certain: bool = False
    program: str | None = None

    @property
    def is_dropped(self) -> bool:
        """Whether the program computes nothing from them."""
        return not self.results and not self.is_certain

    @property
    def is_used(self) -> bool:
        """Whether they are used: every result that the program returns depends on them."""
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


Dropped = tuple[str, str | None]
"""Name of a kernel, and of one of its outputs."""


def most(uses: Sequence[OutputUse]) -> OutputUse:
    """Return the most extensive use, if several programs call the same kernel."""
    return max(uses, key=lambda use: (use.is_used, not use.is_dropped))


def judged(
    findings: Iterable[Finding], uses: OutputUses
) -> tuple[tuple[Finding, ...], frozenset[Dropped]]:
    """Drop findings about unused outputs, and state the condition of uncertain ones.

    If a kernel writes none of its outputs, all count as used: it is called for at least one of
    them.

    Args:
      findings: findings of one kernel.

    Returns:
      The remaining findings, and the unused outputs.
    """
    found = tuple(findings)
    names = {f.operand for f in found if f.kind is Fault.OUTPUT_NOT_WRITTEN}
    if not uses or names.issuperset(uses):
        return tuple(certain(f) for f in found), frozenset()
    kept: list[Finding] = []
    dropped: set[Dropped] = set()
    for finding in found:
        use = uses.get(finding.operand or "")
        if finding.kind is not Fault.OUTPUT_NOT_WRITTEN or use is None:
            kept.append(finding)
        elif use.is_dropped:
            dropped.add((finding.kernel, finding.operand))
        else:
            kept.append(replace(finding, only_if=use.condition))
    return tuple(kept), frozenset(dropped)


def certain(finding: Finding) -> Finding:
    """Mark the use of an unwritten output as known; return other findings unchanged."""
    is_of_output = finding.kind is Fault.OUTPUT_NOT_WRITTEN and finding.only_if is not None
    return replace(finding, only_if=None) if is_of_output else finding


def note(kernel: str, operand: str | None) -> str:
    """Sentence about an output that is neither written nor used."""
    return f"kernel `{kernel}` does not write all of {operand}, but nothing uses that output"

"""Advice on a kernel: the matches of rules that are worth reporting, ranked.

A match is worth reporting if a change saves at least `MIN_SAVING` of the cycles. The one that saves
most comes first, and a cycle counts for one match only: what one saves, the next ones cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pallas_debug.model import SourceLine
from pallas_debug.profile.costs import CostCell
from pallas_debug.profile.whatif import WhatIf

if TYPE_CHECKING:
    from pallas_debug.profile.stats import Profile

MIN_SAVING = 0.1
"""Minimum share of a kernel's cycles that a piece of advice saves."""

MAX_SHOWN = 3
"""Maximum pieces of advice on a kernel."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Piece of advice: what costs time, where, what to change, and what that saves.

    Attributes:
      kind: name of its `AdviceRule`.
      message: what costs time, in one sentence.
      remedy: what to change, in one sentence.
      what_if: the cycles with the change, or the least that remain.
      source: line to change; for advice about blocks, the line of the operand's spec. None if it is
        not known.
      operand: name of the operand, if the advice is about an operand.
    """

    kind: str
    message: str
    remedy: str
    what_if: WhatIf
    source: SourceLine | None = None
    operand: str | None = None


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Match of a rule in a kernel.

    Attributes:
      message, what_if, source, operand: as in `Advice`.
      cells: the cycles of which it saves some.
      remedy: as in `Advice`; None for that of the rule.
    """

    message: str
    what_if: WhatIf
    cells: Sequence[CostCell]
    remedy: str | None = None
    source: SourceLine | None = None
    operand: str | None = None


@dataclass(frozen=True, kw_only=True)
class AdviceRule:
    """Row of the table of rules.

    Attributes:
      name: short, stable name, such as `small-blocks`.
      title: what costs time.
      saving: how the saving is estimated.
      remedy: what to do, in general terms.
      find: yields what it finds in a profile whose cycles are known.
    """

    name: str
    title: str
    saving: str
    remedy: str
    find: Callable[[Profile], Iterable[Candidate]]


def advise(profile: Profile, rules: Iterable[AdviceRule]) -> tuple[Advice, ...]:
    """Return the advice on a kernel that is worth reporting, what saves most first."""
    total = profile.costs.total
    if not total or profile.cycles.total.value is None:
        return ()
    found = [(rule, candidate) for rule in rules for candidate in rule.find(profile)]
    found.sort(key=lambda item: -item[1].what_if.saved)
    unpaid = {id(cell): cell.cycles for cell in profile.costs.cells}
    shown: list[Advice] = []
    for rule, candidate in found:
        left = sum(unpaid[id(cell)] for cell in candidate.cells)
        saved = min(candidate.what_if.saved, left)
        if saved < MIN_SAVING * total or len(shown) == MAX_SHOWN:
            continue
        for cell in candidate.cells:
            unpaid[id(cell)] *= 1 - saved / left
        shown.append(
            Advice(
                kind=rule.name,
                message=candidate.message,
                remedy=candidate.remedy or rule.remedy,
                what_if=candidate.what_if,
                source=candidate.source,
                operand=candidate.operand,
            )
        )
    return tuple(shown)

"""A piece of advice, and the evidence for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pallas_debug.model import SourceLine
from pallas_debug.profile.figures import Figure

if TYPE_CHECKING:
    from pallas_debug.profile.advice.subject import AdviceSubject


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Number that supports a piece of advice.

    Attributes:
      name: what the number counts, such as `cross-lane moves in each iteration`.
    """

    name: str
    figure: Figure

    def __str__(self) -> str:
        unit = f" {self.figure.unit}" if self.figure.unit else ""
        return f"{self.name}: {self.figure}{unit} ({self.figure.origin})"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Piece of advice: what makes a kernel slow, where, on what evidence, and what to change.

    Attributes:
      kind: name of its `AdviceKind`.
      source: line to change; for advice about blocks, the line of the operand's spec. None if it is
        not known.
      operand: name of the operand, if the advice is about an operand.
      message: what costs time, in one sentence.
      remedy: what to change, in one sentence.
    """

    kind: str
    message: str
    remedy: str
    evidence: tuple[Evidence, ...]
    source: SourceLine | None = None
    operand: str | None = None


Rule = Callable[["AdviceSubject"], Iterable[Advice]]
"""Function that yields advice of one kind for a kernel."""


@dataclass(frozen=True, kw_only=True)
class AdviceKind:
    """Kind of advice, as listed in the reference.

    Attributes:
      name: short, stable name, such as `relayout`.
      title: what is slow.
      condition: when the advice is given.
      remedy: what to do, in general terms.
    """

    name: str
    title: str
    condition: str
    remedy: str
    rule: Rule

    def advice(
        self,
        *,
        message: str,
        remedy: str,
        evidence: tuple[Evidence, ...],
        source: SourceLine | None,
        operand: str | None = None,
    ) -> Advice:
        """Make advice of this kind."""
        return Advice(
            kind=self.name,
            message=message,
            remedy=remedy,
            evidence=evidence,
            source=source,
            operand=operand,
        )


def counted(name: str, value: int | float | None, note: str = "") -> Evidence:
    """Make evidence from a number that the compiler reports."""
    return Evidence(name=name, figure=Figure(value=value, origin="compiler", note=note))


def derived(name: str, value: int | float | None, note: str = "", unit: str = "") -> Evidence:
    """Make evidence from a number derived from compiler output or from the program."""
    return Evidence(name=name, figure=Figure(value=value, origin="derived", unit=unit, note=note))

"""A piece of advice, and the evidence for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pallas_debug.model import SourceLine
from pallas_debug.profile.figures import Figure

if TYPE_CHECKING:
    from pallas_debug.profile.advice.subject import AdviceSubject


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A number that a piece of advice rests on.

    Attributes:
      name: what was counted: `cross-lane moves in each iteration`.
    """

    name: str
    figure: Figure

    def __str__(self) -> str:
        unit = f" {self.figure.unit}" if self.figure.unit else ""
        return f"{self.name}: {self.figure}{unit} ({self.figure.origin})"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Advice: what makes a kernel slow, where, how that is known, and what to change.

    Attributes:
      kind: name of its `AdviceKind`.
      source: the line to change, which is that of the operand's spec if it is about its blocks;
        None if it is not known.
      operand: name of the operand, if it is about one.
      message: what costs time, in one sentence.
      remedy: what to change, in one sentence.
    """

    kind: str
    message: str
    remedy: str
    evidence: tuple[Evidence, ...]
    source: SourceLine | None = None
    operand: str | None = None


@dataclass(frozen=True, kw_only=True)
class AdviceKind:
    """A kind of advice, as the reference lists it.

    Attributes:
      name: short and stable: `relayout`.
      title: what is slow.
      condition: when it is given.
      remedy: what to do, in general.
      rule: finds it in a kernel.
    """

    name: str
    title: str
    condition: str
    remedy: str
    rule: Callable[[AdviceSubject], tuple[Advice, ...]]


def counted(name: str, value: int | float | None, note: str = "", unit: str = "") -> Evidence:
    """Evidence that is in what the compiler wrote."""
    return Evidence(name=name, figure=Figure(value=value, origin="compiler", unit=unit, note=note))


def derived(name: str, value: int | float | None, note: str = "", unit: str = "") -> Evidence:
    """Evidence that follows from what the compiler wrote, or from the program."""
    return Evidence(name=name, figure=Figure(value=value, origin="derived", unit=unit, note=note))


def derived_share(name: str, value: float) -> Evidence:
    """A share, in percent."""
    return derived(name, round(100 * value, 1), unit="%")


def percent(part: float, whole: float) -> str:
    """A share as text: `71 %`."""
    return f"{part / whole:.0%}".replace("%", " %") if whole else "-"

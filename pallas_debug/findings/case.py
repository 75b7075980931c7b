"""Cases: the sentences of a finding, as templates over typed facts.

Each kind of fault has a list of cases in `table`, of which the first whose condition holds is used.
A template names facts in braces: `{old} is cast to {new}`; `{core: on core %}` is ` on core 1` if
the fact is known, and nothing otherwise. Facts are those that the engine passes and those of the
witness (`operand`, `shape`, `index`, `grid_point`, `loop`); only here they become text.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pallas_debug.findings.facts import text_of


class Facts(dict[str, Any]):
    """Facts by name, also as attributes; None for what is unknown."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)

    def __missing__(self, name: str) -> None:
        return None


NO_CAUSE = ""
"""Cause of a case in which none is certain: a false one is worse than none."""

Test = Callable[[Facts], object]
"""Condition of a case."""


@dataclass(frozen=True)
class Case:
    """Sentences for a finding.

    Attributes:
      message: what happened.
      cause, advice: why, and what to do; a missing one is taken from the catalogue.
      when: condition on the facts; None if it always holds.
      entry: the catalogue's entry, if it is not that of the kind.
    """

    message: str
    cause: str | None = None
    advice: str | None = None
    when: Test | None = None
    entry: str = ""


class Words(NamedTuple):
    """Text of a finding, and the catalogue's entry that completes it."""

    message: str
    cause: str | None = None
    advice: str | None = None
    entry: str = ""


def has(*names: str) -> Test:
    """Condition: these facts are known, and neither false nor empty."""
    return lambda facts: all(facts[name] for name in names)


def is_(name: str, value: object) -> Test:
    """Condition: a fact has this value."""
    return lambda facts: facts[name] == value


def words(cases: Sequence[Case], facts: Mapping[str, Any]) -> Words:
    """Fill in the first case that holds.

    Raises:
      LookupError: none does, which is an error in the table.
    """
    given = Facts(facts)
    for case in cases:
        if case.when is None or case.when(given):
            message = _FILLED.vformat(case.message, (), given)
            cause, advice = (
                None if one is None else _FILLED.vformat(one, (), given)
                for one in (case.cause, case.advice)
            )
            return Words(message, cause, advice, case.entry)
    raise LookupError(f"no case for {sorted(facts)}")


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if "%" in format_spec:
            is_known = value is not None and value is not False and value not in ("", (), [])
            return format_spec.replace("%", text_of(value)) if is_known else ""
        return format(value, format_spec) if format_spec else text_of(value)


_FILLED = _Formatter()

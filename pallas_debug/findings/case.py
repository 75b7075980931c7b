"""Cases: the sentences of a finding, as templates over typed facts.

`cases.toml` lists the cases of each kind of fault, of which the first that holds is used, and
describes templates and conditions. Facts are those that the engine passes and those of the witness
(`operand`, `shape`, `index`, `grid_point`, `loop`); only here they become text.
"""

from __future__ import annotations

import functools
import string
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pallas_debug.findings.facts import text_of
from pallas_debug.findings.faults import KINDS, Fault


class Facts(dict[str, Any]):
    """Facts by name, also as attributes; None for what is unknown."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)

    def __missing__(self, name: str) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sentences for a finding.

    Attributes:
      message: what happened.
      cause, advice: why, and what to do; a missing one is taken from the catalogue.
      when: condition on the facts; empty if it always holds.
      entry: the catalogue's entry, if it is not that of the kind.
    """

    message: str
    cause: str | None = None
    advice: str | None = None
    when: str = ""
    entry: str = ""

    def holds(self, facts: Facts) -> bool:
        return all(_holds(term.strip(), facts) for term in self.when.split(",") if term)


def _holds(term: str, facts: Facts) -> bool:
    name, equals, values = term.partition("=")
    first, *parts = name.strip(" !?").split(".")
    value = facts[first]
    for part in parts:
        value = getattr(value, part, None)
    if equals:
        return str(value) in [one.strip() for one in values.split("|")]
    return value is not None if name.endswith("?") else bool(value) != name.startswith("!")


@functools.cache
def cases() -> Mapping[Fault, Sequence[Case]]:
    """The cases of all kinds of faults: what each says, why, and what to do."""
    found: dict[Fault, list[Case]] = {}
    kinds: list[str] = []
    message = ""
    for row in tomllib.loads(Path(__file__).with_name("cases.toml").read_text())["case"]:
        kinds, message = row.pop("kinds", kinds), row.pop("message", message)
        for kind in kinds:
            found.setdefault(KINDS[kind], []).append(Case(message=message, **row))
    return found


class Words(NamedTuple):
    """Text of a finding, and the catalogue's entry that completes it."""

    message: str
    cause: str | None = None
    advice: str | None = None
    entry: str = ""


def words(cases: Sequence[Case], facts: Mapping[str, Any]) -> Words:
    """Fill in the first case that holds.

    Raises:
      LookupError: none does, which is an error in the table.
    """
    given = Facts(facts)
    for case in cases:
        if case.holds(given):
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

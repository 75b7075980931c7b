"""Sightings: faults as observed by engines. The only module that creates findings."""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pallas_debug import explain
from pallas_debug.findings.case import cases, words
from pallas_debug.findings.faults import EngineName, Fault
from pallas_debug.model import Finding, SourceLine, Witness

_OF_WITNESS = ("operand", "shape", "index", "grid_point", "loop", "source", "other")


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """Facts that an engine knows about a fault, except those of its kind."""

    kernel: str
    engine: EngineName
    witness: Witness = field(default_factory=Witness)
    count: int = 1
    targets: tuple[str, ...] = ()

    def at(self, **facts: Any) -> Sighting:
        """Return a copy with some facts of the witness replaced."""
        return replace(self, witness=replace(self.witness, **facts))

    def with_values(self, values: Mapping[str, str]) -> Sighting:
        """Return a copy with values added to those of the witness."""
        return self.at(values={**self.witness.values, **values})

    def of(self, kind: Fault, **facts: Any) -> Finding:
        """Create the finding, with the sentences of the first case of its kind that holds.

        Args:
          facts: what the cases of this kind name, besides the facts of the witness.
        """
        at = self.witness
        known = {name: getattr(at, name) for name in _OF_WITNESS}
        known |= {"kernel": self.kernel, "ref": at.operand or "a ref"}
        known["between"] = "\n" if at.other is not None else " and "  # two sides, a line each
        given = {**known, "targets": list(self.targets), **facts}
        return self.found(kind, *words(cases()[kind], given))

    def found(
        self,
        kind: Fault,
        message: str,
        cause: str | None = None,
        advice: str | None = None,
        entry: str = "",
    ) -> Finding:
        """Create the finding; the catalogue has a missing cause or advice, in the entry if any."""
        at = self.witness
        return explain.completed(
            Finding(
                kind=kind,
                kernel=self.kernel,
                message=message,
                cause=cause,
                advice=advice,
                witness=replace(at, source=with_text(at.source), other=with_text(at.other)),
                engines=(self.engine,),
                targets=self.targets,
                count=self.count,
            ),
            entry,
        )


def revisited(
    seen: Sighting,
    *,
    what: str,
    first: tuple[int, ...],
    last: tuple[int, ...],
    again: tuple[int, ...],
) -> Finding:
    """Report an output block that is revisited after another; it was visited `first` to `last`."""
    visits = f"at {first}" if first == last else f"at {first} to {last}"
    return seen.of(Fault.OUTPUT_REVISITED, what=what, visits=visits, again=again)


def with_text(line: SourceLine | None) -> SourceLine | None:
    """Add the text of a line if its file can be read; the compiler's locations lack it."""
    if line is None or line.text:
        return line
    return replace(line, text=linecache.getline(line.file, line.line).strip() or None)

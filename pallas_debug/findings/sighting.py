"""A fault as an engine sees it, made into a finding: the only place where findings are created."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pallas_debug.findings import explain
from pallas_debug.findings.faults import Fault, Judge
from pallas_debug.model import Finding, Witness


class Wording(NamedTuple):
    """What a finding says. Without a cause or advice, it has those of the explanations."""

    message: str
    cause: str | None = None
    advice: str | None = None


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """What an engine knows of a fault, besides the facts of its kind."""

    kernel: str
    engine: Judge
    witness: Witness = field(default_factory=Witness)
    count: int = 1
    targets: tuple[str, ...] = ()

    def at(self, **facts: Any) -> Sighting:
        """The sighting with other facts in its witness."""
        return replace(self, witness=replace(self.witness, **facts))

    def found(self, kind: Fault, wording: Wording) -> Finding:
        """The finding, with an explanation where the wording has none."""
        finding = Finding(
            kind=kind,
            kernel=self.kernel,
            message=wording.message,
            cause=wording.cause,
            advice=wording.advice,
            witness=self.witness,
            engines=(self.engine,),
            targets=self.targets,
            count=self.count,
        )
        if wording.cause and wording.advice:
            return finding
        known = explain.of_finding(finding)
        if known is None:
            return finding
        return replace(
            finding,
            cause=wording.cause or known.cause,
            advice=wording.advice or known.advice,
        )

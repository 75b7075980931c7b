"""Answers of the engines as they come, and the verdict on a verification that was stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pallas_debug.findings.collector import merged
from pallas_debug.verdict import table
from pallas_debug.verdict.engines import Seen
from pallas_debug.verdict.result import Engine, Outcome, Verdict
from pallas_debug.verdict.table import Asked, AskedKernel

NOT_CONCLUDED = (
    "these are the findings of the engines that had answered by then; which of them others would "
    "correct, or rest on made-up values, is not known"
)


class Answers:
    """What the engines have answered so far, in order.

    Another thread may read it at any time, as one does that stops a command.
    """

    def __init__(self) -> None:
        self._seen: tuple[Seen, ...] = ()
        self._asked = Asked(kernels=(), engines=())

    def ask(self, engines: Sequence[Engine], targets: Sequence[str]) -> None:
        """Note the engines that will answer, and the targets of `compile`."""
        self._asked = Asked(kernels=(), engines=tuple(engines), targets=tuple(targets))

    def add(self, *seen: Seen) -> None:
        self._seen += seen

    @property
    def seen(self) -> list[Seen]:
        """The answers, as a list of the caller's own."""
        return list(self._seen)

    def stopped(self, name: str, why: str, reference: str | None = None) -> Verdict:
        """Build the verdict on a verification that was stopped, from the answers so far.

        Args:
          name: what was being verified.
          why: what stopped it, and where.
          reference: name of the function whose results are the right ones.
        """
        seen = self.seen
        given = [outcome for one in seen for outcome in one.outcomes if outcome.kernel]
        known = tuple(dict.fromkeys(AskedKernel(name=o.kernel, digest=o.digest) for o in given))
        asked = replace(self._asked, kernels=known)
        findings = merged((f for one in seen for f in one.findings), ())
        outcomes = table.fill(asked, given, unanswered=why)
        if all(outcome.reason != why for outcome in outcomes):
            end = Outcome(kernel="", engine="trace", status="unjudged", reason=why)
            outcomes = (end, *outcomes)
        return Verdict(
            name=name,
            kernels=tuple(table.labels((k.name, k.digest) for k in known).values()),
            outcomes=outcomes,
            findings=findings,
            problems=tuple(dict.fromkeys(p for one in seen for p in one.problems)),
            notes=(NOT_CONCLUDED,) if findings else (),
            reference=reference,
        )

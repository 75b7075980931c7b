"""Answers of the engines as they arrive, and the verdict of a verification that was stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from pallas_debug.findings.collector import merged
from pallas_debug.model import Finding
from pallas_debug.session import Session
from pallas_debug.verdict import table
from pallas_debug.verdict.engines import Seen, compiled
from pallas_debug.verdict.result import Engine, Outcome, Verdict
from pallas_debug.verdict.table import Asked

NOT_CONCLUDED = (
    "these are the findings of the engines that had answered by then; it is unknown which of them "
    "other engines would correct, or which rest on made-up values"
)


class Answers:
    """Answers of the engines so far, in order.

    Another thread may read them at any time, such as the thread that stops a command.

    Args:
      found: called with findings that are known before a program ends.
    """

    def __init__(self, found: Callable[[Finding], None] = lambda finding: None) -> None:
        self._found = found
        self._seen: tuple[Seen, ...] = ()
        self._asked = Asked(kernels={}, engines=())
        self._sessions: tuple[Session, ...] = ()
        self._hints = True

    def ask(self, engines: Sequence[Engine], targets: Sequence[str], *, hints: bool = True) -> None:
        """Note the engines that will answer, targets of `compile`, and whether to keep hints."""
        self._hints = hints
        self._asked = Asked(kernels={}, engines=tuple(engines), targets=tuple(targets))

    def add(self, *seen: Seen) -> None:
        self._seen += seen

    def announce(self, seen: Seen) -> None:
        """Report the findings of an answer while the program runs."""
        for finding in seen.findings:
            self._found(finding)

    def compile_in(self, session: Session) -> None:
        """Register a session whose compilations become answers when it ends or is stopped."""
        self._sessions = (*self._sessions, session)

    @property
    def seen(self) -> list[Seen]:
        """Return a copy of the answers."""
        return list(self._seen)

    def stopped(self, name: str, why: str, reference: str | None = None) -> Verdict:
        """Build the verdict of a verification that was stopped, from the answers so far.

        Args:
          name: name of the function or program.
          why: what stopped it, and where.
          reference: name of the function that returns the correct results.
        """
        seen = [*self.seen, *self._compiled()]
        given = [outcome for one in seen for outcome in one.outcomes if outcome.kernel]
        known = dict.fromkeys((o.kernel, o.digest) for o in given)
        asked = replace(self._asked, kernels=known)
        findings = merged((f for one in seen for f in one.findings), ())
        outcomes = table.fill(asked, given, unanswered=why)
        if all(outcome.reason != why for outcome in outcomes):
            end = Outcome(kernel="", engine="trace", status="unjudged", reason=why)
            outcomes = (end, *outcomes)
        return Verdict(
            name=name,
            kernels=tuple(table.labels(known).values()),
            outcomes=outcomes,
            findings=findings,
            hints=tuple(dict.fromkeys(h for one in seen for h in one.hints if self._hints)),
            problems=tuple(dict.fromkeys(p for one in seen for p in one.problems)),
            notes=(NOT_CONCLUDED,) if findings else (),
            reference=reference,
        )

    def _compiled(self) -> Iterator[Seen]:
        """Finished compilations that are not among the answers."""
        outcomes = (outcome for one in self._seen for outcome in one.outcomes)
        known = {(o.kernel, o.digest, o.target) for o in outcomes if o.engine == "compile"}
        for session in self._sessions:
            for kernel, one in session.queue.compiled():
                if (kernel.name, kernel.digest, one.target) not in known:
                    yield compiled(kernel, one)

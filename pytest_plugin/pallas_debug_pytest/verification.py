"""`--pallas-verify`: what the engines that need no run say of each kernel, once per kernel.

Imports jax.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from dataclasses import asdict

from pallas_debug.model import Finding, Kernel
from pallas_debug.session import Session
from pallas_debug.verified import engines, merge
from pallas_debug.verified.engines import Seen
from pallas_debug.verified.result import Outcome, Status


class Verification:
    """The static analysis and the compiler, asked about the kernels of a session's tests."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._seen: dict[str, list[Seen]] = {}
        self._faulty: set[str] = set()

    def findings(self, kernel: Kernel) -> tuple[Finding, ...]:
        """What is wrong with a kernel; waits for its compilations at the first time."""
        if kernel.digest not in self._seen:
            self._seen[kernel.digest] = self._ask(kernel)
        findings = (f for seen in self._seen[kernel.digest] for f in seen.findings)
        return merge.merged(findings, (kernel.source,))

    def _ask(self, kernel: Kernel) -> list[Seen]:
        captured = {c.kernel.digest: c for c in self._session.captures}[kernel.digest]
        self._session.wait()
        compilations = next(
            dump.compilations for dump in self._session.dumps if dump.kernel.digest == kernel.digest
        )
        return [
            engines.static(captured, self._session.targets),
            *(engines.compiled(kernel, compilation) for compilation in compilations),
        ]

    def checked(self, findings: tuple[Finding, ...]) -> None:
        """What ran in a test was found fault with, or not."""
        self._faulty.update(f.kernel for f in findings if not _is_ours(f))

    def outcomes(self) -> list[dict[str, object]]:
        """What each engine did, as plain data."""
        found: list[Outcome] = []
        for seen in self._seen.values():
            found += [outcome for one in seen for outcome in one.outcomes]
        for name in dict.fromkeys(outcome.kernel for outcome in found):
            status: Status = "found" if name in self._faulty else "ok"
            found.append(Outcome(kernel=name, engine="checks", status=status))
        return [asdict(outcome) for outcome in found]


def _is_ours(finding: Finding) -> bool:
    return {"static", "compile"}.issuperset((finding.engine or "").split(", "))

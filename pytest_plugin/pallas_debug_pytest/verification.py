"""`--pallas-verify`: results of the engines for each kernel.

Imports jax.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from pallas_debug.findings.collector import merged
from pallas_debug.model import Finding, Hint, Kernel, Target
from pallas_debug.session import Session
from pallas_debug.verdict import engines, interpreted, table
from pallas_debug.verdict.engines import Seen
from pallas_debug.verdict.result import JUDGED, Outcome, outcome_of
from pallas_debug_pytest.listener import VERIFIED


class Verification:
    """Static analysis and compilation of the kernels of a session's tests.

    Args:
      targets: names of the chips for which every kernel is judged.
    """

    def __init__(self, session: Session, targets: Collection[str]) -> None:
        self._session = session
        self._targets = tuple(targets)
        self._kernels: dict[str, Kernel] = {}
        self._seen: dict[str, list[Seen]] = {}
        self._traced: dict[str, tuple[Target, ...]] = {}
        self._faulty: set[str] = set()  # digests

    def findings(self, kernel: Kernel) -> tuple[Finding, ...]:
        """Return the findings of a kernel; the first call waits for its compilations."""
        self._kernels.setdefault(kernel.digest, kernel)
        targets = tuple(engines.traced_for(self._session, kernel, self._session.targets))
        if self._traced.get(kernel.digest) != targets:  # each test may trace it for another chip
            self._traced[kernel.digest] = targets
            self._seen[kernel.digest] = self._ask(kernel, targets)
        findings = (f for seen in self._seen[kernel.digest] for f in seen.findings)
        return merged(findings, (kernel.source,))

    def _ask(self, kernel: Kernel, targets: Sequence[Target]) -> list[Seen]:
        captured = {c.kernel.digest: c for c in self._session.captures}[kernel.digest]
        self._session.wait()
        return [
            engines.guarded("static", [kernel], engines.static, captured, targets),
            *(engines.compilation(self._session, kernel, target) for target in self._targets),
        ]

    def hints(self, kernels: Iterable[Kernel]) -> list[Hint]:
        """Return the static hints for these kernels."""
        found: list[Hint] = []
        for kernel in kernels:
            self.findings(kernel)
            found += (hint for seen in self._seen[kernel.digest] for hint in seen.hints)
        return found

    def judged_by(self, kernel: Kernel) -> list[str]:
        """Return the engines that judged a kernel: static analysis, and targets."""
        seen = self._seen.get(kernel.digest, ())
        outcomes = [o for one in seen for o in one.outcomes if o.digest == kernel.digest]
        return [outcome.column for outcome in outcomes if outcome.status in JUDGED]

    def ran(self, findings: Collection[Finding], used: Collection[Kernel]) -> None:
        """Record which of a test's kernels the machine found at fault."""
        is_of = self._session.observer.is_of
        for kernel in used:
            of_it = (f for f in findings if f.kernel == kernel.name and not _is_ours(f))
            if any(is_of(finding, kernel.digest) for finding in of_it):
                self._faulty.add(kernel.digest)

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return outcomes of all engines, a cell per kernel, engine and target."""
        answers = [
            outcome for seen in self._seen.values() for one in seen for outcome in one.outcomes
        ]
        answers += [self._as_it_ran(kernel) for kernel in self._kernels.values()]
        kernels = table.kernels(self._kernels.values(), self._session.uncaptured)
        return table.fill(kernels, VERIFIED, self._targets, answers)

    def _as_it_ran(self, kernel: Kernel) -> Outcome:
        if kernel.digest in self._faulty:
            return outcome_of(kernel, "machine", "found")
        outcome = interpreted.as_it_ran(kernel, "machine", self._session, None, is_explained=True)
        empty = self._session.grids.why_empty(kernel)
        has_launched = kernel.digest in self._session.launched and empty is None
        if has_launched or outcome.status != "unjudged":
            return outcome
        # The machine judges only what tests run.
        reason = empty or "no test ran it to its end on the kernel machine"
        return outcome_of(kernel, "machine", "unsupported", reason)


def _is_ours(finding: Finding) -> bool:
    return {"static", "compile"}.issuperset(finding.engines)

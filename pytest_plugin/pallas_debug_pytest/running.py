"""The test that is running: its kernels, and what was found in them.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pallas_debug import interrupts, render
from pallas_debug.findings.collector import Key, key
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding, Gap, Kernel
from pallas_debug.session import Session
from pallas_debug.session.options import Mode
from pallas_debug_pytest.callers import Callers
from pallas_debug_pytest.marks import Marks


@dataclass(eq=False, kw_only=True)
class Running:
    """The test that is running.

    Attributes:
      own: whether the session belongs to this test alone.
      used: kernels by digest.
      expected: how often each fault was expected.
      judged: how often each fault was seen when the test was last judged.
      printed: number of prints written to standard output.
      shown: findings that are in the text of its failure.
      is_stopped: whether an exception ended the test.
      callers: lines of the test that called the kernels.
      interrupts: number of times ctrl+c was pressed before the test.
      uncaptured: number of kernels that could not be captured before the test.
    """

    nodeid: str
    marks: Marks
    session: Session
    own: bool
    callers: Callers
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    used: dict[str, Kernel] = field(default_factory=dict)
    expected: Counter[Key] = field(default_factory=Counter)
    judged: Counter[Key] = field(default_factory=Counter)
    printed: int = 0
    interrupts: int = field(default_factory=interrupts.count)
    shown: tuple[Finding, ...] = ()
    is_stopped: bool = False
    uncaptured: int = field(init=False)

    def __post_init__(self) -> None:
        self.uncaptured = len(self.session.uncaptured)

    def stopped_by(self, error: BaseException) -> None:
        """Note that an exception ended the test; stop pytest if ctrl+c in a kernel caused it.

        Raises:
          KeyboardInterrupt: ctrl+c was the cause.
        """
        self.is_stopped = True
        if interrupts.is_cause(error, self.interrupts):
            raise KeyboardInterrupt from error

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.session.observer.findings

    def gaps(self) -> list[Gap]:
        """Return missing judgements of the test's kernels; compilations may still be running."""
        used = self.used.values()
        return list(self.session.gaps(used, since=self.uncaptured, has_ended=False))

    def judged_by(self, kernel: Kernel) -> list[str]:
        """Return the engines that judged a kernel as the test ran it."""
        if not self.session.observer.checks and not self.mode.sanitizes:
            return []
        from pallas_debug.verdict.interpreted import judged_as_it_ran  # imports jax

        return list(judged_as_it_ran(kernel, self.session, self.mode))

    @property
    def mode(self) -> Mode:
        """Mode in which the test's kernels run."""
        return Mode.parse(self.marks.interpret or self.session.interpret_mode)

    def reported(self, kernels: Sequence[str], found: Sequence[Finding]) -> dict[str, Any]:
        """Return the part of the test's report that is about its kernels, as plain data."""
        return {
            "kernels": kernels,
            "targets": list(self.marks.targets or ()),
            "findings": [str(finding.kind) for finding in found],
        }

    def uncounted(self) -> list[str]:
        """Return the texts of findings that do not fail the test.

        They depend on a condition, or their exception was caught by the test or by a function that
        it calls, which may have taken another way.
        """
        found = [
            f"{self.nodeid}: not counted: {render.finding_text(finding)}"
            for finding in self.findings
            if not finding.counts and key(finding) not in self.expected
        ]
        caught = {} if self.is_stopped else {key(f): f for f in self.session.raised if f.counts}
        return found + [
            f"{self.nodeid}: not counted, as its exception was caught: {render.finding_text(f)}"
            for f in caught.values()
            if key(f) not in self.expected
        ]

    def add(self, finding: Finding, kernel: Kernel) -> None:
        """Add a finding of an engine that does not run the test.

        A finding about an output that this test's programs do not use is left out.
        """
        is_dropped = (finding.kernel, finding.operand) in self.session.observer.dropped
        if not (is_dropped and finding.kind is Fault.OUTPUT_NOT_WRITTEN):
            self.session.observer.found(finding, uses=self.session.callers.uses(kernel))

    def unexpected(self) -> list[Finding]:
        """Return findings that were neither expected nor raised to the caller of the kernel."""
        known = self.expected | self.judged
        raised = {key(finding) for finding in self.session.raised}
        return [
            finding
            for finding in self.findings
            if finding.counts and finding.count > known[key(finding)] and key(finding) not in raised
        ]

"""Collector of reports from running kernels: findings of all engines, and prints.

Called from runtime threads in the middle of a program, so no exception may escape.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from pallas_debug.bridge.instrument.observe import CheckedRun
from pallas_debug.checks import findings, names
from pallas_debug.errors import InternalError, PallasDebugError
from pallas_debug.findings import outputs
from pallas_debug.findings.collector import Collector
from pallas_debug.findings.outputs import OutputUses
from pallas_debug.guards import guarded, problem_of
from pallas_debug.model import Finding, Gap, Hint, PrintRecord, SourceLine

MAX_PRINTS = 10_000
"""Maximum prints kept per test or session: a kernel may print at each of a million grid points."""


class RunObserver:
    """Observer of interpreted kernels: collects their prints and findings.

    Implements `Observer` of `bridge/instrument/observe.py` and `HostObserver` of `machine/host.py`.

    Args:
      checks: names of the checks; empty for none.
      prints: whether to collect prints.
      printed: called with each print that is kept.
      skipped: called once for each kernel that is not checked, or only in part, and each reason.
      report: called with exceptions raised by `printed` or `skipped`, which are not
        propagated.
    """

    def __init__(
        self,
        *,
        checks: tuple[str, ...] = (),
        prints: bool = False,
        printed: Callable[[PrintRecord], None] = lambda record: None,
        skipped: Callable[[Gap], None] = lambda gap: None,
        report: Callable[[PallasDebugError], None] = lambda problem: None,
    ) -> None:
        self.checks = checks
        self.prints = prints
        self._on_printed = printed
        self._on_skipped = skipped
        self._report = report
        self._lock = threading.Lock()
        self._collector = Collector()
        self._hints: dict[Hint, None] = {}
        self._skipped_loops: dict[str, set[SourceLine]] = {}
        self._run_loops: dict[str, set[SourceLine]] = {}
        self._printed: list[PrintRecord] = []
        self._gaps: set[Gap] = set()
        self.refusals: dict[str, str] = {}

    @property
    def infinities(self) -> bool:
        """True if the checks look for infinities."""
        return not {"inf", "float_div"}.isdisjoint(self.checks)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings since the last `clear()`, oldest first."""
        return self._collector.findings

    @property
    def hints(self) -> tuple[Hint, ...]:
        """Hints since the last `clear()`, oldest first."""
        with self._lock:
            return tuple(self._hints)

    def hinted(self, *hints: Hint) -> None:
        """Collect hints, each once."""
        with self._lock:
            self._hints.update(dict.fromkeys(hints))

    def is_of(self, finding: Finding, digest: str) -> bool:
        """Return whether a finding may be of this kernel, not only of another with its name."""
        return finding.digest in ("", digest)

    def looped(
        self, digest: str, *, skipped: AbstractSet[SourceLine], ran: AbstractSet[SourceLine]
    ) -> None:
        """Record which loops of a judged kernel ran, and which were reached but never ran."""
        with self._lock:
            self._skipped_loops.setdefault(digest, set()).update(skipped)
            self._run_loops.setdefault(digest, set()).update(ran)

    def idle_loops(self, digest: str) -> frozenset[SourceLine]:
        """Loops of a kernel that were reached but whose bodies never ran."""
        with self._lock:
            ran = self._run_loops.get(digest, set())
            return frozenset(self._skipped_loops.get(digest, set()) - ran)

    @property
    def records(self) -> tuple[PrintRecord, ...]:
        """Prints since the last `clear()`; a final record states that others were dropped."""
        with self._lock:
            return tuple(self._printed)

    def clear(self) -> None:
        """Discard findings and prints, before the next test."""
        self._collector.clear()
        with self._lock:
            self._hints.clear()
            self._printed.clear()

    def checked(self, run: CheckedRun) -> None:
        """Collect the findings of a kernel that ran with inserted checks."""
        try:
            found = findings.findings(run)
        except Exception as error:  # noqa: BLE001 - ours is no reason for the program to fail
            problem = problem_of(error, "report", "reading what its checks counted")
            reason = str(problem).removesuffix(".")
            self.skipped(run.kernel, reason, digest=run.digest, is_fault=True)
            return
        self.found(*found, digest=run.digest)

    def found(self, *findings: Finding, uses: OutputUses | None = None, digest: str = "") -> None:
        """Collect the findings of a kernel's run, causes with their consequences; report new ones.

        Of what the kernel machine finds, only the faults that the checks select are kept.

        Args:
          uses: which of the kernel's outputs the program uses, if known.
          digest: digest of the kernel; empty if unknown.
        """
        if uses:
            findings = outputs.without_unused(findings, uses)
        found = [
            replace(finding, digest=finding.digest or digest)
            for finding in Collector(findings).findings
            if not self.checks
            or "machine" not in finding.engines
            or names.selects(self.checks, finding)
        ]
        self._collector.add(*found)

    def printed(self, record: PrintRecord) -> None:
        """Keep and report a print, up to `MAX_PRINTS`."""
        with self._lock:
            if len(self._printed) > MAX_PRINTS:
                return
            if len(self._printed) == MAX_PRINTS:
                text = f"… more prints are dropped: only the first {MAX_PRINTS:,} are kept"
                record = PrintRecord(kernel=record.kernel, text=text)
            self._printed.append(record)
        with guarded("report", f"showing what kernel `{record.kernel}` printed", self._report):
            self._on_printed(record)

    def refused(self, kernel: str, reason: str, *, runs: str | None) -> None:
        """Record a kernel that the sanitizer cannot judge.

        Args:
          runs: how it runs instead, `on the kernel machine without being judged`; None if the
            program stops at it.
        """
        self.refusals.setdefault(kernel, reason)
        if runs is None:
            return
        reason = f"it runs {runs}, because {reason}"
        self._skip(Gap(kernel=kernel, engine="machine", reason=reason, is_limit=True))

    def skipped(
        self,
        kernel: str,
        reason: str,
        *,
        digest: str = "",
        partly: bool = False,
        is_fault: bool = False,
    ) -> None:
        """Record a kernel that is not fully checked; without checks, only faults are reported."""
        if not self.checks:
            if is_fault:
                self._report(InternalError(f"{reason}.", boundary="hook"))
            return
        self._skip(
            Gap(
                kernel=kernel,
                engine="checks",
                digest=digest,
                reason=reason,
                is_limit=not is_fault,
                is_partial=partly,
            )
        )

    def _skip(self, gap: Gap) -> None:
        with self._lock:
            if gap in self._gaps:
                return
            self._gaps.add(gap)
        with guarded("report", f"noting that kernel `{gap.kernel}` is not checked", self._report):
            self._on_skipped(gap)

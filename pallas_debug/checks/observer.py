"""Collects what running kernels say: findings of all engines, and prints.

Called from threads of the runtime, in the middle of a program: nothing may escape from here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from pallas_debug.bridge.instrument.observe import CheckedRun
from pallas_debug.checks import findings
from pallas_debug.errors import InternalError, PallasDebugError
from pallas_debug.findings.collector import Collector
from pallas_debug.guards import guarded, problem_of
from pallas_debug.model import Finding, PrintRecord

MAX_PRINTS = 10_000
"""Of one test or session. A kernel that prints in each of a million grid points is cut there."""


@dataclass(frozen=True, kw_only=True)
class Skip:
    """A kernel that is not checked, or not all of it.

    Attributes:
      sentence: says so, and why.
      partly: whether the rest of the kernel is checked.
      is_fault: whether something went wrong, rather than that checks do not know such kernels.
    """

    kernel: str
    sentence: str
    partly: bool = False
    is_fault: bool = False


class RunObserver:
    """Observer of interpreted kernels: collects their prints and findings.

    Implements `Observer` of `bridge/instrument/observe.py` and `bridge/interpret/tpu_interpret.py`.

    Args:
      checks: names; empty for none.
      prints: whether prints are collected.
      found: is told of each finding when it is first seen.
      printed: is told of each print that is kept.
      skipped: is told once of each kernel that is not checked, or not all of it, and why.
      report: is given what `found`, `printed` or `skipped` raise, which goes no further.
    """

    def __init__(
        self,
        *,
        checks: tuple[str, ...] = (),
        prints: bool = False,
        found: Callable[[Finding], None] = lambda finding: None,
        printed: Callable[[PrintRecord], None] = lambda record: None,
        skipped: Callable[[Skip], None] = lambda skip: None,
        report: Callable[[PallasDebugError], None] = lambda problem: None,
    ) -> None:
        self.checks = checks
        self.prints = prints
        self._tell_found = found
        self._tell_printed = printed
        self._tell_skipped = skipped
        self._report = report
        self._lock = threading.Lock()
        self._collector = Collector()
        self._printed: list[PrintRecord] = []
        self._cut = 0
        self._skipped: set[str] = set()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found since the last `clear`, the first first."""
        return self._collector.findings

    @property
    def records(self) -> tuple[PrintRecord, ...]:
        """What was printed since the last `clear`; says at its end how much was cut."""
        with self._lock:
            records = tuple(self._printed)
            if not self._cut:
                return records
            text = f"… {self._cut} more prints were cut: the first {MAX_PRINTS} are kept"
            return (*records, PrintRecord(kernel=records[-1].kernel, text=text))

    def clear(self) -> None:
        """Begin anew, as the next test does."""
        self._collector.clear()
        with self._lock:
            self._printed.clear()
            self._cut = 0

    def checked(self, run: CheckedRun) -> None:
        """A kernel with checks was run."""
        try:
            found = findings.findings(run)
        except Exception as error:  # noqa: BLE001 - ours is no reason for the program to fail
            problem = problem_of(error, "report", "reading what its checks counted")
            self.skipped(run.kernel, str(problem).removesuffix("."), is_fault=True)
            return
        self.found(*found)

    def found(self, *findings: Finding) -> None:
        """Collect what one run of a kernel found, and tell of what is new."""
        for finding in self._collector.add(*findings):
            kernel = finding.kernel
            with guarded("report", f"telling of a finding in kernel `{kernel}`", self._report):
                self._tell_found(finding)

    def printed(self, record: PrintRecord) -> None:
        """A kernel printed."""
        with self._lock:
            if len(self._printed) >= MAX_PRINTS:
                self._cut += 1
                return
            self._printed.append(record)
        with guarded("report", f"showing what kernel `{record.kernel}` printed", self._report):
            self._tell_printed(record)

    def skipped(
        self, kernel: str, reason: str, *, partly: bool = False, is_fault: bool = False
    ) -> None:
        """Note a kernel that is not fully checked; a no-op where no checks are asked for."""
        if not self.checks:
            if is_fault:
                self._report(InternalError(f"{reason}.", boundary="hook"))
            return
        sentence = (
            f"kernel `{kernel}` is not checked as asked for: {reason}. "
            "That nothing is found in it means nothing."
        )
        with self._lock:
            if sentence in self._skipped:
                return
            self._skipped.add(sentence)
        skip = Skip(kernel=kernel, sentence=sentence, partly=partly, is_fault=is_fault)
        with guarded("report", f"noting that kernel `{kernel}` is not checked", self._report):
            self._tell_skipped(skip)

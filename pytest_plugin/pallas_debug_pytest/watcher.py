"""Sessions in a process that runs tests, with the kernels and findings of each test.

Imported by `run.py`; imports jax. An option gives the whole run one session, with findings and
prints kept per test; a marker or a fixture gives a session to its test alone.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pallas_debug import followup, interrupts, tracebacks
from pallas_debug import render as text
from pallas_debug._api.debug import Prints
from pallas_debug.errors import KernelNotJudged, PallasDebugError
from pallas_debug.findings import stops
from pallas_debug.findings.collector import Key, key
from pallas_debug.findings.faults import Fault
from pallas_debug.guards import Boundary, guarded, problem_of
from pallas_debug.model import Finding, Gap, Hint, Kernel
from pallas_debug.session import Options, Session, resolve_targets
from pallas_debug.session.options import Mode
from pallas_debug.store import layout
from pallas_debug_pytest import marks
from pallas_debug_pytest.listener import NAME, Output
from pallas_debug_pytest.marks import Marks, Settings

if TYPE_CHECKING:
    from pallas_debug_pytest.verification import Verification


@dataclass(eq=False, kw_only=True)
class Running:
    """The test that is running.

    Attributes:
      session: the session of the run, or one of this test alone.
      used: kernels by digest.
      expected: how often each fault was expected.
      judged: how often each fault was seen when the test was last judged.
      shown: the finding that is in the text of its failure.
      is_stopped: whether an exception ended the test.
      callers: line of the test that called the kernel, for each finding.
      interrupts: number of times ctrl+c was pressed before the test.
      uncaptured: number of kernels that could not be captured before the test.
    """

    item: pytest.Item
    marks: Marks
    session: Session
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    used: dict[str, Kernel] = field(default_factory=dict)
    expected: Counter[Key] = field(default_factory=Counter)
    judged: Counter[Key] = field(default_factory=Counter)
    shown: Finding | None = None
    is_stopped: bool = False
    callers: dict[Key, str] = field(default_factory=dict)
    interrupts: int = field(default_factory=interrupts.count)
    uncaptured: int

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.session.observer.findings

    def used_by_call(self, kernel: Kernel) -> None:
        """Note a kernel, and the line of the test that calls it, in the thread that does."""
        self.used.setdefault(kernel.digest, kernel)
        new = {key(f) for f in self.findings if f.kernel == kernel.name} - self.callers.keys()
        if not new:
            return
        for frame, line in traceback.walk_stack(None):
            if frame.f_code.co_filename == str(self.item.path):
                place = f"{text.relative(self.item.path)}:{line}"
                self.callers |= dict.fromkeys(new, place)
                return

    def stopped_by(self, error: BaseException) -> None:
        """Note that an exception ended the test; stop pytest if ctrl+c in a kernel caused it.

        Raises:
          KeyboardInterrupt: ctrl+c was the cause.
        """
        self.is_stopped = True
        if interrupts.is_cause(error, self.interrupts):
            raise KeyboardInterrupt from error

    def gaps(self) -> list[Gap]:
        """Return missing judgements of the test's kernels; compilations may still be running."""
        used = self.used.values()
        return list(self.session.gaps(used, since=self.uncaptured, has_ended=False))

    def has_run(self, kernel: Kernel) -> bool:
        """Return whether a kernel ran to its end or to a fault, or was not to be checked."""
        session = self.session
        is_checked = session.observer.checks or session.interpret_mode.sanitizes
        known = [gap.kernel for gap in session.unchecked] + [f.kernel for f in self.findings]
        return not is_checked or kernel.digest in session.launched or kernel.name in known

    def judged_by(self, kernel: Kernel) -> list[str]:
        """Return the engines that judged a kernel as the test ran it."""
        mode = Mode.parse(self.marks.interpret or self.session.interpret_mode)
        if not self.session.observer.checks and not mode.sanitizes:
            return []
        from pallas_debug.verdict.interpreted import judged_as_it_ran  # imports jax

        return list(judged_as_it_ran(kernel, self.session, mode))

    def uncounted(self) -> list[str]:
        """Return the texts of findings that do not fail the test.

        They depend on a condition, or their exception was caught by the test or by a function that
        it calls, which may have taken another way.
        """
        caught = {} if self.is_stopped else {key(f): f for f in self.session.raised if f.counts}
        found = [("not counted", f) for f in self.findings if not f.counts]
        found += [("not counted, as its exception was caught", f) for f in caught.values()]
        return [
            f"{self.item.nodeid}: {why}: {text.finding_text(finding)}"
            for why, finding in found
            if key(finding) not in self.expected
        ]

    def unexpected(self) -> list[Finding]:
        """Return findings that were neither expected nor raised to the caller of the kernel."""
        known = self.expected | self.judged
        raised = {key(finding) for finding in self.session.raised}
        return [
            finding
            for finding in self.findings
            if finding.counts and finding.count > known[key(finding)] and key(finding) not in raised
        ]

    def text_of(self, finding: Finding) -> str:
        """Return the text of a finding, with the line of the test that called the kernel."""
        caller = self.callers.get(key(finding))
        called = "" if caller is None else f"\n  called from {caller}"
        return text.finding_text(finding) + called


class Watcher(Prints):
    """Session of a process that runs tests, and the currently running test."""

    def __init__(self, config: pytest.Config, settings: Settings, output: Output) -> None:
        self._config = config
        self.settings = settings
        self.session: Session | None = None
        self.running: Running | None = None
        self._output = output
        self._verification: Verification | None = None

    def open(self) -> None:
        """Open the session of the whole run.

        Raises:
          pytest.UsageError: an unknown target, a directory that is not writable.
        """
        settings = self.settings
        try:
            self.session = self._opened(
                dumps=settings.dump,
                targets=settings.compiled,
                chip=settings.chip,
                pretend=settings.pretend is not None,
                interpret=settings.interpret,
                checks=settings.checks,
            )
        except PallasDebugError as error:
            raise pytest.UsageError(f"{NAME}: {error}") from error
        if "uninitialized" in settings.checks and self.session.interpret_mode.kind == "off":
            self._output.notices.append("`uninitialized` is checked on the kernel machine only")
        if settings.verify:
            from pallas_debug_pytest.verification import Verification

            targets = resolve_targets(settings.verify)
            self._verification = Verification(self.session, [t.name for t in targets])

    def _opened(self, **options: object) -> Session:
        settings = self.settings
        session = Session(
            Options(
                **options,  # type: ignore[arg-type]
                prints=True,
                switches=settings.switches,
                timeout=settings.timeout,
            ),
            self,
            runs=True,
            inform=self._output.notices.append,
        )
        if worker := getattr(self._config, "workerinput", None):
            session.run_id = str(worker.get("testrunuid", session.run_id))
        return session.__enter__()

    def kernel_used(self, kernel: Kernel) -> None:
        if self.running is not None:
            self.running.used_by_call(kernel)

    # A single test, from its setup to its end.

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            self.end()

    # After the hooks that skip tests by their marks, before the hook that sets them up.
    @pytest.hookimpl
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.end()  # the test may be a rerun
        try:
            self.begin(item)
            return
        except PallasDebugError as error:
            refused = str(error)
        except Exception as error:  # noqa: BLE001 - a bug of ours must not fail the test
            self._lose(item.nodeid, problem_of(error, "hook", f"beginning to watch {item.nodeid}"))
            return
        pytest.fail(refused, pytrace=False)

    def _lose(self, nodeid: str, problem: PallasDebugError) -> None:
        """Record a test that was not watched to its end: its kernels were not judged."""
        self._output.problems.append(str(problem))
        if self.settings.judges:
            self._output.gaps.append(Gap(kernel="kernels of", engine=nodeid, reason=str(problem)))

    def _guarded(self, boundary: Boundary, doing: str) -> contextlib.AbstractContextManager[None]:
        """Report an exception of ours in the summary, without failing a test."""
        return guarded(boundary, doing, lambda problem: self._output.problems.append(str(problem)))

    def begin(self, item: pytest.Item, *, asked: bool = False) -> Running | None:
        """Watch this test, if the whole run is watched or the test needs it.

        Raises:
          PallasDebugError: its markers are invalid.
        """
        marked = marks.read(item)
        if self.session is None and not asked and not marks.is_watched(item, marked):
            return None
        self._report_finds_between_tests()
        session = self.session or self._opened(
            chip=marks.target_name(item),
            interpret=marked.interpret,
            checks=marked.check or (),
        )
        self.running = running = Running(
            item=item, marks=marked, session=session, uncaptured=len(session.uncaptured)
        )
        enter = running.stack.enter_context
        enter(session.separately())
        if session is not self.session:
            return running
        if marked.interpret is not None:
            enter(session.interpreting(marked.interpret))
        if marked.check is not None:
            enter(session.checking(marked.check))
        if marked.targets is not None and session.store is not None:
            enter(session.compiling_for(marked.targets))
        return running

    def _report_finds_between_tests(self) -> None:
        """Report findings between tests, such as from imports, as problems: no test owns them."""
        for finding in self.session.observer.findings if self.session is not None else ():
            self._output.problems.append(f"found outside the tests: {text.finding_text(finding)}")

    def end(self) -> None:
        """Record the test's kernels, and leave its session."""
        running, self.running = self.running, None
        if running is None:
            return
        with self._guarded("hook", f"ending to watch {running.item.nodeid}"):
            self._record(running)
            self._output.notices += running.uncounted()
        try:
            running.stack.close()
        except Exception as error:  # noqa: BLE001 - of a kernel; the test has been reported
            self._output.problems.append(f"a kernel failed after {running.item.nodeid}: {error}")
        running.session.observer.clear()
        if running.session is not self.session:
            self._close(running.session)

    def _record(self, running: Running) -> None:
        used, gaps = running.used.values(), running.gaps()
        if not used and not gaps:
            return
        judged = {kernel.digest: running.judged_by(kernel) for kernel in used}
        if self._verification is not None:
            for kernel in used:
                judged[kernel.digest] += self._verification.judged_by(kernel)
        running.session.record_run(
            running.item.nodeid,
            used,
            prints=running.session.observer.records,
            findings=running.findings,
            hints=self._hints(running),
            gaps=gaps,
            judged=judged,
        )

    # Innermost, so that prints of kernels that are still running are captured for the test.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        running = self.running
        if running is None:
            return (yield)
        try:
            result = skipped = None
            try:
                result = yield
            except pytest.skip.Exception as error:
                skipped = error  # skipping the rest does not undo a finding
            except Exception as error:
                tracebacks.cut(error)
                led = stops.led_to(error, running.findings)
                if self._config.getoption("fulltrace") or not led:
                    raise
                # jax's exception has a page of its runtime's stack in front of the finding, and
                # pytest's short summary would show only "INTERNAL: CpuCallback error"; it has no
                # `__cause__` (jax#26102).
                running.shown = led[0]
                failed = pytest.fail.Exception(text.finding_text(led[0]))
                raise failed.with_traceback(error.__traceback__) from None
            self._judge(running)
            if skipped is not None:
                raise skipped
            return result
        finally:
            # Also after a test that passes, which may have expected an exception in a kernel.
            with self._guarded("report", f"waiting for the kernels of {running.item.nodeid}"):
                running.session.reset()

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Generator[None, object, object]:
        result = yield
        if self.running is not None:
            self._judge(self.running)
        return result

    def _judge(self, running: Running) -> None:
        """Fail the test if its kernels have findings.

        Raises:
          pytest.fail.Exception: with their text.
        """
        running.session.wait_for_runs()  # a failing kernel fails the test that called it
        found = list[Finding]()
        doing = f"judging the kernels of {running.item.nodeid}"
        with guarded("engine", doing, lambda problem: self._lose(running.item.nodeid, problem)):
            self._verify(running)
            found = running.unexpected()
            running.judged = counts(running.findings)
        if found:
            running.shown = found[0]
            # The exception that stopped a kernel says the same.
            raise pytest.fail.Exception(running.text_of(found[0]), pytrace=False) from None

    def _verify(self, running: Running) -> None:
        """Add the findings of engines that do not run the test."""
        if self._verification is None:
            return
        self._verification.ran(running.findings, running.used.values())
        observer = running.session.observer
        seen = {(f.kernel, f.kind) for f in running.findings}
        for kernel in running.used.values():
            for finding in self._verification.findings(kernel):
                if finding.kind is Fault.OUTPUT_NOT_WRITTEN and running.judged_by(kernel):
                    continue  # the run knows what this test's programs use
                if (finding.kernel, finding.kind) not in seen:
                    observer.found(finding, uses=running.session.callers.uses(kernel))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if (running := self.running) is not None:
            if call.excinfo is not None:
                running.stopped_by(call.excinfo.value)
            with self._guarded("report", f"reporting {report.nodeid}"):
                self._add_to(report, running)
        return report

    def _add_to(self, report: pytest.TestReport, running: Running) -> None:
        """Add the test's kernels to its report."""
        store, used = running.session.store, running.used.values()
        if report.failed:  # before the teardown, whose errors would count the test again
            self._verify(running)
        findings, output = running.findings if report.failed else (), self._output
        for kernel in used:
            name = layout.kernel_folder(kernel)
            output.used.append(name)
            output.ran += [name] * running.has_run(kernel)
            output.tests.append(report.nodeid)
        output.targets += running.marks.targets or ()
        output.findings += [(report.nodeid, str(key(f)), str(f.kind)) for f in findings]
        if not report.failed:
            return
        running.session.reset()
        running.judged = counts(findings)
        shown, lines = running.shown, list[str]()
        rest = [f for f in findings if shown is None or key(f) != key(shown)]
        if rest and shown is None:
            lines += running.text_of(rest.pop(0)).splitlines()
        lines += map(_title, rest)
        hints = [h for h in dict.fromkeys(self._hints(running)) if h.digest in running.used]
        lines += map(text.hint_text, hints[:MAX_HINTS])
        dumped = [store.folder(kernel) for kernel in used] if store else []
        has_run = not running.session.launched.isdisjoint(running.used)
        if lines or findings or dumped or has_run:
            faulty = {finding.kernel for finding in findings}
            dumped.sort(key=lambda folder: folder.name.rpartition("-")[0] not in faulty)
            name = running.item.nodeid.partition("::")[2]
            command = followup.after_test(
                f"{text.relative(running.item.path)}::{name}",
                findings,
                [kernel.name for kernel in used],
                Path(text.relative(dumped[0])) if dumped else None,
                is_verified=bool(self.settings.verify),
            )
            report.sections.append((NAME, _below(lines, shown, dumped, command)))

    def _hints(self, running: Running) -> list[Hint]:
        """Return the hints for the kernels of a test, from its runs and the static analysis."""
        found = [*running.session.observer.hints]
        if self._verification is not None:
            found += self._verification.hints(running.used.values())
        return found

    # The end of the run.

    def finish(self, exitstatus: int) -> None:
        """Close the session, and complete the output for the summary."""
        if self.session is not None:
            self._report_finds_between_tests()
            self._close(self.session, stop=exitstatus == pytest.ExitCode.INTERRUPTED)
        if self._verification is not None:
            self._output.outcomes += self._verification.outcomes()

    def _close(self, session: Session, *, stop: bool = False) -> None:
        try:
            session.__exit__(KeyboardInterrupt if stop else None, None, None)
        except Exception as error:  # noqa: BLE001 - of a kernel; must not fail the end of the run
            self._output.problems.append(f"a kernel failed outside the tests: {error}")
        if self._verification is None:  # otherwise its table shows it
            self._output.notices += [
                f"kernel `{text.one_line(gap.kernel)}` was not compiled for {gap.engine}: "
                f"{gap.reason}; with the fixture pallas_target a test runs for each chip"
                for gap in session.queue.elsewhere()
            ]
        self._output.gaps += session.unchecked if stop else self._missing(session)
        reported = {gap.reason for gap in self._output.gaps}
        self._output.problems += [
            str(problem)
            for problem in session.problems
            if not isinstance(problem, KernelNotJudged) and str(problem) not in reported
        ]

    def _missing(self, session: Session) -> Iterator[Gap]:
        """Return judgements that the run or a test requested from this session but did not get."""
        is_judged = session.options.checks or session.interpret_mode.sanitizes
        yield from session.gaps() if self.settings.judges or is_judged else session.unchecked
        known = {gap.kernel for gap in session.unchecked}
        for kernel, reason in session.observer.refusals.items() if is_judged else ():
            if kernel not in known:
                yield Gap(kernel=kernel, engine="machine", reason=reason, is_limit=True)


MAX_LINES = 15
"""Maximum number of lines on findings, hints and kernels of a failed test."""

MAX_HINTS = 3
MAX_KERNELS = 3


def counts(findings: Iterable[Finding]) -> Counter[Key]:
    return Counter({key(finding): finding.count for finding in findings})


def _title(finding: Finding) -> str:
    source = finding.source
    where = f" at {text.relative(Path(source.file))}:{source.line}" if source else ""
    return text.titled(finding) + where


def _below(lines: list[str], shown: Finding | None, dumped: Sequence[Path], command: str) -> str:
    """Return the section below a failure: lines, as far as there is room, kernels and command.

    Args:
      shown: finding in the text of the failure itself.
      dumped: folders of the test's kernels.
    """
    room = MAX_LINES - 3  # without the kernels, the command, and advice on the exception
    room -= 0 if shown is None else len(text.finding_text(shown).splitlines()) + 1
    if len(lines) > room:
        lines = [*lines[: room - 1], f"… and {len(lines) - room + 1} more"]
    if dumped:
        named = ", ".join(map(text.relative, dumped[:MAX_KERNELS]))
        more = f" and {len(dumped) - MAX_KERNELS} more" if len(dumped) > MAX_KERNELS else ""
        lines.append(f"{text.plural(len(dumped), 'kernel')} used by this test: {named}{more}")
    return "\n".join([*lines, f"{followup.LABEL}{command}"])

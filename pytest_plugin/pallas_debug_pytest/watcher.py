"""Sessions in a process that runs tests, with the kernels and findings of each test.

Imported by `run.py`; imports jax. An option gives the whole run one session, with findings and
prints kept per test; a marker or a fixture gives a session to its test alone.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from pallas_debug import defaults, tracebacks
from pallas_debug import render as text
from pallas_debug.errors import KernelNotJudged, PallasDebugError, UsageError
from pallas_debug.findings import stops
from pallas_debug.guards import Boundary, guarded, problem_of
from pallas_debug.hooks import hookimpl, plugin_manager
from pallas_debug.model import Finding, Gap, Hint, Kernel, PrintRecord
from pallas_debug.session import Options, Session, has_accelerator, resolve_targets
from pallas_debug_pytest import REPORTED, failures, marks, unjudged
from pallas_debug_pytest.callers import Callers
from pallas_debug_pytest.listener import NAME
from pallas_debug_pytest.marks import MARKS, Marks
from pallas_debug_pytest.running import Running
from pallas_debug_pytest.settings import Settings

if TYPE_CHECKING:
    from pallas_debug_pytest.verification import Verification


class Watcher:
    """Session of a process that runs tests, and the currently running test."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self.settings = settings
        self._session: Session | None = None
        self.running: Running | None = None
        self.notices: list[str] = []
        self.problems: list[str] = []
        self.unchecked: list[Gap] = []
        self.unjudged: list[Gap] = []
        self._found: dict[str, list[str]] = {}
        self._checked: dict[str, bool] = {}
        self._faulty: set[str] = set()
        self._verification: Verification | None = None

    def open(self) -> None:
        """Open the session of the whole run.

        Raises:
          pytest.UsageError: an unknown target, a directory that is not writable.
        """
        settings = self.settings
        try:
            self._session = self._opened(
                dumps=settings.dump,
                targets=settings.compiled,
                chip=settings.chip,
                pretend=settings.pretend is not None,
                interpret=settings.interpret,
                checks=settings.checks,
            )
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
        except PallasDebugError as error:
            raise pytest.UsageError(f"{NAME}: {error}") from error
        if settings.checks:
            self._note_unchecked(self._session)
        if settings.verify:
            from pallas_debug_pytest.verification import Verification

            targets = resolve_targets(settings.verify, self._session.plugins)
            self._verification = Verification(self._session, [t.name for t in targets])

    @property
    def session(self) -> Session | None:
        return self._session

    def _opened(self, **options: object) -> Session:
        settings = self.settings
        session = Session(
            Options(
                **options,  # type: ignore[arg-type]
                prints=True,
                stops_unfit=True,
                stages=settings.stages,
                switches=settings.switches,
                timeout=settings.timeout or defaults.COMPILE_TIMEOUT,
                hang_after=settings.hang or defaults.HANG_AFTER,
                stop_after=settings.stop_after,
                keeps_calls=settings.hints,
            ),
            self,
            runs=True,
            inform=self.notices.append,
        )
        if worker := getattr(self._config, "workerinput", None):
            session.run_id = str(worker.get("testrunuid", session.run_id))
        return session.__enter__()

    def _note_unchecked(self, session: Session) -> None:
        if session.interpret_mode.kind != "off":
            return
        if not has_accelerator():
            reason = "there is no accelerator for those that --pallas-interpret=off leaves to one"
            self.unchecked.append(Gap(kernel="", engine="checks", reason=reason, is_partial=True))
        elif "uninitialized" in self.settings.checks:
            self.notices.append("`uninitialized` is checked on the kernel machine only")

    # Hooks of the session. They are called within jax, so no exception may escape.

    @hookimpl
    def pallas_debug_kernel_used(self, kernel: Kernel) -> None:
        running = self.running
        if running is not None:
            running.used.setdefault(kernel.digest, kernel)
            running.callers.note(kernel.name, running.findings)

    @hookimpl
    def pallas_debug_print(self, record: PrintRecord) -> None:
        if self.running is not None:
            self.running.printed += 1
        sys.stdout.write(text.print_text(record) + "\n")

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
            self.begin(item, asked=marks.is_watched(item))
            return
        except PallasDebugError as error:
            refused = str(error)
        except Exception as error:  # noqa: BLE001 - a bug of ours must not fail the test
            self._lose(item.nodeid, problem_of(error, "hook", f"beginning to watch {item.nodeid}"))
            return
        pytest.fail(refused, pytrace=False)

    def _lose(self, nodeid: str, problem: PallasDebugError) -> None:
        """Record a test that was not watched to its end: its kernels were not judged."""
        self._add_problem(problem)
        if self.settings.judges:
            self.unjudged.append(Gap(kernel="kernels of", engine=nodeid, reason=str(problem)))

    def _add_problem(self, problem: PallasDebugError) -> None:
        self.problems.append(str(problem))

    def _guarded(self, boundary: Boundary, doing: str) -> contextlib.AbstractContextManager[None]:
        """Report an exception of ours in the summary, without failing a test."""
        return guarded(boundary, doing, self._add_problem)

    def begin(self, item: pytest.Item, *, asked: bool) -> Running | None:
        """Watch this test, if the whole run is watched or the test needs it."""
        marked = item.stash.get(MARKS, Marks())
        self._require(item, marked)
        if self._session is None and not asked:
            return None
        self._leave_out_what_came_before()
        session = self._session or self._opened(
            chip=marks.target_name(item, self.settings),
            pretend=bool(marked.pretend),
            interpret=marked.interpret,
            checks=marked.check or (),
        )
        running = Running(
            nodeid=item.nodeid,
            marks=marked,
            session=session,
            own=self._session is None,
            callers=Callers(item.path),
        )
        self.running = running
        running.stack.enter_context(session.separately())
        if running.own:
            return running
        if marked.interpret is not None:
            running.stack.enter_context(session.interpreting(marked.interpret))
        if marked.pretend is not None:
            running.stack.enter_context(session.pretending(marked.pretend))
        if marked.check is not None:
            running.stack.enter_context(session.checking(marked.check))
        if marked.targets is not None and session.store is not None:
            running.stack.enter_context(session.compiling_for(marked.targets))
        return running

    def _require(self, item: pytest.Item, marked: Marks) -> None:
        """Check requirements that could not be evaluated when the test was collected."""
        name = marks.target_name(item, self.settings)
        if marked.requires and name == "tpu":
            reason = marks.unmet(marked, resolve_targets((name,), plugin_manager())[0])
            if reason:
                pytest.skip(reason)

    def _leave_out_what_came_before(self) -> None:
        """Report findings between tests, such as from imports, as problems: no test owns them."""
        if self._session is None:
            return
        for finding in self._session.observer.findings:
            self.problems.append(f"found outside the tests: {text.finding_text(finding)}")

    def end(self) -> None:
        """Record the test's kernels, and leave its session."""
        running, self.running = self.running, None
        if running is None:
            return
        if running.used or running.gaps():
            self._record(running)
        try:
            running.stack.close()
        except Exception as error:  # noqa: BLE001 - of a kernel; the test has been reported
            self.problems.append(f"a kernel failed after {running.nodeid}: {error}")
        with self._guarded("hook", f"ending to watch {running.nodeid}"):
            self._faulty |= {finding.kernel for finding in running.findings}
            self.notices += running.uncounted()
            running.session.observer.clear()
        if running.own:
            self._close(running.session)

    def _record(self, running: Running) -> Path | None:
        used = running.used.values()
        judged = {kernel.digest: running.judged_by(kernel) for kernel in used}
        if self._verification is not None and not running.own:
            for kernel in used:
                judged[kernel.digest] += self._verification.judged_by(kernel)
        return running.session.record_run(
            running.nodeid,
            used,
            prints=running.session.observer.records,
            findings=running.findings,
            hints=self._hints(running),
            gaps=running.gaps(),
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
                running.shown = tuple(stops.led_to(error, running.findings))
                if self._config.getoption("fulltrace") or not running.shown:
                    raise
                # jax's runtime adds its own stack to the text, a page.
                failed = pytest.fail.Exception(failures.text(running.shown))
                raise failed.with_traceback(error.__traceback__) from None
            self._judge(running)
            if skipped is not None:
                raise skipped
            return result
        finally:
            # Also after a test that passes, which may have expected an exception in a kernel.
            with self._guarded("hook", f"resetting the interpreters after {running.nodeid}"):
                running.session.reset()
            with self._guarded("report", f"showing what the kernels of {running.nodeid} printed"):
                self._note_dropped_prints(running)

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
        with self._judging(running, "verifying"):
            self._verify(running)
        found = list(running.findings)  # all of them, unless the expected ones are known
        with self._judging(running, "judging"):
            found = running.unexpected()
            running.judged = failures.counts(running.findings)
        if found:
            self._raise(running, found)

    def _judging(self, running: Running, doing: str) -> contextlib.AbstractContextManager[None]:
        """Record an exception of ours as a test whose kernels were not judged."""
        lose = functools.partial(self._lose, running.nodeid)
        return guarded("engine", f"{doing} the kernels of {running.nodeid}", lose)

    def _raise(self, running: Running, found: Sequence[Finding]) -> NoReturn:
        record = self._record(running) if running.session.store is not None else None
        words = "\n".join(finding.message for finding in found)
        with self._guarded("report", f"wording the failure of {running.nodeid}"):
            words = failures.text(found, record, running.callers)
        running.shown = running.findings
        raise pytest.fail.Exception(
            words, pytrace=False
        ) from None  # the exception that stopped a kernel says the same

    def _verify(self, running: Running) -> None:
        """Add the findings of engines that do not run the test."""
        if self._verification is None or running.own:
            return
        self._verification.ran(running.findings, running.used.values())
        seen = {(f.kernel, f.kind) for f in running.findings}
        for kernel in running.used.values():
            for finding in self._verification.findings(kernel):
                if (finding.kernel, finding.kind) not in seen:
                    running.add(finding, kernel)

    def _note_dropped_prints(self, running: Running) -> None:
        records = running.session.observer.records
        if len(records) > running.printed:
            sys.stdout.write(text.print_text(records[-1]) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if (running := self.running) is not None:
            if call.excinfo is not None:
                running.stopped_by(call.excinfo.value)
            with self._guarded("report", f"reporting {report.nodeid}"):
                self._add_to(report, running, call)
        return report

    def _add_to(
        self, report: pytest.TestReport, running: Running, call: pytest.CallInfo[None]
    ) -> None:
        """Add the test's kernels to its report."""
        folders = self._folders(running)
        found = list(running.findings) if report.failed else []
        data = running.reported(folders, found)
        setattr(report, REPORTED, data)
        if found:
            self._found[report.nodeid] = data["findings"]
        if report.failed:
            running.session.reset()
            self._show(running, report, call)
            if self.settings.hints:
                running.session.collect_hints(running.used)
                if hints := failures.hints(self._hints(running), running.used):
                    report.sections.append((f"{NAME}: hints", hints))
            if folders and running.session.store is not None:
                root = text.relative(running.session.store.root)
                faulty = {finding.kernel for finding in running.findings}
                kernels = zip(folders, running.used.values(), strict=True)
                dumped = {f"{root}/{name}": kernel.name in faulty for name, kernel in kernels}
                report.sections.append((NAME, failures.used_kernels(dumped)))

    def _hints(self, running: Running) -> list[Hint]:
        """Return the hints for the kernels of a test, from its runs and the static analysis."""
        found = [*running.session.observer.hints]
        if self._verification is not None and not running.own:
            found += self._verification.hints(running.used.values())
        return found

    def _show(
        self, running: Running, report: pytest.TestReport, call: pytest.CallInfo[None]
    ) -> None:
        """Add findings to a failure that does not show them."""
        error = call.excinfo.value if call.excinfo is not None else None
        running.judged = failures.counts(running.findings)
        if rest := [finding for finding in running.findings if finding not in running.shown]:
            shown = failures.text(rest, None, running.callers)
            report.sections.append((f"{NAME}: findings", shown))
        elif error is not None and (own := running.session.own_message(error)):
            report.sections.append((NAME, own))

    def _folders(self, running: Running) -> list[str]:
        store = running.session.store
        if store is None:
            return [kernel.name for kernel in running.used.values()]
        return [store.folder(kernel).name for kernel in running.used.values()]

    # The end of the run.

    def finish(self, exitstatus: int) -> dict[str, object]:
        """Close the session, and return the output for the end of the run."""
        if self._session is not None:
            with self._guarded("summary", "looking for what was found outside the tests"):
                self._leave_out_what_came_before()
            interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
            self._close(self._session, stop=interrupted)
        return self._output()

    def _output(self) -> dict[str, object]:
        """Return the output for the summary: plain data, which xdist sends to the controller."""
        outcomes: list[dict[str, object]] = []

        def lose(problem: PallasDebugError) -> None:
            self._lose("this run", problem)

        with guarded("summary", "putting the table of verdicts together", lose):
            outcomes = self._verification.outcomes() if self._verification else []
        return {
            "problems": self.problems,
            "notices": self.notices,
            "unchecked": [asdict(gap) for gap in self.unchecked],
            "unjudged": [asdict(missing) for missing in self.unjudged],
            "undone": [],
            "found": self._found,
            "outcomes": outcomes,
            "checked": self._checked,
        }

    def _close(self, session: Session, *, stop: bool = False) -> None:
        try:
            session.__exit__(KeyboardInterrupt if stop else None, None, None)
        except Exception as error:  # noqa: BLE001 - of a kernel; must not fail the end of the run
            self.problems.append(f"a kernel failed outside the tests: {error}")
        if self._verification is None:  # otherwise its table shows it
            self.notices += unjudged.elsewhere(session.queue.elsewhere())
        self.unchecked += session.unchecked
        if not stop:
            self.unjudged += self._missing(session)
        if session.options.checks or session.interpret_mode.sanitizes:
            skipped = {gap.kernel for gap in session.unchecked}
            for kernel in session.kernels:
                if kernel.name not in skipped:
                    key = f"{kernel.digest} {kernel.name}"
                    was = kernel.digest in session.launched or kernel.name in self._faulty
                    self._checked[key] = was or self._checked.get(key, False)
        reported = {missing.reason for missing in self.unjudged}
        self.problems += [
            str(problem)
            for problem in session.problems
            if not isinstance(problem, KernelNotJudged) and str(problem) not in reported
        ]

    def _missing(self, session: Session) -> Iterator[Gap]:
        """Return judgements that the run or a test requested from this session but did not get."""
        is_judged = session.options.checks or session.interpret_mode.sanitizes
        if not (self.settings.judges or is_judged):
            return
        known = {gap.kernel for gap in session.unchecked}
        gaps = [
            Gap(kernel=kernel, engine="machine", reason=reason, is_limit=True)
            for kernel, reason in (session.observer.refusals.items() if is_judged else ())
            if kernel not in known
        ]
        for gap in (*session.gaps(), *gaps):  # the table of a verdict shows the limits of engines
            if not gap.is_partial and not (gap.is_limit and self.settings.verify):
                yield gap

    def pytest_unconfigure(self) -> None:
        # An interrupted run does not call sessionfinish.
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._session.__exit__(KeyboardInterrupt, None, None)

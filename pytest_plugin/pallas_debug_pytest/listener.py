"""Header and summary of the run, and the start of its parts. No jax.

Imported when an option, a marker or a fixture needs it. Under xdist every worker has a watcher. The
controller has none, and does not import jax: it learns about kernels from the workers' outputs, and
reads their compilations from the dump directory.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import pallas_debug
from pallas_debug import followup
from pallas_debug import render as text
from pallas_debug.compiler import targets
from pallas_debug.errors import MissingJaxError, PallasDebugError, UnknownTargetError
from pallas_debug.guards import guarded, problem_of
from pallas_debug.installed import require_jax
from pallas_debug.model import Dump, Gap
from pallas_debug.verdict import Engine, Outcome, Verdict, table
from pallas_debug.verdict.formats import text as verdicts
from pallas_debug_pytest import LISTENER, OUTPUT
from pallas_debug_pytest.marks import Settings
from pallas_debug_pytest.marks import settings as settings_of

if TYPE_CHECKING:
    from pallas_debug_pytest.watcher import Watcher

NAME = "pallas-debug"

VERIFIED: tuple[Engine, ...] = ("static", "compile", "machine")
"""Engines of `--pallas-verify`: the test itself runs the kernels, on the machine."""

MAX_SHOWN = 10
"""Maximum number of kernels named in one line of the summary."""

EXIT = pytest.ExitCode.INTERNAL_ERROR
"""Exit status of a run without failures, but with a missing judgement: 3, as for the command."""


@dataclass
class Output:
    """Results of a process for the summary; xdist's controller merges those of its workers.

    Attributes:
      tests: those that used kernels.
      used, ran: kernels, by name and digest; and those that ran to their end or to a fault.
      targets: names of those that markers ask for.
      findings: test, identity and kind of each finding of a test that failed.
      outcomes: cells of the table of `--pallas-verify`.
    """

    problems: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)
    findings: list[tuple[str, str, str]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def add(self, other: Output) -> None:
        for one in fields(self):
            getattr(self, one.name).extend(getattr(other, one.name))


ASKED = "pallas-debug, for which an option, a marker or a fixture asks,"
"""Subject of the message that jax is missing."""


class Listener:
    """Prints the header and the summary of the run."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self.watcher: Watcher | None = None
        self.output = Output()

    def pytest_report_header(self) -> str | None:
        if not self._settings.watches:
            return None
        header = f"{NAME} {pallas_debug.__version__}"
        if self._unjudged():  # before any test: the session could not be opened
            return f"{header}: not started, as the end of the run says; the tests run without it"
        with guarded("summary", "writing the header of the run", self.add_problem):
            header += f": {'; '.join(self._doing())}"
        return header

    def _doing(self) -> list[str]:
        settings = self._settings
        targets = ", ".join(settings.targets)
        mode = settings.interpret
        session = self.watcher.session if self.watcher is not None else None
        if mode is None:
            mode = "auto" if session is None else session.interpret_mode.kind
        where = settings.dump and text.relative(settings.dump)
        parts = {
            f"dumping to {where} for {targets}": settings.dump,
            f"kernels run in interpret mode {mode}": mode,
            f"jax's devices answer as {settings.pretend}": settings.pretend,
            f"kernels verified for {', '.join(settings.verify)}": settings.verify,
            f"faults that fail the test: {', '.join(settings.checks)}": settings.checks,
            "faults of every kind fail the test": settings.sanitize,
        }
        return [part for part, is_so in parts.items() if is_so]

    def add_problem(self, problem: PallasDebugError) -> None:
        """Report a problem of ours in the summary, without failing a test."""
        self.output.problems.append(str(problem))

    def receive(self, output: Mapping[str, Any]) -> None:
        """Add the output of a worker, as plain data."""
        self.output.add(msgspec.convert(output, Output))

    # Before other plugins, whose reports include the exit status.
    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        with guarded("summary", "ending the run", self.lose):
            self._finish(exitstatus)
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[OUTPUT] = msgspec.to_builtins(self.output)
        elif exitstatus == pytest.ExitCode.OK and self._unjudged():
            session.exitstatus = EXIT

    def _finish(self, exitstatus: int) -> None:
        """End watching; a run that was to judge kernels must have run one."""
        if self.watcher is not None:
            self.watcher.finish(exitstatus)
        used, is_worker = self.output.used, hasattr(self._config, "workeroutput")
        if used and not self.output.ran and exitstatus == 0 and not is_worker:
            self.not_judged(
                f"no test ran a kernel to its end ({_listed(used)}): they were only lowered, or "
                "are in branches that were not taken"
            )

    def lose(self, problem: PallasDebugError) -> None:
        """Record that the end of a watcher's output, and so its judgements, were lost."""
        self.add_problem(problem)
        if self._settings.judges:
            self.not_judged(str(problem))

    def not_judged(self, reason: str) -> None:
        self.output.gaps.append(Gap(kernel="the whole run", engine="", reason=reason))

    def _gaps(self) -> list[Gap]:
        """Return what was not judged in any process; the table of a verdict shows its limits."""
        found = [*self.output.gaps]
        found += [o.all_gaps[0] for o in self._outcomes() if o.status == "unjudged"]
        return [g for g in dict.fromkeys(found) if not (g.is_limit and self._settings.verify)]

    def _unjudged(self) -> list[Gap]:
        """Return the judgements that were not made at all, which is an error."""
        return [gap for gap in self._gaps() if not gap.is_partial]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        parts: list[Callable[[], list[str]]] = [
            lambda: list(dict.fromkeys(self.output.notices)),
            self._verdicts,
            self._findings,
            self._not_run,
            self._kernels,
        ]
        red: list[str] = []
        lines: list[str] = []
        for part, into in ((self._missing, red), *((part, lines) for part in parts)):
            with guarded("summary", "writing the summary of the run", self.add_problem):
                into += part()
        problems = dict.fromkeys(self.output.problems)
        lines = [*(f"problem: {problem}" for problem in problems), *lines]
        if not lines and not red:
            return
        terminalreporter.write_sep("-", NAME)
        for line in red:
            terminalreporter.write_line(line, red=True, bold=True)
        for line in lines:
            terminalreporter.write_line(line)

    def _missing(self) -> list[str]:
        """Requested judgements that were not made: they must not pass for the absence of faults."""
        lines, unjudged = list[str](), self._unjudged()
        for gap in self._gaps():
            if gap in unjudged:
                place = f"{text.one_line(gap.kernel)} {gap.engine}".rstrip()
                lines.append(f"NOT JUDGED: {place}: {gap.reason}")
            else:
                lines.append(f"NOT CHECKED: {text.gap_text(gap)}")
        if unjudged:
            count = text.plural(len(unjudged), "requested judgement")
            was = "was" if len(unjudged) == 1 else "were"
            lines.append(f"{count} {was} not made: the absence of findings there proves nothing")
        return lines

    def _outcomes(self) -> tuple[Outcome, ...]:
        """Return the cells of `--pallas-verify`, merged over all processes."""
        found = self.output.outcomes
        # If one worker saw a kernel run to completion, it is not a gap in another.
        judged = {(o.kernel, o.digest, o.column) for o in found if o.status == "ok"}
        found = [
            o
            for o in found
            if o.status != "unsupported" or (o.kernel, o.digest, o.column) not in judged
        ]
        kernels = dict.fromkeys((o.kernel, o.digest) for o in found)
        targets = list(dict.fromkeys(o.target for o in found if o.target))
        return table.fill(kernels, VERIFIED, targets, found)

    def _verdicts(self) -> list[str]:
        outcomes = self._outcomes()
        if not outcomes:
            return []
        verdict = Verdict(name="this run", outcomes=outcomes)
        return [*verdicts.table(verdict).splitlines(), *verdicts.not_judged(verdict)]

    def _findings(self) -> list[str]:
        if not self.output.findings:
            return []
        # Several tests may have found the same.
        kinds = Counter({identity: kind for _, identity, kind in self.output.findings}.values())
        counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        tests = text.plural(len({test for test, *_ in self.output.findings}), "test")
        return [f"{text.plural(kinds.total(), 'finding')} in {tests}: {counted}"]

    def _not_run(self) -> list[str]:
        """Kernels to be checked that ran to their end in no process."""
        ran = set(self.output.ran)
        rest = [kernel for kernel in self.output.used if kernel not in ran]
        # The table of the verdict shows it, and it is an error if none of them ran.
        if self._settings.verify or not rest or not ran:
            return []
        return [f"not checked, as no test ran them to their end: {_listed(rest)}"]

    def _kernels(self) -> list[str]:
        settings, used = self._settings, set(self.output.used)
        if not settings.watches:
            return []
        if not used:
            asked = settings.checks or settings.verify
            return ["no test ran a Pallas kernel: nothing was checked"] if asked else []
        tests = text.plural(len(set(self.output.tests)), "test")
        if settings.dump is None:
            return [f"{text.plural(len(used), 'kernel')} used by {tests}"]
        dumps = _read(settings.dump, used, {*settings.targets, *self.output.targets})
        lines = text.summary(dumps, settings.dump)
        lines[-1] += f", used by {tests}"
        if dumps:
            command = followup.after_dump(dumps, settings.dump, has_terminal=False)
            lines.append(f"{followup.LABEL}{command}")
        return lines


def _listed(kernels: Iterable[str]) -> str:
    """Return the names of kernels, given with their digests."""
    names = list(dict.fromkeys(text.one_line(kernel.rpartition("-")[0]) for kernel in kernels))
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return ", ".join(names[:MAX_SHOWN]) + more


def _read(folder: Path, used: set[str], wanted: set[str]) -> list[Dump]:
    """Read the kernels that were used from the dump directory, at the end of the run."""
    from pallas_debug.store import open_dumps

    try:
        stored = open_dumps(folder).kernels()
    except PallasDebugError:
        return []
    return [
        Dump(
            kernel=k.kernel,
            folder=k.folder,
            compilations=tuple(
                c.compilation
                for c in k.compilations
                if c.compilation is not None and c.target in wanted
            ),
        )
        for k in stored
        if k.name in used and k.kernel is not None
    ]


def start(config: pytest.Config) -> None:
    """Start the watcher and the listener, or only the listener in xdist's controller.

    Raises:
      pytest.UsageError: an unknown target, a directory that is not writable.
    """
    settings = settings_of(config)
    try:
        targets.resolve_all((*settings.targets, settings.chip))
        if not settings.watches:
            return
        require_jax(ASKED)
    except (MissingJaxError, UnknownTargetError) as error:
        raise pytest.UsageError(str(error)) from error
    listen(config)
    runs_elsewhere = (  # xdist's controller
        not hasattr(config, "workerinput")
        and "xdist" in sys.modules
        and config.getoption("tx", None) not in (None, [])
    )
    if not runs_elsewhere:
        with lost_if_it_fails(config, "opening the session of the run"):
            watch(config).open()


@contextlib.contextmanager
def lost_if_it_fails(config: pytest.Config, doing: str) -> Iterator[None]:
    """Continue without pallas-debug after an exception of ours, and report it at the end.

    Raises:
      pytest.UsageError: the options are invalid, or jax is missing.
    """
    try:
        yield
    except pytest.UsageError:
        raise
    except MissingJaxError as error:
        raise pytest.UsageError(str(error)) from error
    except Exception as error:  # noqa: BLE001 - a bug of ours, or the state of the machine
        listen(config).not_judged(
            f"{problem_of(error, 'hook', doing)} The tests ran as without pallas-debug: some may "
            "have passed or been skipped only for that reason"
        )


def watch(config: pytest.Config) -> Watcher:
    """Return the watcher of this process, registering it if needed."""
    listener = listen(config)
    if listener.watcher is None:
        require_jax(ASKED)
        from pallas_debug_pytest.watcher import Watcher

        listener.watcher = Watcher(config, settings_of(config), listener.output)
        config.pluginmanager.register(listener.watcher)
    return listener.watcher


def listen(config: pytest.Config) -> Listener:
    """Return the listener, registering it if needed; it collects reports for the summary."""
    listener = config.pluginmanager.get_plugin(LISTENER)
    if isinstance(listener, Listener):
        return listener
    listener = Listener(config, settings_of(config))
    config.pluginmanager.register(listener, LISTENER)
    return listener

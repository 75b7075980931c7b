"""A test run with kernels in it: one session, and which test used which kernel.

Imported when an option asks for it. Under xdist every worker has a session, the controller has
none: it hears of kernels by the tests' reports, and reads what became of them in the dump
directory.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

import pallas_debug
from pallas_debug import report as text
from pallas_debug.errors import PallasDebugError, UsageError
from pallas_debug.hooks import hookimpl
from pallas_debug.model import Dump, Kernel
from pallas_debug_pytest.options import Settings

if TYPE_CHECKING:
    from pallas_debug.session import Session

NAME = "pallas-debug"
REPORTED = "_pallas_kernels"
"""On a test's report: the folder names of the kernels it used. Plain JSON, so xdist carries it."""
PROBLEMS = "pallas_debug_problems"
NOTICES = "pallas_debug_notices"


def start(config: pytest.Config, settings: Settings) -> None:
    """Begin to watch, in a process that runs tests; in xdist's controller, to listen.

    Raises:
      pytest.UsageError: a target that nobody knows, a directory that cannot be written to.
    """
    listener = Listener(config, settings)
    config.pluginmanager.register(listener, "pallas_debug_listener")
    if not _is_controller(config):
        listener.watcher = watcher = Watcher(config, settings)
        config.pluginmanager.register(watcher, "pallas_debug_watcher")


class Watcher:
    """In a process that runs tests: the session, and the test that is being run."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        from pallas_debug.session import Options, Session

        self._config = config
        self._used: dict[str, Kernel] = {}
        self.notices: list[str] = []
        self.problems: list[str] = []
        try:
            self.session: Session = Session(
                Options(
                    dumps=settings.dump,
                    targets=settings.targets if settings.dump else (),
                    chip=settings.targets[0],
                    interpret=settings.interpret,
                    timeout=settings.timeout,
                ),
                self,
                runs=True,
                say=self.notices.append,
            )
            self.session.__enter__()
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
        except PallasDebugError as error:
            raise pytest.UsageError(f"{NAME}: {error}") from error
        worker = getattr(config, "workerinput", None)
        if worker is not None:
            self.session.run_id = str(worker.get("testrunuid", self.session.run_id))

    @hookimpl
    def pallas_debug_kernel_used(self, kernel: Kernel) -> None:
        self._used.setdefault(kernel.digest, kernel)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._used.clear()  # what was used between tests belongs to none
        try:
            return (yield)
        finally:
            if self._used:
                self.session.record_run(item.nodeid, self._used.values())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        try:
            result = yield
            self.session.settle()  # a kernel that goes wrong fails the test that called it
            return result
        finally:
            # After a test that passes too: it may have expected an exception in a kernel.
            self.session.reset()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        folders = self._folders()
        setattr(report, REPORTED, folders)
        if report.failed:
            self.session.reset()
            if folders and self.session.store is not None:
                lines = self._section(folders)
                report.sections.append((NAME, "\n".join(lines)))
        return report

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
        try:
            self.session.__exit__(KeyboardInterrupt if interrupted else None, None, None)
        except Exception as error:  # noqa: BLE001 - of a kernel; a run's end is no place for it
            self.problems.append(f"a kernel failed outside of the tests: {error}")
        self.problems += [str(problem) for problem in self.session.problems]
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[PROBLEMS] = self.problems
            output[NOTICES] = self.notices

    def pytest_unconfigure(self) -> None:
        # A run that was interrupted did not come by sessionfinish.
        self.session.__exit__(KeyboardInterrupt, None, None)

    def _folders(self) -> list[str]:
        if self.session.store is None:
            return [kernel.name for kernel in self._used.values()]
        return [self.session.store.folder(kernel).name for kernel in self._used.values()]

    def _section(self, folders: Sequence[str]) -> list[str]:
        assert self.session.store is not None
        root = text.relative(self.session.store.root)
        lines = [f"{text.plural(len(folders), 'kernel')} used by this test:"]
        lines += [f"  {root}/{folder}" for folder in folders[:10]]
        if len(folders) > 10:
            lines.append(f"  … and {len(folders) - 10} more")
        lines.append(f"show one: pallas-debug show {root}/{folders[0]}")
        return lines


class Listener:
    """In the process that talks to the user: header and summary."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self.watcher: Watcher | None = None
        self._tests: dict[str, set[str]] = {}
        self._problems: list[str] = []
        self._notices: list[str] = []

    def pytest_report_header(self) -> str:
        doing = []
        if self._settings.dump is not None:
            where = text.relative(self._settings.dump)
            doing.append(f"dumping to {where} for {', '.join(self._settings.targets)}")
        mode = self._settings.interpret
        if mode is not None:
            doing.append(f"kernels run in {_title(mode)}")
        elif self.watcher is None or self.watcher.session.interpret_mode.kind == "auto":
            doing.append("kernels run in HLO interpret mode, as there is no accelerator")
        return f"{NAME} {pallas_debug.__version__}: {'; '.join(doing)}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for folder in getattr(report, REPORTED, []):
            self._tests.setdefault(report.nodeid, set()).add(folder)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        output = getattr(node, "workeroutput", {})
        self._problems += output.get(PROBLEMS, [])
        self._notices += output.get(NOTICES, [])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.watcher is not None:
            self._problems += self.watcher.problems
            self._notices += self.watcher.notices
        lines = [f"problem: {problem}" for problem in dict.fromkeys(self._problems)]
        lines += dict.fromkeys(self._notices)
        lines += self._summary()
        if not lines:
            return
        terminalreporter.write_sep("-", NAME)
        for line in lines:
            terminalreporter.write_line(line)

    def _summary(self) -> list[str]:
        used = {folder for folders in self._tests.values() for folder in folders}
        if not used:
            return []
        tests = text.plural(len(self._tests), "test")
        if self._settings.dump is None:
            return [f"{text.plural(len(used), 'kernel')} used by {tests}"]
        dumps = _read(self._settings, used)
        lines = text.summary(dumps, self._settings.dump)
        counts = len(lines) - 2 if len(lines) > 1 else 0
        lines[counts] += f", used by {tests}"
        return lines


def _title(mode: str) -> str:
    """Of an interpret mode as it was written. The controller of xdist has no jax to ask."""
    kind, _, params = (part.strip() for part in mode.partition(","))
    title = {
        "auto": "HLO interpret mode, or TPU interpret mode where they need it",
        "off": "the mode that the code says",
    }.get(kind, f"{kind.upper()} interpret mode")
    return f"{title} ({params})" if params else title


def _read(settings: Settings, used: set[str]) -> list[Dump]:
    """The kernels that were used, as the dump directory has them at the end of the run."""
    from pallas_debug.store import open_dumps

    assert settings.dump is not None
    try:
        stored = open_dumps(settings.dump).kernels()
    except PallasDebugError:
        return []
    wanted = set(settings.targets)
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


def _is_controller(config: pytest.Config) -> bool:
    """Whether tests run in other processes than this one."""
    if hasattr(config, "workerinput"):
        return False
    return "xdist" in sys.modules and config.getoption("tx", None) not in (None, [])

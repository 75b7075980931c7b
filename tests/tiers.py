"""Tiers of the suite: tests marked `slow` run by eighths, and each folder's CPU time is printed.

`--turn N` runs every unmarked test and each eighth slow one, starting at number N; without it
everything runs. For a second Python, `--sparse` takes one in 32 of the slow tests and an eighth
of the unmarked ones, and in the `--whole` paths what the first Python takes. Unmarked tests with
`skipif` all run. What a run leaves out is counted in its last lines. CPU time includes that of
child processes, alive or not: wall time depends on what else the machine does.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

EIGHTHS, PARTS = 8, 32
PART = {EIGHTHS: "an eighth", PARTS: "one in 32"}
MAX_UNMARKED = 5.0
"""CPU seconds above which a test should be marked `slow`; the end of a run names those that are not."""

MAX_TEST = 20.0
"""CPU seconds that no test should exceed, marked or not."""

BUDGET = {
    "kernels": 281,
    "checks": 226,
    "bridge": 170,
    "cases": 20,
    "broken_kernels": 50,
    "correct_kernels": 100,
    "machine": 158,
    "profile": 190,
    "cli": 108,
    "plugin": 93,
    "tui": 82,
    "verdict": 70,
    "docs": 65,
    "analysis": 43,
    "project": 41,
    "session": 41,
    "reproduce": 39,
    "torture": 39,
    "comparison": 32,
    "sweeps": 25,
    "report": 25,
    "explain": 25,
    "store": 24,
    "compiler": 24,
    "ir": 11,
    "findings": 3,
    "inputs": 3,
    "hooks": 3,
    "render": 3,
}
"""CPU seconds that a run with `--turn` may take per folder, on the first Python."""

SUMMARY_FILE = "TIERS_SUMMARY"
"""Environment variable: a JSON file for what tests/run.py repeats in its last lines."""

_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def mark_all_but_first(cases: Iterable[Any], key: Callable[..., Hashable]) -> list[Any]:
    """The `pytest.param`s, all marked slow but the first with each key.

    `key` gets a case's values; None marks the case.
    """
    seen: set[Hashable] = {None}
    marked = []
    for case in cases:
        found = key(*case.values)
        marks = [*case.marks, pytest.mark.slow] if found in seen else case.marks
        marked.append(pytest.param(*case.values, marks=marks, id=case.id))
        seen.add(found)
    return marked


def first_of_each_fault(kernels: Iterable[Any]) -> list[Any]:
    """Broken kernels as parameters, all marked slow but the first of each fault."""
    rows = [pytest.param(kernel, id=kernel.name) for kernel in kernels]
    return mark_all_but_first(rows, lambda kernel: kernel.fault)


with_and_without_xdist = pytest.mark.parametrize(
    "workers", [[], pytest.param(["-n", "2"], marks=pytest.mark.slow)]
)
"""Marks for child runs of pytest: those under xdist start three processes, and are slow."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--turn",
        type=int,
        choices=range(PARTS),
        help="run one eighth of the tests marked slow (default: all of them)",
    )
    parser.addoption(
        "--whole",
        default="",
        metavar="PATHS",
        help="with --sparse: folders and files of tests/, joined by commas, of which all run",
    )
    parser.addoption(
        "--sparse",
        action="store_true",
        help="run one in 32 of the tests marked slow, and an eighth of the unmarked ones",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "slow: expensive; `make test` runs an eighth of these, `make test-all` all"
    )
    config.pluginmanager.register(Costs(config), "costs")


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests whose turn it is not.

    They are dealt like cards, table by table, so that each turn gets its share of every table. The
    tests of a table are shuffled: in order, one turn would get all rows of a mode.
    """
    turn = config.getoption("turn")
    if turn is None:
        return
    tiers: dict[int, list[pytest.Item]] = {}
    for item in items:
        tiers.setdefault(turns(item), []).append(item)
    left_out = {
        item
        for of, tier in tiers.items()
        for n, item in enumerate(shuffled(tier))
        if n % of != turn % of
    }
    costs = config.pluginmanager.get_plugin("costs")
    assert isinstance(costs, Costs)
    costs.left_out = {
        PART[of]: sum(item in left_out for item in tier) for of, tier in tiers.items() if of > 1
    }
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect in one worker after the other, so that only the first one rewrites the test files.

    That takes a third of the time of a collection; pytest keeps the result in `__pycache__`.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return (yield)
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = False
    with Path(tempfile.gettempdir(), f"tiers-{worker['testrunuid']}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            return (yield)
        finally:
            sys.dont_write_bytecode = before
            with contextlib.suppress(FileNotFoundError):
                Path(file.name).unlink()


def turns(item: pytest.Item) -> int:
    """In how many runs a test runs once."""
    is_slow = item.get_closest_marker("slow")
    is_sparse = item.config.getoption("sparse") and not is_whole(item)
    if is_slow:
        return PARTS if is_sparse else EIGHTHS
    # What is skipped on one jax may run on no other.
    return EIGHTHS if is_sparse and not item.get_closest_marker("skipif") else 1


def is_whole(item: pytest.Item) -> bool:
    """Return whether a test's file, or a folder above it, is among the paths of `--whole`."""
    return _is_in(item.path, item.config.rootpath / "tests", item.config.getoption("whole"))


@functools.cache
def _is_in(path: Path, tests: Path, names: str) -> bool:
    named = {tests / name for name in names.split(",") if name}
    return not named.isdisjoint([path, *path.parents])


def shuffled(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests of each function together, in an order that depends on nothing but their names."""
    return sorted(
        items,
        key=lambda item: (item.nodeid.partition("[")[0], crc32(item.nodeid.encode())),
    )


class Costs:
    """CPU seconds of each test, taken where it runs and added up where the results are printed."""

    def __init__(self, config: pytest.Config) -> None:
        self.root = config.rootpath
        self.last = cpu_seconds()
        self.tests: Counter[str] = Counter()
        self.slow: set[str] = set()
        self.skipped: Counter[str] = Counter()
        self.left_out: dict[str, int] = {}

    def pytest_runtestloop(self) -> None:
        self.last = cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "teardown":  # once per test, as each time looks at all threads
            now = cpu_seconds()
            # xdist sends a report's attributes on to the controlling process.
            report.__dict__["cpu"] = max(0.0, now - self.last)
            report.__dict__["slow"] = bool(item.get_closest_marker("slow"))
            self.last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid] += getattr(report, "cpu", 0.0)
        if getattr(report, "slow", False):
            self.slow.add(report.nodeid)
        if (
            report.skipped
            and not hasattr(report, "wasxfail")
            and isinstance(report.longrepr, tuple)
        ):
            self.skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        path = os.environ.get(SUMMARY_FILE)
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["left_out"] = self.left_out
        elif path:
            summary = {
                "ran": len(self.tests),
                "left_out": self.left_out,
                "skipped": [f"{reason} ({n} tests)" for reason, n in self.skipped.most_common()],
                "folders": {Path(name).name: cpu for name, (cpu, _) in self.folders().items()},
                "costly": self.costly(),
            }
            Path(path).write_text(json.dumps(summary))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker of xdist left out; all leave out the same."""
        self.left_out = getattr(node, "workeroutput", {}).get("left_out", self.left_out)

    def folders(self) -> dict[str, tuple[float, int]]:
        """CPU seconds and number of tests of each folder, those that take longest first."""
        seconds: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for nodeid, cpu in self.tests.items():
            folder = "/".join(Path(nodeid.partition("::")[0]).parts[:2])
            seconds[folder] += cpu
            counts[folder] += 1
        return {folder: (cpu, counts[folder]) for folder, cpu in seconds.most_common()}

    def costly(self) -> dict[str, float]:
        """CPU seconds of the tests that take more than they should."""
        return {
            nodeid: cpu
            for nodeid, cpu in self.tests.most_common()
            if cpu > (MAX_TEST if nodeid in self.slow else MAX_UNMARKED)
        }

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        if not self.tests:
            return
        write = terminalreporter.write_line
        terminalreporter.section("CPU seconds")
        for folder, (cpu, count) in self.folders().items():
            budget = BUDGET.get(Path(folder).name)
            of = f" of {budget:4d}" if budget and config.getoption("turn") is not None else ""
            over = "  over its budget" if of and budget and cpu > budget else ""
            write(f"{cpu:7.1f}{of}  {folder} ({count} tests){over}")
        write(f"{sum(self.tests.values()):7.1f}  in all")
        for part, count in self.left_out.items():
            write(f"left out: {count} tests of those of which {part} runs")
        costly = self.costly()
        if costly:
            write(f"over {MAX_UNMARKED:g} s and not marked slow, or over {MAX_TEST:g} s:")
        for nodeid, cpu in costly.items():
            write(f"{cpu:7.1f}  {nodeid}")


def cpu_seconds() -> float:
    """CPU seconds of this process and of its descendants so far."""
    return sum(os.times()[:4]) + sum(map(_with_descendants, _children(os.getpid())))


def _with_descendants(pid: int) -> float:
    """CPU seconds of a living child process: its own, and those of its children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended, or there is no /proc
        return 0.0
    return sum(map(int, fields[11:15])) / _TICK + sum(map(_with_descendants, _children(pid)))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        pass
    return found

"""Pytest plugin of this suite: the slow tier in quarters, and what each folder costs.

A test marked `slow` belongs to one of four quarters, by a hash of its id. `make test` runs one
quarter of them per Python, `make test-all` (and plain `pytest`) all. CPU seconds are measured per
test, child processes included, as wall time says little on a shared machine.
"""

from __future__ import annotations

import resource
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest

QUARTERS = 4

CPU = "cpu_seconds"
"""Name of the property that carries a test's cost from an xdist worker to the controller."""

MAX_UNMARKED = 5.0
"""CPU seconds above which a test that is not marked `slow` is named at the end."""

_STARTED = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quarter",
        type=int,
        choices=range(QUARTERS),
        default=None,
        help="run only this quarter of the tests marked slow",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes long; `make test` runs a quarter of these")


def quarter_of(nodeid: str) -> int:
    """The quarter of a slow test: stable between runs, machines and Pythons."""
    return zlib.crc32(nodeid.encode()) % QUARTERS


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.getoption("--quarter")
    if chosen is None:
        return
    kept, left_out = [], []
    for item in items:
        is_chosen = item.get_closest_marker("slow") is None or quarter_of(item.nodeid) == chosen
        (kept if is_chosen else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def _cpu() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[_STARTED] = _cpu()
    return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    report: pytest.TestReport = yield
    if call.when == "teardown" and _STARTED in item.stash:
        is_slow = item.get_closest_marker("slow") is not None
        report.user_properties.append((CPU, (_cpu() - item.stash[_STARTED], is_slow)))
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    folders: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    unmarked: list[tuple[float, str]] = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) != "teardown":
                continue
            for cost, is_slow in (v for name, v in report.user_properties if name == CPU):
                folder = "/".join(report.nodeid.split("::")[0].split("/")[:2])
                folders[folder] += cost
                counts[folder] += 1
                if cost > MAX_UNMARKED and not is_slow:
                    unmarked.append((cost, report.nodeid))
    if sum(counts.values()) < 2:
        return
    write = terminalreporter.write_line
    terminalreporter.section("CPU seconds by folder", sep="-")
    for folder, cost in folders.most_common():
        write(f"{cost:7.1f}  {counts[folder]:5}  {folder}")
    write(f"{folders.total():7.1f}  {counts.total():5}  in all")
    for cost, nodeid in sorted(unmarked, reverse=True):
        write(f"over {MAX_UNMARKED:g} s of CPU and not marked slow: {cost:.1f} s  {nodeid}")
    chosen = config.getoption("--quarter")
    if chosen is not None:
        write(f"of the slow tests, quarter {chosen} of 0 to {QUARTERS - 1} ran")

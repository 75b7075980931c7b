"""Assertions about the costs of kernels, without a TPU: spills, memory, cycles and baselines.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pallas_debug.errors import UsageError
from pallas_debug.model import Compilation, Dump
from pallas_debug.profile.stats import Stats
from pallas_debug.quantities import percent
from pallas_debug.store import open_dumps
from pallas_debug.store.disk import write_whole
from pallas_debug.store.profiles import read_profile

FOLDER = "baselines"
"""Folder of baselines, beside a test's file."""

Baseline = dict[str, dict[str, dict[str, int]]]
"""Cycles by kernel, target and version of libtpu."""

UPDATE = "`pytest -o pallas_update_baselines=on`"


class Performance:
    """The part of the fixture `pallas` that is about costs; a kernel counts once per target."""

    def __init__(self, request: pytest.FixtureRequest, *, updates_baselines: bool) -> None:
        self._request = request
        self._updates_baselines = updates_baselines
        self._calls: list[Callable[..., tuple[Dump, ...]]] = []  # compile them for other targets
        self._stats: dict[tuple[str, str], Stats] = {}  # by the kernel's digest and the target

    @abstractmethod
    def compile(
        self, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> tuple[Dump, ...]: ...

    def stats(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        targets: str | Iterable[str] | None = None,
        **kwargs: Any,
    ) -> tuple[Stats, ...]:
        """Compile the kernels that a function would call, and return their costs.

        A kernel that does not compile fails the test.

        Args:
          targets: names; by default those of the marker, or else those of the run.

        Returns:
          For each kernel and target: bundles, estimated cycles, spills, memory, cost by line.
        """
        __tracebackhide__ = True
        call = functools.partial(self.compile, function, *args, **kwargs)
        found = {
            (dump.kernel.digest, made.target): _profiled(dump, made)
            for dump in call(targets=targets, stages="bundles")
            for made in dump.compilations
        }
        self._calls.append(call)
        self._stats |= found
        return tuple(found.values())

    def assert_no_spills(self) -> None:
        """Fail the test if a profiled kernel runs out of registers and keeps values in memory."""
        __tracebackhide__ = True
        self._require_calls()
        wrong = []
        for this in self._stats.values():
            where = f"{this.kernel} on {this.target}"
            if this.spills.value is None:
                wrong.append(f"{where}: its spills are unknown: {this.spills.note}")
            elif this.spills.value:
                wrong.append(f"{where}: {_spills(this)}")
        if wrong:
            advice = (
                "Smaller blocks, or fewer values that live at the same time, need fewer registers."
            )
            pytest.fail("\n".join([*wrong, advice]), pytrace=False)

    def assert_fits(self, targets: str | Iterable[str] | None = None) -> None:
        """Fail the test if a profiled kernel does not compile for a target.

        Args:
          targets: names of targets; by default those of the marker, or else those of the run.
        """
        __tracebackhide__ = True
        self._require_calls()
        dumps = [dump for call in self._calls for dump in call(targets=targets)]
        refused = [(dump, made) for dump in dumps for made in dump.compilations if not made.ok]
        if refused:
            pytest.fail("\n".join(_refusal(*one) for one in refused), pytrace=False)

    def assert_cycles_within(self, baseline: str, margin: float = 0.05) -> None:
        """Fail the test if a profiled kernel takes more cycles than its baseline allows.

        A baseline contains the estimated cycles of each kernel, target and version of libtpu;
        cycles of other versions are not compared. `pytest -o pallas_update_baselines=on` records
        baselines.

        Args:
          baseline: name of a file in the folder `baselines` beside the test's file.
          margin: allowed increase, as a share.

        Raises:
          UsageError: the margin is invalid, or the file is.
        """
        __tracebackhide__ = True
        self._require_calls()
        if not isinstance(margin, int | float) or margin < 0:
            raise UsageError(f"a margin is a share such as 0.05, not {margin!r}")
        file = self._request.path.parent / FOLDER / f"{baseline}.json"
        if self._updates_baselines:
            with _locked(file.parent):
                known = _read(file)
                for name, this in _numbered(self._stats.values()):
                    if this.cycles.total.value is not None:
                        by_target = known.setdefault(name, {}).setdefault(this.target, {})
                        by_target[_libtpu(this)] = round(this.cycles.total.value)
                write_whole(file, json.dumps(known, indent=2, sort_keys=True).encode() + b"\n")
        known = _read(file)
        name = f"{FOLDER}/{file.name}"
        found = (_slower(*one, known, margin, name) for one in _numbered(self._stats.values()))
        if wrong := list(filter(None, found)):
            advice = (
                "`pallas-debug stats` and `pallas-debug source --cost` show where cycles go; if "
                f"they are intended, record them with {UPDATE}, and commit the file."
            )
            pytest.fail("\n".join([*wrong, advice]), pytrace=False)

    def _require_calls(self) -> None:
        __tracebackhide__ = True
        if not self._calls:
            pytest.fail(
                "no kernel of this test was profiled, so there is nothing to assert: call "
                "`pallas.stats(function, *args)` first",
                pytrace=False,
            )


def _profiled(dump: Dump, made: Compilation) -> Stats:
    """Return the numbers of a compilation; the test fails if there are none."""
    __tracebackhide__ = True
    if not made.ok:
        pytest.fail(_refusal(dump, made), pytrace=False)
    stored = open_dumps(dump.folder.parent).read(dump.name)
    found = read_profile(stored, stored.target(made.target))
    if found is None:
        pytest.fail(
            f"{made.kernel} on {made.target}: libtpu wrote no schedule, so its cost is unknown",
            pytrace=False,
        )
    return found.profile.stats


def _refusal(dump: Dump, made: Compilation) -> str:
    failure = made.failure
    assert failure is not None
    lines = [f"{made.kernel} does not compile for {made.target}: {failure.headline}"]
    if failure.explanation is not None:
        lines += failure.explanation.brief()
    return "\n  ".join([*lines, f"its files are in {dump.folder}"])


def _spills(stats: Stats) -> str:
    found = [line for line in stats.lines if line.spills and line.own_share]
    found.sort(key=lambda line: -line.spills)
    where = "; ".join(f"{line.spills:,} at {line.source}" for line in found[:3])
    total = f"{stats.spills.value:,} spills and {stats.fills} fills"
    return f"{total}, most of them: {where}" if where else total


def _numbered(stats: Iterable[Stats]) -> Iterator[tuple[str, Stats]]:
    """Name kernels in a baseline: several of a name in one test as `log`, `log#2`, …"""
    seen = Counter[tuple[str, str]]()
    for this in stats:
        seen[this.kernel, this.target] += 1
        number = seen[this.kernel, this.target]
        yield this.kernel if number == 1 else f"{this.kernel}#{number}", this


def _libtpu(stats: Stats) -> str:
    return stats.versions.get("libtpu", "unknown")


def _slower(name: str, stats: Stats, known: Baseline, margin: float, file: str) -> str | None:
    """Sentence on a kernel that takes more cycles than allowed, or an unknown number."""
    total, libtpu = stats.cycles.total, _libtpu(stats)
    where = f"{name} on {stats.target}, libtpu {libtpu}"
    if total.value is None:
        return f"{where}: its cycles are unknown: {total.formula or total.note}"
    versions, cycles = known.get(name, {}).get(stats.target, {}), f"{total.value:,} cycles"
    if libtpu not in versions:
        others = ", ".join(f"{version}: {n:,}" for version, n in sorted(versions.items()))
        only = f" but for other versions ({others}), which are not compared" if others else ""
        return f"{where}: {cycles}, but {file} has no baseline for it{only}"
    before = versions[libtpu]
    if total.value <= before * (1 + margin):
        return None
    more = percent(total.value / before - 1, 1)
    allowed = percent(margin, 1)
    return f"{where}: {cycles}, {more} more than its baseline of {before:,}; {allowed} is allowed"


def _read(file: Path) -> Baseline:
    """Read a baseline; it is empty if there is no file.

    Raises:
      UsageError: it cannot be read.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=Baseline)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{file} is no baseline ({error}): restore it, or delete it and record it with {UPDATE}"
        ) from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder of a file that is written: xdist's workers may update the same one."""
    folder.mkdir(exist_ok=True)
    opened = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)

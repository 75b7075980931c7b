"""Assertions about the costs of kernels, without a TPU: spills, memory, cycles and baselines.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import inspect
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pallas_debug import render
from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.guards import check_arguments, check_function
from pallas_debug.model import Compilation, Dump
from pallas_debug.profile.changes import baselines
from pallas_debug.profile.changes.baselines import Baseline, BaselineRow
from pallas_debug.profile.stats import Stats
from pallas_debug.store import open_dumps
from pallas_debug.store.disk import write_whole
from pallas_debug.store.profiles import read_profile

FOLDER = "baselines"
"""Folder beside a test's file for baselines that are given by name."""

ROWS = pytest.StashKey[list[BaselineRow]]()
"""Rows of the run's summary."""


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
        check_function("pallas.stats", function)
        own = inspect.signature(self.stats).parameters
        check_arguments("pallas.stats", function, args, kwargs, own)
        call = functools.partial(self.compile, function, *args, **kwargs)
        found = {
            (dump.kernel.digest, made.target): _profiled(dump, made)
            for dump in call(targets=targets, stages="bundles")
            for made in dump.compilations
        }
        self._calls.append(call)
        self._stats |= found
        return tuple(found.values())

    def assert_no_spills(self, *stats: Stats) -> None:
        """Fail the test if a kernel runs out of registers and keeps values in memory.

        Args:
          *stats: of `pallas.stats`; by default all that this test has asked for.
        """
        __tracebackhide__ = True
        wrong = []
        for this in self._chosen("assert_no_spills", stats):
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

    def assert_cycles_within(
        self, baseline: str | Path, margin: str | float = "5%", *stats: Stats
    ) -> None:
        """Fail the test if a kernel takes more cycles than its baseline allows.

        A baseline contains the estimated cycles of each kernel, target and version of libtpu;
        cycles of other versions are not compared. `pytest -o pallas_update_baselines=on` records
        baselines.

        Args:
          baseline: name of a file in the folder `baselines` beside the test's file, or a path to
            a `.json` file, relative to the test's file.
          margin: allowed increase, such as `"5%"` or 0.05.
          *stats: of `pallas.stats`; by default all that this test has asked for.

        Raises:
          BaselineError: the file cannot be read.
          UsageError: the margin is invalid.
        """
        __tracebackhide__ = True
        chosen = self._chosen("assert_cycles_within", stats)
        allowed = baselines.margin(margin)
        path = Path(baseline)
        if path.suffix != ".json":
            path = Path(FOLDER) / path.parent / f"{path.name}.json"
        file, root = self._request.path.parent / path, self._request.config.rootpath
        if self._updates_baselines:
            with _locked(file):
                known = _read(file)
                rows = baselines.recorded(baselines.compare(chosen, known, allowed))
                new = known.with_costs(rows)
                if new != known:
                    write_whole(file, baselines.encode(new).encode())
        else:
            rows = baselines.compare(chosen, _read(file), allowed)
        self._request.config.stash.setdefault(ROWS, []).extend(rows)
        name = str(file.relative_to(root)) if file.is_relative_to(root) else str(file)
        wrong = [baselines.sentence(row, name) for row in rows if row.fails]
        if wrong:
            pytest.fail("\n".join(wrong), pytrace=False)

    def _chosen(self, name: str, stats: Sequence[Stats]) -> Sequence[Stats]:
        """Return the stats given to an assertion; without any, all of this test.

        Raises:
          UsageError: it was given something else, such as the whole result of `pallas.stats`.
        """
        __tracebackhide__ = True
        if not all(isinstance(given, Stats) for given in stats):
            raise UsageError(
                f"pallas.{name} takes Stats: pass what pallas.stats(function, *args) returns, "
                "unpacked with *, or nothing for all kernels of this test"
            )
        if not stats:
            self._require_calls()
        return stats or tuple(self._stats.values())

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


def _read(file: Path) -> Baseline:
    """Read a baseline; it is empty if there is no file.

    Raises:
      BaselineError: it cannot be read.
    """
    try:
        return baselines.decode(file.read_bytes(), str(file))
    except FileNotFoundError:
        return Baseline()
    except OSError as error:
        raise baselines.BaselineError(f"{file} cannot be read: {error.strerror}") from error


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Lock the folder of a file that is written: xdist's workers may update the same one.

    Raises:
      CannotRunError: it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
    except OSError as error:
        raise CannotRunError(f"{file} cannot be written: {error.strerror}") from error


# The summary.


def output(config: pytest.Config) -> list[dict[str, Any]]:
    """Rows of this process as plain data, which xdist sends to the controller."""
    found: list[dict[str, Any]] = msgspec.to_builtins(config.stash.get(ROWS, []))
    return found


def summary(received: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the summary: a table of kernels and their baselines."""
    rows = [msgspec.convert(dict(row), BaselineRow) for row in received]
    rows.sort(key=lambda row: (row.kernel, row.target, row.libtpu))
    cells = [baselines.HEADINGS, *(baselines.cells(row) for row in rows)]
    return render.aligned(cells, range(3, len(baselines.HEADINGS) - 1)) if rows else []

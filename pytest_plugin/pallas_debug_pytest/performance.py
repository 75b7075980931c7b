"""Assertions about the costs of kernels, without a TPU: spills, memory, cycles and baselines.

Imported when a test uses one of them.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pallas_debug import render
from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.model import Compilation, Dump
from pallas_debug.profile.changes import baselines
from pallas_debug.profile.changes.baselines import Baseline, BaselineCost, BaselineRow
from pallas_debug.profile.stats import Stats
from pallas_debug.quantities import size_text
from pallas_debug.store import open_dumps
from pallas_debug.store.disk import write_whole
from pallas_debug.store.profiles import read_profile

FOLDER = "baselines"
"""Folder beside a test's file for baselines that are given by name."""

ROWS = pytest.StashKey[list[BaselineRow]]()
"""Rows of the run's summary."""

Key = tuple[str, str, str]
"""Kernel, target and version of libtpu."""

RECORDED = pytest.StashKey[dict[Path, dict[Key, "BaselineEntry"]]]()
"""Costs that this process has recorded in each file; under xdist, workers share a file for it."""

Compile = Callable[..., tuple[Dump, ...]]


@dataclass(frozen=True, eq=False)
class ProfiledCall:
    """A call whose kernels were compiled."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class BaselineEntry:
    """A cost that this run has recorded as a baseline, and the test that did."""

    kernel: str
    target: str
    libtpu: str
    cost: BaselineCost
    test: str

    @property
    def key(self) -> Key:
        return self.kernel, self.target, self.libtpu


class Performance:
    """Costs of the kernels of one test.

    Args:
      compile: the fixture's `compile`, which also accepts `stages`.
      update: whether to write baselines instead of comparing with them.
    """

    def __init__(self, request: pytest.FixtureRequest, compile: Compile, update: bool) -> None:
        self._request = request
        self._compile = compile
        self._update = update
        self._calls: list[ProfiledCall] = []
        self._stats: dict[tuple[str, str], Stats] = {}
        """Costs by the kernel's digest and the target: a kernel counts once."""
        self._recorded: dict[tuple[Path, Key], BaselineCost] = {}

    def stats(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        targets: str | Iterable[str] | None,
    ) -> tuple[Stats, ...]:
        dumps = self._compile(function, *args, targets=targets, stages="bundles", **kwargs)
        self._calls.append(ProfiledCall(function, args, kwargs))
        found = {
            (dump.kernel.digest, made.target): _profiled(dump, made)
            for dump in dumps
            for made in dump.compilations
        }
        self._stats |= found
        return tuple(found.values())

    def assert_no_spills(self, stats: Sequence[Stats]) -> None:
        __tracebackhide__ = True
        _check_stats("assert_no_spills", stats)
        wrong = []
        for this in self._chosen(stats):
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

    def assert_fits(self, targets: str | Iterable[str] | None) -> None:
        __tracebackhide__ = True
        self._has_calls()
        if targets is not None and not isinstance(targets, str):
            targets = tuple(targets) if isinstance(targets, Iterable) else (targets,)
            for one in targets:
                if not isinstance(one, str):
                    raise UsageError(
                        f"pallas.assert_fits takes names of targets, not {_kind(one)}: it "
                        "compiles all calls that this test has passed to pallas.stats"
                    )
        wrong = []
        for call in self._calls:
            for dump in self._compile(call.function, *call.args, targets=targets, **call.kwargs):
                wrong += [_refusal(dump, made) for made in dump.compilations if not made.ok]
        if wrong:
            pytest.fail("\n".join(wrong), pytrace=False)

    def assert_cycles_within(
        self, baseline: str | Path, margin: str | float, stats: Sequence[Stats]
    ) -> None:
        __tracebackhide__ = True
        if not isinstance(baseline, str | Path):
            raise UsageError(
                "pallas.assert_cycles_within takes the name of a baseline first, such as "
                f'"attention", not {_kind(baseline)}'
            )
        _check_stats("assert_cycles_within", stats)
        allowed = baselines.margin(margin)
        file = self._file(baseline)
        chosen = self._chosen(stats)
        if self._update:
            with _locked(file):
                known = _read(file)
                rows = baselines.recorded(baselines.compare(chosen, known, allowed))
                self._record(file, rows)
                new = known.with_costs(rows)
                if new != known:
                    _write(file, new)
        else:
            rows = baselines.compare(chosen, _read(file), allowed)
        self._request.config.stash.setdefault(ROWS, []).extend(rows)
        name = _relative(file, self._request.config.rootpath)
        wrong = [baselines.sentence(row, name) for row in rows if row.fails]
        if wrong:
            pytest.fail("\n".join(wrong), pytrace=False)

    def _record(self, file: Path, rows: Sequence[BaselineRow]) -> None:
        """Remember what is recorded; fail if this run has recorded other costs under the same key.

        The second recording would overwrite the first, and one of the tests would then always fail.
        """
        __tracebackhide__ = True
        test = self._request.node.nodeid
        known = self._known(file)
        new = dict(known)
        for row in rows:
            if row.cost is None:
                continue
            made = BaselineEntry(
                kernel=row.kernel, target=row.target, libtpu=row.libtpu, cost=row.cost, test=test
            )
            first = known.get(made.key, made)
            before = self._recorded.get((file, made.key))
            if first.test != test:
                before = first.cost
            if before is not None and before != row.cost:
                name = _relative(file, self._request.config.rootpath)
                again = test if first.test != test else "a later assertion of this test"
                pytest.fail(
                    f"{row.kernel} on {row.target}: {first.test} has recorded "
                    f"{_cost(before, row.cost)} in {name}, and {again} would overwrite that with "
                    f"{_cost(row.cost, before)}. Give each test, shape and setting a baseline of "
                    f'its own, such as "{file.stem}-2".',
                    pytrace=False,
                )
            self._recorded[file, made.key] = row.cost
            if first.test == test:
                new[made.key] = made
        if new != known:
            self._note(file, new)

    def _known(self, file: Path) -> dict[Key, BaselineEntry]:
        """Return the costs that this run has recorded in a file, in any worker."""
        ledger = self._ledger(file)
        if ledger is None:
            return self._request.config.stash.setdefault(RECORDED, {}).get(file, {})
        try:
            found = msgspec.json.decode(ledger.read_bytes(), type=list[BaselineEntry])
        except FileNotFoundError:
            return {}
        return {recording.key: recording for recording in found}

    def _note(self, file: Path, recordings: dict[Key, BaselineEntry]) -> None:
        ledger = self._ledger(file)
        if ledger is None:
            self._request.config.stash[RECORDED][file] = recordings
        else:
            write_whole(ledger, msgspec.json.encode(list(recordings.values())))

    def _ledger(self, file: Path) -> Path | None:
        """File that xdist's workers share, in pytest's temporary directory; None without xdist."""
        worker = getattr(self._request.config, "workerinput", None)
        if worker is None:
            return None
        folder: Path = self._request.getfixturevalue("tmp_path_factory").getbasetemp().parent
        digest = hashlib.sha256(os.fsencode(file.resolve())).hexdigest()[:16]
        return folder / f"baseline-{worker.get('testrunuid', '')}-{digest}.json"

    def _chosen(self, stats: Sequence[Stats]) -> Sequence[Stats]:
        if not stats:
            self._has_calls()
        return stats or tuple(self._stats.values())

    def _has_calls(self) -> None:
        __tracebackhide__ = True
        if not self._calls:
            pytest.fail(
                "no kernel of this test was profiled, so there is nothing to assert: call "
                "`pallas.stats(function, *args)` first",
                pytrace=False,
            )

    def _file(self, baseline: str | Path) -> Path:
        path = Path(baseline)
        if path.suffix != ".json":
            path = Path(FOLDER) / path.parent / f"{path.name}.json"
        return self._request.path.parent / path


def _check_stats(name: str, stats: Sequence[object]) -> None:
    """Check that an assertion was given stats, if anything.

    Raises:
      UsageError: it was given something else, such as the whole result of `pallas.stats`.
    """
    for given in stats:
        if not isinstance(given, Stats):
            several = isinstance(given, tuple | list) and all(isinstance(s, Stats) for s in given)
            remedy = (
                "unpack what pallas.stats returns, as *stats"
                if several
                else "pass what pallas.stats(function, *args) returns, unpacked with *, or nothing "
                "for all kernels of this test"
            )
            raise UsageError(f"pallas.{name} takes Stats, not {_kind(given)}: {remedy}")


def _kind(value: object) -> str:
    """Return an article and the name of a value's type: `a tuple`."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


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


def _cost(cost: BaselineCost, other: BaselineCost) -> str:
    """Describe the difference of a cost from another: `1,000 cycles`."""
    parts = [("cycles", cost.cycles, other.cycles)]
    parts += [(n, getattr(cost, n), getattr(other, n)) for n in ("bundles", "spills")]
    differing = [(name, value) for name, value, of_other in parts if value != of_other]
    return " and ".join(
        f"{name} that are unknown" if value is None else f"{value:,} {name}"
        for name, value in differing
    )


def _relative(file: Path, root: Path) -> str:
    return str(file.relative_to(root)) if file.is_relative_to(root) else str(file)


def _read(file: Path) -> Baseline:
    """Read a baseline; it is empty if there is no file.

    Raises:
      BaselineError: it cannot be read.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(baselines.MAX_BYTES + 1)
    except FileNotFoundError:
        return Baseline()
    except OSError as error:
        raise baselines.BaselineError(f"{file} cannot be read: {error.strerror}") from error
    if len(content) > baselines.MAX_BYTES:
        raise baselines.BaselineError(
            f"{file} is larger than {size_text(baselines.MAX_BYTES)}: it is not a baseline"
        )
    return baselines.decode(content, str(file))


def _write(file: Path, baseline: Baseline) -> None:
    try:
        write_whole(file, baselines.encode(baseline).encode())
    except OSError as error:
        raise CannotRunError(f"{file} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Lock the file's folder: other workers may update the same file."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(file.parent, os.O_RDONLY)
    except OSError as error:
        raise CannotRunError(f"{file} cannot be written: {error.strerror}") from error
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


# The summary.


def output(config: pytest.Config) -> list[dict[str, Any]]:
    """Rows of this process as plain data, which xdist sends to the controller."""
    found: list[dict[str, Any]] = msgspec.to_builtins(config.stash.get(ROWS, []))
    return found


def summary(received: Iterable[Mapping[str, Any]], root: Path) -> list[str]:
    """Return the lines of the summary; in a GitHub job, also add a table to the job's summary."""
    rows = [msgspec.convert(dict(row), BaselineRow) for row in received]
    if not rows:
        return []
    rows.sort(key=lambda row: (row.kernel, row.target, row.libtpu))
    lines = _table(rows)
    job = os.environ.get("GITHUB_STEP_SUMMARY")
    if job:
        try:
            with Path(job).open("a", encoding="utf-8") as opened:
                opened.write(baselines.markdown(rows))
        except OSError as error:
            lines.append(f"the job summary {job} cannot be written: {error.strerror}")
    return lines


def _table(rows: Sequence[BaselineRow]) -> list[str]:
    cells = [baselines.HEADINGS, *(baselines.cells(row) for row in rows)]
    return render.aligned(cells, range(3, len(baselines.HEADINGS) - 1))

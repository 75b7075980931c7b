"""Values of the fixtures `pallas` and `pallas_target`.

Imported when a test uses one of them.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from pallas_debug._api import compare as comparing
from pallas_debug._api import dump as api
from pallas_debug._api.compare import ComparisonReport
from pallas_debug.errors import UnknownTargetError
from pallas_debug.findings import stops
from pallas_debug.findings.collector import key
from pallas_debug.findings.faults import named
from pallas_debug.model import Dump, Finding, Kernel, PrintRecord, Target
from pallas_debug.session import resolve_targets
from pallas_debug_pytest import listener, marks
from pallas_debug_pytest.performance import Performance
from pallas_debug_pytest.watcher import Running, Watcher, counts


class Pallas(Performance):
    """The Pallas kernels of one test."""

    def __init__(self, watcher: Watcher, running: Running, request: pytest.FixtureRequest) -> None:
        super().__init__(request, updates_baselines=watcher.settings.update_baselines)
        self._watcher = watcher
        self._running = running
        self._compiled: list[Dump] = []

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Kernels that this test has run or lowered so far, without duplicates."""
        return tuple(self._running.used.values())

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings so far. Reading them does not mark them as expected: use `expect`."""
        self._wait_for_runs()
        return self._running.findings

    @property
    def prints(self) -> tuple[PrintRecord, ...]:
        """Prints so far, in order."""
        self._wait_for_runs()
        return self._running.session.observer.records

    @property
    def dumps(self) -> tuple[Dump, ...]:
        """Compiled kernels: those of `compile`, and `kernels` if the run dumps."""
        session = self._running.session
        if session.store is None:
            return tuple(self._compiled)
        session.wait()
        others = self._running.used.keys() - {dump.kernel.digest for dump in self._compiled}
        return (*self._compiled, *(d for d in session.dumps if d.kernel.digest in others))

    def compile(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        targets: str | Iterable[str] | None = None,
        **kwargs: Any,
    ) -> tuple[Dump, ...]:
        """Compile the kernels that a function would call, without running it.

        Like `pallas_debug.dump`, but writes to the run's dump directory, or the test's `tmp_path`.

        Args:
          targets: names of targets; by default the marker's, or the run's.
        """
        settings = self._watcher.settings
        made = api.dump(
            function,
            *args,
            targets=targets or self._running.marks.targets or settings.targets,
            to=settings.dump or Path(self._request.getfixturevalue("tmp_path")) / "dumps",
            timeout=settings.timeout,
            **kwargs,
        )
        self._compiled += made
        return made

    def compare(
        self,
        function: Callable[..., Any],
        reference: Callable[..., Any] | None,
        /,
        *args: Any,
        grad: bool = False,
        rtol: float | None = None,
        atol: float | None = None,
        **kwargs: Any,
    ) -> ComparisonReport:
        """Compare the results of a function with those of a reference.

        Like `pallas_debug.compare`, in the test's interpret mode. An output that differs is a
        `ValueMismatch` finding, which fails the test unless `expect` expects it.

        Raises:
          ValuesDiffer: the reference is NaN somewhere, so that not everything could be compared.
        """
        running = self._running
        chip = self._watcher.settings.chip
        asked = comparing.prepare(
            function, reference, args, kwargs, rtol, atol, grad=grad, chip=chip
        )
        expected = comparing.run_reference(asked)
        self._wait_for_runs()
        before, running.used = running.used, {}
        try:
            result = comparing.run(asked)
            self._wait_for_runs()
        finally:
            called, running.used = running.used, {**before, **running.used}
        captures = [c for c in running.session.captures if c.kernel.digest in called]
        report = comparing.judge(asked, result, expected, captures)
        running.session.observer.found(*report.findings)
        if report.not_judged:
            report.throw()
        return report

    def interpret(self, mode: str) -> AbstractContextManager[None]:
        """Run kernels called within the block in this mode."""
        return self._running.session.interpreting(mode)

    @contextlib.contextmanager
    def expect(self, kind: str, *, kernel: str | None = None) -> Iterator[list[Finding]]:
        """Expect a finding within the block, which then does not fail the test.

            with pallas.expect("OutOfBoundsRead", kernel="rows") as found:
                rows(12)
            assert found[0].grid_point == (1,)

        If an interpreter stops the program because of it, the block ends there.

        Args:
          kind: kind of the finding, such as `NanProduced`.
          kernel: name of the kernel; any by default.
        """
        running, found = self._running, list[Finding]()
        self._wait_for_runs()
        before = counts(running.findings)

        stopped = None
        try:
            yield found
            self._wait_for_runs()
        except Exception as error:  # noqa: BLE001 - raised again, unless it is about the finding
            stopped = error
        for finding in running.findings:
            more = finding.count - before[key(finding)]
            if more > 0 and finding.kind is named(kind) and kernel in (None, finding.kernel):
                running.expected[key(finding)] = finding.count
                found.append(finding)
        if stopped is not None:
            if not any(stops.is_stop(finding, stopped) for finding in found):
                raise stopped
            running.session.reset()
        if not found:
            pytest.fail(_not_found(kind, kernel, running.findings))

    def _wait_for_runs(self) -> None:
        self._running.session.wait_for_runs()


def pallas(request: pytest.FixtureRequest) -> Pallas:
    """Return the fixture's value for this request, watching its test from now on."""
    return Pallas(*_watched(request), request)


@contextlib.contextmanager
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """Yield the chip of this request's test, and report it to the code that the test calls."""
    _, running = _watched(request)
    name = getattr(request, "param", None) or marks.target_name(request.node)
    try:
        (chip,) = resolve_targets((str(name),))
    except UnknownTargetError as error:
        raise pytest.UsageError(str(error)) from error
    with running.session.answering(chip):
        yield chip


def _watched(request: pytest.FixtureRequest) -> tuple[Watcher, Running]:
    """Watch the test of this request, if it is not watched yet."""
    watcher = listener.watch(request.config)
    running = watcher.running or watcher.begin(request.node, asked=True)
    assert running is not None
    return watcher, running


def _not_found(kind: str, kernel: str | None, findings: tuple[Finding, ...]) -> str:
    wanted = kind if kernel is None else f"{kind} in kernel `{kernel}`"
    others = ", ".join(dict.fromkeys(f"{f.kind} in `{f.kernel}`" for f in findings))
    return f"expected {wanted}; found {others or 'nothing. Is the check enabled?'}"

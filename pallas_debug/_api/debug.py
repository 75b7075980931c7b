"""`pallas_debug.debug`: dump the kernels that a function or a block calls."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, overload

from pallas_debug import defaults, followup, render, tracebacks
from pallas_debug.compiler import stages as stage_names
from pallas_debug.compiler import switches as switch_names
from pallas_debug.compiler.targets import split as targets_by_name
from pallas_debug.errors import PallasDebugError
from pallas_debug.findings import stops
from pallas_debug.findings.collector import key
from pallas_debug.guards import check_function, guarded, problem_of
from pallas_debug.model import PrintRecord
from pallas_debug.session import Interpret, Options, Session, Subscriber, sanitizing
from pallas_debug.tracebacks import WithoutOurFrames

P = ParamSpec("P")
R = TypeVar("R")

_epochs = itertools.count(1)
_printed: set[str] = set()


@overload
def debug(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def debug(
    function: None = None,
    /,
    *,
    to: str | Path = ...,
    targets: str | Iterable[str] | None = ...,
    interpret: Interpret = ...,
    sanitize: bool = ...,
    pretend: bool = ...,
    timeout: float = ...,
    jobs: int = ...,
    switches: str | Iterable[str] = ...,
    stages: str | Iterable[str] = ...,
    quiet: bool = ...,
) -> Debug: ...


def debug(
    function: Callable[..., Any] | None = None,
    /,
    *,
    to: str | Path = defaults.DIRECTORY,
    targets: str | Iterable[str] | None = defaults.TARGET,
    interpret: Interpret = None,
    sanitize: bool = False,
    pretend: bool = False,
    timeout: float = defaults.COMPILE_TIMEOUT,
    jobs: int = 0,
    switches: str | Iterable[str] = (),
    stages: str | Iterable[str] = (),
    quiet: bool = False,
) -> Any:
    """Dump the kernels that a function calls, or those called within a `with` block.

        @pallas_debug.debug
        def attention(q, k, v): ...

        @pallas_debug.debug(targets="v5e,v6e", to="dumps")
        def attention(q, k, v): ...

        with pallas_debug.debug(targets="v6e") as session:
            attention(q, k, v)

    Compilations run in the background; returning from the function or leaving the block waits for
    them. Results are unchanged. Without an accelerator, kernels run on the kernel machine.

    Args:
      function: the function to wrap; omitted if the decorator has options, or for a `with` block.
      to: the dump directory; a URL such as `s3://bucket/dumps` for an object store.
      targets: names of targets, as a list or joined by commas; `""` captures without compiling.
      interpret: a mode, as for `pallas_debug.interpret`, or `off` to leave it to the code; by
        default `auto` without an accelerator.
      sanitize: whether to run kernels on the kernel machine and print the sanitizer's findings,
        like `interpret="machine,sanitize"`.
      pretend: whether jax's devices answer as the first target, as for `pallas_debug.interpret`.
      timeout: maximum seconds for one compilation.
      jobs: maximum number of compiler processes; 0 is one per core, up to four.
      switches: names of compilation switches, such as `log_recorder`, as a list or joined by
        commas.
      stages: more of each compilation to keep, as for `dump`.
      quiet: whether to print no summary on standard error.

    Raises:
      UnknownTargetError: an unknown target.
      UsageError: an invalid interpret mode, or an unknown switch or stage.
      DumpDirectoryError: `to` is not writable.
    """
    options = Options(
        dumps=to,
        targets=targets_by_name(targets, defaults.TARGET),
        interpret=sanitizing(interpret) if sanitize else interpret,
        pretend=pretend,
        timeout=timeout,
        jobs=jobs,
        switches=switch_names.parse(switches),
        stages=stage_names.parse(stages),
    )
    made = Debug(options, quiet=quiet)
    return made if function is None else made(function)


class Prints(Subscriber):
    """Writes kernels' prints to standard output, as jax does, prefixed with their location."""

    def printed(self, record: PrintRecord) -> None:
        sys.stdout.write(render.print_text(record) + "\n")


class Debug:
    """Decorator and context manager that `debug(...)` and `interpret(...)` return."""

    def __init__(self, options: Options, *, quiet: bool, reports: bool = True) -> None:
        self._options = dataclasses.replace(options, prints=True)
        self._quiet = quiet
        self._reports = reports
        self._sessions: list[Session] = []

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        check_function(f"pallas_debug.{'debug' if self._reports else 'interpret'}", function)
        # Repeated calls share jax's caches, so that they are not retraced each time.
        options = dataclasses.replace(self._options, epoch=f"decorator {next(_epochs)}")

        @functools.wraps(function)
        def debugged(*args: P.args, **kwargs: P.kwargs) -> R:
            with WithoutOurFrames(), contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(Debug(options, quiet=self._quiet, reports=self._reports))
                except PallasDebugError:
                    raise  # invalid request, or not possible here
                except Exception as error:  # noqa: BLE001 - a bug of ours: run it without us
                    print_problem(problem_of(error, "hook", "starting a session"))
                return function(*args, **kwargs)

        return debugged

    def __enter__(self) -> Session:
        session = Session(self._options, Prints())
        self._sessions.append(session.__enter__())
        return session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: object
    ) -> None:
        session = self._sessions.pop()
        with WithoutOurFrames():
            session.__exit__(kind, error, where)
        if error is not None:
            tracebacks.cut(error)
        if kind is not None and not issubclass(kind, Exception):
            return
        for problem in session.problems:
            print_problem(problem)
        for finding in session.observer.findings:
            raised = stops.finding_of(error)
            if raised is not None and key(raised) == key(finding):
                continue  # the exception in flight has its text
            with guarded("summary", "printing a finding", print_problem):
                sys.stderr.write(render.finding_text(finding) + "\n")
        for gap in session.queue.elsewhere():
            print_once(
                f"pallas-debug: kernel `{gap.kernel}` was not compiled for {gap.engine}: "
                f"{gap.reason}. pallas_debug.dump traces the function for each chip"
            )
        with guarded("summary", "printing what was dumped", print_problem):
            _report(session, quiet=self._quiet or not self._reports)


def print_once(text: str) -> None:
    """Print a line on standard error, once per process."""
    if text not in _printed:
        _printed.add(text)
        sys.stderr.write(text + "\n")


def print_problem(problem: PallasDebugError) -> None:
    """Report a problem of pallas-debug on standard error, if that is open."""
    with contextlib.suppress(OSError, ValueError):
        print_once(f"pallas-debug: {problem}")


def _report(session: Session, *, quiet: bool) -> None:
    fresh = [d for d in session.dumps if not all(c.cached for c in d.compilations)]
    if quiet or not fresh:
        return
    root = session.store.name if session.store else None
    for line in render.summary(session.kept, root):
        sys.stderr.write(f"pallas-debug: {line}\n")
    if root is not None:
        has_terminal = all(s is not None and s.isatty() for s in (sys.stdin, sys.stderr))
        command = followup.after_dump(session.kept, root, has_terminal=has_terminal)
        sys.stderr.write(f"{followup.LABEL}{command}\n")

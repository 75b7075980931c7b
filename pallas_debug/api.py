"""What a program uses: `pallas_debug.debug` around code that calls kernels, `pallas_debug.dump`.

Floor 3. Thin over `Session`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, overload

from pallas_debug import report
from pallas_debug.bridge import platform
from pallas_debug.bridge.interpret.params import Mode
from pallas_debug.bridge.lowering import trace
from pallas_debug.compiler import switches as switch_names
from pallas_debug.compiler.pool import DEFAULT_TIMEOUT
from pallas_debug.errors import InternalError, PallasDebugError, PluginError, UsageError
from pallas_debug.guards import guarded, problem_of
from pallas_debug.hooks import hookimpl
from pallas_debug.model import Dump, PrintRecord
from pallas_debug.session import DEFAULT_CHIP, Interpret, Options, Session

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_DIRECTORY = "dumps"
DEFAULT_TARGETS = "v5e"

INTERPRETED = (
    "pallas-debug: there is no accelerator here, so kernels run in HLO interpret mode; "
    "what is dumped is compiled for the real target."
)

_epochs = itertools.count(1)
_said: set[str] = set()
_said_lock = threading.Lock()


@overload
def debug(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def debug(
    function: None = None,
    /,
    *,
    to: str | Path = ...,
    targets: str | Iterable[str] = ...,
    interpret: Interpret = ...,
    timeout: float = ...,
    jobs: int = ...,
    switches: str | Iterable[str] = ...,
    quiet: bool = ...,
) -> Debug: ...


def debug(
    function: Callable[..., Any] | None = None,
    /,
    *,
    to: str | Path = DEFAULT_DIRECTORY,
    targets: str | Iterable[str] = DEFAULT_TARGETS,
    interpret: Interpret = None,
    timeout: float = DEFAULT_TIMEOUT,
    jobs: int = 0,
    switches: str | Iterable[str] = (),
    quiet: bool = False,
) -> Any:
    """Dump the kernels that a function calls, or those called within a `with` block.

        @pallas_debug.debug
        def attention(q, k, v): ...

        @pallas_debug.debug(targets="v5e,v6e", to="dumps")
        def attention(q, k, v): ...

        with pallas_debug.debug(targets="v6e") as session:
            attention(q, k, v)

    The compilations go on in the background and are waited for when the function returns or the
    block is left. Results are those of the function without it. On a machine without an
    accelerator kernels run in an interpret mode.

    Args:
      function: to wrap; not given where the decorator has options, or for a `with` block.
      to: the dump directory.
      targets: names, as a list or joined by commas; `""` captures without compiling.
      interpret: a mode as `interpret` takes it, or `off` to leave it to the code; unless told it is
        `auto` where there is no accelerator.
      timeout: seconds for one compilation.
      jobs: compiler processes at most; 0 is one per core, four at most.
      switches: what is asked of the compilations by name, such as `log_recorder`, as a list or
        joined by commas.
      quiet: print no summary on standard error.

    Raises:
      UnknownTargetError: a target that nobody knows.
      UsageError: an interpret mode that makes no sense, a switch that nobody knows.
      DumpDirectoryError: `to` cannot be written to.
    """
    options = Options(
        dumps=Path(to),
        targets=split_targets(targets),
        interpret=interpret,
        timeout=timeout,
        jobs=jobs,
        switches=switch_names.parse(switches),
    )
    made = Debug(options, quiet=quiet)
    return made if function is None else made(function)


def interpret(
    mode: str | Mode | Callable[P, R] = "auto",
    /,
    *,
    chip: str = DEFAULT_CHIP,
    quiet: bool = False,
    **params: object,
) -> Any:
    """Run the kernels that a function calls, or those called within a `with` block, interpreted.

        @pallas_debug.interpret
        def attention(q, k, v): ...

        @pallas_debug.interpret("tpu", detect_races=True)
        def attention(q, k, v): ...

        with pallas_debug.interpret("hlo"):
            attention(q, k, v)

    Nothing is compiled and nothing is dumped. The mode holds in all threads and for whatever is
    called, jitted before or not; used within one another, the innermost holds. What goes wrong in a
    kernel is raised before the function returns or the block is left, and leaves the next kernel
    alone.

    Args:
      mode: `hlo`; `tpu`; `gpu`; `auto` for HLO interpret mode, and TPU interpret mode for each
        kernel that the former cannot run; `off` for what the code says. Parameters may stand behind
        it: `"tpu,detect_races,num_cores_or_threads=2"`.
      chip: target whose chip is given to code that asks for one while it is traced.
      quiet: do not say on standard error which kernels `auto` runs in TPU interpret mode.
      **params: of `pltpu.InterpretParams`, or of Mosaic GPU's.

    Raises:
      UsageError: a mode or parameter that nobody knows, a value of a wrong type.
      UnknownTargetError: a chip that nobody knows.
    """
    if callable(mode):
        return interpret(chip=chip, quiet=quiet, **params)(mode)
    asked = Mode.parse(mode)
    if twice := sorted(asked.params.keys() & params.keys()):
        raise UsageError(f"{twice[0]} is given twice: in {str(mode)!r} and by itself")
    merged = Mode(asked.kind, {**asked.params, **params})
    return Debug(Options(interpret=merged, chip=chip), quiet=quiet, reports=False)


class Notice:
    """Says once, when the first kernel is seen, that it is interpreted."""

    @hookimpl
    def pallas_debug_kernel_captured(self) -> None:
        if platform.default_backend() == "cpu":
            say_once(INTERPRETED)


class Prints:
    """Writes what kernels print to standard output, as jax does, and from where."""

    @hookimpl
    def pallas_debug_print(self, record: PrintRecord) -> None:
        sys.stdout.write(report.print_text(record) + "\n")


class Debug:
    """What `debug(...)` and `interpret(...)` return: a decorator and a context manager."""

    def __init__(self, options: Options, *, quiet: bool, reports: bool = True) -> None:
        self._options = dataclasses.replace(options, prints=True)
        self._quiet = quiet
        self._reports = reports
        self._sessions: list[Session] = []

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        # The same programs are called again and again: they share jax's caches, and are not
        # traced anew for each call.
        options = dataclasses.replace(self._options, epoch=f"decorator {next(_epochs)}")

        @functools.wraps(function)
        def debugged(*args: P.args, **kwargs: P.kwargs) -> R:
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(Debug(options, quiet=self._quiet, reports=self._reports))
                except PallasDebugError:
                    raise  # what was asked for makes no sense, or cannot be done here
                except Exception as error:  # noqa: BLE001 - a bug of ours: run it without us
                    say_problem(problem_of(error, "hook", "starting a session"))
                return function(*args, **kwargs)

        return debugged

    def __enter__(self) -> Session:
        is_told = self._quiet or not self._reports or self._options.interpret is not None
        notices = [] if is_told else [Notice()]
        session = Session(self._options, *notices, Prints(), say=None if self._quiet else say_mode)
        self._sessions.append(session.__enter__())
        return session

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        session = self._sessions.pop()
        session.__exit__(kind, *rest)
        if kind is not None and not issubclass(kind, Exception):
            return
        for problem in session.problems:
            say_problem(problem)
        if kind is None:  # else what was found is what is being raised
            for finding in session.observer.findings:
                with guarded("summary", "printing a finding", say_problem):
                    sys.stderr.write(report.finding_text(finding) + "\n")
        with guarded("summary", "printing what was dumped", say_problem):
            _report(session, quiet=self._quiet or not self._reports)


def dump(
    function: Callable[..., Any],
    /,
    *args: Any,
    targets: str | Iterable[str] = DEFAULT_TARGETS,
    to: str | Path = DEFAULT_DIRECTORY,
    timeout: float = DEFAULT_TIMEOUT,
    jobs: int = 0,
    switches: str | Iterable[str] = (),
    tick: Callable[[Session], None] | None = None,
    **kwargs: Any,
) -> tuple[Dump, ...]:
    """Compile the kernels that a function would call, without running it.

        dumps = pallas_debug.dump(attention, q, k, v, targets="v5e,v6e", causal=True)
        dumps[0].compilation("v5e").status

    The function is traced with abstract arguments. Where it asks for its chip while it is traced,
    it is traced once per target.

    Args:
      function: that calls kernels, jitted or not.
      *args: arrays or `jax.ShapeDtypeStruct`s; anything else is passed as it is.
      targets: names, as a list or joined by commas.
      to: the dump directory.
      timeout: seconds for one compilation.
      jobs: compiler processes at most; 0 is one per core, four at most.
      switches: what is asked of the compilations by name, such as `log_recorder`, as a list or
        joined by commas.
      tick: called some ten times a second while compilations go on.
      **kwargs: for the function, like `args`.

    Returns:
      The kernels in the order of their first lowering, each with its compilations; a kernel that
      failed to compile says why in its compilation's `failure`.

    Raises:
      UnknownTargetError: a target that nobody knows.
      UsageError: the function calls no kernel, or a switch that nobody knows.
      DumpDirectoryError: `to` cannot be written to.
      LibtpuError: nothing can be compiled here.
      InternalError: a bug of pallas-debug kept a kernel from being captured or compiled.
    """
    options = Options(
        dumps=Path(to),
        targets=split_targets(targets),
        interpret="off",
        timeout=timeout,
        jobs=jobs,
        switches=switch_names.parse(switches),
    )
    with Session(options) as session:
        session.start_compiler()
        for target in session.targets:
            with session.collecting() as captures:
                asked = trace.lower_for_kernels(function, args, kwargs, target)
            # What was traced for one chip may be other kernels for the next.
            session.request(captures, (target,) if asked else session.targets)
            if not asked:
                break
        name = getattr(function, "__qualname__", repr(function))
        session.record_run(f"{getattr(function, '__module__', 'function')}.{name}")
        session.wait(None if tick is None else lambda: tick(session))
    for problem in session.problems:
        if session.uncaptured or not _is_spared(session, problem):
            raise problem
        say_problem(problem)  # every kernel was compiled all the same
    if not session.dumps:
        raise UsageError(
            f"{name} calls no Pallas kernel with these arguments: nothing to dump. "
            "Does it take another path for them, or off a TPU?"
        )
    return tuple(session.dumps)


def split_targets(targets: str | Iterable[str]) -> tuple[str, ...]:
    """`"v5e,v6e"` or a list, as names."""
    names = targets.split(",") if isinstance(targets, str) else targets
    return tuple(name.strip() for name in names if name.strip())


def say_once(text: str) -> None:
    """A line on standard error, once per process."""
    with _said_lock:
        if text in _said:
            return
        _said.add(text)
    sys.stderr.write(text + "\n")


def say_problem(problem: PallasDebugError) -> None:
    """What went wrong with us, on standard error; a stream that is closed ends no program."""
    with contextlib.suppress(OSError, ValueError):
        say_once(f"pallas-debug: {problem}")


def _is_spared(session: Session, problem: PallasDebugError) -> bool:
    """Whether a problem is a bug, ours or a plugin's, that cost no kernel its files."""
    if isinstance(problem, InternalError):
        lost = {str(known) for known in session.lost.values()}
        return problem.boundary != "store" and str(problem) not in lost
    return isinstance(problem, PluginError)


def say_mode(sentence: str) -> None:
    """Which kernel `auto` runs in which mode, on standard error."""
    say_once(f"pallas-debug: {sentence}")


def _report(session: Session, *, quiet: bool) -> None:
    fresh = [d for d in session.dumps if not all(c.cached for c in d.compilations)]
    if quiet or not fresh:
        return
    for line in report.summary(session.kept, session.store.root if session.store else None):
        sys.stderr.write(f"pallas-debug: {line}\n")

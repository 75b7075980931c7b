"""What a program uses: `pallas_debug.debug` around code that calls kernels, `pallas_debug.dump`.

Floor 3. Thin over `Session`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, overload

from pallas_debug import report
from pallas_debug.aot.pool import DEFAULT_TIMEOUT
from pallas_debug.bridge import platform, trace
from pallas_debug.errors import UsageError
from pallas_debug.hooks import hookimpl
from pallas_debug.model import Dump
from pallas_debug.session import Interpret, Options, Session

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
    quiet: bool = ...,
) -> Debug: ...


def debug(
    function: Callable[..., Any] | None = None,
    /,
    *,
    to: str | Path = DEFAULT_DIRECTORY,
    targets: str | Iterable[str] = DEFAULT_TARGETS,
    interpret: Interpret = "auto",
    timeout: float = DEFAULT_TIMEOUT,
    jobs: int = 0,
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
    accelerator kernels run in HLO interpret mode.

    Args:
      function: to wrap; not given where the decorator has options, or for a `with` block.
      to: the dump directory.
      targets: names, as a list or joined by commas; `""` captures without compiling.
      interpret: `auto`, `hlo`, `tpu`, or `off` to leave it to the code.
      timeout: seconds for one compilation.
      jobs: compiler processes at most; 0 is one per core, four at most.
      quiet: print no summary on standard error.

    Raises:
      UnknownTargetError: a target that nobody knows.
      DumpDirectoryError: `to` cannot be written to.
    """
    options = Options(
        dumps=Path(to),
        targets=split_targets(targets),
        interpret=interpret,
        timeout=timeout,
        jobs=jobs,
    )
    made = Debug(options, quiet=quiet)
    return made if function is None else made(function)


class Notice:
    """Says once, when the first kernel is seen, that it is interpreted."""

    @hookimpl
    def pallas_debug_kernel_captured(self) -> None:
        if platform.default_backend() == "cpu":
            say_once(INTERPRETED)


class Debug:
    """What `debug(...)` returns: a decorator and a context manager."""

    def __init__(self, options: Options, *, quiet: bool) -> None:
        self._options = options
        self._quiet = quiet
        self._session: Session | None = None

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        # The same programs are called again and again: they share jax's caches, and are not
        # traced anew for each call.
        options = dataclasses.replace(self._options, epoch=f"decorator {next(_epochs)}")

        @functools.wraps(function)
        def debugged(*args: P.args, **kwargs: P.kwargs) -> R:
            with Debug(options, quiet=self._quiet):
                return function(*args, **kwargs)

        return debugged

    def __enter__(self) -> Session:
        notices = [] if self._quiet or self._options.interpret != "auto" else [Notice()]
        session = Session(self._options, *notices)
        self._session = session.__enter__()
        return session

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        session, self._session = self._session, None
        assert session is not None
        session.__exit__(kind, *rest)
        if kind is not None and not issubclass(kind, Exception):
            return
        _report(session, quiet=self._quiet)


def dump(
    function: Callable[..., Any],
    /,
    *args: Any,
    targets: str | Iterable[str] = DEFAULT_TARGETS,
    to: str | Path = DEFAULT_DIRECTORY,
    timeout: float = DEFAULT_TIMEOUT,
    jobs: int = 0,
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
      tick: called some ten times a second while compilations go on.
      **kwargs: for the function, like `args`.

    Returns:
      The kernels in the order of their first lowering, each with its compilations; a kernel that
      failed to compile says why in its compilation's `failure`.

    Raises:
      UnknownTargetError: a target that nobody knows.
      UsageError: the function calls no kernel.
      DumpDirectoryError: `to` cannot be written to.
      LibtpuError: nothing can be compiled here.
    """
    options = Options(
        dumps=Path(to),
        targets=split_targets(targets),
        interpret="off",
        timeout=timeout,
        jobs=jobs,
    )
    with Session(options) as session:
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
        raise problem
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


def _report(session: Session, *, quiet: bool) -> None:
    for problem in session.problems:
        say_once(f"pallas-debug: {problem}")
    fresh = [d for d in session.dumps if not all(c.cached for c in d.compilations)]
    if quiet or not fresh:
        return
    for line in report.summary(session.dumps, session.store.root if session.store else None):
        sys.stderr.write(f"pallas-debug: {line}\n")

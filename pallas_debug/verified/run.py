"""Asks every engine in turn, each only as far as the one before it makes sense."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pallas_debug.aot.pool import DEFAULT_TIMEOUT
from pallas_debug.api import split_targets
from pallas_debug.bridge import arrays, platform, versions
from pallas_debug.bridge.capture import Capture
from pallas_debug.checks import names as checks
from pallas_debug.errors import UsageError
from pallas_debug.model import Target
from pallas_debug.session import Options, Session, resolve_targets
from pallas_debug.verified import engines as ask
from pallas_debug.verified import merge, suppressions
from pallas_debug.verified.engines import Call, Seen
from pallas_debug.verified.result import ENGINES, Engine, Verdict

HANG = 5.0
"""Seconds without progress after which an interpreted kernel is said to wait for ever."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a verification, as `verify` takes it."""

    targets: str | Iterable[str] = "all"
    engines: str | Iterable[str] = ENGINES
    suppress: str | Path | None = None
    to: str | Path | None = None
    timeout: float = DEFAULT_TIMEOUT
    jobs: int = 0
    hang_after: float = HANG

    @functools.cached_property
    def asked(self) -> tuple[Engine, ...]:
        """The engines, in their order.

        Raises:
          UsageError: there is no such engine.
        """
        given = self.engines.split(",") if isinstance(self.engines, str) else list(self.engines)
        wanted = {name.strip() for name in given if name.strip()}
        unknown = sorted(wanted - set(ENGINES))
        if unknown or not wanted:
            known = ", ".join(ENGINES[1:])
            raise UsageError(f"no engine {', '.join(unknown) or 'was named'}; there are {known}")
        return tuple(name for name in ENGINES if name in wanted | {"trace"})

    @functools.cached_property
    def chips(self) -> tuple[str, ...]:
        """Names of the targets."""
        return split_targets(self.targets)

    @functools.cached_property
    def left_out(self) -> tuple[suppressions.Suppression, ...]:
        """What does not count.

        Raises:
          UsageError: that is no file of suppressions.
        """
        return suppressions.read(Path(self.suppress)) if self.suppress is not None else ()

    def options(self, **more: Any) -> Options:
        """Of the session in which the kernels are compiled."""
        given = {
            "dumps": None if self.to is None else Path(self.to),
            "targets": self.chips,
            "timeout": self.timeout,
            "jobs": self.jobs,
        }
        return Options(**{**given, **more})


def verify(
    function: Callable[..., Any],
    /,
    *args: Any,
    targets: str | Iterable[str] = "all",
    engines: str | Iterable[str] = ENGINES,
    suppress: str | Path | None = None,
    to: str | Path | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    jobs: int = 0,
    hang_after: float = HANG,
    tick: Callable[[Session], None] | None = None,
    **kwargs: Any,
) -> Verdict:
    """Whether the kernels that a function calls work, on which chips, and if not, why.

        verdict = pallas_debug.verify(attention, q, k, v, targets="v5e,v6e")
        print(verdict)
        verdict.throw()

    The static analysis, jax's lowering and libtpu for each target, the checks and the race
    detector are asked; compilations go on in other processes while the kernels are interpreted.

    Args:
      function: that calls kernels, jitted or not; it is traced, and run twice.
      *args: arrays, or `jax.ShapeDtypeStruct`s, for which values are made up: normal numbers, and
        zeros for integers and bools. Anything else is passed as it is.
      targets: names, as a list or joined by commas; `all` for every generation.
      engines: who is asked: of `static`, `compile`, `checks` and `races`.
      suppress: a file of findings that do not count, with reasons.
      to: a dump directory, where the compilations are to be kept.
      timeout: seconds for one compilation.
      jobs: compiler processes at most; 0 is one per core, four at most.
      hang_after: seconds without progress after which an interpreted kernel is stopped.
      tick: called some ten times a second while compilations are waited for.
      **kwargs: for the function, like `args`.

    Raises:
      UsageError: an engine that there is not, a file of suppressions that is none, a function that
        calls no kernel.
      UnknownTargetError: a target that nobody knows.
    """
    request = Request(
        targets=targets,
        engines=engines,
        suppress=suppress,
        to=to,
        timeout=timeout,
        jobs=jobs,
        hang_after=hang_after,
    )
    asked, left_out = request.asked, request.left_out
    platform.leave_out_absent_tpu()
    made_args, made_kwargs, made_up = arrays.concrete(args, kwargs)
    call = Call(function=function, args=args, kwargs=kwargs, values=(made_args, made_kwargs))
    with Session(request.options(interpret="off")) as session:
        notes: list[str] = []
        seen, captures = _ask(call, session, asked, hang_after, tick, notes)
    notes += [str(problem) for problem in session.problems]
    notes += [s for captured in captures for s in ask.known_issues(captured, session.targets)]
    if made_up and {"checks", "races"} & set(asked):
        notes.append(
            "integer and bool arguments without values were taken as zeros: what depends on them "
            "is judged for these alone"
        )
    return _verdict(call.name, captures, seen, left_out, notes)


def verify_program(
    run: Callable[[], BaseException | None],
    name: str,
    request: Request,
    source: Path | None = None,
) -> Verdict:
    """The same of the kernels that a program lowers while it runs, once.

    Args:
      run: runs it, and returns what ended it where that was no success.
      name: what it is called.
      source: its file, where there is one.

    Raises:
      UsageError: as `verify`.
    """
    asked, left_out = request.asked, request.left_out
    options = request.options(
        targets=request.chips if "compile" in asked else (),
        checks=checks.DEFAULT if "checks" in asked else (),
        prints=True,
        interpret="auto",
        hang_after=request.hang_after,
    )
    with Session(options, runs=True) as session:
        seen = [ask.ran_once(run, session, asked)]
    if "static" in asked and source is not None:
        seen.append(ask.names_in(source))
    captures = session.captures
    if not captures and not any(one.findings for one in seen):
        raise UsageError(
            f"{name} called no Pallas kernel: nothing to verify. Does it take another path off a "
            "TPU, or only define its kernels?"
        )
    wanted = session.targets or resolve_targets(request.chips, session.plugins)
    if "static" in asked:
        seen += [ask.static(captured, wanted) for captured in captures]
    seen += [ask.compiled(d.kernel, c) for d in session.dumps for c in d.compilations]
    notes = [s for captured in captures for s in ask.known_issues(captured, wanted)]
    return _verdict(name, captures, seen, left_out, notes)


def _ask(
    call: Call,
    session: Session,
    asked: Sequence[Engine],
    hang_after: float,
    tick: Callable[[Session], None] | None,
    notes: list[str],
) -> tuple[list[Seen], list[Capture]]:
    if "compile" in asked:
        session.start_compiler()
    found, first = ask.traced(call, session)
    seen = [first]
    if "static" in asked:
        seen.append(ask.names_of(call.function, call.name))
    captures = [captured for captured, _ in found]
    if not captures:
        if any(one.findings for one in seen):
            return seen, []
        raise UsageError(
            f"{call.name} calls no Pallas kernel with these arguments: nothing to verify. "
            "Does it take another path for them, or off a TPU?"
        )
    if "compile" in asked:
        for captured, wanted in found:
            session.request([captured], wanted)
    if "static" in asked:
        tables, problems = ask.prefetched(call, found)
        notes += problems
        seen += [
            ask.static(captured, wanted, tables.get(captured.kernel.digest, ()))
            for captured, wanted in found
        ]
    with session.compiling_for(()):  # what is lowered to be interpreted is not compiled as well
        seen += _interpreted(call, captures, asked, session.targets[0], hang_after)
    session.wait(None if tick is None else lambda: tick(session))
    if "compile" in asked:
        known = {captured.kernel.digest for captured in captures}
        seen += [
            ask.compiled(dump.kernel, compilation)
            for dump in session.dumps
            if dump.kernel.digest in known
            for compilation in dump.compilations
        ]
    return seen, captures


def _interpreted(
    call: Call,
    captures: Sequence[Capture],
    asked: Sequence[Engine],
    target: Target,
    hang_after: float,
) -> list[Seen]:
    """The function run by interpreters, and whether they agree where neither found anything."""
    kernels = [captured.kernel for captured in captures]
    ran: dict[str, Seen] = {}
    if "checks" in asked:
        ran["checks"] = ask.checked(call, kernels, target.name, hang_after)
    if "races" in asked:
        ran["races"] = ask.raced(call, captures, target.name, hang_after)
    seen = list(ran.values())
    if len(ran) == 2 and not any(s.findings for s in seen) and all(s.returned for s in seen):
        other = ask.disagreement(call, kernels, *(s.result for s in seen))
        seen.append(Seen(findings=tuple(other)))
    return seen


def _verdict(
    name: str,
    captures: Sequence[Capture],
    seen: Sequence[Seen],
    left_out: Sequence[suppressions.Suppression],
    notes: Sequence[str],
) -> Verdict:
    findings = merge.merged(
        (finding for one in seen for finding in one.findings),
        [captured.kernel.source for captured in captures],
    )
    kept, suppressed, idle = suppressions.apply(findings, left_out)
    return Verdict(
        name=name,
        kernels=tuple(dict.fromkeys(captured.kernel.name for captured in captures)),
        outcomes=tuple(outcome for one in seen for outcome in one.outcomes),
        findings=kept,
        suppressed=suppressed,
        notes=(*dict.fromkeys(notes), *idle),
        versions=dict(versions.installed()),
    )

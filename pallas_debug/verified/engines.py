"""The engines, each asked what is wrong with the kernels of a function.

An engine that fails by itself is no verdict on the kernel: what it raised of its own account goes
up, and whoever verifies says it.
"""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pallas_debug import explain
from pallas_debug.analysis import analyze, names
from pallas_debug.bridge import arrays, raised, trace
from pallas_debug.bridge.capture import Capture
from pallas_debug.bridge.walk import prefetch
from pallas_debug.checks import names as checks
from pallas_debug.errors import KernelFault, PallasDebugError
from pallas_debug.model import Compilation, Failure, Finding, Kernel, Target
from pallas_debug.session import Options, Session
from pallas_debug.verified.result import Engine, Outcome, Status

RACES = "tpu,detect_races,num_cores_or_threads=2"
"""The interpret mode that looks for races."""

_UNKNOWN = {
    "trace": "mend what the message names: jax refused the call as it traced it",
    "compile": explain.UNKNOWN_ADVICE,
}
"""What to do about an error that the catalogue does not know."""

NO_KERNEL = "no kernel"
"""Where a finding of a program is of none."""

MOST_CALLS = 8
"""Of one kernel, each with other scalar prefetch, that the static analysis looks at."""

MOST_POINTS = 4096
"""Grid points of a kernel that TPU interpret mode is asked to walk: about a minute of them."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What an engine has to say.

    Attributes:
      result: what the function returned, where the engine ran it.
      returned: whether it did.
    """

    outcomes: tuple[Outcome, ...] = ()
    findings: tuple[Finding, ...] = ()
    result: Any = None
    returned: bool = False


@dataclass(frozen=True, kw_only=True)
class Call:
    """A function and what it is called with.

    Attributes:
      args, kwargs: with arrays, abstract or not.
      values: the same with concrete arrays; made up where they were abstract.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    values: tuple[Sequence[Any], Mapping[str, Any]] = field(default=((), {}))

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__qualname__", repr(self.function)))


def traced(call: Call, session: Session) -> tuple[list[tuple[Capture, tuple[Target, ...]]], Seen]:
    """The kernels that the function lowers, each with the targets that it is lowered for."""
    found: list[tuple[Capture, tuple[Target, ...]]] = []
    start = time.perf_counter()
    try:
        for target in session.targets:
            with raised.with_all_frames(), session.collecting() as captures:
                asked = trace.lower_for_kernels(call.function, call.args, call.kwargs, target)
            wanted = (target,) if asked else session.targets
            found += [(captured, wanted) for captured in _distinct(captures)]
            if not asked:
                break
    except PallasDebugError:
        raise
    except Exception as error:  # noqa: BLE001 - of the user's code, or jax's word on it
        finding = _of_failure(raised.failure(error), call.name, "trace")
        return found, Seen(
            outcomes=(Outcome(kernel="", engine="trace", status="found"),), findings=(finding,)
        )
    seconds = time.perf_counter() - start
    return found, Seen(outcomes=(Outcome(kernel="", engine="trace", status="ok", seconds=seconds),))


def _distinct(captures: Sequence[Capture]) -> list[Capture]:
    return list({captured.kernel.digest: captured for captured in captures}.values())


def static(
    captured: Capture, targets: Sequence[Target], given: Sequence[prefetch.Tables] = ()
) -> Seen:
    """What can be told of a kernel before anything runs.

    Args:
      given: the scalar prefetch of each of its calls, as far as it is known; without any it is not.
    """
    start = time.perf_counter()
    calls: Sequence[prefetch.Tables | None] = given or [None]
    analyses = [analyze(captured, targets, prefetch=tables) for tables in calls[:MOST_CALLS]]
    notes = [sentence for one in analyses for sentence in one.not_judged]
    if len(calls) > MOST_CALLS:
        notes.append(
            f"{len(calls) - MOST_CALLS} of {len(calls)} calls, each with scalar prefetch of its "
            f"own: the first {MOST_CALLS} are looked at"
        )
    findings = _known(one.findings for one in analyses)
    outcome = Outcome(
        kernel=captured.kernel.name,
        engine="static",
        status="found" if findings else "ok",
        notes=tuple(dict.fromkeys(notes)),
        seconds=time.perf_counter() - start,
    )
    return Seen(outcomes=(outcome,), findings=tuple(map(_with_words, findings)))


def _known(several: Iterable[Sequence[Finding]]) -> list[Finding]:
    """What was found in each call of a kernel: the same place in its source once."""
    kept: dict[tuple[object, ...], Finding] = {}
    for findings in several:
        for finding in findings:
            kept.setdefault((finding.kind, finding.source, finding.operand), finding)
    return list(kept.values())


def names_of(function: Callable[..., Any], name: str) -> Seen:
    """Names of Pallas that the source of a function has, and the installed jax has not."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return Seen()
    return _removed(names.look(code.co_filename, name, code.co_firstlineno))


def names_in(source: Path) -> Seen:
    """The same of a whole file."""
    return _removed(names.look(source, NO_KERNEL))


def _removed(findings: Sequence[Finding]) -> Seen:
    outcome = Outcome(kernel="", engine="static", status="found")
    return Seen(outcomes=(outcome,) if findings else (), findings=tuple(findings))


def prefetched(
    call: Call, captures: Sequence[tuple[Capture, tuple[Target, ...]]]
) -> tuple[dict[str, list[prefetch.Tables]], list[str]]:
    """What the calls of each kernel are given as scalar prefetch, and what went wrong in asking."""
    found: dict[str, list[prefetch.Tables]] = {}
    problems: list[str] = []
    takes = [pair for pair in captures if pair[0].kernel.of_kind("scalar_prefetch")]
    # For another chip a function may call other kernels.
    for target in {targets[0].name: targets[0] for _, targets in takes}.values():
        try:
            found = {**prefetch.tables(call.function, call.args, call.kwargs, target), **found}
        except Exception as error:  # noqa: BLE001 - what is known without it is said none the less
            problems.append(
                "the scalar prefetch of the kernels could not be computed from the arguments "
                f"({type(error).__name__}: {raised.failure(error).headline}); what depends on it "
                "is left to the engines that run them"
            )
    return found, problems


def _with_words(finding: Finding) -> Finding:
    """With the catalogue's cause and advice where the engine has none of its own."""
    if finding.cause and finding.advice:
        return finding
    known = explain.of_finding(finding)
    if known is None:
        return finding
    return replace(
        finding, cause=finding.cause or known.cause, advice=finding.advice or known.advice
    )


def compiled(kernel: Kernel, compilation: Compilation) -> Seen:
    """What jax's lowering and libtpu said of a kernel for one target."""
    failure = compilation.failure
    if failure is not None and failure.stage == "setup":
        outcome = Outcome(
            kernel=kernel.name,
            engine="compile",
            target=compilation.target,
            status="unsupported",
            reason=failure.headline,
        )
        return Seen(outcomes=(outcome,))
    outcome = Outcome(
        kernel=kernel.name,
        engine="compile",
        target=compilation.target,
        status="found" if failure else "ok",
        seconds=compilation.seconds,
    )
    if failure is None:
        return Seen(outcomes=(outcome,))
    finding = _of_failure(failure, kernel.name, "compile", kernel)
    return Seen(
        outcomes=(outcome,),
        findings=(replace(finding, values={"targets": compilation.target}),),
    )


def checked(call: Call, kernels: Sequence[Kernel], chip: str, hang_after: float) -> Seen:
    """What the checks find while the kernels are interpreted, in HLO interpret mode if it can.

    Where a NaN is made of an infinity, the line that made the infinity is the one at fault: a
    second run looks for it. Infinities are no fault by themselves, as in masks.
    """
    options = Options(
        checks=checks.DEFAULT, prints=True, interpret="auto", chip=chip, hang_after=hang_after
    )
    seen = _ran(call, kernels, options, "checks")
    made = [finding for finding in seen.findings if finding.kind == "NanProduced"]
    if not made:
        return seen
    overflows = _ran(call, kernels, replace(options, checks=("inf",)), "checks").findings
    found = [f if f not in made else _with_origin(f, overflows) for f in seen.findings]
    return replace(seen, findings=tuple(found))


def _with_origin(nan: Finding, overflows: Sequence[Finding]) -> Finding:
    """The infinity that a NaN came of, first seen at the same grid point; else the NaN itself."""
    here = [f for f in overflows if f.kernel == nan.kernel and f.grid_point == nan.grid_point]
    if not here or here[0].source == nan.source:
        return nan
    first = here[0]
    return replace(first, message=f"{first.message}; {nan.message}", other=nan.source)


def raced(call: Call, captures: Sequence[Capture], chip: str, hang_after: float) -> Seen:
    """What TPU interpret mode finds: races, copies and semaphores, accesses out of bounds."""
    kernels = [captured.kernel for captured in captures]
    for kernel in kernels:
        points = math.prod(size or 1 for size in kernel.grid)
        if points > MOST_POINTS:
            reason = (
                f"its grid has {points:,} points, and TPU interpret mode walks them one by one "
                f"(at most {MOST_POINTS:,} here); give smaller arguments"
            )
            return Seen(outcomes=_each(kernels, "races", "skipped", reason))
    options = Options(interpret=RACES, chip=chip, hang_after=hang_after)
    return _ran(call, kernels, options, "races")


def _ran(call: Call, kernels: Sequence[Kernel], options: Options, engine: Engine) -> Seen:
    args, kwargs = call.values
    start = time.perf_counter()
    result, stopped, returned = None, None, False
    with raised.quietly(), Session(replace(options, epoch=object()), runs=True) as session:
        try:
            result = trace.block_until_ready(call.function(*args, **kwargs))
            session.settle()
            returned = True
        except PallasDebugError as error:
            stopped = None if isinstance(error, KernelFault) else str(error)
        except Exception as error:  # noqa: BLE001 - what an interpreter raises is of any class
            stopped = f"{type(error).__name__}: {raised.failure(error).headline}"
        finally:
            session.reset()
    findings = tuple(map(_with_words, session.observer.findings))
    if stopped is not None and not findings:
        return Seen(outcomes=_each(kernels, engine, "unsupported", stopped))
    problems = tuple(str(problem) for problem in session.problems)
    seconds = time.perf_counter() - start
    outcomes = tuple(
        Outcome(
            kernel=kernel.name,
            engine=engine,
            status="found" if any(f.kernel == kernel.name for f in findings) else "ok",
            notes=tuple(p for p in problems if f"`{kernel.name}`" in p),
            seconds=seconds,
        )
        for kernel in kernels
    )
    return Seen(outcomes=outcomes, findings=findings, result=result, returned=returned)


def ran_once(
    run: Callable[[], BaseException | None], session: Session, asked: Sequence[Engine]
) -> Seen:
    """What the checks of a session find in the kernels of a program that runs in it."""
    error = run()
    kernels = session.kernels
    try:
        session.settle()
    except Exception as late:  # noqa: BLE001 - what an interpreter raises is of any class
        error = error or late
    session.reset()
    findings = list(map(_with_words, session.observer.findings))
    outcomes = list(_checked_outcomes(kernels, session)) if "checks" in asked else []
    if "races" in asked:
        reason = "a program is run once; name a function to have its kernels looked at for races"
        outcomes += _each(kernels, "races", "skipped", reason)
    if error is not None and not findings:
        findings.append(_of_failure(raised.failure(error), _program_name(error), "trace"))
        outcomes.append(Outcome(kernel="", engine="trace", status="found"))
    return Seen(outcomes=tuple(outcomes), findings=tuple(findings))


def _checked_outcomes(kernels: Sequence[Kernel], session: Session) -> Iterator[Outcome]:
    found = {finding.kernel for finding in session.observer.findings}
    problems = [str(problem) for problem in session.problems]
    for kernel in kernels:
        yield Outcome(
            kernel=kernel.name,
            engine="checks",
            status="found" if kernel.name in found else "ok",
            notes=tuple(p for p in problems if f"`{kernel.name}`" in p),
        )


def _program_name(error: BaseException) -> str:
    return "the program" if isinstance(error, SystemExit) else NO_KERNEL


def _each(
    kernels: Sequence[Kernel], engine: Engine, status: Status, reason: str
) -> tuple[Outcome, ...]:
    return tuple(
        Outcome(kernel=kernel.name, engine=engine, status=status, reason=reason)
        for kernel in kernels
    )


def disagreement(call: Call, kernels: Sequence[Kernel], first: Any, second: Any) -> list[Finding]:
    """Whether two interpreters gave other results, where neither found anything."""
    where = arrays.first_difference(first, second)
    if where is None:
        return []
    kernel = kernels[0]
    return [
        Finding(
            kind="EnginesDisagree",
            kernel=kernel.name if len(kernels) == 1 else call.name,
            message=(
                "HLO interpret mode and TPU interpret mode give other results: "
                f"{where.path}{list(where.index)} is {where.first} and {where.second}"
            ),
            source=kernel.source if len(kernels) == 1 else None,
            cause="the kernel depends on what no engine promises: the order of its grid points, "
            "what a buffer holds before it is written, or when a copy arrives",
            advice="look for outputs that are read or left and come back to, and copies that are "
            "not waited for",
            engine="checks, races",
        )
    ]


def _of_failure(failure: Failure, name: str, engine: str, kernel: Kernel | None = None) -> Finding:
    known = explain.of_failure(failure, kernel)
    default = {"trace": "TraceError", "lowering": "LoweringError", "crash": "CompilerAbort"}
    kind = default.get(engine) or default.get(failure.stage, "CompileError")
    details = known.details if known else ()
    return Finding(
        kind=known.kind if known and known.kind else kind,
        kernel=name,
        message="\n".join([failure.headline, *details]),
        source=failure.source,
        cause=known.cause if known else None,
        advice=known.advice if known else _UNKNOWN[engine],
        engine=engine,
    )


def known_issues(captured: Capture, targets: Sequence[Target]) -> list[str]:
    """Sentences on faults of the installed releases that this kernel may meet."""
    found = explain.known_issues(
        captured.kernel, captured.jaxpr, captured.kernel.versions, [t.name for t in targets]
    )
    return [
        f"known issue {issue.id} of the installed {issue.package}, in {issue.engine}, may concern "
        f"kernel `{captured.kernel.name}`: {issue.title}; {issue.advice}"
        for issue in found
    ]

"""Engine adapters: each one judges the kernels of a function.

An engine that fails gives no verdict: its outcome is `unjudged`, with the reason. `ok` is reserved
for kernels that the engine processed to the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec

from pallas_debug import guards
from pallas_debug.analysis import analyze, gpu
from pallas_debug.bridge import chip
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.jaxprs.params import gpu_backend
from pallas_debug.bridge.lowering import raised, trace
from pallas_debug.bridge.walk import prefetch
from pallas_debug.compiler.compile import needs_others
from pallas_debug.errors import PallasDebugError
from pallas_debug.explain import known
from pallas_debug.findings.collector import Collector
from pallas_debug.findings.failure import failed
from pallas_debug.findings.faults import NO_KERNEL
from pallas_debug.findings.sighting import Sighting
from pallas_debug.inputs.made_up import Filled
from pallas_debug.machine.pace import Pace
from pallas_debug.model import Compilation, Failure, Finding, Gap, Hint, Kernel, Target
from pallas_debug.session import Options, Session
from pallas_debug.verdict.result import Engine, Outcome, Status, outcome_of

_Given = ParamSpec("_Given")

LIMITS_ONLY = (
    "index maps, coverage and tiles: these are analysed for TPUs; for a GPU only what a block needs"
)
"""Reason of a gap."""

MAX_CALLS = 8
"""Maximum number of calls per kernel, with different scalar prefetch, analysed statically."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Results of one engine.

    Attributes:
      result: return value of the function, if the engine ran it.
      returned: whether the function returned.
      options: options of the session in which the engine ran it.
      hints: what looks unintended in the kernels.
      captures: kernels that the run lowered.
      problems: bugs of pallas-debug that the engine hit and that belong to no outcome.
      notes: remarks that are not about a single kernel.
      launched: digests of the kernels that are known to have run to their end.
    """

    outcomes: tuple[Outcome, ...] = ()
    findings: tuple[Finding, ...] = ()
    result: Any = None
    returned: bool = False
    options: Options | None = None
    hints: tuple[Hint, ...] = ()
    captures: tuple[Capture, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    launched: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Call:
    """A function and its arguments.

    Attributes:
      args, kwargs: arguments, with concrete or abstract arrays.
      values: the same with made-up values for abstract arrays.
      pace: progress of the kernels, and the budget for their time.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    values: Filled
    pace: Pace = field(default_factory=Pace)


@dataclass(kw_only=True)
class Traced:
    """Kernels of a function or program.

    Attributes:
      captures: the kernels, by digest.
      targets: by digest, the targets for which the function calls the kernel.
      has_failed: whether a trace failed, so that the function may call more.
    """

    captures: dict[str, Capture] = field(default_factory=dict)
    targets: dict[str, tuple[Target, ...]] = field(default_factory=dict)
    has_failed: bool = False

    def add(self, captured: Capture, targets: Iterable[Target]) -> None:
        digest = captured.kernel.digest
        self.captures.setdefault(digest, captured)
        self.targets[digest] = tuple(dict.fromkeys((*self.targets.get(digest, ()), *targets)))


def traced(call: Call, session: Session) -> tuple[Traced, Seen]:
    """Trace the function for each target, and collect the kernels that it lowers."""
    found, outcome = Traced(), Outcome(kernel="", engine="trace", status="ok")
    findings: tuple[Finding, ...] = ()
    without: list[str] = []  # names of targets for which it calls no kernel
    for i, target in enumerate(session.targets):
        wanted, asks = session.targets[i:], False
        try:
            with raised.with_all_frames(), session.collecting() as captures:
                asks = trace.lower_for_kernels(call.function, call.args, call.kwargs, target)
        except PallasDebugError:
            raise
        except Exception as error:  # noqa: BLE001 - of the user's code, or raised by jax for it
            found.has_failed, findings = True, (not_traced(error),)
            outcome = replace(outcome, status="found")
        else:
            if not captures and not session.uncaptured:
                without.append(target.name if asks else "any target")
        for captured in captures:
            found.add(captured, (target,) if asks or (found.has_failed and i) else wanted)
        if not asks:
            break
    if found.has_failed or not (found.captures or session.uncaptured):
        without = []
    problems = (f"for {name} the function calls no kernel: nothing was judged" for name in without)
    return found, Seen(outcomes=(outcome,), findings=findings, problems=tuple(problems))


def static(
    captured: Capture, targets: Sequence[Target], given: Sequence[prefetch.Tables] = ()
) -> Seen:
    """Run the static analysis on a kernel.

    Args:
      given: for each call, the grid sizes that it passes and its scalar prefetch, as far as they
        are known; empty if they are unknown.
    """
    gpus = [target for target in targets if target.platform == "cuda"]
    if gpus and len(gpus) == len(targets):
        return _limits(captured, gpus)
    targets = [target for target in targets if target.platform == "tpu"]
    digest, bounds = captured.kernel.digest, len(captured.kernel.of_kind("dynamic_grid"))
    analyses = [
        analyze(captured, targets, prefetch=tables[bounds:], bounds=tables[:bounds])
        for tables in given[:MAX_CALLS]
    ] or [analyze(captured, targets)]
    left_out: list[Gap | str] = [gap for one in analyses for gap in one.gaps]
    if len(given) > MAX_CALLS:
        left_out.append(
            f"{len(given) - MAX_CALLS} of {len(given)} calls, each with its own scalar prefetch "
            f"or grid: only the first {MAX_CALLS} are examined"
        )
    findings = Collector(
        replace(finding, digest=digest) for one in analyses for finding in one.findings
    ).findings
    outcome = outcome_of(captured.kernel, "static", "found" if findings else "ok")
    outcome = outcome.without(*left_out)
    if not findings and not any(one.is_judged for one in analyses):
        reason = "; ".join(gap.reason for gap in outcome.gaps)
        outcome = replace(outcome, status="unsupported", reason=reason, gaps=())
    hints = (replace(hint, digest=digest) for one in analyses for hint in one.hints)
    return Seen(outcomes=(outcome,), findings=findings, hints=tuple(dict.fromkeys(hints)))


def _limits(captured: Capture, targets: Sequence[Target]) -> Seen:
    """Compare what a kernel's shapes need with what GPUs have; the rest is a gap."""
    digest = captured.kernel.digest
    findings = tuple(replace(f, digest=digest) for f in gpu.too_large(captured, targets))
    outcome = outcome_of(captured.kernel, "static", "found" if findings else "ok")
    return Seen(outcomes=(outcome.without(LIMITS_ONLY),), findings=findings)


def prefetched(
    call: Call, captures: Sequence[tuple[Capture, tuple[Target, ...]]]
) -> tuple[dict[str, list[prefetch.Tables]], list[str]]:
    """Scalar prefetch of each kernel's calls, and problems in computing it."""
    found: dict[str, list[prefetch.Tables]] = {}
    problems: list[str] = []
    takes = {  # a function may call other kernels for another chip
        targets[0].name: targets[0]
        for captured, targets in captures
        if captured.kernel.of_kind("scalar_prefetch") or captured.kernel.of_kind("dynamic_grid")
    }
    for target in takes.values():
        try:
            found = {**prefetch.tables(call.function, call.args, call.kwargs, target), **found}
        except Exception as error:  # noqa: BLE001 - the rest is known without it
            problems.append(
                "the grids and the scalar prefetch of the kernels could not be computed from the "
                f"arguments ({raised.in_a_line(error)}); anything that depends on them is left to "
                "the engines that run the kernels"
            )
    return found, problems


def compiled(kernel: Kernel, compilation: Compilation) -> Seen:
    """Results of jax's lowering and libtpu for one target."""
    failure, target, findings = compilation.failure, compilation.target, tuple[Finding, ...]()
    status: Status = "ok"
    if failure is not None and failure.is_undecided:
        status = "unsupported" if needs_others(failure) else "unjudged"
    elif failure is not None:
        status = "found"
        findings = (_refusal(kernel, failure, (target,)),)
    reason = failure.headline if failure is not None and not findings else None
    outcome = outcome_of(kernel, "compile", status, reason, target)
    return Seen(outcomes=(outcome,), findings=findings)


def _refusal(kernel: Kernel, failure: Failure, targets: tuple[str, ...] = ()) -> Finding:
    seen = Sighting(kernel=kernel.name, engine="compile", targets=targets)
    return replace(failed(seen, failure, kernel), digest=kernel.digest)


def partitioned(kernel: Kernel) -> Seen:
    """Finding for a kernel whose arrays jax partitions, which its lowering for a TPU refuses."""
    failure = Failure(
        stage="lowering",
        type="NotImplementedError",
        message="jax does not lower it for a TPU: Mosaic kernels cannot be automatically "
        "partitioned. Please wrap the call in a shard_map.",
    )
    return Seen(findings=(_refusal(kernel, failure),))


def compilation(session: Session, kernel: Kernel, target: str) -> Seen:
    """Results of a kernel's compilation for a target, in a session that has ended."""
    queue, key = session.queue, (kernel.digest, target)
    if key in queue.made:
        return compiled(kernel, queue.made[key])
    if (why := queue.why_elsewhere(*key)) is not None:
        return each([kernel], "compile", "unsupported", why, target)
    return each([kernel], "compile", "unjudged", queue.not_compiled(kernel, target), target)


def traced_for(session: Session, kernel: Kernel, targets: Iterable[Target]) -> list[Target]:
    """Return those of these targets for which a kernel may have been traced."""
    queue = session.queue
    return [t for t in targets if queue.why_elsewhere(kernel.digest, t.name) is None]


def guarded(
    engine: Engine,
    kernels: Sequence[Kernel],
    engine_run: Callable[_Given, Seen],
    *args: _Given.args,
    **kwargs: _Given.kwargs,
) -> Seen:
    """Run an engine; if it raises, return unjudged outcomes with the reason."""
    raised_here: list[PallasDebugError] = []
    names = ", ".join(dict.fromkeys(f"`{kernel.name}`" for kernel in kernels)) or "the source"
    with guards.guarded("engine", f"asking `{engine}` about {names}", raised_here.append):
        return engine_run(*args, **kwargs)
    reason = str(raised_here[0])
    return each(kernels, engine, "unjudged", reason) if kernels else Seen(problems=(reason,))


def each(
    kernels: Iterable[Kernel],
    engine: Engine,
    status: Status,
    reason: str,
    target: str | None = None,
) -> Seen:
    """The same outcome for several kernels."""
    outcomes = (outcome_of(kernel, engine, status, reason, target) for kernel in kernels)
    return Seen(outcomes=tuple(outcomes))


def not_traced(error: BaseException) -> Finding:
    """Finding for a call that raised while jax traced or ran it, in a kernel or outside of one."""
    failure, raiser = raised.failure(error), raised.raiser(error)
    if raiser != "jax":
        message = f"{failure.type}: {failure.message.lstrip()}".removesuffix(": ")
        failure = replace(failure, message=message)
    seen = Sighting(kernel=raised.kernel_of(error) or NO_KERNEL, engine="trace")
    name = None if (pretended := chip.pretended()) is None else pretended.name
    return failed(seen, failure, raiser=raiser, pretended=name)


def known_issues(captured: Capture) -> list[str]:
    """Known bugs in the installed libtpu that may affect a kernel, as sentences."""
    kernel = captured.kernel
    if gpu_backend(captured.params):
        return []
    return [
        f"known issue {issue.id} of the installed libtpu may affect kernel `{kernel.name}`: "
        f"{issue.title}; {issue.advice}"
        for issue in known.known_issues(kernel, captured.jaxpr, kernel.versions)
    ]

"""Engine adapters: each one judges the kernels of a function.

An engine that fails gives no verdict: its outcome is `unjudged`, with the reason. `ok` is reserved
for kernels that the engine processed to the end.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pallas_debug import explain, guards
from pallas_debug.analysis import analyze, memory, names
from pallas_debug.bridge import chip
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.jaxprs.params import gpu_backend
from pallas_debug.bridge.lowering import raised, trace
from pallas_debug.bridge.walk import prefetch
from pallas_debug.compiler.compile import needs_others
from pallas_debug.errors import KernelNotJudged, PallasDebugError, PluginError
from pallas_debug.findings import outputs
from pallas_debug.findings.collector import Collector
from pallas_debug.findings.faults import NO_KERNEL, Fault
from pallas_debug.findings.outputs import Dropped
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import unsupported
from pallas_debug.model import Compilation, Finding, Gap, Hint, Kernel, SourceLine, Target, Witness
from pallas_debug.session import Options, Session
from pallas_debug.verdict.result import Engine, Outcome, Status, outcome_of

MAX_CALLS = 8
"""Maximum number of calls per kernel, with different scalar prefetch, analysed statically."""


_DECIDED_BY_A_RUN = (Fault.OUTPUT_REVISITED, Fault.DATA_RACE)
"""Faults that the static analysis states under a condition on the values, or on what is stored."""


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
      dropped: kernel and operand of outputs that were not written, and that programs do not use.
      watched: by kernel, the grid points at which it was judged, if not at all of them.
      idle: by digest of the kernel, lines of loops whose bodies never ran.
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
    dropped: frozenset[Dropped] = frozenset()
    watched: Mapping[str, str] = field(default_factory=dict)
    idle: Mapping[str, Collection[SourceLine]] = field(default_factory=dict)

    def without_unwritten(self, unused: Collection[str], used: Collection[str]) -> Seen:
        """Leave out unwritten outputs of some kernels, and count those of others.

        Args:
          unused, used: digests of the kernels.
        """
        left = [f for f in self.findings if f.kind is Fault.OUTPUT_NOT_WRITTEN]
        left = [f for f in left if f.digest in unused]
        kept = [
            outputs.certain(f) if f.digest in used else f for f in self.findings if f not in left
        ]
        dropped = self.dropped | {(f.kernel, f.operand) for f in left}
        return replace(self.with_findings(tuple(kept)), dropped=dropped)

    def without_conditions(self, ran: Collection[str]) -> Seen:
        """Leave out faults under a condition that the machine, which ran the kernels, did not meet.

        What the machine has seen is a finding of its own.

        Args:
          ran: digests of the kernels that it judged completely.
        """
        return self.with_findings(
            tuple(
                f
                for f in self.findings
                if f.kind not in _DECIDED_BY_A_RUN or f.only_if is None or f.digest not in ran
            )
        )

    def as_used(self, session: Session) -> Seen:
        """Judge unwritten outputs by whether the session's programs use them."""
        left, dropped = self, frozenset[Dropped]()
        for kernel in session.kernels:
            mine = [finding for finding in left.findings if finding.digest == kernel.digest]
            others = [finding for finding in left.findings if finding.digest != kernel.digest]
            kept, unused = outputs.judged(mine, session.callers.uses(kernel))
            left = left.with_findings((*others, *kept))
            dropped |= unused
        return replace(left, dropped=left.dropped | dropped)

    def with_findings(self, kept: tuple[Finding, ...]) -> Seen:
        """Replace the findings; a kernel without remaining findings is `ok`."""
        if kept == self.findings:
            return self
        still = {(finding.kernel, finding.digest) for finding in kept}
        return replace(
            self,
            findings=kept,
            outcomes=tuple(
                o
                if o.status != "found" or {(o.kernel, o.digest), (o.kernel, "")} & still
                else self._cleared(o)
                for o in self.outcomes
            ),
        )

    def _cleared(self, outcome: Outcome) -> Outcome:
        """Return the outcome after all of its findings were left out."""
        partly = self.watched.get(outcome.kernel)
        if partly is None:
            return replace(outcome, status="ok")
        return replace(outcome, status="unsupported", reason=partly, gaps=())


@dataclass(frozen=True, kw_only=True)
class Call:
    """A function and its arguments.

    Attributes:
      args, kwargs: arguments, with concrete or abstract arrays.
      values: the same with concrete arrays, with made-up values for abstract arrays.
      watch: grid points that the sanitizer watches; None for all.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    values: tuple[Sequence[Any], Mapping[str, Any]] = field(default=((), {}))
    watch: str | None = None

    @property
    def name(self) -> str:
        function = self.function
        while isinstance(function, functools.partial):
            function = function.func
        return str(getattr(function, "__qualname__", type(function).__qualname__))


@dataclass(frozen=True, kw_only=True)
class Traced:
    """Result of tracing a function for each target.

    Attributes:
      captures: the kernels, without duplicates.
      targets: by digest, the targets for which the function calls the kernel.
      untraced: by name, targets without kernels and the reason: the trace failed, or called no
        kernel.
      failed: whether a trace failed.
    """

    captures: tuple[Capture, ...]
    targets: Mapping[str, tuple[Target, ...]]
    untraced: Mapping[str, str]
    failed: bool
    seen: Seen

    def others(self, runs: Sequence[Seen], targets: Sequence[Target]) -> Traced:
        """Kernels that only a run calls, such as one whose parameters are not known in a trace."""
        captures = {c.kernel.digest: c for ran in runs for c in ran.captures}
        late = [c for digest, c in captures.items() if digest not in self.targets]
        return replace(
            self,
            captures=tuple(late),
            targets={c.kernel.digest: tuple(targets) for c in late},
        )

    def and_those_of(self, other: Traced) -> Traced:
        """Return these kernels and those of another trace."""
        return replace(
            self,
            captures=(*self.captures, *other.captures),
            targets={**self.targets, **other.targets},
        )

    def none_called(self) -> list[str]:
        """Reasons why the function calls no kernel for some targets."""
        return [] if self.failed else list(dict.fromkeys(self.untraced.values()))

    def not_traced(self, kernel: Kernel, targets: Sequence[Target]) -> Seen:
        """Outcomes of a kernel for targets whose trace failed before reaching it."""
        if not self.failed:
            return Seen()
        called = self.targets[kernel.digest]
        return Seen(
            outcomes=tuple(
                not_compiled(kernel, target.name, self.untraced[target.name])
                for target in targets
                if target not in called and target.name in self.untraced
            )
        )

    def elsewhere(self, targets: Sequence[Target]) -> dict[str, dict[str, str]]:
        """Targets for which the function does not call the kernel, and why, by digest."""
        if self.failed:
            return {}
        return {
            digest: {
                target.name: f"for {target.name} the function does not call it"
                for target in targets
                if target not in called
            }
            for digest, called in self.targets.items()
        }


def traced(call: Call, session: Session) -> Traced:
    """Trace the function for each target, and collect the kernels that it lowers."""
    found: dict[str, Capture] = {}
    called: dict[str, tuple[Target, ...]] = {}
    untraced: dict[str, str] = {}
    outcome, findings = Outcome(kernel="", engine="trace", status="ok"), tuple[Finding, ...]()
    start = time.perf_counter()
    for i, target in enumerate(session.targets):
        try:
            with raised.with_all_frames(), session.collecting() as captures:
                asked = trace.lower_for_kernels(call.function, call.args, call.kwargs, target)
        except PallasDebugError:
            raise
        except Exception as error:  # noqa: BLE001 - of the user's code, or jax's word on it
            finding = not_traced(error)
            outcome, findings = replace(outcome, status="found"), (finding,)
            reason = f"the call could not be traced for {target.name}: see the finding"
            untraced |= {left.name: reason for left in session.targets[i:]}
            wanted, asked = (session.targets if i == 0 else (target,)), False
        else:
            wanted = (target,) if asked else session.targets
            if not captures and not session.uncaptured:
                names = target.name if asked else "any target"
                untraced |= {t.name: f"for {names} the function calls no kernel" for t in wanted}
        for captured in captures:
            digest = captured.kernel.digest
            found.setdefault(digest, captured)
            called[digest] = tuple(dict.fromkeys((*called.get(digest, ()), *wanted)))
        if not asked:
            break
    return Traced(
        captures=tuple(found.values()),
        targets=called,
        untraced=untraced,
        failed=bool(findings),
        seen=Seen(
            outcomes=(replace(outcome, seconds=time.perf_counter() - start),), findings=findings
        ),
    )


def static(
    captured: Capture, targets: Sequence[Target], given: Sequence[prefetch.Tables] = ()
) -> Seen:
    """Run the static analysis on a kernel.

    Args:
      given: for each call, the grid sizes that it passes and its scalar prefetch, as far as they
        are known; empty if they are unknown.
    """
    start = time.perf_counter()
    calls: Sequence[prefetch.Tables | None] = given or [None]
    bounds = len(captured.kernel.of_kind("dynamic_grid"))
    analyses = [
        analyze(captured, targets)
        if tables is None
        else analyze(captured, targets, prefetch=tables[bounds:], bounds=tables[:bounds])
        for tables in calls[:MAX_CALLS]
    ]
    left_out: list[Gap | str] = [gap for one in analyses for gap in one.gaps]
    if len(calls) > MAX_CALLS:
        left_out.append(
            f"{len(calls) - MAX_CALLS} of {len(calls)} calls, each with its own scalar prefetch "
            f"or grid: only the first {MAX_CALLS} are examined"
        )
    digest = captured.kernel.digest
    findings = Collector(
        replace(finding, digest=digest) for one in analyses for finding in one.findings
    ).findings
    outcome = outcome_of(captured.kernel, "static", "found" if findings else "ok")
    outcome = replace(outcome.without(*left_out), seconds=time.perf_counter() - start)
    if not findings and not any(one.is_judged for one in analyses):
        reason = "; ".join(gap.reason for gap in outcome.gaps)
        outcome = replace(outcome, status="unsupported", reason=reason, gaps=())
    hints = tuple(
        dict.fromkeys(replace(hint, digest=digest) for one in analyses for hint in one.hints)
    )
    return Seen(outcomes=(outcome,), findings=findings, hints=hints)


def names_of(function: Callable[..., Any]) -> Seen:
    """Find Pallas names in the source of a function that the installed jax does not have."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return Seen()
    return _removed(names.look(code.co_filename, code.co_firstlineno))


def names_in(source: Path) -> Seen:
    """Like `names_of`, for a whole file."""
    return _removed(names.look(source))


def _removed(findings: Sequence[Finding]) -> Seen:
    outcome = Outcome(kernel="", engine="static", status="found")
    return Seen(outcomes=(outcome,) if findings else (), findings=tuple(findings))


def takes_tables(kernel: Kernel) -> bool:
    """Return whether a call passes scalar prefetch or grid sizes."""
    return bool(kernel.of_kind("scalar_prefetch") or kernel.of_kind("dynamic_grid"))


def prefetched(
    call: Call, captures: Sequence[tuple[Capture, tuple[Target, ...]]]
) -> tuple[dict[str, list[prefetch.Tables]], list[str]]:
    """Scalar prefetch of each kernel's calls, and problems in computing it."""
    found: dict[str, list[prefetch.Tables]] = {}
    problems: list[str] = []
    takes = [pair for pair in captures if takes_tables(pair[0].kernel)]
    # A function may call other kernels for another chip.
    for target in {targets[0].name: targets[0] for _, targets in takes}.values():
        try:
            found = {**prefetch.tables(call.function, call.args, call.kwargs, target), **found}
        except Exception as error:  # noqa: BLE001 - what is known without it is said none the less
            problems.append(
                "the grids and the scalar prefetch of the kernels could not be computed from the "
                f"arguments ({raised.in_a_line(error)}); anything that depends on them is left to "
                "the engines that run the kernels"
            )
    return found, problems


def compiled(kernel: Kernel, compilation: Compilation) -> Seen:
    """Results of jax's lowering and libtpu for one target."""
    failure, target = compilation.failure, compilation.target
    if failure is not None and failure.is_undecided:
        status: Status = "unsupported" if needs_others(failure) else "unjudged"
        return Seen(outcomes=(not_compiled(kernel, target, failure.headline, status),))
    outcome = replace(
        outcome_of(kernel, "compile", "found" if failure else "ok"),
        target=target,
        seconds=compilation.seconds,
    )
    if failure is None:
        return Seen(outcomes=(outcome,))
    seen = Sighting(kernel=kernel.name, engine="compile", targets=(target,))
    finding = replace(unsupported.failed(seen, failure, kernel), digest=kernel.digest)
    return Seen(outcomes=(outcome,), findings=(finding,))


def partitioned(kernel: Kernel) -> Seen:
    """Finding for a kernel whose arrays jax partitions, which its lowering for a TPU refuses."""
    seen = Sighting(kernel=kernel.name, engine="compile", witness=Witness(source=kernel.source))
    return Seen(findings=(replace(unsupported.partitioned_by_jax(seen), digest=kernel.digest),))


def not_compiled(kernel: Kernel, target: str, reason: str, status: Status = "unjudged") -> Outcome:
    """Outcome of a compilation that was not attempted, or was interrupted."""
    return replace(outcome_of(kernel, "compile", status, reason), target=target)


def find_unfit(
    session: Session, wanted: Sequence[tuple[Capture, tuple[Target, ...]]]
) -> str | None:
    """Note in the session's queue which kernels do not fit on which targets.

    Returns:
      Why nothing is interpreted, if a kernel fits on no target.
    """
    nowhere = None
    for captured, targets in wanted:
        kernel = captured.kernel
        faults = memory.too_large(captured, targets)
        names = {name for fault in faults for name in fault.targets}
        session.queue.unfit |= {(kernel.digest, name) for name in names}
        if nowhere is None and names >= {target.name for target in targets}:
            where = ", ".join(target.name for target in targets)
            nowhere = (
                f"nothing was interpreted: kernel `{kernel.name}` does not fit into the memory of "
                f"{where}"
            )
    return nowhere


def compilations(session: Session, kernel: Kernel, targets: Iterable[str]) -> list[Seen]:
    """Results of a kernel's compilations for these targets, in a session that has ended."""
    finished = {
        compilation.target: compilation
        for dump in session.dumps
        if dump.kernel.digest == kernel.digest
        for compilation in dump.compilations
    }
    return [
        compiled(kernel, finished[target])
        if target in finished
        else Seen(outcomes=(_uncompiled(session, kernel, target),))
        for target in targets
    ]


def _uncompiled(session: Session, kernel: Kernel, target: str) -> Outcome:
    why = session.queue.why_elsewhere(kernel.digest, target)
    if why is None:
        reason = session.queue.not_compiled(kernel, target)
        if (kernel.digest, target) not in session.queue.unfit:
            return not_compiled(kernel, target, reason)
        return replace(outcome_of(kernel, "compile", "found"), target=target).without(reason)
    return replace(outcome_of(kernel, "compile", "unsupported", why), target=target)


def traced_for(session: Session, kernel: Kernel, targets: Iterable[Target]) -> list[Target]:
    """Return those of these targets for which a kernel may have been traced."""
    queue = session.queue
    return [t for t in targets if queue.why_elsewhere(kernel.digest, t.name) is None]


def own_problems(session: Session, outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """Our own bugs and machine errors that are not the reason for an outcome."""
    known = {str(problem) for problem in session.lost.values()}
    known |= {gap.reason for gap in session.uncaptured}
    reasons = "\n".join(outcome.reason or "" for outcome in outcomes)
    return tuple(
        str(problem)
        for problem in session.problems
        if not isinstance(problem, PluginError | KernelNotJudged)
        and str(problem) not in known
        and str(problem) not in reasons
    )


def problems(session: Session) -> tuple[tuple[str, ...], list[str]]:
    """Problems of a session besides its kernels' outcomes: our own, and those of plugins."""
    plugins = [str(p) for p in session.problems if isinstance(p, PluginError)]
    return own_problems(session, ()), plugins


def uncaptured(session: Session, asked: Sequence[Engine], targets: Iterable[str]) -> Seen:
    """Outcomes of kernels that were lowered but not captured: all unjudged."""
    outcomes = []
    for name, why in {gap.kernel: gap.reason for gap in session.uncaptured}.items():
        reason = f"it could not be captured: {why}"
        nothing = Outcome(kernel=name, engine="static", status="unjudged", reason=reason)
        for engine in asked[1:]:
            if engine != "compile":
                outcomes.append(replace(nothing, engine=engine))
                continue
            outcomes += [replace(nothing, engine=engine, target=target) for target in targets]
    return Seen(outcomes=tuple(outcomes))


def guarded(engine: Engine, kernels: Sequence[Kernel], judge: Callable[[], Seen]) -> Seen:
    """Run an engine; if it raises, return unjudged outcomes with the reason."""
    raised_here: list[PallasDebugError] = []
    names = ", ".join(dict.fromkeys(f"`{kernel.name}`" for kernel in kernels)) or "the source"
    with guards.guarded("engine", f"asking `{engine}` about {names}", raised_here.append):
        return judge()
    reason = str(raised_here[0])
    return Seen(
        outcomes=each(kernels, engine, "unjudged", reason), problems=() if kernels else (reason,)
    )


def hints(seen: Iterable[Seen]) -> tuple[Hint, ...]:
    """Hints of all engines, each once."""
    return tuple(dict.fromkeys(hint for one in seen for hint in one.hints))


def each(
    kernels: Sequence[Kernel], engine: Engine, status: Status, reason: str
) -> tuple[Outcome, ...]:
    return tuple(outcome_of(kernel, engine, status, reason) for kernel in kernels)


def not_traced(error: BaseException) -> Finding:
    """Finding for a call that raised while jax traced or ran it, in a kernel or outside of one."""
    failure, raiser = raised.failure(error), raised.raiser(error)
    if raiser != "jax":
        message = f"{failure.type}: {failure.message.lstrip()}".removesuffix(": ")
        failure = replace(failure, message=message)
    seen = Sighting(kernel=raised.kernel_of(error) or NO_KERNEL, engine="trace")
    name = None if (pretended := chip.pretended()) is None else pretended.name
    return unsupported.failed(seen, failure, raiser=raiser, pretended=name)


def known_issues(captured: Capture) -> list[str]:
    """Known bugs in the installed libtpu that may affect a kernel, as sentences."""
    kernel = captured.kernel
    if gpu_backend(captured.params):
        return []
    return [
        f"known issue {issue.id} of the installed libtpu may affect kernel `{kernel.name}`: "
        f"{issue.title}; {issue.advice}"
        for issue in explain.known_issues(kernel, captured.jaxpr, kernel.versions)
    ]

"""`verify`: run each engine as far as the previous results allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pallas_debug import defaults
from pallas_debug.bridge import platform, versions
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.jaxprs.params import gpu_backend
from pallas_debug.comparison.reference import name_of
from pallas_debug.comparison.tolerances import Tolerance
from pallas_debug.compiler.targets import split as targets_by_name
from pallas_debug.errors import PluginError, UsageError, meant
from pallas_debug.findings import outputs
from pallas_debug.findings.collector import merged
from pallas_debug.findings.faults import Fault
from pallas_debug.guards import check_arguments, check_function
from pallas_debug.inputs.made_up import filled
from pallas_debug.model import Finding, Target
from pallas_debug.render import REAL_INPUTS
from pallas_debug.session import Options, Session, another_path, sanitizing
from pallas_debug.tracebacks import WithoutOurFrames
from pallas_debug.verdict import (
    compared,
    interpreted,
    made_up,
    points,
    suppressions,
    table,
    unwritten,
)
from pallas_debug.verdict import engines as ask
from pallas_debug.verdict.answers import Answers
from pallas_debug.verdict.engines import Call, Seen, Traced
from pallas_debug.verdict.interpreted import session_problems
from pallas_debug.verdict.result import ENGINES, JUDGED, Engine, Verdict, outcome_of
from pallas_debug.verdict.table import Asked, AskedKernel

_RUN: tuple[Engine, ...] = ("machine", "values")
"""Engines that run the kernels."""

_DECIDED_BY_A_RUN = (Fault.OUTPUT_REVISITED, Fault.DATA_RACE)
"""Faults that the static analysis states under a condition; a complete run without them decides."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Parameters of a verification, as in `verify`. Each property raises UsageError if invalid."""

    targets: str | Iterable[str] | None = defaults.VERIFY_TARGETS
    engines: str | Iterable[str] | None = None
    suppress: str | Path | None = None
    to: str | Path | None = None
    timeout: float = defaults.COMPILE_TIMEOUT
    jobs: int = 0
    hang_after: float = defaults.VERIFY_HANG_AFTER
    watch: str | None = None
    reference: Callable[..., Any] | None = None
    rtol: float | None = None
    atol: float | None = None
    hints: bool | str = True

    @property
    def by_name(self) -> bool:
        """True if engines were requested by name; each of them must then judge every kernel."""
        return self.engines is not None

    @property
    def asked(self) -> tuple[Engine, ...]:
        """Engines to run, in order; `values` if there is a reference."""
        added: set[str] = set() if self.reference is None else {"values"}
        if self.engines is None:
            return tuple(name for name in ENGINES if name != "values" or added)
        given = self.engines.split(",") if isinstance(self.engines, str) else list(self.engines)
        wanted = {name.strip() for name in given if name.strip()}
        unknown = sorted(wanted - set(ENGINES))
        if unknown or not wanted:
            known = ", ".join(ENGINES[1:]).replace("machine", "machine (the sanitizer)")
            hint = meant(unknown[0], ENGINES[1:]) if unknown else ""
            named = f"{', '.join(unknown) or 'was named'}{hint}"
            raise UsageError(f"no engine {named}; there are {known}")
        if "values" in wanted and not added:
            raise UsageError(
                "the engine `values` compares results with those of a reference: pass one, as "
                "`reference=` or `--reference package.module:function`"
            )
        return tuple(name for name in ENGINES if name in wanted | added | {"trace"})

    def why_not(self, captured: Capture) -> str | None:
        """Reason why the engines that are only for TPUs do not apply to a kernel, if so.

        Engines that were requested by name have to judge every kernel.
        """
        backend = None if self.by_name else gpu_backend(captured.params)
        return backend and f"it is a kernel for a GPU ({backend})"

    @property
    def shows_hints(self) -> bool:
        return self.hints in (True, "on")

    @property
    def chips(self) -> tuple[str, ...]:
        """Names of the targets."""
        chips = targets_by_name(self.targets, defaults.VERIFY_TARGETS)
        if not chips:
            raise UsageError(
                "verify needs a target to trace the function for: pass one, such as "
                f"targets={defaults.CHIP!r}, or omit the argument"
            )
        return chips

    @property
    def left_out(self) -> tuple[suppressions.Suppression, ...]:
        """Suppressions, read from the file."""
        return suppressions.read(Path(self.suppress)) if self.suppress is not None else ()

    @property
    def tolerance(self) -> Tolerance:
        """Tolerance of the comparison with the reference."""
        return Tolerance(rtol=self.rtol, atol=self.atol)

    def check(self) -> None:
        """Reject invalid parameters before anything runs."""
        _ = self.asked, self.left_out, self.tolerance, self.chips
        if self.reference is None and (self.rtol, self.atol) != (None, None):
            raise UsageError("rtol and atol apply to the comparison with a reference: pass one")
        if self.watch is not None and "machine" not in self.asked:
            raise UsageError(
                f"watch={self.watch} chooses grid points for the sanitizer: name the engine "
                "`machine` as well"
            )
        sanitizing(None, self.watch)
        if self.hints not in (True, False, "on", "off"):
            raise UsageError(f"hints are `on` or `off`, not {self.hints!r}")

    def options(self, **more: Any) -> Options:
        """Options of the session in which the kernels are compiled."""
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
    targets: str | Iterable[str] | None = defaults.VERIFY_TARGETS,
    engines: str | Iterable[str] | None = None,
    suppress: str | Path | None = None,
    to: str | Path | None = None,
    timeout: float = defaults.COMPILE_TIMEOUT,
    jobs: int = 0,
    hang_after: float = defaults.VERIFY_HANG_AFTER,
    tick: Callable[[Session], None] | None = None,
    reference: Callable[..., Any] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    watch: str | None = None,
    hints: bool | str = True,
    **kwargs: Any,
) -> Verdict:
    """Verify that the kernels a function calls work, for each chip; if not, explain why.

        verdict = pallas_debug.verify(attention, q, k, v, targets="v5e,v6e")
        print(verdict)
        verdict.throw()

    Runs the static analysis, jax's lowering and libtpu for each target, and the sanitizer;
    compilations continue in other processes while the kernels run on the kernel machine.

    Args:
      function: the function that calls the kernels, jitted or not; it is traced and run, and run
        again with other contents of unwritten memory if a kernel leaves some of its output
        unwritten.
      *args: arrays, or `jax.ShapeDtypeStruct`s, which are filled with random normal values, or
        with zeros for integers and bools (large matrices of at most 8 bits: random). Anything
        else is passed through. Findings that rest on such values say so, and do not count.
      targets: names, as a list or separated by commas; `all` for every generation.
      engines: any of `static`, `compile`, `machine` (the sanitizer) and `values`; by default all,
        `values` only with a reference. If an engine requested here cannot judge a kernel, that
        counts as work not done.
      suppress: a file that lists findings to ignore, with reasons.
      to: a dump directory in which to save the compilations and the findings.
      timeout: maximum seconds per compilation.
      jobs: maximum number of compiler processes; 0 for one per core, up to four.
      hang_after: seconds without progress before an interpreted kernel is stopped.
      tick: called about ten times a second while waiting for compilations.
      reference: function of the same arguments that returns the correct results; see `compare`.
      rtol, atol: tolerance of the comparison with the reference, as for `compare`.
      watch: grid points at which the sanitizer judges memory and arithmetic, as for `check`; a
        partly watched kernel counts as not judged by the sanitizer.
      hints: whether the verdict has hints: what looks unintended, but fails nothing.
      **kwargs: passed to the function, like `args`.

    Returns:
      A verdict with an outcome for each kernel, engine and target. It is `ok` only if every one of
      them was judged and nothing was found; `unjudged` lists the others, with their reasons.

    Raises:
      UsageError: unknown engine, invalid suppressions file, or a function that calls no kernel.
      InvalidReference: the reference raised an exception, or its arrays do not match.
      UnknownTargetError: unknown target.
    """
    with WithoutOurFrames():
        request = Request(
            targets=targets,
            engines=engines,
            suppress=suppress,
            to=to,
            timeout=timeout,
            jobs=jobs,
            hang_after=hang_after,
            reference=reference,
            rtol=rtol,
            atol=atol,
            watch=watch,
            hints=hints,
        )
        return verify_function(function, args, kwargs, request, Answers(), tick)


def verify_function(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    request: Request,
    answers: Answers,
    tick: Callable[[Session], None] | None = None,
) -> Verdict:
    """Verify the kernels that a function calls, as `verify` does.

    Args:
      answers: receives the engines' answers as they arrive.
    """
    check_function("pallas_debug.verify", function)
    names = [one.name for one in fields(Request)]
    check_arguments("pallas_debug.verify", function, args, kwargs, names)
    if request.reference is not None:
        check_function("pallas_debug.verify(…, reference=…)", request.reference)
    request.check()
    asked = request.asked
    answers.ask(asked, request.chips, hints=request.shows_hints)
    platform.leave_out_absent_tpu()
    values = filled(function, args, kwargs)
    call = Call(
        function=function,
        args=args,
        kwargs=kwargs,
        values=values,
        watch=request.watch,
    )
    expected = None
    if request.reference is not None:
        expected = compared.expect(call, request.reference, request.tolerance, request.chips)
    with Session(request.options(interpret="off")) as session:
        found, runs = _ask(call, session, request, answers, tick, expected)
    seen = answers.seen
    if "compile" in asked:
        seen.append(Seen(outcomes=tuple(found.elsewhere(session.targets))))
        for captured in found.captures:
            if request.why_not(captured) is None:
                wanted = [t.name for t in found.targets[captured.kernel.digest]]
                seen += ask.compilations(session, captured.kernel, wanted)
    problems = []
    if (found.captures or session.uncaptured) and not found.failed:
        problems = [f"{why}: nothing was judged" for why in dict.fromkeys(found.untraced.values())]
    notes = []
    if values.integers and set(_RUN) & set(asked):
        notes.append(
            f"values were made up for {' and '.join(values.integers)}: anything that depends on "
            f"them is judged only for these. Pass real ones: {REAL_INPUTS}"
        )
    findings, dropped = unwritten.used([f for one in seen for f in one.findings], session)
    for ran in runs:
        findings, unused = unwritten.decided(findings, call, ran)
        dropped |= unused
    seen.append(Seen(problems=tuple(problems), notes=tuple(notes), dropped=dropped))
    return conclude(
        call.name,
        request,
        session,
        found.captures,
        seen,
        findings,
        mark=lambda f: made_up.marked(f, call, session.targets[0]),
    )


def conclude(
    name: str,
    request: Request,
    session: Session,
    captures: Sequence[Capture],
    seen: Sequence[Seen],
    findings: Sequence[Finding],
    *,
    targets: Sequence[Target] = (),
    mark: Callable[[tuple[Finding, ...]], tuple[tuple[Finding, ...], list[str]]] | None = None,
) -> Verdict:
    """Build the verdict, with a cell for every judgement requested, answered or not.

    Args:
      findings: those that are left of the engines'; an engine of whose findings on a kernel none is
        left has found nothing.
      targets: those for which to compile, if not the session's.
      mark: marks findings that rest on made-up values; also returns problems.
    """
    asked = Asked(
        kernels=(
            *(AskedKernel(name=c.kernel.name, digest=c.kernel.digest) for c in captures),
            *(
                AskedKernel(name=gap.kernel, lost=f"it could not be captured: {gap.reason}")
                for gap in session.uncaptured
            ),
        ),
        engines=request.asked,
        targets=tuple(target.name for target in targets or session.targets),
        by_name=request.by_name,
    )
    outcomes = [outcome for one in seen for outcome in one.outcomes]
    ran = {o.digest for o in outcomes if o.engine == "machine" and o.status == "ok" and not o.gaps}
    findings = [
        f
        for f in findings
        if f.kind not in _DECIDED_BY_A_RUN or f.only_if is None or f.digest not in ran
    ]
    outcomes = table.cleared(outcomes, findings)
    for captured in captures:
        if (why := request.why_not(captured)) is not None:
            skipped = outcome_of(captured.kernel, "static", "skipped", why)
            outcomes += [skipped] if "static" in asked.engines else []
            if "compile" in asked.engines:
                outcomes += [replace(skipped, engine="compile", target=t) for t in asked.targets]
    filled = table.fill(asked, outcomes)
    found = merged(findings, [captured.kernel.source for captured in captures])
    dropped = frozenset[outputs.Dropped]().union(*(one.dropped for one in seen))
    unused = unwritten.notes(dropped, found)
    found, problems = (found, []) if mark is None else mark(found)
    found, suppressed, idle = suppressions.apply(_with_lines(found, captures), request.left_out)
    hints = dict.fromkeys(h for one in seen for h in one.hints if request.shows_hints)
    judged: dict[str, list[str]] = {}
    for outcome in filled:
        if outcome.status in JUDGED and outcome.digest:
            judged.setdefault(outcome.digest, []).append(outcome.column)
    session.record_run(
        name,
        [captured.kernel for captured in captures],
        prints=session.observer.records,
        findings=found,
        hints=hints,
        gaps=[gap for outcome in filled for gap in outcome.all_gaps],
        judged=judged,
    )
    plugins = [str(p) for p in session.problems if isinstance(p, PluginError)]
    known = [issue for captured in captures for issue in ask.known_issues(captured)]
    notes = [*(note for one in seen for note in one.notes), *plugins, *unused, *known]
    problems += [problem for one in seen for problem in one.problems]
    problems += session_problems(session)
    reasons = "\n".join(outcome.reason or "" for outcome in filled)
    return Verdict(
        name=name,
        kernels=tuple(table.labels((k.name, k.digest) for k in asked.kernels).values()),
        outcomes=filled,
        findings=found,
        hints=tuple(hints),
        suppressed=suppressed,
        problems=tuple(p for p in dict.fromkeys(problems) if p not in reasons),
        notes=(*dict.fromkeys(notes), *idle),
        versions=dict(versions.installed()),
        reference=None if request.reference is None else name_of(request.reference),
    )


def _with_lines(findings: Sequence[Finding], captures: Sequence[Capture]) -> list[Finding]:
    """Set the line of findings without a line to their kernel's, or the first kernel's."""
    lines = {c.kernel.name: c.kernel.source for c in reversed(captures)}
    first = captures[0].kernel.source if captures else None
    return [
        finding
        if finding.source is not None
        else replace(
            finding, witness=replace(finding.witness, source=lines.get(finding.kernel) or first)
        )
        for finding in findings
    ]


def _ask(
    call: Call,
    session: Session,
    request: Request,
    answers: Answers,
    tick: Callable[[Session], None] | None,
    expected: compared.Expected | None,
) -> tuple[Traced, list[Seen]]:
    """Run the engines; return the kernels, and the runs on the kernel machine."""
    asked = request.asked
    if "compile" in asked:
        session.start_compiler()
    found = ask.traced(call, session)
    answers.add(found.seen)
    if "static" in asked:
        answers.add(ask.guarded("static", (), ask.removed_names, call.function))
    captures = found.captures
    if not captures and not session.uncaptured and not any(s.findings for s in answers.seen):
        raise UsageError(
            f"{call.name} calls no Pallas kernel with these arguments: nothing to verify. "
            + another_path()
        )
    if not found.failed:
        points.require(request.watch, captures)
    if not captures:
        return found, []
    nowhere = _without_running(call, session, request, answers, found, captures)
    if nowhere is not None:
        judged = [captured.kernel for captured in captures]
        engines = [engine for engine in asked if engine in _RUN]
        answers.add(*(Seen(outcomes=ask.each(judged, e, "unjudged", nowhere)) for e in engines))
    runs: list[Seen] = []
    left = [] if nowhere is not None else list(captures)
    with session.compiling_for(()):  # not the kernels that are only lowered to run on the machine
        for target in session.targets:  # usually one chip is enough to call each kernel
            called = [c for c in left if target in found.targets[c.kernel.digest]]
            left = [captured for captured in left if captured not in called]
            kernels, ran, limit = [c.kernel for c in called], None, request.hang_after
            if called and "machine" in asked:
                judge = interpreted.sanitized
                ran = ask.guarded("machine", kernels, judge, call, kernels, target.name, limit)
                runs.append(ran)
                answers.add(ran)
            if called and expected is not None:
                compare = compared.judged
                answers.add(
                    ask.guarded(
                        "values", kernels, compare, call, called, target, limit, expected, ran
                    )
                )
    found = found.with_those_of(runs, session.targets)
    late = found.captures[len(captures) :]
    if late:
        _without_running(call, session, request, answers, found, late)
    session.wait(None if tick is None else lambda: tick(session))
    return found, runs


def _without_running(
    call: Call,
    session: Session,
    request: Request,
    answers: Answers,
    found: Traced,
    captures: Sequence[Capture],
) -> str | None:
    """Start compiling some of the kernels, and analyse them statically.

    Returns:
      Why the kernels are not run, if one of them fits on no target.
    """
    asked = request.asked
    wanted = [
        (captured, found.targets[captured.kernel.digest])
        for captured in captures
        if request.why_not(captured) is None
    ]
    nowhere = ask.find_unfit(session, wanted) if "static" in asked else None
    if "compile" in asked:
        answers.compile_in(session)
        unfit = session.queue.unfit
        for captured, targets in wanted:
            fits = [t for t in targets if (captured.kernel.digest, t.name) not in unfit]
            session.request([captured], fits)
    if "static" in asked:
        tables, notes = ask.prefetched(call, wanted)
        answers.add(Seen(notes=tuple(notes)))
        for captured, targets in wanted:
            given = tables.get(captured.kernel.digest, ())
            judge, kernels = ask.static, [captured.kernel]
            answers.add(ask.guarded("static", kernels, judge, captured, targets, given))
    return nowhere

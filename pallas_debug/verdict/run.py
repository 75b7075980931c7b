"""`verify`: run each engine as far as the previous results allow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pallas_debug import defaults
from pallas_debug.bridge import platform, versions
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.jaxprs.params import gpu_backend
from pallas_debug.bridge.walk import prefetch
from pallas_debug.comparison.reference import name_of
from pallas_debug.comparison.tolerances import Tolerance
from pallas_debug.compiler.targets import split as targets_by_name
from pallas_debug.errors import UsageError, meant
from pallas_debug.findings.collector import merged
from pallas_debug.guards import check_arguments, check_function
from pallas_debug.inputs.made_up import filled
from pallas_debug.model import Finding, Hint, Target
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
from pallas_debug.verdict.result import ENGINES, JUDGED, Engine, Outcome, Verdict
from pallas_debug.verdict.table import Asked, AskedKernel

_RUN: tuple[Engine, ...] = ("machine", "values")
"""Engines that run the kernels."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Parameters of a verification, as in `verify`."""

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
        """Engines to run, in order; `values` if there is a reference.

        Raises:
          UsageError: an engine is unknown, or `values` was requested without a reference.
        """
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

    @functools.cached_property
    def tolerance(self) -> Tolerance:
        """Tolerance of the comparison with the reference.

        Raises:
          UsageError: it is not a number of at least 0, or there is no reference.
        """
        if self.reference is None and (self.rtol, self.atol) != (None, None):
            raise UsageError("rtol and atol apply to the comparison with a reference: pass one")
        return Tolerance(rtol=self.rtol, atol=self.atol)

    @functools.cached_property
    def watched(self) -> str | None:
        """Grid points that the sanitizer watches.

        Raises:
          UsageError: they are invalid, or the sanitizer does not run.
        """
        if self.watch is not None and "machine" not in self.asked:
            raise UsageError(
                f"watch={self.watch} chooses grid points for the sanitizer: name the engine "
                "`machine` as well"
            )
        sanitizing(None, self.watch)
        return self.watch

    @functools.cached_property
    def shows_hints(self) -> bool:
        """True if the verdict has hints.

        Raises:
          UsageError: it is neither a bool nor `on` or `off`.
        """
        if self.hints not in (True, False, "on", "off"):
            raise UsageError(f"hints are `on` or `off`, not {self.hints!r}")
        return self.hints in (True, "on")

    @functools.cached_property
    def chips(self) -> tuple[str, ...]:
        """Names of the targets.

        Raises:
          UsageError: there are no targets.
        """
        chips = targets_by_name(self.targets, defaults.VERIFY_TARGETS)
        if not chips:
            raise UsageError(
                "verify needs a target to trace the function for: pass one, such as "
                f"targets={defaults.CHIP!r}, or omit the argument"
            )
        return chips

    @functools.cached_property
    def left_out(self) -> tuple[suppressions.Suppression, ...]:
        """Suppressions, read from the file.

        Raises:
          UsageError: the suppressions file is invalid.
        """
        return suppressions.read(Path(self.suppress)) if self.suppress is not None else ()

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

    Raises:
      UsageError, InvalidReference, UnknownTargetError: as for `verify`.
    """
    names = [one.name for one in fields(Request)]
    check_function("pallas_debug.verify", function)
    check_arguments("pallas_debug.verify", function, args, kwargs, names)
    if request.reference is not None:
        check_function("pallas_debug.verify(…, reference=…)", request.reference)
    asked, left_out, tolerance = request.asked, request.left_out, request.tolerance
    watched = request.watched
    answers.ask(asked, request.chips, hints=request.shows_hints)
    platform.leave_out_absent_tpu()
    values = filled(function, args, kwargs)
    call = Call(
        function=function,
        args=args,
        kwargs=kwargs,
        values=(values.args, values.kwargs),
        watch=watched,
    )
    expected = None
    if request.reference is not None:
        expected = compared.expect(call, request.reference, tolerance, request.chips)
    with Session(request.options(interpret="off")) as session:
        found, runs = _ask(call, session, request, answers, tick, expected)
    seen = answers.seen
    judging = Judging(request, session, found.captures, left_out)
    judging.elsewhere = found.elsewhere(session.targets)
    if found.captures or session.uncaptured:
        judging.problems += [f"{why}: nothing was judged" for why in found.none_called()]
    if "compile" in asked:
        for captured in found.captures:
            if request.why_not(captured) is None:
                wanted = [t.name for t in found.targets[captured.kernel.digest]]
                seen += ask.compilations(session, captured.kernel, wanted)
                seen.append(found.not_traced(captured.kernel, session.targets))
    if values.integers and set(_RUN) & set(asked):
        judging.notes.append(
            f"values were made up for {' and '.join(values.integers)}: anything that depends on "
            f"them is judged only for these. Pass real ones: {REAL_INPUTS}"
        )
    seen = [one.as_used(session) for one in seen]
    for ran in runs:
        seen = unwritten.decided(seen, call, ran)
    seen = made_up.without_idle_loops(seen, values.integers)
    judging.mark = lambda findings: made_up.marked(
        findings, call, values.named, session.targets[0], judging.problems
    )
    return judging.verdict(call.name, seen)


class Judging:
    """Builder of a verdict."""

    def __init__(
        self,
        request: Request,
        session: Session,
        captures: Sequence[Capture],
        left_out: Sequence[suppressions.Suppression],
    ) -> None:
        self._request = request
        self._session = session
        self._captures = captures
        self._left_out = left_out
        self.wanted: Sequence[Target] = session.targets
        self.elsewhere: Mapping[str, Mapping[str, str]] = {}
        self.mark: Callable[[Sequence[Finding]], tuple[Finding, ...]] = tuple
        ours, plugins = ask.problems(session)
        self.problems = list(ours)
        self.notes = list(plugins)

    def verdict(self, name: str, seen: Sequence[Seen]) -> Verdict:
        """Build the verdict, with a cell for every judgement requested, answered or not."""
        asked, targets = self._request.asked, tuple(target.name for target in self.wanted)
        seen = [*seen, ask.uncaptured(self._session, asked, targets)]
        outcomes_of_runs = [o for one in seen for o in one.outcomes if o.engine == "machine"]
        ran = {o.digest for o in outcomes_of_runs if o.status == "ok" and not o.gaps}
        seen = [one.without_conditions(ran) for one in seen]
        lost = [AskedKernel(name=gap.kernel) for gap in self._session.uncaptured]
        kernels = [AskedKernel(name=c.kernel.name, digest=c.kernel.digest) for c in self._captures]
        outcomes = table.fill(
            Asked(
                kernels=tuple(dict.fromkeys((*kernels, *lost))),
                engines=asked,
                targets=targets,
                elsewhere={**self.elsewhere, **self._not_of_a_tpu(targets)},
                by_name=self._request.by_name,
            ),
            (outcome for one in seen for outcome in one.outcomes),
        )
        findings = merged(
            (finding for one in seen for finding in one.findings),
            [captured.kernel.source for captured in self._captures],
        )
        self.notes += unwritten.notes(seen, findings)
        findings = self.mark(findings)
        findings = self._with_lines(findings)
        kept, suppressed, idle = suppressions.apply(findings, self._left_out)
        hints = ask.hints(seen) if self._request.shows_hints else ()
        self._record(name, outcomes, kept, hints)
        known = [s for c in self._captures for s in ask.known_issues(c)]
        problems = [
            *self.problems,
            *ask.problems(self._session)[0],
            *(problem for one in seen for problem in one.problems),
        ]
        return Verdict(
            name=name,
            kernels=tuple(table.labels((k.name, k.digest) for k in (*kernels, *lost)).values()),
            outcomes=outcomes,
            findings=kept,
            hints=hints,
            suppressed=suppressed,
            problems=tuple(dict.fromkeys(problems)),
            notes=(
                *dict.fromkeys([*(n for one in seen for n in one.notes), *self.notes, *known]),
                *idle,
            ),
            versions=dict(versions.installed()),
            reference=name_of(reference) if (reference := self._request.reference) else None,
        )

    def _not_of_a_tpu(self, targets: Sequence[str]) -> dict[str, dict[str, str]]:
        """By digest, the columns that do not apply to a kernel for a GPU, and why."""
        reasons = {c.kernel.digest: self._request.why_not(c) for c in self._captures}
        return {
            digest: dict.fromkeys(("static", *targets), why)
            for digest, why in reasons.items()
            if why is not None
        }

    def _record(
        self,
        name: str,
        outcomes: Sequence[Outcome],
        findings: Sequence[Finding],
        hints: Sequence[Hint],
    ) -> None:
        """Record the counted findings, the hints and the gaps, for `report` and `browse`."""
        missing = (o.gap for o in outcomes if o.status in ("unjudged", "unsupported"))
        gaps = [*missing, *(gap for outcome in outcomes for gap in outcome.gaps)]
        kernels = [captured.kernel for captured in self._captures]
        judged: dict[str, list[str]] = {}
        for outcome in outcomes:
            if outcome.status in JUDGED and outcome.engine != "trace":
                judged.setdefault(outcome.digest, []).append(outcome.column)
        self._session.record_run(
            name,
            kernels,
            prints=self._session.observer.records,
            findings=findings,
            hints=hints,
            gaps=gaps,
            judged={k.digest: judged[k.digest] for k in kernels if k.digest in judged},
        )

    def _with_lines(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """Set the line of findings without a line to their kernel's, or the first kernel's."""
        lines = {c.kernel.name: c.kernel.source for c in reversed(self._captures)}
        first = self._captures[0].kernel.source if self._captures else None
        return tuple(
            finding
            if finding.source is not None
            else replace(
                finding,
                witness=replace(finding.witness, source=lines.get(finding.kernel) or first),
            )
            for finding in findings
        )


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
        answers.add(ask.guarded("static", (), lambda: ask.names_of(call.function)))
    captures = found.captures
    if not captures and not session.uncaptured and not any(s.findings for s in answers.seen):
        raise UsageError(
            f"{call.name} calls no Pallas kernel with these arguments: nothing to verify. "
            + another_path()
        )
    if not found.failed:
        points.require(request.watched, [captured.kernel for captured in captures])
    if not captures:
        return found, []
    nowhere = _without_running(call, session, request, answers, found)
    runs: list[Seen] = []
    if nowhere is not None:
        judged = [captured.kernel for captured in captures]
        engines = [engine for engine in asked if engine in _RUN]
        answers.add(*(Seen(outcomes=ask.each(judged, e, "unjudged", nowhere)) for e in engines))
    else:
        with session.compiling_for(
            ()
        ):  # do not compile kernels that are only lowered to run on the machine
            for target, kernels in _by_chip(found, session.targets):
                runs += _run(call, kernels, request, target, answers, expected)
        late = found.others(runs, session.targets)
        if late.captures:
            _without_running(call, session, request, answers, late)
            found = found.and_those_of(late)
    session.wait(None if tick is None else lambda: tick(session))
    return found, runs


def _without_running(
    call: Call, session: Session, request: Request, answers: Answers, found: Traced
) -> str | None:
    """Start compiling the kernels, and analyse them statically.

    Returns:
      Why the kernels are not run, if one of them fits on no target.
    """
    asked = request.asked
    wanted = [
        (captured, found.targets[captured.kernel.digest])
        for captured in found.captures
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
            answers.add(static_of(captured, targets, tables.get(captured.kernel.digest, ())))
    return nowhere


def static_of(
    captured: Capture, targets: Sequence[Target], tables: Sequence[prefetch.Tables]
) -> Seen:
    return ask.guarded("static", [captured.kernel], lambda: ask.static(captured, targets, tables))


def _by_chip(found: Traced, targets: Sequence[Target]) -> Iterator[tuple[Target, list[Capture]]]:
    """Chips for which to run the function so that it calls each kernel: usually one."""
    left = list(found.captures)
    for target in targets:
        called = [c for c in left if target in found.targets[c.kernel.digest]]
        left = [c for c in left if target not in found.targets[c.kernel.digest]]
        if called:
            yield target, called


def _run(
    call: Call,
    captures: Sequence[Capture],
    request: Request,
    target: Target,
    answers: Answers,
    expected: compared.Expected | None,
) -> list[Seen]:
    """Run the function on the kernel machine, and compare its results with a reference's.

    Returns:
      The run, if the sanitizer was requested.
    """
    kernels = [captured.kernel for captured in captures]
    ran: list[Seen] = []
    if "machine" in request.asked:

        def judge() -> Seen:
            return interpreted.sanitized(call, captures, target.name, request.hang_after)

        ran.append(ask.guarded("machine", kernels, judge))
        answers.add(*ran)
    if expected is not None:

        def compare() -> Seen:
            return compared.judged(
                call, captures, target, request.hang_after, expected, ran[0] if ran else None
            )

        answers.add(ask.guarded("values", kernels, compare))
    return ran

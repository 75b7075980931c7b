"""`verify`: run the engines on the kernels of a function or a program, and merge their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pallas_debug import defaults
from pallas_debug.bridge import platform, versions
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.interpret.params import has_gpu_mode
from pallas_debug.bridge.jaxprs.params import gpu_backend, is_for_tpu
from pallas_debug.comparison import gradients
from pallas_debug.comparison.reference import name_of
from pallas_debug.comparison.tolerances import Tolerance
from pallas_debug.compiler.targets import split as targets_by_name
from pallas_debug.errors import UsageError, meant
from pallas_debug.findings.collector import merged
from pallas_debug.findings.faults import Fault
from pallas_debug.guards import check_arguments, check_function
from pallas_debug.inputs.made_up import filled
from pallas_debug.machine.pace import Pace
from pallas_debug.model import Finding, Hint, Kernel, Target
from pallas_debug.render import REAL_INPUTS, plural
from pallas_debug.session import (
    Options,
    Session,
    Subscriber,
    another_path,
    only_defines,
    resolve_targets,
    sanitizing,
)
from pallas_debug.session.queue import Queue
from pallas_debug.tracebacks import WithoutOurFrames
from pallas_debug.verdict import compared, interpreted, made_up, suppressions, table, unwritten
from pallas_debug.verdict import engines as ask
from pallas_debug.verdict.engines import Call, Seen, Traced
from pallas_debug.verdict.formats.text import SIGNS
from pallas_debug.verdict.interpreted import session_problems
from pallas_debug.verdict.placement import Placements
from pallas_debug.verdict.result import ENGINES, JUDGED, Engine, Outcome, Verdict

_RUN: tuple[Engine, ...] = ("machine", "values")
"""Engines that run the kernels."""

_DECIDED_BY_A_RUN = (Fault.OUTPUT_REVISITED, Fault.DATA_RACE)
"""Faults that the static analysis states under a condition; a complete run without them decides."""


NOT_CONCLUDED = (
    "these are the findings of the engines that had answered by then; it is unknown which of them "
    "other engines would correct, or which rest on made-up values"
)

TRACE_FAILED = "the call could not be traced: see the finding"


@dataclass(frozen=True, kw_only=True)
class Request:
    """Parameters of a verification, as in `verify`. Each property raises UsageError if invalid."""

    targets: str | Iterable[str] | None = defaults.TARGET
    engines: str | Iterable[str] | None = None
    suppress: str | Path | None = None
    to: str | Path | None = None
    timeout: float = defaults.COMPILE_TIMEOUT
    jobs: int = 0
    reference: Callable[..., Any] | None = None
    rtol: float | None = None
    atol: float | None = None
    grad: bool = False
    budget: float | None = None

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
            hint = meant(unknown[0], ENGINES[1:]) if unknown else ""
            named = f"{', '.join(unknown) or 'was named'}{hint}"
            raise UsageError(f"no engine {named}; there are {', '.join(ENGINES[1:])}")
        if "values" in wanted and not added:
            raise UsageError(
                "the engine `values` compares results with those of a reference: pass one, as "
                "`reference=` or `--reference package.module:function`"
            )
        return tuple(name for name in ENGINES if name in wanted | added | {"trace"})

    def why_not(self, captured: Capture, targets: Iterable[Target]) -> str | None:
        """Reason why the engines that are for some targets do not apply to a kernel, if so.

        Engines that were requested by name have to judge every kernel.
        """
        if self.by_name or not (given := list(targets)):
            return None
        reasons = [_not_for(captured, target) for target in given]
        return None if None in reasons else reasons[0]

    @property
    def chips(self) -> tuple[str, ...]:
        """Names of the targets."""
        chips = targets_by_name(self.targets, defaults.TARGET)
        if not chips:
            raise UsageError(
                "verify needs a target to trace the function for: pass one, such as "
                f"targets={defaults.TARGET!r}, or omit the argument"
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
        has_other = self.reference is not None or self.grad
        if not has_other and (self.rtol, self.atol) != (None, None):
            raise UsageError("rtol and atol apply to the comparison with a reference: pass one")
        if self.budget is not None and not self.budget > 0:
            raise UsageError(f"the budget is a number of seconds greater than 0, not {self.budget}")

    def options(self, **more: Any) -> Options:
        """Options of the session in which the kernels are compiled."""
        given = {
            "dumps": self.to,
            "targets": self.chips,
            "timeout": self.timeout,
            "jobs": self.jobs,
        }
        return Options(**{**given, **more})


def verify(
    function: Callable[..., Any],
    /,
    *args: Any,
    targets: str | Iterable[str] | None = defaults.TARGET,
    engines: str | Iterable[str] | None = None,
    suppress: str | Path | None = None,
    to: str | Path | None = None,
    timeout: float = defaults.COMPILE_TIMEOUT,
    jobs: int = 0,
    reference: Callable[..., Any] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    grad: bool = False,
    budget: float | None = None,
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
      reference: function of the same arguments that returns the correct results; see `compare`.
      rtol, atol: tolerance of the comparison with the reference, as for `compare`.
      grad: whether to verify the gradient of the function instead, as for `compare`: its forward
        and backward kernels, and their results; without a reference, by finite differences.
      budget: seconds for the reference and the kernel machine together. When they have passed, the
        kernel that runs is judged by the grid points that ran, and what was left out is not judged.
      **kwargs: passed to the function, like `args`.

    Returns:
      A verdict with an outcome for each kernel, engine and target. It is `ok` only if every one of
      them was judged and nothing was found; `unjudged` lists the others, with their reasons.

    Raises:
      UsageError: unknown engine, invalid suppressions file, or a function that calls no kernel.
      InvalidReference: the reference raised an exception.
      UnknownTargetError: unknown target.
    """
    given = locals()
    with WithoutOurFrames():
        request = Request(**{one.name: given[one.name] for one in fields(Request)})
        return Verifier().of_function(function, args, kwargs, request)


class Verifier(Subscriber):
    """A verification: what is asked, the kernels, and the engines' answers as they arrive.

    Another thread may ask for the verdict so far at any time, such as the thread that stops a
    command. As a plugin of the session in which a program runs, it analyses each kernel when it is
    lowered, before it runs.

    Args:
      name: name of the program, or of the function until it has ended.
    """

    session: Session

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._request = Request()
        self._asked: tuple[Engine, ...] = ()
        self._call: Call | None = None
        self._seen: tuple[Seen, ...] = ()
        self._runs: tuple[Seen, ...] = ()
        self._found = Traced()
        self._queue: Queue | None = None
        self._pace = Pace()
        self._placements = Placements()
        self._doing = "loading"

    def of_function(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        request: Request,
    ) -> Verdict:
        """Verify the kernels that a function calls, as `verify` does."""
        check_function("pallas_debug.verify", function)
        names = [one.name for one in fields(Request)]
        check_arguments("pallas_debug.verify", function, args, kwargs, names)
        if request.reference is not None:
            check_function("pallas_debug.verify(…, reference=…)", request.reference)
        request.check()
        if request.grad:
            both = gradients.of(function, request.reference, args, kwargs)
            rtol = both.rtol if request.rtol is None else request.rtol
            function, request = both.function, replace(request, reference=both.reference, rtol=rtol)
        self._begin(request)
        platform.leave_out_absent_tpu()
        call = self._call = Call(
            function=function,
            args=args,
            kwargs=kwargs,
            values=filled(function, args, kwargs),
            pace=self._pace,
        )
        expected = None
        if request.reference is not None:
            self._doing = f"reference: {name_of(request.reference)}"
            expected = compared.expect(call, request.reference, request.tolerance, request.chips)
        with Session(request.options(interpret="off")) as session:
            self.session = session
            self._ask(call, expected)
            session.wait()
        return self._conclude()

    def of_program(self, run: Callable[[], BaseException | None], request: Request) -> Verdict:
        """Verify the kernels that a program lowers while it runs.

        Each kernel is analysed statically, and its compilation begins, when it is lowered. The
        program runs once, with its kernels on the kernel machine.

        Args:
          run: runs the program and returns the exception that ended it, None on success.

        Raises:
          UsageError: as for `verify`.
        """
        self._begin(request)
        options = request.options(
            targets=request.chips if "compile" in self._asked else (),
            prints=True,
            interpret=sanitizing(None) if "machine" in self._asked else "auto",
            pace=self._pace,
        )
        session = self.session = Session(options, self, runs=True)
        self._doing = "machine"
        with session:
            self._queue = session.queue
            self.add(interpreted.ran_once(run, session, self._asked))
        self._require_kernels(
            session.captures,
            f"{self.name} called no Pallas kernel: nothing to verify. "
            + only_defines(self.name, "--pallas-verify"),
            unless=any(seen.problems for seen in self._seen),
        )
        for captured in session.captures:
            self._found.add(captured, self._targets())
            why = request.why_not(captured, self._targets())
            is_compiled = "compile" in self._asked and why is None
            if is_compiled and captured.is_partitioned:
                self.add(ask.partitioned(captured.kernel))
        return self._conclude()

    def stopped(self, why: str, reference: str | None = None) -> Verdict:
        """Build the verdict of a verification that was stopped, from the answers so far.

        Args:
          why: what stopped it, and where.
          reference: name of the function that returns the correct results.
        """
        seen = [*self._seen, *self._compiled()]
        given = [outcome for one in seen for outcome in one.outcomes if outcome.kernel]
        traced = table.kernels([c.kernel for c in self._found.captures.values()], ())
        known = traced | dict.fromkeys((outcome.kernel, outcome.digest) for outcome in given)
        targets = self._request.chips if self._asked else ()
        findings = merged((f for one in seen for f in one.findings), ())
        outcomes = table.fill(known, self._asked, targets, given, unanswered=why)
        if all(outcome.reason != why for outcome in outcomes):
            end = Outcome(kernel="", engine="trace", status="unjudged", reason=why)
            outcomes = (end, *outcomes)
        return Verdict(
            name=self.name,
            kernels=tuple(table.labels(known).values()),
            outcomes=outcomes,
            findings=findings,
            hints=_hints(seen),
            problems=tuple(dict.fromkeys(p for one in seen for p in one.problems)),
            notes=(NOT_CONCLUDED,) if findings else (),
            reference=reference,
        )

    @property
    def progress(self) -> str:
        """What is known so far, by column of the table, and what runs now."""
        columns: dict[str, list[Outcome]] = {}
        for seen in (*self._seen, *self._compiled()):
            for outcome in filter(lambda one: one.kernel, seen.outcomes):
                columns.setdefault(outcome.column, []).append(outcome)
        known = [f"{name} {SIGNS[table.worst(found).status]}" for name, found in columns.items()]
        pace = str(self._pace)
        waits = 0 if self._queue is None else self._queue.pending
        return "; ".join(
            [
                *([", ".join(known)] if known else []),
                f"{self._doing}: {pace}" if self._doing and pace else self._doing or pace,
                *([f"{plural(waits, 'compilation')} under way"] if waits else []),
            ]
        )

    def add(self, *seen: Seen) -> None:
        self._seen += seen

    def _begin(self, request: Request) -> None:
        request.check()
        self._request, self._asked = request, request.asked
        self._pace = Pace(request.budget)

    def _compiled(self) -> Iterator[Seen]:
        """Finished compilations that are not among the answers."""
        outcomes = (outcome for one in self._seen for outcome in one.outcomes)
        known = {(o.kernel, o.digest, o.target) for o in outcomes if o.engine == "compile"}
        for kernel, one in () if self._queue is None else self._queue.compiled():
            if (kernel.name, kernel.digest, one.target) not in known:
                yield ask.compiled(kernel, one)

    def _targets(self) -> tuple[Target, ...]:
        """Targets for which the kernels are judged."""
        asked = tuple(self.session.targets)
        return asked or tuple(resolve_targets(self._request.chips))

    def _require_kernels(self, captures: Iterable[Capture], why: str, *, unless: bool) -> None:
        """Reject a function without kernels."""
        if any(seen.findings for seen in self._seen):  # it may have been stopped by them
            return
        if not captures and not self.session.uncaptured and not unless:
            raise UsageError(why)

    def kernel_captured(self, kernel: Kernel) -> None:
        """Analyse a kernel of a program, unless the engines for TPUs do not apply to it."""
        captures = (c for c in self.session.captures if c.kernel.digest == kernel.digest)
        captured = next(captures, None)
        if captured is None or "static" not in self._asked:
            return
        if self._request.why_not(captured, self._targets()) is None:
            targets = ask.traced_for(self.session, kernel, self._targets())
            self.add(ask.guarded("static", [kernel], ask.static, captured, targets))

    def _ask(self, call: Call, expected: compared.Expected | None) -> None:
        """Run the engines on a function."""
        session, asked = self.session, self._asked
        if "compile" in asked:
            session.start_compiler()
            self._queue = session.queue
        self._doing = "trace"
        self._found, seen = ask.traced(call, session)
        self.add(seen)
        self._require_kernels(
            self._found.captures.values(),
            f"{name_of(call.function)} calls no Pallas kernel with these arguments: nothing to "
            f"verify. {another_path()}",
            unless=False,
        )
        if "compile" in asked:
            self._placements.request(call, session, self._found)
        left = dict(self._found.captures)
        self._without_running(call, left)
        with session.compiling_for(()):  # not the kernels that are only lowered to run here
            for target in session.targets:  # usually one chip is enough to call each kernel
                called = [left.pop(d) for d in list(left) if target in self._found.targets[d]]
                kernels, ran = [captured.kernel for captured in called], None
                if called and "machine" in asked:
                    self._doing = "machine"
                    run = _runner(called)
                    ran = ask.guarded("machine", kernels, run, call, kernels, target.name)
                    self._runs += (ran,)
                    self.add(ran)
                if called and expected is not None:
                    self._doing = "values"
                    compare = compared.values
                    self.add(
                        ask.guarded("values", kernels, compare, call, called, target, expected, ran)
                    )
        # A run calls other kernels than a trace where its numbers are concrete.
        late = {c.kernel.digest: c for ran in self._runs for c in ran.captures}
        late = {digest: c for digest, c in late.items() if digest not in self._found.captures}
        for captured in late.values():
            self._found.add(captured, session.targets)
        self._without_running(call, late)
        self._doing = "compile"

    def _without_running(self, call: Call, captures: Mapping[str, Capture]) -> None:
        """Start compiling some of the kernels, and analyse them statically."""
        asked, session = self._asked, self.session
        wanted = [
            (captured, fitting)
            for digest, captured in captures.items()
            if (fitting := self._fitting(captured, self._found.targets[digest]))
        ]
        for captured, targets in wanted if "compile" in asked else ():
            session.queue.request([captured], targets)
        if "static" in asked:
            self._doing = "static"
            tables, notes = ask.prefetched(call, wanted)
            self.add(Seen(notes=tuple(notes)))
            for captured, targets in wanted:
                given = tables.get(captured.kernel.digest, ())
                kernels = [captured.kernel]
                self.add(ask.guarded("static", kernels, ask.static, captured, targets, given))

    def _fitting(self, captured: Capture, targets: Iterable[Target]) -> tuple[Target, ...]:
        """Those of these targets for which a kernel may be written."""
        return tuple(t for t in targets if self._request.why_not(captured, [t]) is None)

    def _conclude(self) -> Verdict:
        """Build the verdict, with a cell for every judgement requested, answered or not."""
        request, session, call = self._request, self.session, self._call
        name = self.name if call is None else name_of(call.function)
        captures = list(self._found.captures.values())
        known = table.kernels([c.kernel for c in captures], session.uncaptured)
        targets = [target.name for target in self._targets()]
        seen = [*self._seen, *(one for c in captures for one in self._not_run(c))]
        outcomes = [outcome for one in seen for outcome in one.outcomes]
        findings = self._certain(seen, outcomes)
        why = TRACE_FAILED if self._found.has_failed else table.NO_ANSWER
        filled = table.fill(
            known,
            self._asked,
            targets,
            table.cleared(outcomes, findings),
            by_name=request.by_name,
            unanswered=why,
        )
        found = merged(findings, [captured.kernel.source for captured in captures])
        problems = [problem for one in seen for problem in one.problems]
        notes = [note for one in seen for note in one.notes]
        if call is not None:
            found, failed = made_up.marked(found, call, session.targets[0])
            problems += failed
            if call.values.integers and set(_RUN) & set(self._asked):
                notes.append(
                    f"values were made up for {' and '.join(call.values.integers)}: anything that "
                    f"depends on them is judged only for these. Pass real ones: {REAL_INPUTS}"
                )
        found, suppressed, idle = suppressions.apply(_with_lines(found, captures), request.left_out)
        hints = _hints(seen)
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
        problems += session_problems(session)
        issues = [issue for captured in captures for issue in ask.known_issues(captured)]
        reasons = "\n".join(outcome.reason or "" for outcome in filled)
        return Verdict(
            name=name,
            kernels=tuple(table.labels(known).values()),
            outcomes=filled,
            findings=found,
            hints=hints,
            suppressed=suppressed,
            problems=tuple(p for p in dict.fromkeys(problems) if p not in reasons),
            notes=(*dict.fromkeys([*notes, *issues]), *idle),
            versions=dict(versions.installed()),
            reference=None if request.reference is None else name_of(request.reference),
        )

    def _not_run(self, captured: Capture) -> Iterator[Seen]:
        """Results of a kernel's compilations, and the engines that do not apply to it."""
        asked, kernels = self._asked, [captured.kernel]
        why = self._request.why_not(captured, self._targets())
        if "static" in asked and why is not None:
            yield ask.each(kernels, "static", "skipped", why)
        for target in self._targets() if "compile" in asked else ():
            why = self._request.why_not(captured, [target])
            called = target in self._found.targets[captured.kernel.digest]
            if why is None and called:
                seen = ask.compilation(self.session, captured.kernel, target.name)
                yield self._placements.judged(seen, captured.kernel, target.name)
            elif why is not None or not self._found.has_failed:
                reason = why or f"for {target.name} the function does not call it"
                yield ask.each(kernels, "compile", "skipped", reason, target.name)

    def _certain(self, seen: Iterable[Seen], outcomes: Iterable[Outcome]) -> list[Finding]:
        """Leave out findings that a run refutes, and unwritten outputs that change no result."""
        findings = unwritten.used([f for one in seen for f in one.findings], self.session)
        for ran in self._runs:
            assert self._call is not None
            findings = unwritten.decided(findings, self._call, ran)
        whole = {
            o.digest for o in outcomes if o.engine == "machine" and o.status == "ok" and not o.gaps
        }
        return [
            f
            for f in findings
            if f.kind not in _DECIDED_BY_A_RUN or f.only_if is None or f.digest not in whole
        ]


def _hints(seen: Iterable[Seen]) -> tuple[Hint, ...]:
    return tuple(dict.fromkeys(hint for one in seen for hint in one.hints))


def _runner(captures: Iterable[Capture]) -> Callable[[Call, Sequence[Kernel], str], Seen]:
    """What runs kernels: the machine, or jax's GPU mode if it has one and they need it."""
    needs_mode = any(gpu_backend(captured.params) == "Mosaic GPU" for captured in captures)
    if needs_mode and has_gpu_mode():
        return interpreted.in_mode_of_jax
    return interpreted.sanitized


def _not_for(captured: Capture, target: Target) -> str | None:
    """Reason why a kernel is not for a target; None if it may be."""
    backend = gpu_backend(captured.params)
    if target.platform == "tpu":
        return backend and f"it is a kernel for a GPU ({backend})"
    is_tpus = backend is None and is_for_tpu(captured.params)
    return "it is a kernel for a TPU" if is_tpus else None


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

"""`verify_program`: judge a program's calls of kernels, with their arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pallas_debug import defaults
from pallas_debug.bridge.capture import meshes
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.lowering import calls
from pallas_debug.bridge.walk import prefetch
from pallas_debug.errors import UsageError
from pallas_debug.findings.outputs import OutputUses
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import unsupported
from pallas_debug.model import Kernel, Target, Witness
from pallas_debug.session import Session, only_defines, resolve_targets
from pallas_debug.verdict import engines as ask
from pallas_debug.verdict import interpreted, points
from pallas_debug.verdict.answers import Answers
from pallas_debug.verdict.engines import Seen
from pallas_debug.verdict.result import Engine, Verdict
from pallas_debug.verdict.run import Judging, Request, static_of


def verify_program(
    run: Callable[[], BaseException | None],
    name: str,
    request: Request,
    source: Path | None = None,
    answers: Answers | None = None,
) -> Verdict:
    """Verify the kernels that a program lowers while it runs, with the arrays of its calls.

    The program runs once, with checks. Its calls are then replayed with their arrays, on the kernel
    machine, and their scalar prefetch is analysed statically.

    Args:
      run: runs the program and returns the exception that ended it, None on success.
      name: name of the program.
      source: file of the program, if any.
      answers: receives the engines' answers as they arrive.

    Raises:
      UsageError: as for `verify`.
    """
    asked, left_out, _ = request.asked, request.left_out, request.watched
    options = request.options(
        targets=request.chips if "compile" in asked else (),
        checks=defaults.DEFAULT_CHECKS if "checks" in asked else (),
        prints=True,
        interpret="auto",
        stops_unfit="static" in asked,
        hang_after=request.hang_after,
    )
    answers = answers or Answers()
    answers.ask(asked, request.chips)
    recorder = calls.CallRecorder()
    with Session(options, runs=True) as session, calls.recording(recorder):
        answers.compile_in(session)
        ran = interpreted.ran_once(run, session, asked)
        answers.add(ran)
    if "static" in asked and source is not None:
        answers.add(ask.guarded("static", (), lambda: ask.names_in(source)))
    captures = session.captures
    if not captures and not session.uncaptured and not any(s.findings for s in answers.seen):
        raise UsageError(
            f"{name} called no Pallas kernel: nothing to verify. "
            + only_defines(name, "--pallas-verify")
        )
    if not any(one.findings for one in answers.seen):  # the program was not stopped
        points.require(request.watched, [captured.kernel for captured in captures])
    wanted = session.targets or resolve_targets(request.chips, session.plugins)
    if "static" in asked:
        for captured in captures:
            traced_for = ask.traced_for(session, captured.kernel, wanted)
            answers.add(_static_of_calls(captured, traced_for, recorder))
    if "compile" in asked:
        for captured in captures:
            answers.add(*ask.compilations(session, captured.kernel, [t.name for t in wanted]))
            if recorder.left_out(captured.kernel.digest) == meshes.PARTITIONED:
                answers.add(_partitioned(captured.kernel))
    for engine in ("machine", "races"):
        for captured in captures if engine in asked else ():
            why_none = _why_not_called(captured.kernel, session, ran)
            answers.add(_replayed(engine, captured, recorder, wanted[0].name, request, why_none))
    by_name = {c.kernel.name: c.kernel for c in captures}

    def uses(name: str) -> OutputUses:
        return session.callers.uses(by_name[name]) if name in by_name else {}

    first, *rest = answers.seen  # problems of the programs themselves
    seen = [first, *(one.as_used(uses) for one in rest)]
    judging = Judging(request, session, captures, left_out)
    judging.wanted = wanted
    return judging.verdict(name, seen)


def _partitioned(kernel: Kernel) -> Seen:
    """Finding for a kernel whose arrays jax partitions, which its lowering for a TPU refuses."""
    seen = Sighting(kernel=kernel.name, engine="compile", witness=Witness(source=kernel.source))
    return Seen(findings=(unsupported.partitioned_by_jax(seen),))


def _static_of_calls(
    captured: Capture, targets: Sequence[Target], recorder: calls.CallRecorder
) -> Seen:
    """Run the static analysis with the scalar prefetch of a program's calls."""
    seen = static_of(captured, targets, _recorded_tables(captured, recorder))
    left_out = recorder.left_out(captured.kernel.digest)
    if left_out is None or not ask.takes_tables(captured.kernel):
        return seen
    return replace(seen, outcomes=tuple(o.without(left_out) for o in seen.outcomes))


def _recorded_tables(captured: Capture, recorder: calls.CallRecorder) -> list[prefetch.Tables]:
    """Grids and scalar prefetch of a program's calls of a kernel."""
    kernel = captured.kernel
    count = len(kernel.of_kind("dynamic_grid")) + len(kernel.of_kind("scalar_prefetch"))
    known = recorder.calls(kernel.digest) if count else ()
    return [operands[:count] for call in known for operands in call]


def _why_not_called(kernel: Kernel, session: Session, ran: Seen) -> str:
    """Why no call of a kernel ended, if none did.

    Args:
      ran: the run of the program.
    """
    if session.room.is_refused(kernel.digest):
        return interpreted.TOO_LARGE
    if ran.problems or any(outcome.engine == "trace" for outcome in ran.outcomes):
        return "no call of it had ended when the program stopped"
    return "no call of it ran: is it in a branch that was not taken?"


def _replayed(
    engine: Engine,
    captured: Capture,
    recorder: calls.CallRecorder,
    chip: str,
    request: Request,
    why_none: str,
) -> Seen:
    def judge() -> Seen:
        return interpreted.replayed(
            engine,
            captured,
            recorder,
            chip,
            request.hang_after,
            request.watch,
            why_none=why_none,
        )

    return ask.guarded(engine, [captured.kernel], judge)

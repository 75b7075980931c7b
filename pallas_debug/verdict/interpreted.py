"""The engine that runs kernels: the kernel machine, on concrete values."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pallas_debug import explain, render
from pallas_debug.bridge import platform
from pallas_debug.bridge.interpret.params import Mode
from pallas_debug.bridge.lowering import raised, trace
from pallas_debug.bridge.programs import algorithms
from pallas_debug.errors import CannotRunError, KernelNotJudged, PallasDebugError
from pallas_debug.findings.facts import line_text
from pallas_debug.machine.pace import Pace
from pallas_debug.model import Gap, Kernel
from pallas_debug.session import Options, Session, sanitizing
from pallas_debug.verdict.engines import Call, Seen, not_traced
from pallas_debug.verdict.result import JUDGED, Engine, Outcome, Status, outcome_of

GPU_MODE = "gpu"

NOT_SANITIZED = "it ran in jax's GPU interpret mode, which reports no more than its exceptions"
"""Reason of a gap."""

ANOTHER = "when the function runs, it calls another kernel of this name"

SMALL = 4_000_000
"""Maximum elements, over all grid points, of kernels whose programs are compiled without
optimisation."""


def sanitized(call: Call, kernels: Sequence[Kernel], chip: str) -> Seen:
    """Run the kernels on the kernel machine, and judge what they do element by element."""
    return ran(call, kernels, sanitizing(None), chip, "machine")


def in_mode_of_jax(call: Call, kernels: Sequence[Kernel], chip: str) -> Seen:
    """Run kernels of Mosaic GPU, which the kernel machine refuses, in jax's own GPU mode.

    jax's mode does not say which kernels ran: they did if the function returned.
    """
    seen = ran(call, kernels, GPU_MODE, chip, "machine")
    if not seen.returned or seen.findings:
        return seen
    outcomes = (outcome_of(kernel, "machine", "ok").without(NOT_SANITIZED) for kernel in kernels)
    return replace(seen, outcomes=tuple(outcomes))


def run(call: Call, options: Options) -> tuple[Session, Exception | None, Any]:
    """Call a function in a session of its own; return what it raised, and its result."""
    args, kwargs = trace.copied(call.values.args, call.values.kwargs)  # the next run needs them too
    result, raised_here = None, None
    with Session(replace(options, epoch=object()), runs=True) as session:
        try:
            result = trace.block_until_ready(call.function(*args, **kwargs))
            session.wait_for_runs()
        except Exception as error:  # noqa: BLE001 - what a program raises is of any class
            raised_here = error
        finally:
            session.reset()
    return session, raised_here, result


def ran(
    call: Call, kernels: Sequence[Kernel], interpret: Mode | str, chip: str, engine: Engine
) -> Seen:
    """Run the function with its kernels in an interpret mode; outcomes are those of `engine`."""
    pace = call.pace
    options = Options(interpret=interpret, chip=chip, pace=pace)
    with platform.compiling_quickly() if _are_small(kernels) else contextlib.nullcontext():
        session, error, result = run(call, options)
    observer = session.observer
    stopped = None if error is None else _why_stopped(error, pace)
    known = {kernel.digest for kernel in kernels}
    others = [kernel for kernel in session.kernels if kernel.digest not in known]
    instead = {kernel.name for kernel in others if kernel.digest in session.launched}

    def outcome(kernel: Kernel) -> Outcome:
        if kernel.name in instead and kernel.digest not in session.launched:
            return outcome_of(kernel, engine, "skipped", ANOTHER)
        explained = bool(observer.findings) or pace.partial is not None
        found = as_it_ran(kernel, engine, session, stopped, is_explained=explained)
        if found.status != "ok" or not call.values.integers:
            return found
        idle = sorted(observer.idle_loops(kernel.digest), key=lambda line: line.place)
        why = f"does not run with the values made up for {' and '.join(call.values.integers)}"
        return found.without(
            *(f"the body of the loop at {line_text(line)}, which {why}" for line in idle)
        )

    return Seen(
        outcomes=tuple(outcome(k) for k in (*kernels, *others)),
        findings=observer.findings,
        hints=observer.hints,
        captures=tuple(session.captures),
        result=result,
        returned=error is None,
        options=options,
        launched=frozenset(session.launched),
        problems=tuple(session_problems(session)),
        notes=tuple(filter(None, map(algorithms.note, session.captures))),
    )


def session_problems(session: Session) -> list[str]:
    """Errors of a session, but for reasons why kernels are not judged."""
    lost = set(map(str, session.queue.lost.values()))
    ours = (p for p in session.problems if not isinstance(p, KernelNotJudged))
    return [text for text in map(str, ours) if text not in lost]


def _why_stopped(error: BaseException, pace: Pace) -> str:
    """Return what ended a program: the budget, or an exception in a line."""
    return _in_a_line(error) if pace.partial is None else pace.why


def _in_a_line(error: BaseException) -> str:
    """Return what ended a program, with what to do if that is known.

    Raises:
      KeyboardInterrupt: ctrl+c ended it, in a callback: jax wraps that in an exception of its own.
    """
    if isinstance(error, PallasDebugError):
        return str(error).partition("\n")[0]
    message, known = raised.in_a_line(error), explain.explain(str(error), in_context=True)
    if message.startswith(KeyboardInterrupt.__name__):
        raise KeyboardInterrupt from error
    return message if known is None else f"{message}: {known.title}; {known.advice}"


def _are_small(kernels: Iterable[Kernel]) -> bool:
    """Return whether compiling the program around these kernels takes longer than running it."""
    elements = 0
    for kernel in kernels:
        blocks = [operand.block_shape or operand.shape for operand in kernel.operands]
        largest = max((math.prod(size or 1 for size in block) for block in blocks), default=1)
        elements += math.prod(size or SMALL for size in kernel.grid) * largest
    return elements <= SMALL


def as_it_ran(
    kernel: Kernel, engine: Engine, session: Session, stopped: str | None, *, is_explained: bool
) -> Outcome:
    """Outcome of a kernel after its program ran: `ok` only if it ran to its end.

    Args:
      stopped: what ended the program, if it did not return.
      is_explained: whether a finding or the budget explains that; if not, any kernel may be at
        fault.
    """
    observer = session.observer
    gaps: list[Gap | str] = [
        gap
        for gap in session.unchecked
        if gap.kernel == kernel.name and gap.digest in ("", kernel.digest)
    ]
    mine = (f for f in observer.findings if f.kernel == kernel.name and f.engines != ("static",))
    is_faulty = any(observer.is_of(finding, kernel.digest) for finding in mine)
    partial = None if session.options.pace is None else session.options.pace.partial
    if partial is not None and partial.digest == kernel.digest and (partial.done or is_faulty):
        outcome = outcome_of(kernel, engine, "found" if is_faulty else "ok").without(*gaps)
        return outcome.in_part(partial.left_out, (partial.done, partial.points))
    if is_faulty:
        return outcome_of(kernel, engine, "found").without(*gaps)
    for gap in gaps:
        if isinstance(gap, Gap) and not gap.is_partial:
            status: Status = "unsupported" if gap.is_limit else "unjudged"
            return outcome_of(kernel, engine, status, gap.reason)
    if kernel.digest not in session.launched:
        if kernel.name in observer.refusals:
            return outcome_of(kernel, engine, "unsupported", observer.refusals[kernel.name])
        return outcome_of(kernel, engine, "unjudged", _why_not_run(kernel, session, stopped))
    why = session.grids.why_empty(kernel)
    if why is None and stopped is not None and not is_explained:
        why = f"the program stopped: {stopped}"
    if why is not None:
        return outcome_of(kernel, engine, "unjudged", why)
    if stopped is not None:
        gaps.append(f"anything after the program stopped: {stopped}")
    return outcome_of(kernel, engine, "ok").without(*gaps)


def judged_as_it_ran(kernel: Kernel, session: Session, mode: Mode | str) -> list[str]:
    """Return the engines that judged a kernel while its program ran.

    Args:
      mode: mode in which it ran.
    """
    engines = ["machine"] if Mode.parse(mode).sanitizes else []
    if session.observer.checks:
        engines = ["checks"]  # of the machine's findings, only those of some kinds are kept
    outcome = as_it_ran(kernel, "machine", session, None, is_explained=True)
    return engines if outcome.status in JUDGED else []


def _why_not_run(kernel: Kernel, session: Session, stopped: str | None) -> str:
    for gap in session.uncaptured:
        if gap.kernel == kernel.name:
            return f"it could not be captured: {gap.reason}"
    if stopped is not None:
        return f"the program stopped before the kernel had run to its end: {stopped}"
    if kernel.digest in {known.digest for known in session.kernels}:
        return "it was lowered but did not run to its end: is it in a branch that was not taken?"
    return "it did not run: does the function call another kernel off a TPU, or for these values?"


def ran_once(
    run: Callable[[], BaseException | None], session: Session, asked: Sequence[Engine]
) -> Seen:
    """Run a program once in a session, and collect the findings in its kernels."""
    with raised.with_all_frames():  # they show whether jax raised an exception
        error = run()
    kernels = session.kernels
    try:
        session.wait_for_runs()
    except Exception as late:  # noqa: BLE001 - what a program raises is of any class
        error = error or late
    session.reset()
    findings = list(session.observer.findings)
    pace = session.options.pace
    assert pace is not None
    stopped = None if error is None else _why_stopped(error, pace)
    outcomes: list[Outcome] = []
    if "machine" in asked:
        outcomes += [  # the exception that stopped the program is a finding at least of the program
            as_it_ran(kernel, "machine", session, stopped, is_explained=True) for kernel in kernels
        ]
    problems: list[str] = []
    if pace.partial is not None:
        problems.append(f"what the program does after {pace.why}")
    elif error is not None and (findings or isinstance(error, CannotRunError)):
        problems.append(
            f"what the program runs after {_where(error)}, where it stopped: "
            + raised.in_a_line(error)
        )
    elif error is not None:
        findings.append(not_traced(error))
        outcomes.append(Outcome(kernel="", engine="trace", status="found"))
    return Seen(
        outcomes=tuple(outcomes),
        findings=tuple(findings),
        hints=session.observer.hints,
        problems=tuple(problems),
    )


def _where(error: BaseException) -> str:
    source = raised.failure(error).source
    if source is None:
        return "an unknown line"
    return f"{render.relative(Path(source.file))}:{source.line}"

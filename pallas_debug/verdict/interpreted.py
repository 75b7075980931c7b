"""Engines that run the kernels: checks and TPU interpret mode, each on concrete values."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pallas_debug import defaults, render
from pallas_debug.bridge import platform
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.hosted.watch import parse as parse_watch
from pallas_debug.bridge.interpret.extend import gpu
from pallas_debug.bridge.interpret.params import Mode
from pallas_debug.bridge.jaxprs import arrays
from pallas_debug.bridge.jaxprs.params import gpu_backend
from pallas_debug.bridge.lowering import calls, raised, replay, trace
from pallas_debug.errors import CannotRunError, PallasDebugError, UsageError
from pallas_debug.findings import explain
from pallas_debug.findings.collector import caused
from pallas_debug.findings.faults import NO_KERNEL, Fault, Judge
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import diverging
from pallas_debug.model import Finding, Gap, Kernel, Witness
from pallas_debug.session import Options, Session, sanitizing
from pallas_debug.verdict.engines import Call, Seen, each, not_traced, own_problems
from pallas_debug.verdict.result import JUDGED, Engine, Outcome, Status, outcome_of

MAX_POINTS = 4096
"""Maximum grid points of a kernel in TPU interpret mode, where they take about a minute."""

MAX_MACHINE_POINTS = 32768
"""Maximum grid points of a kernel that the kernel machine judges."""

MAX_WALKED_POINTS = 1 << 20
"""Maximum grid points of a kernel on the kernel machine, if only few of them are judged."""

SMALL = 4_000_000
"""Maximum elements, over all grid points, of kernels that are interpreted without optimisation."""


def checked(call: Call, kernels: Sequence[Kernel], chip: str, hang_after: float) -> Seen:
    """Interpret the kernels with checks, in HLO interpret mode if it supports them.

    If a NaN comes from an infinity, the fault is the line that produced the infinity, which a
    second run looks for. Infinities alone are not a fault, because masks use them.
    """
    options = Options(
        checks=defaults.DEFAULT_CHECKS,
        prints=True,
        interpret="auto",
        chip=chip,
        hang_after=hang_after,
    )
    seen = ran(call, kernels, options, "checks")
    made = [finding for finding in seen.findings if finding.kind is Fault.NAN_PRODUCED]
    if not made:
        return seen
    overflows = ran(call, kernels, replace(options, checks=("inf",)), "checks").findings
    infinities = [f for f in overflows if f.kind is Fault.INFINITY_PRODUCED]
    found = [f for f in caused([*infinities, *seen.findings]) if f not in infinities]
    return replace(seen, findings=tuple(found))


def sanitized(call: Call, captures: Sequence[Capture], chip: str, hang_after: float) -> Seen:
    """Run the kernels on the kernel machine, and judge what they do element by element.

    Kernels that it cannot run are judged in TPU interpret mode, with a note.
    """
    kernels = [captured.kernel for captured in captures]
    large = next(filter(None, (_beyond_machine(kernel, call.watch) for kernel in kernels)), None)
    if large is not None:
        return Seen(outcomes=each(kernels, "machine", "unsupported", large))
    options = Options(interpret=sanitizing(None, call.watch), chip=chip, hang_after=hang_after)
    seen = ran(call, kernels, options, "machine")
    if not seen.refused:
        return seen
    left = {
        (o.kernel, o.digest)
        for o in seen.outcomes
        if o.status in ("unsupported", "unjudged") and o.kernel not in seen.watched
    }
    again = [c for c in captures if (c.kernel.name, c.kernel.digest) in left]
    instead = _otherwise(call, again, chip, hang_after)
    at, why = next(iter(seen.refused.items()))
    is_gpu = all(gpu_backend(captured.params) == "Mosaic GPU" for captured in again)
    mode = f"{'GPU' if is_gpu else 'TPU'} interpret mode"
    judged = tuple(
        replace(outcome, engine="machine")
        for outcome in instead.outcomes
        if outcome.status in JUDGED or is_gpu
    )
    notes = tuple(
        f"kernel `{o.kernel}` was judged in {mode} instead of on the kernel machine: "
        + seen.refused.get(o.kernel, f"the program stopped at kernel `{at}`: {why}")
        for o in judged
        if o.status in JUDGED
    )
    left = {(outcome.kernel, outcome.digest) for outcome in judged}
    names = {captured.kernel.name for captured in again}
    return replace(
        instead if not seen.returned else seen,
        outcomes=(*(o for o in seen.outcomes if (o.kernel, o.digest) not in left), *judged),
        findings=(*seen.findings, *(f for f in instead.findings if f.kernel in names)),
        notes=(*seen.notes, *notes),
        problems=tuple(dict.fromkeys((*seen.problems, *instead.problems))),
    )


def _of_a_gpu(captures: Sequence[Capture]) -> str | None:
    """Reason why TPU interpret mode does not run these kernels: one of them is for a GPU."""
    for captured in captures:
        if backend := gpu_backend(captured.params):
            return (
                f"kernel `{captured.kernel.name}` is for a GPU ({backend}), but TPU interpret "
                "mode runs kernels as a TPU does"
            )
    return None


def _too_large(kernels: Sequence[Kernel]) -> str | None:
    """Reason why kernels have too many grid points for TPU interpret mode."""
    for large in kernels:
        points = math.prod(size or 1 for size in large.grid)
        if points > MAX_POINTS:
            return (
                f"the grid of kernel `{large.name}` has {points:,} points, but TPU interpret "
                f"mode walks them one by one (at most {MAX_POINTS:,} here); use smaller arguments"
            )
    return None


def _beyond_machine(kernel: Kernel, watch: str | None) -> str | None:
    """Reason why a kernel has too many grid points for the kernel machine, and which it can watch.

    Args:
      watch: grid points that are watched; None for all.
    """
    grid = tuple(size or 1 for size in kernel.grid)
    points = math.prod(grid)
    if points <= MAX_MACHINE_POINTS:
        return None
    parts = () if watch is None else parse_watch(watch).of(kernel.name, len(grid))
    boxes = [part.ranges(grid) for part in parts if len(part.entries) == len(grid)]
    judged = sum(math.prod(map(len, box)) for box in boxes) if boxes else points
    message = f"the grid of kernel `{kernel.name}` has {points:,} points, but the kernel machine "
    if points > MAX_WALKED_POINTS:
        return message + (
            f"walks them one by one (at most {MAX_WALKED_POINTS:,} here); use smaller arguments"
        )
    if judged <= MAX_MACHINE_POINTS:
        return None
    fits = _some_points(grid)
    chosen = "" if not boxes else f" ({judged:,} were selected)"
    return message + (
        f"judges at most {MAX_MACHINE_POINTS:,}{chosen}; use smaller arguments, or watch only "
        f"some of the grid points, such as {fits} (`watch={fits!r}`, `--watch '{fits}'`)"
    )


def _some_points(grid: Sequence[int]) -> str:
    """The first grid points along the first axes, as many as the machine judges."""
    entries, left = ["*"] * len(grid), math.prod(grid)
    for axis, size in enumerate(grid):
        left //= size
        count = MAX_MACHINE_POINTS // left
        if count >= size:
            break
        entries[axis] = f"0:{count}" if count > 1 else "0"
        if count:
            break
    return ",".join(entries)


_NOT_ON_GPUS = "unwritten memory and numbers, which GPU interpret mode does not judge"


def _otherwise(call: Call, captures: Sequence[Capture], chip: str, hang_after: float) -> Seen:
    """Judge kernels that the kernel machine cannot run in one of jax's interpreters."""
    backends = {gpu_backend(captured.params) for captured in captures}
    if backends != {"Mosaic GPU"}:
        return raced(call, captures, chip, hang_after)
    kernels = [captured.kernel for captured in captures]
    try:
        Mode.parse(defaults.GPU_RACES_MODE)
    except UsageError as error:
        return Seen(outcomes=each(kernels, "races", "unsupported", str(error)))
    options = Options(interpret=defaults.GPU_RACES_MODE, chip=chip, hang_after=hang_after)
    seen = ran(call, kernels, options, "races")
    seen = replace(seen, outcomes=tuple(o.without(_NOT_ON_GPUS) for o in seen.outcomes))
    found = gpu.fault_in(seen.error, [kernel.name for kernel in kernels])
    if found is None:
        return seen
    outcomes = (
        replace(o, status="found", reason=None) if o.kernel == found.kernel else o
        for o in seen.outcomes
    )
    return replace(seen, outcomes=tuple(outcomes), findings=(*seen.findings, found))


def raced(call: Call, captures: Sequence[Capture], chip: str, hang_after: float) -> Seen:
    """Run TPU interpret mode: races, copies and semaphores, out-of-bounds accesses."""
    kernels = [captured.kernel for captured in captures]
    refused = _of_a_gpu(captures) or _too_large(kernels)
    if refused is not None:
        return Seen(outcomes=each(kernels, "races", "unsupported", refused))
    options = Options(interpret=defaults.RACES_MODE, chip=chip, hang_after=hang_after)
    return ran(call, kernels, options, "races")


def ran(call: Call, kernels: Sequence[Kernel], options: Options, engine: Engine) -> Seen:
    """Run the function in a session with these options; outcomes are those of `engine`."""
    args, kwargs = trace.copied(*call.values)  # the next run needs them too
    start = time.perf_counter()
    result, stopped, returned = None, None, False
    raised_error: BaseException | None = None
    with (
        platform.compiling_quickly() if _are_small(kernels) else contextlib.nullcontext(),
        raised.quietly(),
        gpu.stopping_deadlocks(2 * options.hang_after),
        Session(replace(options, epoch=object()), runs=True) as session,
    ):
        try:
            result = trace.block_until_ready(call.function(*args, **kwargs))
            session.wait_for_runs()
            returned = True
        except PallasDebugError as error:
            stopped = str(error).partition("\n")[0]
        except Exception as error:  # noqa: BLE001 - what an interpreter raises is of any class
            stopped, raised_error = _in_a_line(error), error
        finally:
            session.reset()
    findings = session.observer.findings
    seconds = time.perf_counter() - start
    outcomes = tuple(
        replace(
            as_it_ran(kernel, engine, session, stopped, is_explained=bool(findings)),
            seconds=seconds,
        )
        for kernel in kernels
    )
    return Seen(
        outcomes=outcomes,
        findings=findings,
        result=result,
        returned=returned,
        error=raised_error,
        launched=frozenset(session.launched),
        dropped=session.observer.dropped,
        refused=dict(session.observer.refusals),
        watched={gap.kernel: gap.reason for gap in session.unchecked if gap.is_chosen},
        idle={kernel.digest: session.observer.idle_loops(kernel.digest) for kernel in kernels},
        problems=own_problems(session, outcomes),
    )


def _in_a_line(error: BaseException) -> str:
    """Return what ended a program, with what to do if that is known."""
    message, known = raised.in_a_line(error), explain.explain(str(error), in_context=True)
    return message if known is None else f"{message}: {known.title}; {known.advice}"


def _are_small(kernels: Iterable[Kernel]) -> bool:
    """Return whether compiling these kernels for an interpreter takes longer than running them."""
    elements = 0
    for kernel in kernels:
        blocks = [operand.block_shape or operand.shape for operand in kernel.operands]
        largest = max((math.prod(size or 1 for size in block) for block in blocks), default=1)
        elements += math.prod(size or SMALL for size in kernel.grid) * largest
    return elements <= SMALL


def as_it_ran(
    kernel: Kernel,
    engine: Engine,
    session: Session,
    stopped: str | None,
    *,
    is_explained: bool,
) -> Outcome:
    """Outcome of a kernel after its program was interpreted: `ok` only if it ran to its end.

    Args:
      stopped: what ended the program, if it did not return.
      is_explained: whether a finding explains that; if not, any kernel may be at fault.
    """
    gaps = [gap for gap in session.unchecked if gap.kernel == kernel.name]
    observer = session.observer
    mine = (f for f in observer.findings if f.kernel == kernel.name and f.engines != ("static",))
    if any(observer.is_of(finding, kernel.digest) for finding in mine):
        return outcome_of(kernel, engine, "found").without(*gaps)
    for gap in gaps:
        if not gap.is_partial or gap.is_chosen:
            status: Status = "unsupported" if gap.is_limit else "unjudged"
            return outcome_of(kernel, engine, status, gap.reason)
    if kernel.digest not in session.launched:
        return outcome_of(kernel, engine, "unjudged", _why_not_run(kernel, session, stopped))
    empty = session.grids.why_empty(kernel)
    if empty is not None:
        return outcome_of(kernel, engine, "unjudged", empty)
    left_out: list[Gap | str] = [*gaps]
    if stopped is not None and not is_explained:
        return outcome_of(kernel, engine, "unjudged", f"the program stopped: {stopped}")
    if stopped is not None:
        left_out.append(f"anything after the program stopped: {stopped}")
    return outcome_of(kernel, engine, "ok").without(*left_out)


def judged_as_it_ran(kernel: Kernel, session: Session, mode: Mode | str) -> list[Engine]:
    """Return the engines that judged a kernel while its program ran.

    Args:
      mode: mode in which it ran.
    """
    asked: list[Engine] = ["checks"] if session.observer.checks else []
    if Mode.parse(mode).sanitizes:
        asked.append("machine")
    outcomes = (as_it_ran(kernel, e, session, None, is_explained=True) for e in asked)
    return [outcome.engine for outcome in outcomes if outcome.status in JUDGED]


TOO_LARGE = "it did not run: it does not fit in the chip's memory"


def _why_not_run(kernel: Kernel, session: Session, stopped: str | None) -> str:
    if session.room.is_refused(kernel.digest):
        return TOO_LARGE
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
    """Run a program once in a session, and collect the findings of the checks in its kernels."""
    with raised.with_all_frames():  # they show whether jax raised an exception
        error = run()
    kernels = session.kernels
    try:
        session.wait_for_runs()
    except Exception as late:  # noqa: BLE001 - what an interpreter raises is of any class
        error = error or late
    session.reset()
    findings = list(session.observer.findings)
    stopped = None if error is None else _in_a_line(error)
    outcomes: list[Outcome] = []
    if "checks" in asked:
        outcomes += [  # the exception that stopped the program is a finding at least of the program
            as_it_ran(kernel, "checks", session, stopped, is_explained=True) for kernel in kernels
        ]
    problems: list[str] = []
    if error is not None and (findings or isinstance(error, CannotRunError)):
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
        dropped=session.observer.dropped,
        problems=tuple(problems),
    )


def _where(error: BaseException) -> str:
    source = raised.failure(error).source
    if source is None:
        return "an unknown line"
    return f"{render.relative(Path(source.file))}:{source.line}"


def replayed(
    engine: Engine, captured: Capture, recorder: calls.CallRecorder, chip: str, hang_after: float,
    watch: str | None = None, *, why_none: str,
) -> Seen:  # fmt: skip
    """Judge a program's calls of a kernel, with their arrays.

    Args:
      engine: `machine` or `races`.
      watch: grid points that the machine watches; None for all.
      why_none: why there is no call of it, if there is none.
    """
    kernel = captured.kernel
    known = recorder.calls(kernel.digest)
    points = math.prod(size or 1 for size in (*kernel.grid, *kernel.mesh.values()))
    most = MAX_MACHINE_POINTS if engine == "machine" else MAX_POINTS
    wanted = known[: max(most // max(points, 1), 1)]
    left_out = recorder.left_out(kernel.digest)
    if not known:
        status: Status = "unjudged" if left_out is None else "unsupported"
        return Seen(outcomes=each([kernel], engine, status, left_out or why_none))
    call = Call(function=replay.replay(captured, wanted), args=(), kwargs={}, watch=watch)
    judge = sanitized if engine == "machine" else raced
    seen = judge(call, [captured], chip, hang_after)
    if len(wanted) < len(known):
        walker = "the kernel machine" if engine == "machine" else "TPU interpret mode"
        left_out = (
            f"{len(known) - len(wanted)} of {len(known)} recorded calls: {walker} walks "
            f"grid points one by one, at most {most:,} here"
        )
    if left_out is None:
        return seen
    outcomes = tuple(outcome.without(left_out) for outcome in seen.outcomes)
    return replace(seen, outcomes=outcomes, result=None)


_JUDGES: Mapping[Engine, Judge] = {
    "checks": "checks",
    "machine": "machine",
    "races": "tpu interpret",
}


def disagreement(kernels: Sequence[Kernel], results: Mapping[Engine, Any]) -> list[Finding]:
    """Compare the results of two engines that found nothing."""
    where = arrays.first_difference(*results.values())
    if where is None:
        return []
    kernel = kernels[0]
    seen = Sighting(kernel=NO_KERNEL, engine="checks")
    if len(kernels) == 1:
        witness = Witness(source=kernel.source)
        seen = replace(seen, kernel=kernel.name, witness=witness)
    place = f"{where.path}{list(where.index)}"
    judges = tuple(_JUDGES[engine] for engine in results)
    finding = diverging.engines_disagree(
        seen, engines=judges, element=place, values=(where.first, where.second)
    )
    return [replace(finding, engines=judges)]

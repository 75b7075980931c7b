"""Runs of a kernel on the machine, with the sanitizer's findings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_debug.bridge.programs.launch import Launch
from pallas_debug.errors import MachineError
from pallas_debug.findings.faults import Severity
from pallas_debug.machine.bounds import BoundsObserver
from pallas_debug.machine.machine import Machine, Stopped
from pallas_debug.machine.numbers import LoopObserver
from pallas_debug.machine.observer import MachineObserver, ObserverGroup
from pallas_debug.machine.order.findings import OrderSanitizer, first_stuck
from pallas_debug.machine.pace import (
    BudgetEnded,
    BudgetObserver,
    Pace,
    PartialRun,
    ProgressObserver,
    position,
)
from pallas_debug.machine.sanitizer import consequences
from pallas_debug.machine.sanitizer.again import KernelCall
from pallas_debug.machine.shadow.shadow import differing
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding, Hint

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class MachineRun:
    """A run of a kernel.

    Attributes:
      results: arrays that the kernel returns, for each device; incomplete if it was stopped.
      findings: findings, causes before consequences.
      hints: hints of the observers.
      stopped: fault at which the kernel was stopped; also in `findings`.
      partial: what is known if the budget ended the run.
    """

    results: list[list[Array]]
    findings: tuple[Finding, ...] = ()
    hints: tuple[Hint, ...] = ()
    stopped: Finding | None = field(default=None)
    partial: PartialRun | None = None


def run(
    launch: Launch,
    arrays: Sequence[Sequence[Any]],
    *,
    first: int = 0,
    observers: Sequence[MachineObserver] = (),
    fill: str = "nan",
    pace: Pace | None = None,
) -> MachineRun:
    """Run a kernel; report only the faults that stop it, and the findings of observers.

    Args:
      arrays: arrays of the call, for each device.
      first: number of the first of these devices in the mesh.
      observers: observers of the run; those with a method `findings` are asked for their findings.
      fill: contents of unwritten memory, as for `Machine`.
      pace: is told of the progress, and ends the run with its budget.

    Raises:
      MachineError: the machine has no rule for what the kernel does.
    """
    done = _run(launch, arrays, first, observers, fill, pace)
    if any(isinstance(observer, OrderSanitizer) for observer in observers):
        call = KernelCall(launch, arrays, {"first": first})
        limits = [] if done.partial is None else [_UntilPoint(done.partial.done)]
        found = consequences.folded(call, done.findings, limits)
        return replace(done, findings=found)
    return done


def _run(
    launch: Launch, arrays: Sequence[Sequence[Any]], first: int,
    observers: Sequence[MachineObserver], fill: str, pace: Pace | None,
) -> MachineRun:  # fmt: skip
    bounds = BoundsObserver(launch)
    stopping: list[BoundsObserver | LoopObserver] = [bounds, LoopObserver(launch)]
    orders = [observer for observer in observers if isinstance(observer, OrderSanitizer)]
    call = KernelCall(launch, arrays, {"first": first})
    pacing: list[MachineObserver] = [] if pace is None else [ProgressObserver(pace)]
    if pace is not None and pace.budget is not None:
        has_order = not launch.meshes and len(arrays) == 1
        pacing.append(BudgetObserver(pace, has_order=has_order))
    group = ObserverGroup([*observers, *stopping, *pacing])
    machine = Machine(launch, arrays, observer=group, first=first, outside="nearest", fill=fill)
    why = None
    try:
        machine.run()
    except BudgetEnded as end:
        return _in_part(machine, observers, end)
    except Stopped as stop:
        why = stop
    except (NotImplementedError, AssertionError) as error:
        raise _refused(machine, error) from error
    found = [one for observer in observers for one in _findings(observer)]
    hints = _hints(observers)
    results = machine.results()
    is_compared = bool(machine.outside_reads) or any(order.undecided for order in orders)
    if machine.num_chunks and why is None and is_compared:
        # Other runs are compared with this one bit by bit; compiled loops may round differently.
        results = call.completed() or results
    if machine.outside_reads:
        is_used = why is not None or _outside_reads_matter(call, results)
        reads = bounds.outside_reads(is_discarded=not is_used)
        if is_used:
            # Later events are consequences of the values that the machine gave the kernel to read.
            found = [one for one in found if not _is_not_before(one, reads[0])]
            return MachineRun(
                results=machine.results(), findings=(*reads, *found), hints=hints, stopped=reads[0]
            )
        if orders:  # the kernel is sanitized, not only run
            found = [*reads, *found]
    if why is None:
        for order in orders:
            found += order.compared(arrays, results, first=first)
        return MachineRun(results=machine.results(), findings=tuple(found), hints=hints)
    ends = [finding for finding in found if finding.kind.severity is Severity.STOPS]
    ends += [finding for observer in stopping for finding in observer.findings()]
    if why.thread is None:
        # The observer of the order knows more about the causes.
        known = [fault for order in orders for fault in order.deadlock()]
        ends.append(known[-1] if known else first_stuck(launch, machine.threads))
    if not ends:
        raise MachineError(f"kernel `{launch.name}` was stopped: {why.reason}") from why
    stopped = ends[-1]
    found = [*(finding for finding in found if finding != stopped), stopped]
    return MachineRun(
        results=machine.results(), findings=tuple(found), hints=hints, stopped=stopped
    )


def _in_part(
    machine: Machine, observers: Sequence[MachineObserver], end: BudgetEnded
) -> MachineRun:
    """Return what is known of a run that the budget ended."""
    assert end.thread is not None
    is_ordered = not machine.launch.meshes and len(machine.devices) == 1
    done = position(end.thread) if is_ordered else 0
    partial = PartialRun(
        kernel=machine.launch.name,
        done=done,
        points=math.prod(end.thread.grid),
    )
    for observer in observers:
        observer.is_in_part = True
    found = [one for observer in observers for one in _findings(observer)]
    return MachineRun(
        results=machine.results(), findings=tuple(found), hints=_hints(observers), partial=partial
    )


class _UntilPoint(MachineObserver):
    """Ends a further run where the budget ended the first one."""

    follows_loops = False

    def __init__(self, done: int) -> None:
        self._done = done

    def point_begins(self, thread: Thread) -> None:
        if position(thread) >= self._done:
            raise Stopped("out of time", thread)


def _outside_reads_matter(call: KernelCall, results: list[list[Array]]) -> bool:
    """Return whether results depend on the values of scalar reads outside their tables.

    Several values are tried: a large number may set the same flags as the nearest one, while
    zero does not. The size of a slice may be negative or zero, which selects nothing.
    """
    others = (call.completed(outside=value) for value in ("number", "zero", "count"))
    return any(other is None or _differ(results, other) for other in others)


def _differ(results: Sequence[Sequence[Array]], others: Sequence[Sequence[Array]]) -> bool:
    return any(
        bool(differing(one, two).any())
        for mine, theirs in zip(results, others, strict=True)
        for one, two in zip(mine, theirs, strict=True)
    )


def _is_not_before(finding: Finding, read: Finding) -> bool:
    """Return whether a finding is of the time of a read or later, or its place is unknown."""
    at, before = finding.grid_point, read.grid_point
    if at is None or before is None or len(at) != len(before):
        return True
    if before != at or len(finding.loop) != len(read.loop):
        return before <= at
    return read.loop <= finding.loop


def _findings(observer: MachineObserver) -> Sequence[Finding]:
    findings = getattr(observer, "findings", None)
    return () if findings is None else findings()


def _hints(observers: Sequence[MachineObserver]) -> tuple[Hint, ...]:
    """Return the hints of observers, the first of each kind, line and operand."""
    found: dict[object, Hint] = {}
    for observer in observers:
        hints = getattr(observer, "hints", None)
        for hint in () if hints is None else hints():
            line = None if hint.source is None else hint.source.place
            found.setdefault((hint.kind, line, hint.operand), hint)
    return tuple(found.values())


def _refused(machine: Machine, error: Exception) -> MachineError:
    """Return an error for the operation that a rule of the machine does not cover."""
    thread = next((t for t in machine.threads if not t.is_done and t.frames), None)
    operation, line = "its grid", None
    if thread is not None:
        frame = thread.frames[-1]
        site = frame.program.steps[max(frame.position - 1, 0)].site
        operation, line = f"this `{site.primitive}`", site.line
    reason = str(error) or type(error).__name__
    return MachineError(
        f"kernel `{machine.launch.name}`: the kernel machine does not cover {operation} ({reason})",
        where=line,
    )

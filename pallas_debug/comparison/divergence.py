"""First store at which two kernels diverge, found by running both in lock-step on the machine."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_debug.bridge.hosted.client import evaluating
from pallas_debug.bridge.walk import evaluate
from pallas_debug.bridge.walk.evaluate import CalledKernel
from pallas_debug.comparison.close import Closeness
from pallas_debug.comparison.judged import Judged
from pallas_debug.comparison.lockstep import (
    LockstepEvent,
    SteppedRun,
    element_text,
    operands_aligned,
)
from pallas_debug.comparison.provenance import machine_of
from pallas_debug.comparison.writes import OutOfTime
from pallas_debug.errors import MachineError
from pallas_debug.findings.wording.diverging import Divergence, DivergenceKind, DivergingRun
from pallas_debug.machine.machine import Stopped
from pallas_debug.model import SourceLine

SECONDS = 60.0
"""Time limit in seconds for two runs in lock-step."""

MAX_BYTES = 256 << 20
"""Maximum bytes of stores of one run that wait for the other run."""


class NotAligned(Exception):
    """The runs cannot be compared step by step; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Outcome of a comparison of two runs.

    Attributes:
      divergence: the first divergence; None if none was found.
      unknown: why it is unknown whether there is a divergence.
      not_compared: operands whose stores were not compared, each with the reason, as clauses.
    """

    divergence: Divergence | None = None
    unknown: str = ""
    not_compared: tuple[str, ...] = ()


@dataclass(eq=False)
class NotCompared:
    """Operands whose stores are not compared, by reason.

    Attributes:
      shapes: operands whose stores have different shapes in the other kernel.
      dtypes: operands with floats in one kernel and integers in the other.
      only: operands of either kernel without a counterpart.
    """

    shapes: set[str] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)
    only: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))

    def clauses(self, reference: str) -> tuple[str, ...]:
        """Reasons, each with its operands."""
        ours, theirs = self.only
        reasons = {
            f"whose shapes differ from those in `{reference}`": self.shapes,
            f"whose dtypes cannot be compared with those in `{reference}`": self.dtypes,
            f"which have no counterpart in `{reference}`": ours,
            f"which only `{reference}` has": theirs,
        }
        return tuple(
            f"the stores to {' and '.join(sorted(names))}, {reason}"
            for reason, names in reasons.items()
            if names
        )


def first_divergence(judged: Judged) -> Alignment | None:
    """Run a function and its reference in lock-step; None unless both call kernels."""
    if judged.other is None:
        return None
    ours = evaluate.trace(judged.function, judged.args, judged.kwargs, judged.target)
    try:
        theirs = evaluate.trace(judged.other, judged.args, judged.kwargs, judged.target)
    except Exception:  # noqa: BLE001 - it needs the values of its arrays, as NumPy does
        return None
    if not (ours.num_kernels and theirs.num_kernels):
        return None
    left = NotCompared()
    try:
        found = _programs(judged, left, ours.calls(), theirs.calls(), is_only=ours.num_kernels == 1)
        return Alignment(divergence=found, not_compared=left.clauses(judged.reference))
    except OutOfTime:
        reason = f"two runs on the kernel machine take more than {SECONDS:g} s"
    except (NotAligned, MachineError) as error:
        reason = str(error)
    except Stopped as error:
        reason = f"the kernel machine stops at a fault: {error.reason}"
    return Alignment(unknown=reason)


def _programs(
    judged: Judged, left: NotCompared, *programs: evaluate.Calls, is_only: bool
) -> Divergence | None:
    """Run two programs from kernel to kernel.

    Args:
      left: receives the operands that are not compared.
      is_only: whether our kernel is called only once.
    """
    deadline = time.monotonic() + SECONDS
    results: list[Any] = [None, None]
    number = 0
    try:
        while True:
            calls = [_next(p, r) for p, r in zip(programs, results, strict=True)]
            number += 1
            a, b = calls
            if a is None and b is None:
                return None
            if a is None or b is None:
                more = judged.name if a is not None else judged.reference
                raise NotAligned(
                    f"they agree as far as they do the same, but `{more}` then calls another kernel"
                )
            lock = _LockStep(judged, left, a, b, deadline)
            with evaluating(enable_x64=a.captured.enable_x64):
                found = lock.run()
            if found is not None:
                return replace(found, call=0 if is_only else number)
            results = lock.results
    finally:
        for program in programs:
            program.close()


def _next(program: evaluate.Calls, results: Any) -> CalledKernel | None:
    try:
        return program.send(results)
    except StopIteration:
        return None


@dataclass(eq=False)
class _AtPoint:
    """Stores of both runs to one operand at a grid point.

    Attributes:
      lines: lines from which each run stores.
    """

    counts: list[int] = field(default_factory=lambda: [0, 0])
    lines: tuple[set[SourceLine | None], set[SourceLine | None]] = field(
        default_factory=lambda: (set(), set())
    )


@dataclass(eq=False)
class _Waiting:
    """Stores of both runs to one operand that have not been matched yet.

    Attributes:
      points: the last grid points, by position.
    """

    queues: tuple[deque[LockstepEvent], deque[LockstepEvent]] = field(
        default_factory=lambda: (deque(), deque())
    )
    points: dict[int, _AtPoint] = field(default_factory=dict)

    def at(self, position: int) -> _AtPoint:
        if position not in self.points:
            self.points[position] = _AtPoint()
            for old in sorted(self.points)[:-3]:
                del self.points[old]
        return self.points.get(position, _AtPoint())


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A difference; an earlier store may still turn out to differ.

    Attributes:
      number: number of the event in its run.
      events: events of both runs; one is missing if only one run stores.
    """

    number: int
    position: int
    kind: DivergenceKind
    events: tuple[LockstepEvent | None, LockstepEvent | None]
    what: tuple[str, str] = ("", "")
    element: str = ""
    counts: tuple[int, int] = (0, 0)


def _only_one(side: int, event: LockstepEvent, waiting: _Waiting) -> _Candidate:
    """A store that only one run executes."""
    counts = waiting.at(event.position).counts
    return _Candidate(
        number=event.number,
        position=event.position,
        kind="stores",
        events=(None, event) if side else (event, None),
        what=("", event.place) if side else (event.place, ""),
        counts=(counts[0], counts[1]),
    )


class _LockStep:
    """Two calls of kernels that run in turns.

    Attributes:
      results: results of both calls, after the run.
    """

    def __init__(
        self,
        judged: Judged,
        left: NotCompared,
        a: CalledKernel,
        b: CalledKernel,
        deadline: float,
    ) -> None:
        self._judged = judged
        self._left = left
        self._largest: dict[str, float] = {}
        self._called = a
        if a.captured.enable_x64 != b.captured.enable_x64:
            raise NotAligned("only one of them runs with 64-bit types enabled")
        runs = (SteppedRun(deadline), SteppedRun(deadline))
        machines = [machine_of(c, run) for c, run in zip((a, b), runs, strict=True)]
        for run, machine in zip(runs, machines, strict=True):
            if len(machine.threads) != 1:
                raise NotAligned("a kernel runs on several cores")
            run.machine = machine
        grids = [machine.threads[0].grid for machine in machines]
        if grids[0] != grids[1]:
            raise NotAligned(f"their grids are {grids[0]} and {grids[1]}")
        self._runs = runs
        self._close = Closeness.of(judged.tolerance, [machine.launch for machine in machines])
        self._names = operands_aligned(machines[0].launch, machines[1].launch)
        self._waiting: dict[tuple[str, str], _Waiting] = {}
        self._skipped: set[tuple[str, str]] = set()
        self._candidates: list[_Candidate] = []
        self._bytes = 0
        self.results: list[Any] = [None, None]

    def run(self) -> Divergence | None:
        found = self._operands()
        if found is not None:
            return found
        with np.errstate(all="ignore"):
            while (side := self._turn()) is not None:
                event = self._runs[side].advance()
                if event is not None:
                    self._add(side, event)
                self._unmatched()
                decided = self._decided()
                if decided is not None:
                    return self._divergence(decided)
        self.results = [run.results() for run in self._runs]
        return None

    def _operands(self) -> Divergence | None:
        """Operands that differ before the call."""
        machines = [run.machine for run in self._runs]
        inputs = [
            {
                buffer.name: buffer
                for buffer in machine.devices[0].arrays.values()
                if buffer.kind in ("input", "prefetch")
            }
            for machine in machines
        ]
        for theirs, ours in self._names.items():
            a, b = inputs[0].get(ours), inputs[1].get(theirs)
            if a is None or b is None or a.content.shape != b.content.shape:
                continue
            at = self._close.first(a.content, b.content)
            if at is not None:
                text = self._close.text
                return self._of(
                    "operands",
                    ours,
                    f"{ours}{[*at]}",
                    None,
                    DivergingRun(what=text(a.content[at])),
                    DivergingRun(what=text(b.content[at])),
                )
        return None

    def _turn(self) -> int | None:
        """The run whose turn it is: the one that is behind."""
        going = [i for i, run in enumerate(self._runs) if not run.is_done]
        if not going:
            return None
        return min(going, key=lambda i: (self._runs[i].position, self._runs[i].pending, i))

    def _add(self, side: int, event: LockstepEvent) -> None:
        name = self._names.get(event.operand) if side else event.operand
        if name is None or (not side and name not in self._names.values()):
            if event.kind != "block":
                self._left.only[side].add(event.operand)
            return
        key = event.kind, name
        if key in self._skipped:
            return
        waiting = self._waiting.setdefault(key, _Waiting())
        here = waiting.at(event.position)
        here.counts[side] += 1
        here.lines[side].add(event.line)
        waiting.queues[side].append(event)
        self._runs[side].pending += 1
        self._bytes += event.nbytes
        if self._bytes > MAX_BYTES:
            raise NotAligned("the order of their stores differs by too many of them")
        ours, theirs = waiting.queues
        while ours and theirs and ours[0].position == theirs[0].position:
            self._match(key, self._pop(0, ours), self._pop(1, theirs))

    def _pop(self, side: int, queue: deque[LockstepEvent]) -> LockstepEvent:
        event = queue.popleft()
        self._runs[side].pending -= 1
        self._bytes -= event.nbytes
        return event

    def _match(self, key: tuple[str, str], a: LockstepEvent, b: LockstepEvent) -> None:
        if key in self._skipped:
            return
        if a.shape != b.shape or a.array != b.array:
            self._skipped.add(key)  # they divide the work differently
            if a.kind != "block":
                self._left.shapes.add(a.operand)
            return
        found = _Candidate(number=a.number, position=a.position, kind="blocks", events=(a, b))
        if a.kind == "block":
            if a.block != b.block:
                what = str(a.block), str(b.block)
                self._candidates.append(replace(found, what=what))
            return
        if a.place != b.place:
            what = a.place, b.place
            self._candidates.append(replace(found, kind="places", what=what))
            return
        assert a.value is not None
        assert b.value is not None
        if not self._close.compares(a.value, b.value):
            self._left.dtypes.add(a.operand)
        # A sum whose terms cancel has rounded at the magnitude of its earlier value.
        largest = max(self._largest.get(a.operand, 0.0), self._close.size(b.value))
        self._largest[a.operand] = largest
        at = self._close.first(a.value, b.value, largest)
        if at is not None:
            what = self._close.text(a.value[at]), self._close.text(b.value[at])
            element = element_text(a.region, at)
            self._candidates.append(replace(found, kind="values", what=what, element=element))

    def _unmatched(self) -> None:
        """Stores at a grid point that the other run has already passed."""
        passed = [None if run.is_done else run.position for run in self._runs]
        for key, waiting in self._waiting.items():
            for side, queue in enumerate(waiting.queues):
                other = passed[1 - side]
                while queue and (other is None or queue[0].position < other):
                    event = self._pop(side, queue)
                    if key in self._skipped or event.kind == "block":
                        continue
                    self._candidates.append(_only_one(side, event, waiting))

    def _decided(self) -> _Candidate | None:
        """The first difference, once no earlier store of our run waits for its counterpart."""
        if not self._candidates:
            return None
        first = min(self._candidates, key=lambda one: (one.position, one.number))
        waits = any(
            queue and queue[0].position <= first.position and queue[0].number < first.number
            for queue in (waiting.queues[0] for waiting in self._waiting.values())
        )
        if waits:
            return None
        a, b = first.events
        if a is None or b is None or first.kind == "blocks" or a.line == b.line:
            return first
        if any(not r.is_done and r.position <= first.position for r in self._runs):
            return None  # the number of stores at this grid point is not known yet
        return self._not_in_both(first, a, b)

    def _not_in_both(self, found: _Candidate, a: LockstepEvent, b: LockstepEvent) -> _Candidate:
        """Store that only one of two runs of the same code executes."""
        waiting = self._waiting[a.kind, a.operand]
        here = waiting.at(a.position)
        for side, event, other in ((0, a, b), (1, b, a)):
            mine, theirs = here.lines[side], here.lines[1 - side]
            if (
                here.counts[side] > here.counts[1 - side]
                and event.line not in theirs
                and other.line in mine
            ):
                return _only_one(side, event, waiting)
        return found

    def _divergence(self, found: _Candidate) -> Divergence:
        event = found.events[0] or found.events[1]
        assert event is not None
        ours, theirs = (
            DivergingRun(
                line=None if one is None else one.line,
                iterations=() if one is None else one.iterations,
                what=what,
                count=count,
            )
            for one, what, count in zip(found.events, found.what, found.counts, strict=True)
        )
        name = event.operand if found.events[0] is not None else self._names[event.operand]
        return self._of(found.kind, name, found.element or name, event.point, ours, theirs)

    def _of(
        self,
        kind: DivergenceKind,
        operand: str,
        element: str,
        point: tuple[int, ...] | None,
        ours: DivergingRun,
        theirs: DivergingRun,
    ) -> Divergence:
        kernel = self._called.captured.kernel
        return Divergence(
            kind=kind,
            kernel=kernel.name,
            digest=kernel.digest,
            reference=self._judged.reference,
            operand=operand,
            element=element,
            point=point,
            ours=ours,
            theirs=theirs,
        )

"""Simulation of the scalar core over a schedule: which bundles run, how often, and when.

Only scalar instructions are evaluated; all others only take time. A copy completes after a latency
and a time per byte, and a wait ends when the copies that signal its flag have completed. Long loops
are walked until their pattern is known, and then extrapolated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import Literal, TypeVar

from pallas_debug.profile.core.copies import CopyModel
from pallas_debug.profile.core.decode import (
    DecodedBundle,
    DecodedCopy,
    DecodedJump,
    DecodedMove,
    DecodedWait,
    guards_of,
    opposites,
    passed,
    test_of,
)
from pallas_debug.profile.core.events import CopyEvent, Event, IterationEvent, WaitEvent
from pallas_debug.profile.core.given import GivenScalars
from pallas_debug.profile.core.memory import ScalarMemory
from pallas_debug.profile.core.scalars import Address, Scalar
from pallas_debug.profile.schedule import Schedule, ScheduledLoop

Unknown = Literal["enter", "skip"]
"""Assumption about a value that is known only at run time. `enter`: enter regions that depend on
it. `skip`: skip them, and end a loop after its first iteration."""

BUDGET = 250_000
"""Maximum number of scalar instructions evaluated before loops are extrapolated."""

UNKNOWN_ROUNDS = 6
"""Number of iterations to walk in a loop whose trip count depends on data."""

_NO_TIME = 1e-9

_MIN_ROUNDS = 8
"""Minimum iterations before extrapolating a loop: walking fewer is cheaper than a snapshot."""

PendingCopy = tuple[float, int, int]
"""End of a copy, its size in granules, and the bundle that starts it."""

K = TypeVar("K")


@dataclass(kw_only=True)
class Walk:
    """Result of a walk.

    Attributes:
      cycles: total cycles.
      waiting: cycles spent in waits.
      executions: how often each bundle runs.
      waits: cycles spent in waits, by the bundle that waits and the one that started the copy.
      trips: iterations of each loop, by loop number, over the whole kernel.
      copied: bytes copied, by direction such as `hbm_to_vmem`; NaN if some size depends on data.
      unknown_branches: bundles with a branch that depends on data.
      unknown_loops: loops whose trip count depends on data: by loop number, cycles of one iteration
        summed over all entries into the loop. `UNKNOWN_ROUNDS` iterations are walked per entry.
      assumed_loops: loops whose trip count depends on data and was given.
      unknown_copies: number of copies whose start or size depends on data.
      used: names of scalar operands whose given values were read.
      extrapolated: numbers of loops that were extrapolated.
      is_complete: whether the walk reached the end of the schedule.
    """

    cycles: float = 0.0
    waiting: float = 0.0
    executions: list[float] = field(default_factory=list)
    waits: dict[tuple[int, int], float] = field(default_factory=dict)
    trips: dict[int, float] = field(default_factory=dict)
    copied: dict[str, float] = field(default_factory=dict)
    unknown_branches: set[int] = field(default_factory=set)
    unknown_loops: dict[int, float] = field(default_factory=dict)
    assumed_loops: set[int] = field(default_factory=set)
    unknown_copies: int = 0
    used: set[str] = field(default_factory=set)
    extrapolated: set[int] = field(default_factory=set)
    is_complete: bool = False


def walk(
    schedule: Schedule,
    model: CopyModel,
    *,
    unknown: Unknown = "enter",
    listen: Callable[[Event], None] | None = None,
    budget: int = BUDGET,
    given: GivenScalars | None = None,
    trips: Mapping[int, int] | None = None,
) -> Walk:
    """Walk through a kernel's schedule from its first bundle to its last.

    Args:
      unknown: assumption about values that are known only at run time.
      listen: called with each copy, wait and iteration.
      budget: maximum number of scalar instructions before loops are extrapolated.
      given: known values of scalar operands; all others are known only at run time.
      trips: iterations per entry of loops whose trip count depends on data, by loop number.
    """
    given = given or GivenScalars()
    decoded = schedule.decoded
    return ScheduleWalk(schedule, model, unknown, listen, budget, decoded, given, trips).run()


@dataclass(slots=True)
class _Snapshot:
    """State at the start of an iteration of an outermost loop."""

    trip: int
    spent: int
    time: float
    waiting: float
    visits: list[float]
    trips: dict[int, float]
    copied: dict[str, float]
    unknown_loops: dict[int, float]
    waits: dict[tuple[int, int], float]


class ScheduleWalk:
    """A walk; tests derive libtpu's own estimate from it by other assumptions about data."""

    def __init__(
        self,
        schedule: Schedule,
        model: CopyModel,
        unknown: Unknown,
        listen: Callable[[Event], None] | None,
        budget: int,
        decoded: Sequence[DecodedBundle],
        given: GivenScalars,
        trips: Mapping[int, int] | None = None,
    ) -> None:
        self._schedule = schedule
        self._model = model
        self._skip = unknown == "skip"
        self._listen = listen
        self._budget = budget
        self._size = len(schedule.bundles)
        self._cost = [1 + delay for delay in schedule.delays]
        self._before = [0, *_running(self._cost)]
        self._given = given
        self._trips = trips or {}
        self._guards = guards_of(schedule, self._trips)
        self._decoded = decoded = passed(decoded, given.registers)
        self._opposites = opposites(schedule.bundles)
        self._next = self._next_active()
        self._loop_at = {loop.start: loop for loop in schedule.loops}
        self._back = {
            loop.branch.bundle: loop for loop in schedule.loops if loop.branch is not None
        }
        # Constants map to themselves, so that all arguments are looked up in the same way.
        self._registers: dict[str | Scalar, Scalar] = {
            argument: argument
            for bundle in decoded
            for scalar in bundle.scalars
            for argument in scalar.arguments
            if not isinstance(argument, str)
        }
        self._memory = ScalarMemory(given.copied)
        self._pending: dict[Address | None, list[PendingCopy]] = defaultdict(list)
        self._visits = [0.0] * (self._size + 1)
        self._time = 0.0
        self._busy: dict[str, float] = {}  # end of the last copy's use, by memory
        self._spent = 0
        self._result = Walk()
        self._snapshots: dict[int, _Snapshot] = {}
        self._starts: dict[int, list[float]] = {}
        self._rounds: dict[int, int] = {}

    def _next_active(self) -> list[int]:
        """For each bundle, find the next one, itself included, with something to evaluate."""
        found = [self._size] * (self._size + 1)
        for at in range(self._size - 1, -1, -1):
            found[at] = at if self._decoded[at] else found[at + 1]
        return found

    # Walking

    def run(self) -> Walk:
        at, landing, target = 0, -1, 0
        came_by_jump = False
        slots = self._schedule.delay_slots
        limit = 4 * self._budget
        while at < self._size and self._spent < limit:
            stop = self._next[at]
            if landing >= 0:
                stop = min(stop, landing + 1)
            if stop > at:  # nothing to evaluate in between
                self._visit(at, stop)
                at = stop
                came_by_jump = False
                if landing >= 0 and at > landing:
                    at, landing, came_by_jump = target, -1, True
                continue
            if self._decoded[at].phis:
                self._join(at, came_by_jump)
            loop = self._loop_at.get(at)
            if loop is not None:
                self._iterate(loop, is_first=not came_by_jump)
            came_by_jump = False
            jump = self._evaluate(at)
            self._visits[at] += 1
            self._visits[at + 1] -= 1
            self._time += self._cost[at]
            if jump is not None and landing < 0:
                landing, target = min(at + slots, self._size - 1), jump
            at += 1
            if landing >= 0 and at > landing:
                at, landing, came_by_jump = target, -1, True
        return self._finished(is_complete=at >= self._size)

    def _visit(self, start: int, stop: int) -> None:
        self._visits[start] += 1
        self._visits[stop] -= 1
        self._time += self._before[stop] - self._before[start]

    def _finished(self, *, is_complete: bool) -> Walk:
        result = self._result
        result.cycles = self._time
        result.executions = _running(self._visits[: self._size])
        result.is_complete = is_complete
        result.used = self._memory.used.union(self._given.passed)
        return result

    def _value(self, source: str | Scalar) -> Scalar:
        return self._registers.get(source) if isinstance(source, str) else source

    def _holds(self, predicate: tuple[str, bool] | None) -> bool | None:
        """Return whether an instruction runs; None if unknown."""
        if predicate is None:
            return True
        value = self._registers.get(predicate[0])
        return bool(value) == predicate[1] if isinstance(value, int) else None

    def _join(self, at: int, came_by_jump: bool) -> None:
        is_loop = at in self._loop_at
        chosen = [
            (phi.result, self._value(phi.second if came_by_jump == is_loop else phi.first))
            for phi in self._decoded[at].phis
        ]
        self._registers.update(chosen)

    def _evaluate(self, at: int) -> int | None:
        """Evaluate a bundle; return the branch target if a branch is taken."""
        jump: int | None = None
        registers = self._registers
        written: list[tuple[str, Scalar]] = []
        bundle = self._decoded[at]
        for micro in bundle.operations:
            self._spent += 1
            if isinstance(micro, DecodedMove):
                self._move(micro, written)
            elif isinstance(micro, DecodedJump):
                if self._branch(at, micro):
                    jump = micro.target
            elif isinstance(micro, DecodedCopy):
                self._start(at, micro)
            else:
                self._wait(at, micro)
        self._spent += len(bundle.scalars)
        get = registers.get
        for scalar in bundle.scalars:
            runs = True if scalar.predicate is None else self._holds(scalar.predicate)
            if runs is False:
                if scalar.kept is not None:
                    registers[scalar.result] = self._value(scalar.kept)
            elif scalar.function is None:
                registers[scalar.result] = None
            else:
                value = scalar.function(*map(get, scalar.arguments))
                if runs is None and value != self._value(scalar.kept):
                    value = None
                registers[scalar.result] = value
        if written:
            registers.update(written)
        return jump

    def _move(self, move: DecodedMove, written: list[tuple[str, Scalar]]) -> None:
        place = move.place.at(self._registers)
        if move.result is not None:
            written.append((move.result, self._memory.load(place)))
        elif place is not None:
            runs = self._holds(move.predicate)
            if runs is not False:
                self._memory.store(place, self._value(move.source) if runs else None)

    # Branches and loops

    def _branch(self, at: int, jump: DecodedJump) -> bool:
        if jump.target is None:
            return False
        runs = self._holds(jump.predicate)
        loop = self._back.get(at)
        if loop is not None:
            return self._repeats(loop, runs)
        if runs is None:
            guarded = self._guards.get(at)
            if guarded is None:
                self._result.unknown_branches.add(at)
            runs = self._skip if guarded is None else not self._trips[guarded]
            # Fix the predicate, so that of a region and its counterpart exactly one is entered.
            if jump.predicate is not None:
                name, wanted = jump.predicate
                opposite = self._registers.get(self._opposites.get(name, ""))
                if isinstance(opposite, int) and guarded is None:
                    runs = bool(opposite) != wanted
                self._registers[name] = int(wanted == runs)
        return runs

    def _iterate(self, loop: ScheduledLoop, *, is_first: bool) -> None:
        if is_first:
            self._snapshots.pop(loop.number, None)
            self._rounds[loop.number] = 0
            self._starts[loop.number] = []
        self._rounds[loop.number] = self._rounds.get(loop.number, 0) + 1
        trips = self._result.trips
        trips[loop.number] = trips.get(loop.number, 0) + 1
        self._starts[loop.number] = [*self._starts.get(loop.number, ())[-7:], self._time]
        if self._listen is not None:
            self._listen(
                IterationEvent(
                    loop=loop.number, iteration=int(trips[loop.number]) - 1, start=self._time
                )
            )

    def _repeats(self, loop: ScheduledLoop, runs: bool | None) -> bool:
        """Return whether a loop's branch back is taken, unless the rest is extrapolated."""
        if runs is None and loop.number in self._trips:
            self._result.assumed_loops.add(loop.number)
            runs = self._rounds[loop.number] < self._trips[loop.number]
        elif runs is None and not self._skip:
            starts = self._starts.get(loop.number, [])
            if len(starts) < UNKNOWN_ROUNDS:
                return bool(starts)
            # The first iterations of a pipeline only fetch, so leave them out.
            size = (starts[-1] - starts[2]) / (len(starts) - 3)
            loops = self._result.unknown_loops
            loops[loop.number] = loops.get(loop.number, 0) + size
        if not runs:
            return False
        is_outermost = loop.parent is None
        soon = self._budget // (2 if is_outermost else 16)
        if self._spent > soon and self._rounds.get(loop.number, 0) > _MIN_ROUNDS:
            snapshot = self._snapshots.get(loop.number)
            if snapshot is None:
                self._snapshots[loop.number] = self._snapshot(loop)
            elif self._spent - snapshot.spent > soon:
                return not self._extrapolate(loop, snapshot)
        return True

    def _snapshot(self, loop: ScheduledLoop) -> _Snapshot:
        result = self._result
        return _Snapshot(
            trip=int(result.trips[loop.number]),
            spent=self._spent,
            time=self._time,
            waiting=result.waiting,
            visits=list(self._visits),
            trips=dict(result.trips),
            copied=dict(result.copied),
            unknown_loops=dict(result.unknown_loops),
            waits=dict(result.waits),
        )

    def _extrapolate(self, loop: ScheduledLoop, since: _Snapshot) -> bool:
        """Extrapolate a loop from the iterations since a snapshot; return whether it succeeded."""
        result = self._result
        window = int(result.trips[loop.number]) - since.trip
        remaining = self._remaining(loop)
        if remaining is None or window <= 0:
            return False
        factor = remaining / window
        self._time += (self._time - since.time) * factor
        result.waiting += (result.waiting - since.waiting) * factor
        for at, old in enumerate(since.visits):
            self._visits[at] += (self._visits[at] - old) * factor
        _extend(result.trips, since.trips, factor)
        _extend(result.copied, since.copied, factor)
        _extend(result.unknown_loops, since.unknown_loops, factor)
        _extend(result.waits, since.waits, factor)
        result.extrapolated.add(loop.number)
        self._pending.clear()
        return True

    def _remaining(self, loop: ScheduledLoop) -> int | None:
        """Return the remaining iterations: as given, or by the comparison that ends the loop."""
        if loop.number in self._result.assumed_loops:
            return max(self._trips[loop.number] - self._rounds[loop.number], 0)
        if (test := test_of(self._schedule, loop)) is None:
            return None
        index = test[0]
        x, end = map(self._value, test)
        if not isinstance(x, int) or not isinstance(end, int):
            return None
        if isinstance(index, str):
            self._registers[index] = end
        return max(end - x, 0)

    # Copies

    def _start(self, at: int, copy: DecodedCopy) -> None:
        runs = self._holds(copy.predicate)
        if runs is False or (runs is None and self._skip):
            return
        self._time += self._model.start
        given = [self._value(a) for a in copy.arguments]
        stated = given[1] if len(given) > 1 else None
        granules = stated if isinstance(stated, int) and stated >= 0 else None
        flag = given[3] if len(given) > 3 else None
        size = None if granules is None else granules * self._model.granule
        result = self._result
        result.unknown_copies += runs is None or size is None
        direction = copy.direction
        if direction.endswith("_to_smem"):
            self._memory.copy(at, given[2] if len(given) > 2 else None)
        result.copied[direction] = result.copied.get(direction, 0) + (nan if size is None else size)
        latency, transfer = self._model.time(direction, size or 0)
        shared = self._model.shared(direction, size or 0)
        begin = max([self._time, *(self._busy.get(memory, 0.0) for memory in shared)])
        self._busy.update({memory: begin + cycles for memory, cycles in shared.items()})
        done = begin + latency + transfer
        key = flag if isinstance(flag, tuple) else None
        self._queue(key, direction, (done, granules or 0, at))
        if self._listen is not None:
            self._listen(
                CopyEvent(bundle=at, direction=direction, start=self._time, stop=done, size=size)
            )

    def _queue(self, flag: Address | None, direction: str, copy: PendingCopy) -> None:
        """Note a copy that a wait on its flag will end with."""
        self._pending[flag].append(copy)

    def _wait(self, at: int, wait: DecodedWait) -> None:
        runs = self._holds(wait.predicate)
        if runs is False or (runs is None and self._skip):
            return
        flag = self._value(wait.flag)
        amount = self._value(wait.amount)
        key = flag if isinstance(flag, tuple) else None
        queue = self._pending.get(key) or self._pending.get(None) or []
        wanted = amount if isinstance(amount, int) else None
        until, last = self._time, at
        taken = 0
        while queue and (wanted is None or taken < wanted):
            done, granules, start = queue.pop(0)
            if done > until:
                until, last = done, start
            taken += granules or (wanted or 0)
        if until > self._time + _NO_TIME:
            waited = until - self._time
            self._result.waiting += waited
            waits = self._result.waits
            waits[at, last] = waits.get((at, last), 0.0) + waited
        else:
            until = self._time
        if self._listen is not None:
            self._listen(WaitEvent(start=self._time, stop=until))
        self._time = until


def _extend(now: dict[K, float], before: Mapping[K, float], factor: float) -> None:
    """Add the increase since `before` another `factor` times."""
    for key, value in now.items():
        now[key] = value + (value - before.get(key, 0)) * factor


def _running(values: Sequence[float]) -> list[float]:
    total: float = 0
    found = []
    for value in values:
        total += value
        found.append(total)
    return found

"""Balance of semaphores: copies and their waits, signals and their waits.

A semaphore is judged only if all its changes are known: at which grid points, by how much, and in
which order. Copies count in bytes, as on the hardware.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_debug.analysis.subject import Result, Subject, at
from pallas_debug.bridge.walk.events import Event, KernelRef, View
from pallas_debug.findings.wording import order, semaphores
from pallas_debug.findings.wording.facts import listed
from pallas_debug.model import Finding

MAX_STEPS = 1 << 22
"""Maximum product of events and grid points for a semaphore."""

MAX_ENTRIES = 64
"""Maximum number of entries of a semaphore array."""

MAX_SIMULATED = 4000
"""Maximum number of events simulated one by one to track copies in flight."""

_ACTS = ("dma_start", "dma_wait", "signal", "wait")


@dataclass(frozen=True, kw_only=True)
class _Counts:
    """All changes of one array of semaphores.

    Attributes:
      shape: grid examined; a dimension without any effect is cut to at most two steps.
      change: increments, `[events, points]`; zero if an event does not happen.
      entry: index of the semaphore within the array.
      is_fresh: whether it starts from zero at every grid point.
      times: number of grid points represented by each examined point.
    """

    buffer: KernelRef
    events: list[Event]
    shape: tuple[int, ...]
    change: np.ndarray
    entry: np.ndarray
    is_fresh: bool
    times: float

    def total(self, count: int) -> int:
        """Scale a sum over the examined points up to the whole grid."""
        return round(count * self.times)


def look(subject: Subject) -> Result:
    """Report copies without a wait, waits without a copy or signal, and leftover counts."""
    result = Result()
    buffers: dict[int, KernelRef] = {}
    for event in subject.walked.events:
        view = _semaphore(event)
        if view is not None:
            buffers[view.buffer.number] = view.buffer
    judged = True
    unknown: dict[str, set[str]] = {}
    for buffer in buffers.values():
        counts = _counts(subject, buffer)
        if isinstance(counts, str):
            judged = False
            unknown.setdefault(counts, set()).add(buffer.name)
            continue
        finding = _judge(subject, counts)
        if finding is not None and finding not in result.findings:
            result.findings.append(finding)
    messages = (f"the counts of {listed(sorted(unknown[why]))}: {why}" for why in unknown)
    result.left_out.extend(sorted(messages))
    if judged and not result.findings:
        _under_way(subject, result)
    return result


def _semaphore(event: Event) -> View | None:
    return (
        event.semaphore
        if event.what.startswith("dma")
        else (event.view if event.what in _ACTS else None)
    )


def _counts(subject: Subject, buffer: KernelRef) -> _Counts | str:
    """Collect the changes of a semaphore; a string states why they are unknown."""
    if buffer.kind in ("input", "output"):
        return "another kernel uses it before or after this one"
    if subject.walked.incomplete:
        return subject.walked.incomplete
    events = []
    for event in subject.walked.events:
        view = _semaphore(event)
        if view is not None and view.buffer.number == buffer.number:
            events.append(event)
        elif (
            event.what == "escape"
            and event.view is not None
            and event.view.buffer.number == buffer.number
        ):
            return f"`{event.operation}` uses it, which the analysis does not follow"
    reason = _unknown(events, buffer)
    if reason:
        return reason
    entries = [_entry(event) for event in events]
    arrays = [a for event in events for a in (event.where, event.amount) if a is not None]
    joint = np.broadcast_shapes(
        *(a.shape for a in (*arrays, *(e for e in entries if e is not None)))
    )
    sizes = subject.grid.sizes
    joint = (*(1,) * (len(sizes) - len(joint)), *joint)
    shape = tuple(j if j > 1 else min(size, 2) for j, size in zip(joint, sizes, strict=True))
    points = math.prod(shape)
    if points * len(events) > MAX_STEPS:
        return f"{len(events)} operations at {points:,} grid points are too many to add up"
    change = np.zeros((len(events), points), np.int64)
    entry = np.zeros((len(events), points), np.int64)
    for i, (event, index) in enumerate(zip(events, entries, strict=True)):
        sign = 1 if event.what in ("dma_start", "signal") else -1
        amount = event.amount if event.amount is not None else np.int64(0)
        change[i] = np.broadcast_to(sign * event.where * amount.astype(np.int64), shape).ravel()
        entry[i] = np.broadcast_to(index if index is not None else 0, shape).ravel()
    is_fresh = buffer.kind == "scoped" or subject.grid.is_of_cores
    return _Counts(
        buffer=buffer,
        events=events,
        shape=shape,
        change=change,
        entry=entry,
        is_fresh=is_fresh,
        times=1 if is_fresh else subject.grid.points / max(points, 1),
    )


def _unknown(events: list[Event], buffer: KernelRef) -> str:
    for event in events:
        if event.remote:
            return "another device or core takes part"
        if not event.certain:
            return f"whether `{event.what}` happens depends on unknown values"
        if not event.ordered:
            return "an enclosing loop is too long to be followed step by step"
        if event.amount is None:
            return f"the amount by which `{event.what}` changes it is unknown"
        if _entry(event) is None and buffer.shape:
            return f"which of them `{event.what}` changes is unknown"
    if math.prod(buffer.shape) > MAX_ENTRIES:
        return f"there are more than {MAX_ENTRIES} of them"
    return ""


def _entry(event: Event) -> np.ndarray | None:
    """Flat index into a semaphore array; None if it is unknown or the semaphore is not an array."""
    view = _semaphore(event)
    box = view.box if view is not None else None
    if box is None:
        return None
    number: np.ndarray | None = None
    for dim in box:
        if dim.is_slice and dim.bound != 1:
            return None
        start = dim.start if dim.start is not None else np.int64(0)
        number = np.asarray(start if number is None else number * dim.bound + start)
    return number


def _judge(subject: Subject, counts: _Counts) -> Finding | None:
    for entry in np.unique(counts.entry):
        change = np.where(counts.entry == entry, counts.change, 0)
        if counts.is_fresh:
            count = np.cumsum(change, axis=0)
            low, last = count < 0, count[-1]
        else:
            flat = np.cumsum(change.T.ravel())
            count = flat.reshape(change.T.shape).T
            low, last = count < 0, count[-1, -1:]
        low &= change < 0
        if low.any():
            point = int(np.argmax(low.any(axis=0)))
            event = int(np.argmax(low[:, point]))
            return _too_low(
                subject, counts, change, int(entry), event, point, int(count[event, point])
            )
        if (last > 0).any():
            left = counts.total(int(last[last > 0][0]))
            return _left_over(subject, counts, change, int(entry), left)
    return None


def _too_low(
    subject: Subject, counts: _Counts, change: np.ndarray, entry: int, event: int, point: int,
    below: int,
) -> Finding:  # fmt: skip
    """Report a wait that lowers its semaphore to `below`, a negative count."""
    act = counts.events[event]
    where = np.unravel_index(point, counts.shape) if counts.shape else ()
    needed = -int(change[event, point])
    is_copy = act.what == "dma_wait"
    raised = [e for i, e in enumerate(counts.events) if (change[i] > 0).any()]
    # A start that comes later in the program counts only if it is at an earlier grid point.
    before = (change[:, :point] > 0).any() or (change[:event, point] > 0).any()
    return semaphores.deadlock(
        subject.sighting(
            source=act.source,
            grid_point=tuple(int(i) for i in where),
            loop=act.loops,
            other=raised[-1].source if raised and before else None,
            **_semaphore_facts(counts, entry),
        ),
        semaphore=_name(counts, entry),
        count=below + needed,
        needed=needed,
        of_copy=is_copy,
        was_raised=bool(before),
        totals=None if is_copy else _totals(counts, change),
    )


def _totals(counts: _Counts, change: np.ndarray) -> tuple[int, int]:
    """Sums of all signals and all waits."""
    return (
        counts.total(int(change[change > 0].sum())),
        counts.total(int(-change[change < 0].sum())),
    )


def _left_over(
    subject: Subject, counts: _Counts, change: np.ndarray, entry: int, amount: int
) -> Finding:
    up = [e for i, e in enumerate(counts.events) if (change[i] > 0).any()][-1]
    down = [e for i, e in enumerate(counts.events) if (change[i] < 0).any()]
    name = _name(counts, entry)
    facts = _semaphore_facts(counts, entry)
    if up.what == "dma_start":
        seen = subject.sighting(
            source=up.source,
            other=down[-1].source if down else None,
            loop=up.loops,
            values={"bytes": str(amount)},
            **facts,
        )
        source, destination = _copied(up)
        return semaphores.copy_not_awaited(
            seen, semaphore=name, source=source, destination=destination, left=amount
        )
    signals, waits = _totals(counts, change)
    seen = subject.sighting(
        source=down[-1].source if down else up.source,
        other=up.source if down else None,
        loop=up.loops,
        values={"signals": str(signals), "waits": str(waits)},
        **facts,
    )
    return semaphores.semaphore_left_over(
        seen, semaphore=name, count=amount, is_awaited=bool(down), totals=(signals, waits)
    )


def _copied(start: Event) -> tuple[str, str]:
    """Names of the source and destination of a copy."""
    views = (start.other, start.view)
    source, destination = (view.buffer.name if view is not None else "?" for view in views)
    return source, destination


def _semaphore_facts(counts: _Counts, entry: int) -> dict[str, Any]:
    buffer = counts.buffer
    return {
        "operand": buffer.name,
        "index": _name(counts, entry),
        "shape": f"{buffer.dtype}{list(buffer.shape)}",
    }


def _name(counts: _Counts, entry: int) -> str:
    return _entry_of(counts.buffer, entry)


def _entry_of(buffer: KernelRef, entry: int) -> str:
    """Name of a semaphore of an array: `sems[0]`."""
    if not buffer.shape:
        return buffer.name
    index = np.unravel_index(entry, buffer.shape)
    return f"{buffer.name}[{', '.join(str(int(i)) for i in index)}]"


# Copies in flight


@dataclass(kw_only=True, eq=False)
class _Copy:
    """A copy in flight.

    Attributes:
      left: number of bytes that no wait has taken.
    """

    event: Event
    left: int
    point: tuple[int, ...]
    semaphore: tuple[int, int]
    target: tuple[int, tuple[tuple[int, int], ...]] | None
    source: tuple[int, tuple[tuple[int, int], ...]] | None


def _under_way(subject: Subject, result: Result) -> None:
    """Report a buffer that is accessed while a copy still reads or writes it."""
    events = subject.walked.events
    starts = sum(event.what == "dma_start" for event in events)
    if not starts or len(events) > MAX_SIMULATED or not all(e.certain for e in events):
        return
    points = [
        tuple(int(i) for i in np.unravel_index(p, subject.grid.sizes or (1,)))
        for p in range(min(subject.grid.points, max(1, MAX_SIMULATED // len(events)), 8))
    ]
    copies: list[_Copy] = []
    fetched: list[tuple[int, tuple[tuple[int, int], ...]]] = []
    for point in points:
        here = point if subject.grid.sizes else ()
        for event in events:
            if event.where.ndim > len(subject.grid.sizes) or not at(event.where, here):
                continue
            finding = _step(subject, event, here, copies, fetched)
            if finding is not None:
                result.findings.append(finding)
                return


def _step(
    subject: Subject, event: Event, point: tuple[int, ...], copies: list[_Copy],
    fetched: list[tuple[int, tuple[tuple[int, int], ...]]],
) -> Finding | None:  # fmt: skip
    if event.what in ("dma_start", "dma_wait"):
        amount = at(event.amount, point) if event.amount is not None else 0
    if event.what == "dma_start":
        copy = _Copy(
            event=event,
            left=amount,
            point=point,
            semaphore=_key(event, point),
            target=_region(event.view, point),
            source=_region(event.other, point),
        )
        copies += [copy] if amount else []
        return None
    if event.what == "dma_wait":
        done = _await(copies, _key(event, point), amount)
        copies[:] = [copy for copy in copies if copy not in done]
        fetched += [copy.target for copy in done if copy.target is not None]
        return None
    if event.what not in ("read", "write"):
        return None
    region = _region(event.view, point)
    if region is None:
        return None
    for copy in copies:
        writes = event.what == "write"
        if _overlap(region, copy.target) or (writes and _overlap(region, copy.source)):
            return _race(subject, event, copy, point, region in fetched and not writes)
    if event.what == "read":
        fetched[:] = [other for other in fetched if not _overlap(region, other)]
    return None


def _await(copies: list[_Copy], semaphore: tuple[int, int], amount: int) -> list[_Copy]:
    """Take a wait's bytes from the copies on its semaphore, oldest first; return those done.

    One wait may be for many copies, such as the rows of a gather.
    """
    done = []
    for copy in copies:
        if copy.semaphore != semaphore or amount <= 0:
            continue
        taken = min(amount, copy.left)
        amount -= taken
        copy.left -= taken
        if not copy.left:
            done.append(copy)
    return done


def _race(
    subject: Subject, event: Event, copy: _Copy, point: tuple[int, ...], holds: bool
) -> Finding:
    """Report an access during a copy; `holds`: it reads data delivered by an earlier copy."""
    buffer = event.view.buffer if event.view else None
    core = order.Access(writes=event.what == "write", grid_point=point, loop=event.loops)
    reads_it = buffer is not None and copy.target is not None and copy.target[0] == buffer.number
    other = order.Access(
        writes=reads_it,
        grid_point=copy.point,
        loop=copy.event.loops,
        copy=_copied(copy.event),
        semaphore=_entry_of(copy.event.semaphore.buffer, copy.semaphore[1])
        if copy.event.semaphore
        else None,
    )
    first, second = (copy.event, event) if holds else (event, copy.event)
    return order.data_race(
        subject.sighting(
            source=first.source,
            other=second.source,
            grid_point=copy.point if holds else point,
            loop=first.loops,
            operand=buffer.name if buffer else None,
            shape=str(buffer) if buffer else None,
        ),
        what=f"{buffer.name}, {buffer}," if buffer else "a buffer",
        here=other if holds else core,
        there=core if holds else other,
        was_filled=holds,
    )


def _key(event: Event, point: tuple[int, ...]) -> tuple[int, int]:
    entry = _entry(event)
    number = event.semaphore.buffer.number if event.semaphore else -1
    return number, at(entry, point) if entry is not None else 0


def _region(
    view: View | None, point: tuple[int, ...]
) -> tuple[int, tuple[tuple[int, int], ...]] | None:
    """The accessed part of a buffer, as one range per dimension."""
    box = view.box if view is not None else None
    if box is None or view is None:
        return None
    ranges = []
    for dim in box:
        if dim.start is None or dim.size is None:
            return None
        start = at(dim.start, point)
        ranges.append((start, start + (dim.size - 1) * dim.stride + 1))
    return view.buffer.number, tuple(ranges)


def _overlap(
    one: tuple[int, tuple[tuple[int, int], ...]],
    other: tuple[int, tuple[tuple[int, int], ...]] | None,
) -> bool:
    if other is None or one[0] != other[0]:
        return False
    return all(a < d and c < b for (a, b), (c, d) in zip(one[1], other[1], strict=True))

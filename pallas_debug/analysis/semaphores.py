"""Whether semaphores come out even: copies and their waits, signals and theirs.

A semaphore is judged where everything that is done to it is known: at which grid points, by how
much, and in which order. Copies count in bytes, as the hardware does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from pallas_debug.analysis.subject import Result, Subject, at
from pallas_debug.bridge.walk.events import Event, KernelRef, View
from pallas_debug.model import Finding

MAX_STEPS = 1 << 22
"""Events times grid points of one semaphore."""

MAX_ENTRIES = 64
"""Of one array of semaphores."""

MAX_SIMULATED = 4000
"""Events that are followed one by one to see which copies are under way."""

_ACTS = ("dma_start", "dma_wait", "signal", "wait")


@dataclass(frozen=True, kw_only=True)
class _Counts:
    """Everything that is done to one array of semaphores.

    Attributes:
      shape: grid that is looked at; dimensions on which nothing depends are cut to two.
      change: by how much, `[events, points]`; zero where it does not happen.
      entry: which of the semaphores.
      times: how many grid points there are for each that is looked at.
    """

    buffer: KernelRef
    events: list[Event]
    shape: tuple[int, ...]
    change: np.ndarray
    entry: np.ndarray
    times: float

    def total(self, count: int) -> int:
        """A sum over the whole grid, of one over the points that are looked at."""
        return round(count * self.times)


def look(subject: Subject) -> Result:
    """Copies without a wait, waits without a copy or signal, counts that are left over."""
    result = Result()
    buffers: dict[int, KernelRef] = {}
    for event in subject.walked.events:
        view = _semaphore(event)
        if view is not None:
            buffers[view.buffer.number] = view.buffer
    judged = True
    said: set[str] = set()
    for buffer in buffers.values():
        counts = _counts(subject, buffer)
        if isinstance(counts, str):
            judged = False
            said.add(f"the counts of {buffer.name}: {counts}")
            continue
        finding = _judge(subject, counts)
        if finding is not None and finding not in result.findings:
            result.findings.append(finding)
    result.not_judged.extend(sorted(said))
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
    """What is done to a semaphore, or why that is not known."""
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
            return f"`{event.operation}` takes it, which is not followed"
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
    return _Counts(
        buffer=buffer,
        events=events,
        shape=shape,
        change=change,
        entry=entry,
        times=1 if buffer.kind == "scoped" else subject.grid.points / max(points, 1),
    )


def _unknown(events: list[Event], buffer: KernelRef) -> str:
    for event in events:
        if event.remote:
            return "another device takes part"
        if not event.certain:
            return f"whether `{event.what}` happens depends on what is not known"
        if not event.ordered:
            return "a loop around it is too long to be followed step by step"
        if event.amount is None:
            return "it is not known by how much"
        if _entry(event) is None and buffer.shape:
            return "it is not known which of them"
    if math.prod(buffer.shape) > MAX_ENTRIES:
        return f"there are more than {MAX_ENTRIES} of them"
    return ""


def _entry(event: Event) -> np.ndarray | None:
    """Which entry of an array of semaphores; None where it is not known, or there is no array."""
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
    """The first thing that is wrong with a semaphore."""
    for entry in np.unique(counts.entry):
        change = np.where(counts.entry == entry, counts.change, 0)
        if counts.buffer.kind == "scoped":
            count = np.cumsum(change, axis=0)  # anew at every grid point
            low, last = count < 0, count[-1]
        else:
            flat = np.cumsum(change.T.ravel())
            count = flat.reshape(change.T.shape).T
            low, last = count < 0, count[-1, -1:]
        low &= change < 0
        if low.any():
            point = int(np.argmax(low.any(axis=0)))
            event = int(np.argmax(low[:, point]))
            return _too_low(subject, counts, change, int(entry), event, point)
        if (last > 0).any():
            left = counts.total(int(last[last > 0][0]))
            return _left_over(subject, counts, change, int(entry), left)
    return None


def _too_low(
    subject: Subject, counts: _Counts, change: np.ndarray, entry: int, event: int, point: int
) -> Finding:
    act = counts.events[event]
    where = np.unravel_index(point, counts.shape) if counts.shape else ()
    name = _name(counts, entry)
    base = replace(
        _finding(subject, counts, name),
        source=act.source,
        grid_point=tuple(int(i) for i in where),
        loop=act.loops,
    )
    if act.what == "dma_wait":
        earlier = (change[:, : point + 1] < 0).sum() > 1
        starts = [e for e in counts.events if e.what == "dma_start"]
        if earlier and starts:
            return replace(
                base,
                kind="DmaWaitedTwice",
                message=f"{name} is waited for once more than copies were started on it: the core "
                "waits for ever",
                cause="each wait takes the bytes of one copy from the semaphore",
                advice="wait once for each start, on the same semaphore",
                other=starts[-1].source,
            )
        return replace(
            base,
            message=f"{name} is waited for, and no copy was started on it before: the core waits "
            "for ever",
            cause="the copy was started on another semaphore, later, or not at all",
            advice="start the copy before the wait, on the same semaphore",
        )
    signals = counts.total(int(change[change > 0].sum()))
    waits = counts.total(int(-change[change < 0].sum()))
    return replace(
        base,
        message=f"{name} is waited for, and nobody has signalled it: all signals add up to "
        f"{signals}, all waits to {waits}; the core waits for ever",
        values={"signals": str(signals), "waits": str(waits)},
        cause="the signal comes later, less often, or not at all",
        advice="signal as much as is waited for, and before it",
    )


def _left_over(
    subject: Subject, counts: _Counts, change: np.ndarray, entry: int, amount: int
) -> Finding:
    name = _name(counts, entry)
    up = [e for i, e in enumerate(counts.events) if (change[i] > 0).any()]
    down = [e for i, e in enumerate(counts.events) if (change[i] < 0).any()]
    base = replace(_finding(subject, counts, name), loop=up[-1].loops)
    if up[-1].what == "dma_start":
        return replace(
            base,
            kind="DmaNotAwaited",
            message=f"a copy on {name} is started and never waited for: {amount:,} bytes of it are "
            "left at the end",
            source=up[-1].source,
            other=down[-1].source if down else None,
            values={"bytes": str(amount)},
            cause="the kernel may be over before its copy is, and the next kernel finds the "
            "semaphore raised",
            advice="wait once for each start; where the last step has nothing to fetch, do not "
            "start",
        )
    lowest = down[-1] if down else up[-1]
    signals = counts.total(int(change[change > 0].sum()))
    waits = counts.total(int(-change[change < 0].sum()))
    return replace(
        base,
        kind="SemaphoreLeftOver",
        message=f"{name} is not zero at the end: all signals add up to {signals}, all waits to "
        f"{waits}",
        source=lowest.source,
        other=up[-1].source if down else None,
        values={"signals": str(signals), "waits": str(waits)},
        cause="the next kernel that is given this semaphore starts with what is left",
        advice="wait for as much as is signalled",
    )


def _finding(subject: Subject, counts: _Counts, name: str) -> Finding:
    shape = counts.buffer.shape
    return replace(
        subject.finding("SemaphoreNeverSignalled", ""),
        operand=counts.buffer.name,
        index=name,
        shape=f"{counts.buffer.dtype}{list(shape)}",
    )


def _name(counts: _Counts, entry: int) -> str:
    if not counts.buffer.shape:
        return counts.buffer.name
    index = np.unravel_index(entry, counts.buffer.shape)
    return f"{counts.buffer.name}[{', '.join(str(int(i)) for i in index)}]"


# Copies under way.


@dataclass(frozen=True, kw_only=True)
class _Copy:
    event: Event
    semaphore: tuple[int, int]
    target: tuple[int, tuple[tuple[int, int], ...]] | None
    source: tuple[int, tuple[tuple[int, int], ...]] | None


def _under_way(subject: Subject, result: Result) -> None:
    """Buffers that are touched while a copy still reads or writes them."""
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
    if event.what == "dma_start":
        copies.append(
            _Copy(
                event=event,
                semaphore=_key(event, point),
                target=_region(event.view, point),
                source=_region(event.other, point),
            )
        )
        return None
    if event.what == "dma_wait":
        key = _key(event, point)
        done = next((copy for copy in copies if copy.semaphore == key), None)
        if done is not None:
            copies.remove(done)
            if done.target is not None:
                fetched.append(done.target)
        return None
    if event.what not in ("read", "write"):
        return None
    region = _region(event.view, point)
    if region is None:
        return None
    for copy in copies:
        if event.what == "read" and _overlap(region, copy.target):
            return _read_too_early(subject, event, copy, point, region in fetched)
        if event.what == "write" and (
            _overlap(region, copy.source) or _overlap(region, copy.target)
        ):
            return _reused(subject, event, copy, point)
    if event.what == "read":
        fetched[:] = [other for other in fetched if not _overlap(region, other)]
    return None


def _read_too_early(
    subject: Subject, event: Event, copy: _Copy, point: tuple[int, ...], holds: bool
) -> Finding:
    name = event.view.buffer.name if event.view else ""
    shape = str(event.view.buffer) if event.view else None
    if holds:
        return replace(
            subject.finding(
                "DmaBufferReused",
                f"a copy into {name} is started before what is there was read",
            ),
            source=copy.event.source,
            other=event.source,
            grid_point=point,
            loop=copy.event.loops,
            operand=name,
            shape=shape,
            cause="the copy may arrive at any time from here on",
            advice="read first, or copy into a second buffer and take turns",
        )
    return replace(
        subject.finding("DmaReadBeforeWait", f"{name} is read while a copy into it is under way"),
        source=event.source,
        other=copy.event.source,
        grid_point=point,
        loop=event.loops,
        operand=name,
        shape=shape,
        cause="the copy was started, and not waited for yet",
        advice="wait for the copy before the read",
    )


def _reused(subject: Subject, event: Event, copy: _Copy, point: tuple[int, ...]) -> Finding:
    name = event.view.buffer.name if event.view else ""
    return replace(
        subject.finding(
            "DmaBufferReused", f"{name} is written while a copy of it or into it is under way"
        ),
        source=event.source,
        other=copy.event.source,
        grid_point=point,
        loop=event.loops,
        operand=name,
        shape=str(event.view.buffer) if event.view else None,
        cause="the copy was started, and not waited for yet",
        advice="wait for the copy before the write, or write to a second buffer",
    )


def _key(event: Event, point: tuple[int, ...]) -> tuple[int, int]:
    entry = _entry(event)
    number = event.semaphore.buffer.number if event.semaphore else -1
    return number, at(entry, point) if entry is not None else 0


def _region(
    view: View | None, point: tuple[int, ...]
) -> tuple[int, tuple[tuple[int, int], ...]] | None:
    """The part of a buffer that is touched, as a range of each dimension."""
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

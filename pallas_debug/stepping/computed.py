"""Values that the lines of a recorded run computed at each grid point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pallas_debug.stepping import describe
from pallas_debug.stepping.recording import RecordedBlock, RecordedRun, RecordedStop, RecordedValue

MAX_NUMBERS = 6
"""Maximum number of elements that are shown as they are; more are summarised."""

Line = tuple[str, int]
"""File and number of a Python line."""

_Block = tuple[str, tuple[int, ...], int, int]


@dataclass(frozen=True, kw_only=True)
class LineValues:
    """Values that a line computed at a grid point, the last time it ran there.

    Attributes:
      values: names whose value it changed; in a recording of single lines, all names that the line
        mentions, before it ran.
      is_after: whether the values are those after the line.
      times: how often the line ran at that grid point.
    """

    values: tuple[RecordedValue, ...]
    is_after: bool
    times: int


class ComputedValues:
    """The values of a recorded run, by grid point and line."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self.kernel = run.recording.kernel
        self._texts: dict[tuple[str, str], str] = {}

    @cached_property
    def points(self) -> tuple[tuple[int, ...], ...]:
        """The recorded grid points, in the order in which they ran."""
        stops = self.run.recording.stops
        return tuple(dict.fromkeys(stop.place.point for stop in stops if stop.place.line))

    def at(self, point: tuple[int, ...]) -> Mapping[Line, LineValues]:
        """Values that each line computed at a grid point; none for one that was not recorded."""
        return self._by_point.get(point, {})

    @cached_property
    def _by_point(self) -> Mapping[tuple[int, ...], Mapping[Line, LineValues]]:
        recording = self.run.recording
        is_after = recording.complete or recording.every_line
        found: dict[tuple[int, ...], dict[Line, LineValues]] = {}
        threads: dict[tuple[int, int], list[RecordedStop]] = {}
        for stop in recording.stops:
            threads.setdefault((stop.place.device, stop.place.thread), []).append(stop)
        for stops in threads.values():
            following: Iterable[RecordedStop | None] = [*stops[1:], None]
            for stop, then in zip(stops, following, strict=True):
                line = stop.place.line
                if line is None:
                    continue
                if is_after:
                    values = _changed(stop, then, self._blocks, recording.complete)
                else:
                    words = self._words(line.file, line.line)
                    values = tuple(v for v in stop.values if v.value.name in words)
                there = found.setdefault(stop.place.point, {})
                before = there.get(line.place)
                now = LineValues(values=values, is_after=is_after, times=1)
                there[line.place] = _together(before, now)
        return found

    @cached_property
    def _blocks(self) -> Mapping[_Block, RecordedBlock]:
        return {(b.name, b.point, b.device, b.thread): b for b in self.run.recording.blocks}

    def _words(self, file: str, line: int) -> frozenset[str]:
        lines = self.run.lines(file)
        text = lines[line - 1] if 0 < line <= len(lines) else ""
        words = "".join(c if c.isalnum() or c == "_" else " " for c in text)
        return frozenset(words.split())

    def text(self, found: LineValues) -> str:
        """Return values in one line of text: each name, its type, and its numbers or statistics."""
        parts = [f"{value.value.name} {self._described(value)}" for value in found.values]
        if not parts:
            return ""
        mark = "" if found.is_after else "before it ran: "
        times = f" (last of {found.times:,} times)" if found.times > 1 else ""
        return f"{mark}{'; '.join(parts)}{times}"

    def _described(self, value: RecordedValue) -> str:
        key = value.array, value.value.dtype
        known = self._texts.get(key)
        if known is None:
            known = self._texts[key] = _summary(self.run, *key)
        return known


def _changed(
    stop: RecordedStop,
    then: RecordedStop | None,
    blocks: Mapping[_Block, RecordedBlock],
    is_next: bool,
) -> tuple[RecordedValue, ...]:
    """Values that are new or different after a stop.

    After the last line of a grid point the pipeline exchanges blocks. The contents of a block are
    known if it was written back, or is still there at the next grid point.

    Args:
      is_next: whether a stop at another grid point is the next one that ran.
    """
    before = {v.value.name: v for v in stop.values}
    place = stop.place
    if then is not None and (then.place.point == place.point or then.place.line is None):
        return tuple(
            v
            for v in then.values
            if v.value.name not in before or before[v.value.name].array != v.array
        )
    later = {v.value.name: v for v in then.values} if then is not None and is_next else {}
    found = []
    for name, value in before.items():
        block = blocks.get((name, place.point, place.device, place.thread))
        at_next = later.get(name)
        array = value.array
        if block is not None:
            array = block.array
        elif value.value.kind in ("output", "scratch") and at_next is not None:
            array = at_next.array if at_next.value.block == value.value.block else array
        if array != value.array:
            found.append(replace(value, array=array))
    return tuple(found)


def _together(before: LineValues | None, now: LineValues) -> LineValues:
    """Merge stops of the same line, which has several if it calls a function."""
    return now if before is None else replace(now, times=before.times + 1)


def _summary(run: RecordedRun, digest: str, dtype: str) -> str:
    """Describe an array, which is stored with a wider dtype than its own if numpy lacks that."""
    array = run.array(digest)
    kind = describe.named_type(dtype, array.shape)
    if array.size <= MAX_NUMBERS:
        return f"{kind} {' '.join(describe.numbers(array).split())}"
    return f"{kind} {describe.statistics(array)}"

"""A stepping session: the commands on a track, with breakpoints and watched values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pallas_debug.errors import UsageError, meant
from pallas_debug.model import SourceLine
from pallas_debug.stepping import describe
from pallas_debug.stepping.conditions import ConditionFailed, Expression, parse, parse_part
from pallas_debug.stepping.track import (
    ElementWriter,
    StepPlace,
    Track,
    WatchedElements,
    WatchHit,
    names_of,
)

Until = Callable[[StepPlace], bool]


class SteppingError(UsageError):
    """A command that cannot be executed here."""


@dataclass(frozen=True, kw_only=True)
class LineBreakpoint:
    """A line to stop at.

    Attributes:
      condition: stop only if it is true; None to stop always.
    """

    number: int
    file: str
    line: int
    condition: Expression | None = None

    def __str__(self) -> str:
        condition = f" if {self.condition.text}" if self.condition is not None else ""
        return f"{Path(self.file).name}:{self.line}{condition}"


@dataclass
class StepSession:
    """Commands on a track. Movements return a sentence if there is more to report than the place.

    Attributes:
      breakpoints, watched: breakpoints and watched values by number.
      file: file of the lines that are shown.
    """

    track: Track
    breakpoints: dict[int, LineBreakpoint] = field(default_factory=dict)
    watched: dict[int, WatchedElements] = field(default_factory=dict)
    _number: int = 0
    _problem: str | None = None
    _reason: str | None = None
    _file: str | None = None

    @property
    def place(self) -> StepPlace:
        return self.track.place

    @property
    def file(self) -> str | None:
        line = self.place.line
        return None if line is None else line.file

    def interrupt(self) -> None:
        """Stop a movement at the next step, from another thread or a signal handler."""
        self.track.interrupted = True

    # Moving

    def step(self, back: bool = False) -> str | None:
        """Go to the next line, into calls, branches and loops."""
        return self._go(lambda place: True, back)

    def over(self, back: bool = False) -> str | None:
        """Go to the next line of this function, or of a caller: over calls, branches and loops."""
        here = self.place
        depth = len(here.calls)

        def until(place: StepPlace) -> bool:
            if (place.thread, place.point) != (here.thread, here.point):
                return True
            return len(place.calls) <= depth and place.key != here.key

        return self._go(until, back)

    def out(self, back: bool = False) -> str | None:
        """Go to the caller's line."""
        here = self.place

        def until(place: StepPlace) -> bool:
            if (place.thread, place.point) != (here.thread, here.point):
                return True
            return len(place.calls) < len(here.calls)

        return self._go(until, back)

    def next_point(self, back: bool = False) -> str | None:
        """Go to the first line of the next grid point; backwards, of this or the previous one."""
        if not back:
            here = self.place
            return self._go(lambda p: (p.thread, p.point) != (here.thread, here.point), back)
        self._go_quietly(lambda place: True, back)
        here = self.place
        before = [here]

        def until(place: StepPlace) -> bool:
            if (place.thread, place.point) != (here.thread, here.point):
                return True
            before[0] = place
            return False

        found = self.track.backward(until)
        if found:
            self._go_quietly(lambda place: True, False)
        return None

    def next_iteration(self, back: bool = False) -> str | None:
        """Go to the next iteration of the innermost loop."""
        here = self.place
        if not here.iterations:
            raise SteppingError("this line is not in a loop; `point` goes to the next grid point")
        level = len(here.iterations)
        return self._go(
            lambda p: p.point != here.point or p.iterations[:level] != here.iterations, back
        )

    def run(self, back: bool = False) -> str | None:
        """Go to the next breakpoint or change of a watched value, or to the end."""
        return self._go(lambda place: False, back)

    def to_line(self, line: int, back: bool = False) -> str | None:
        """Go to a line, or to the next one with an operation of the kernel."""
        file, found = self._executable(line)
        return self._go(lambda p: _is_at(p.line, file, found), back)

    def to_point(self, point: tuple[int, ...]) -> None:
        """Go to the first line of a grid point, forwards or backwards."""
        here = self.place
        if len(point) != len(here.grid) or any(
            not 0 <= i < n for i, n in zip(point, here.grid, strict=True)
        ):
            raise SteppingError(f"there is no grid point {point}: the grid is {here.grid}")
        if point == here.point and not here.ended:
            self.next_point(back=True)
        elif here.ended or point < here.point:
            self._go_quietly(lambda p: p.point < point, True)
        if self.place.point != point:
            self._go_quietly(lambda p: p.point == point, False)

    def to_finding(
        self, point: tuple[int, ...], line: SourceLine, iterations: tuple[int, ...] = ()
    ) -> None:
        """Go to the place of a fault: its line at a grid point and iteration.

        If the line is not executed there, stay at the first line of the grid point.
        """
        self.to_point(point)

        def is_there(place: StepPlace) -> bool:
            is_same = not iterations or place.iterations == iterations
            return is_same and _is_at(place.line, line.file, line.line)

        if not is_there(self.place):
            self._go_quietly(lambda p: p.point != point or is_there(p), False)
            if not is_there(self.place):
                self.to_point(point)

    def _go(self, until: Until, back: bool) -> str | None:
        self._problem = self._reason = None
        if not back and self.track.fault is not None:
            return self._at_end(back)
        if self.place.ended and not back:
            return "the run has ended; every command works backwards as well"
        watched = tuple(self.watched.values())
        move = self.track.backward if back else self.track.forward
        self.track.interrupted = False
        self._file = self.file or self._file
        found = move(lambda place: self._is_stop(place, until), watched)
        if self.track.interrupted:
            return "interrupted"
        if isinstance(found, WatchHit):
            return _of_hit(found, back)
        if self._problem is not None:
            return self._problem
        return self._reason if found else self._at_end(back)

    def _go_quietly(self, until: Until, back: bool) -> None:
        (self.track.backward if back else self.track.forward)(until)

    def _at_end(self, back: bool) -> str:
        if back:
            return "the beginning of the run"
        if self.track.fault is not None:
            return f"the run stops here: {self.track.fault}"
        return "the end of the run"

    def _is_stop(self, place: StepPlace, until: Until) -> bool:
        """Return whether a movement stops at a place.

        Backwards, places are tried in the order of the run, and the last one counts.
        """
        before = self._problem, self._reason
        self._problem = self._reason = None
        if self._stops(place) or until(place):
            return True
        self._problem, self._reason = before
        return False

    def _stops(self, place: StepPlace) -> bool:
        """Return whether a breakpoint stops at a place."""
        for item in self.breakpoints.values():
            if not _is_at(place.line, item.file, item.line):
                continue
            if item.condition is not None:
                try:
                    if not item.condition.holds(names_of(self.track)):
                        continue
                except ConditionFailed as error:
                    self._problem = f"the condition of breakpoint {item.number} failed: {error}"
                    return True
            self._reason = f"breakpoint {item.number}, {item}"
            return True
        return False

    # Breakpoints and watched values

    def add_breakpoint(self, line: int, condition: str | None = None) -> LineBreakpoint:
        """Stop at a line, or at the next one with an operation of the kernel.

        Raises:
          SteppingError: there is no such line.
          ConditionError: the condition does not parse.
        """
        parsed = None if condition is None else parse(condition, self._known())
        file, line = self._executable(line)
        self._number += 1
        item = LineBreakpoint(number=self._number, file=file, line=line, condition=parsed)
        self.breakpoints[item.number] = item
        return item

    def watch(self, text: str) -> int:
        """Stop where a value changes; return its number."""
        item = self._elements(text)
        self._number += 1
        self.watched[self._number] = item
        return self._number

    def delete(self, number: int) -> None:
        """Delete a breakpoint or a watched value."""
        if self.breakpoints.pop(number, None) is None and self.watched.pop(number, None) is None:
            known = [*self.breakpoints, *self.watched]
            listed = ", ".join(map(str, sorted(known))) if known else "there are none"
            raise SteppingError(f"there is no breakpoint or watched value {number}: {listed}")

    def _elements(self, text: str) -> WatchedElements:
        names = self._known()
        name, expression = parse_part(text, names)
        inner = name.removeprefix("whole(").removesuffix(")")
        if inner not in names:
            raise SteppingError(f"there is no value {inner!r} here{meant(inner, names)}")
        return WatchedElements(name=name, expression=expression)

    def _executable(self, line: int) -> tuple[str, int]:
        """The current file, and its first line with an operation at or after a line."""
        file = self.file or self._file
        if file is None:
            raise SteppingError("no line is being executed here: go back with `back` first")
        lines = self.track.lines(file)
        if not 1 <= line <= len(lines):
            raise SteppingError(f"{Path(file).name} has no line {line}: it has {len(lines):,}")
        later = [number for number in self.track.executable(file) if number >= line]
        if not later:
            raise SteppingError(
                f"the kernel has no operation at or after line {line} of {Path(file).name}"
            )
        return file, min(later)

    # Values

    def evaluate(self, text: str) -> Any:
        """The value of an expression.

        Raises:
          ConditionError: it does not parse.
          ConditionFailed: it cannot be evaluated here.
        """
        return parse(text, self._known()).evaluate(self._named)

    def type_of(self, text: str, value: Any) -> str:
        """Dtype and shape of the value of an expression.

        A name, and elements of it, have the dtype of the kernel. Anything else is computed by
        numpy, which has no bfloat16 and the like, in float32.
        """
        name = _ELEMENTS.sub("", text.strip())
        for known in self.track.values():
            if known.name in (text.strip(), name) or f"whole({known.name})" == name:
                return describe.named_type(known.dtype, np.shape(value))
        return describe.type_of(value)

    def _known(self) -> list[str]:
        return [value.name for value in self.track.values()]

    def _named(self, name: str) -> Any:
        try:
            return names_of(self.track)(name)
        except KeyError:
            inner = name.removeprefix("whole(").removesuffix(")")
            known = self._known()
            hint = meant(inner, known) or f"; there are {', '.join(known[:12])}"
            raise ConditionFailed(f"`{name}` has no value here{hint}") from None

    def who(self, text: str) -> list[ElementWriter]:
        """Writers of an element, latest first."""
        return list(self.track.who(self._elements(text)))


_ELEMENTS = re.compile(r"\s*\[[^\[\]]*\]$")
"""Index at the end of an expression."""


def _is_at(line: SourceLine | None, file: str, number: int) -> bool:
    return line is not None and line.line == number and line.file == file


def _of_hit(hit: WatchHit, back: bool) -> str:
    text = hit.watched.expression.text
    by = "the pipeline or a DMA" if hit.wrote is None else f"line {hit.wrote.line}"
    if hit.before is None:
        change = f"is assigned {short(hit.after)}"
    elif short(hit.before) == short(hit.after):
        change = "changes"
    else:
        change = f"{short(hit.before)} → {short(hit.after)}"
    when = "before" if back else "after"
    return f"{when} {by}: {text} {change}"


def short(value: Any, *, is_memory: bool = False) -> str:
    """A value in one line: a number, a few numbers, or statistics.

    Args:
      is_memory: whether it is what memory holds: some of it may be unwritten.
    """
    array = np.asarray(value)
    if array.size == 0:
        return f"{describe.type_of(array)}, empty"
    if array.size <= 4:
        return " ".join(describe.numbers(array).split())
    return f"{describe.type_of(array)}: {describe.statistics(array, is_memory=is_memory)}"

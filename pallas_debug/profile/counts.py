"""Counts that are known only at run time: sizes of a dynamic grid, and iterations of loops.

The cycles of a kernel with such counts are a formula. Values that a caller assumes for them make it
a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral

from pallas_debug.errors import UsageError
from pallas_debug.findings.facts import line_text
from pallas_debug.model import Kernel
from pallas_debug.profile.blocks import ScalarValues
from pallas_debug.profile.core.operands import call_operands
from pallas_debug.profile.core.walk import Walk
from pallas_debug.profile.schedule import Schedule

MAX_COUNT = (1 << 31) - 1
"""Maximum value of a count: the scalar core computes in signed 32-bit integers."""

_COUNT = re.compile(r"(?P<name>[^=]{1,200})=(?P<value>.{1,200})")


@dataclass(frozen=True, kw_only=True)
class UnknownCount:
    """A count that is known only at run time.

    Attributes:
      name: name in formulas: that of the grid's operand, such as `grid[0]`, or `n1` of a loop.
      meaning: what it counts.
      axis: axis of the grid; None for a loop.
      operand: position of the grid's operand in the call; None for a loop.
      loop: number of the loop; None for an axis of the grid.
    """

    name: str
    meaning: str
    axis: int | None = None
    operand: int | None = None
    loop: int | None = None


def parse_counts(texts: Iterable[str]) -> dict[str, int | str]:
    """Parse `n1=12`; a value that is no whole number is left as text, for `assumed_counts`.

    Raises:
      UsageError: a text is not of this form, or a name has two values.
    """
    found: dict[str, int | str] = {}
    for text in texts:
        match = _COUNT.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is not of the form NAME=COUNT, such as n1=12")
        name, value = match["name"].strip(), match["value"].strip()
        count = int(value) if value.isascii() and value.isdecimal() else value
        if found.setdefault(name, count) != count:
            raise UsageError(f"{name} cannot be both {found[name]} and {count}")
    return found


def unknown_axes(
    schedule: Schedule, kernel: Kernel | None, known: Sequence[ScalarValues]
) -> tuple[UnknownCount, ...]:
    """Return the axes of the grid whose sizes are passed at run time, without known ones."""
    if kernel is None:
        return ()
    axes = [axis for axis, size in enumerate(kernel.grid) if size is None]
    sizes = kernel.of_kind("dynamic_grid")
    passed = {o.number for o in call_operands(schedule).values() if o.is_by_value}
    passed -= {scalar.number for scalar in known}
    return tuple(
        UnknownCount(
            name=operand.name, meaning=f"size of axis {axis} of the grid", axis=axis, operand=number
        )
        for number, (axis, operand) in enumerate(zip(axes, sizes, strict=False))
        if number in passed
    )


def unknown_loops(schedule: Schedule, *walks: Walk) -> tuple[UnknownCount, ...]:
    """Return the loops whose trip count depends on data; those of the first walk keep its names."""
    numbers = dict.fromkeys(number for found in walks for number in sorted(found.unknown_loops))
    is_single = len(walks[0].unknown_loops) == 1
    return tuple(
        UnknownCount(
            name="n" if is_single and position == 1 else f"n{position}",
            meaning=f"iterations of {_place(schedule, number)}",
            loop=number,
        )
        for position, number in enumerate(numbers, 1)
    )


def _place(schedule: Schedule, number: int) -> str:
    loop = schedule.loops[number]
    lines = schedule.listing.sources(loop.branch.instruction) if loop.branch else ()
    line = f" ({line_text(lines[0])})" if lines else ""
    return f"the loop at bundle {loop.start:#x}{line}"


@dataclass(frozen=True, kw_only=True)
class AssumedCounts:
    """Values that the caller assumes for unknown counts."""

    values: Mapping[UnknownCount, int] = field(default_factory=dict)

    @property
    def named(self) -> dict[str, int]:
        """Values by name."""
        return {count.name: value for count, value in self.values.items()}

    @property
    def sizes(self) -> dict[int, int]:
        """Sizes of the grid, by axis."""
        return {c.axis: value for c, value in self.values.items() if c.axis is not None}

    @property
    def trips(self) -> dict[int, int]:
        """Iterations of loops, by number of the loop."""
        return {c.loop: value for c, value in self.values.items() if c.loop is not None}

    @property
    def scalars(self) -> tuple[ScalarValues, ...]:
        """Scalar operands that pass the sizes of the grid."""
        return tuple(
            ScalarValues(number=c.operand, name=c.name, shape=(), values=(value,))
            for c, value in self.values.items()
            if c.operand is not None
        )

    def check(self, walked: Walk) -> None:
        """Refuse iterations that a walk with the other values contradicts.

        Raises:
          UsageError: the iterations of a loop follow from other values, or a loop that should not
            run does.
        """
        for count, value in self.values.items():
            if count.loop is None or not walked.trips.get(count.loop):
                continue
            if count.loop not in walked.assumed_loops:
                raise UsageError(f"{count.name} follows from the other values: {count.meaning}")
            if not value:
                raise UsageError(
                    f"{count.name} cannot be 0: as it is compiled, the loop runs at least once"
                )

    def __iter__(self) -> Iterator[str]:
        """Iterate over one sentence for each value."""
        return (f"{c.name} is {v:,} ({c.meaning})" for c, v in self.values.items())


def assumed_counts(values: Mapping[str, object], counts: Sequence[UnknownCount]) -> AssumedCounts:
    """Return the values that a caller assumes for unknown counts.

    Raises:
      UsageError: there is no such count, or a value is no whole number that is at least 0.
    """
    listed = "; ".join(f"{count.name}: {count.meaning}" for count in counts)
    known = f"Known only at run time: {listed}." if counts else "Nothing is left to assume."
    by_name = {count.name: count for count in counts}
    found: dict[UnknownCount, int] = {}
    for name, value in values.items():
        if name not in by_name:
            raise UsageError(f"this kernel has no unknown count {name!r}. {known}")
        count = int(value) if isinstance(value, Integral) else -1
        if not 0 <= count <= MAX_COUNT:
            raise UsageError(
                f"{name} cannot be {value!r}: it is a whole number from 0 to {MAX_COUNT:,}. {known}"
            )
        found[by_name[name]] = count
    return AssumedCounts(values=found)

"""Comparison of the costs of two kernels, ranked by change."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath

from pallas_debug.model import SourceLine
from pallas_debug.profile.figures import Figure
from pallas_debug.profile.stats import Stats

WORTH = 0.001
"""Minimum change of a line's cycles for it to be listed, as a share of the kernel's cycles."""

FIRST = ("cycles", "bundles", "spills", "copied from HBM", "copied to HBM")
"""Figures that are compared first."""

Texts = Callable[[SourceLine], str | None]
"""Function that returns the text of a Python line."""


@dataclass(frozen=True, kw_only=True)
class FigureChange:
    """Figure of both kernels.

    Attributes:
      change: relative change, such as -0.1 for 10 % less; None if a value is unknown, or only one
        is 0.
    """

    name: str
    before: Figure
    after: Figure
    change: float | None

    @property
    def is_same(self) -> bool:
        return self.before.value == self.after.value


@dataclass(frozen=True, kw_only=True)
class LineChange:
    """Change in the cycles of a line's own instructions, excluding functions that it calls.

    Attributes:
      source: line in the new kernel, or in the old kernel if it was removed.
      before, after: cycles; None if that kernel has no such line.
    """

    source: SourceLine
    text: str | None
    before: float | None
    after: float | None

    @property
    def difference(self) -> float:
        return (self.after or 0.0) - (self.before or 0.0)


@dataclass(frozen=True, kw_only=True)
class StatsComparison:
    """Comparison of two kernels.

    Attributes:
      figures: figures that changed: those in `FIRST`, then the largest change first.
      lines: lines whose cycles changed, largest change first.
      versions: names of programs whose versions differ, with the versions before and after.
    """

    old: Stats
    new: Stats
    figures: tuple[FigureChange, ...]
    lines: tuple[LineChange, ...]
    versions: tuple[tuple[str, str, str], ...]

    @property
    def cycles(self) -> FigureChange:
        return _change("cycles", self.old.cycles.total, self.new.cycles.total)

    @property
    def is_same(self) -> bool:
        """True if no known figure and no line changed."""
        return not self.figures and not self.lines

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key: largest change in cycles first, then largest change in any figure."""
        most = max((abs(f.change) for f in self.figures if f.change is not None), default=0.0)
        cycles = self.cycles.change
        return -abs(math.log1p(max(cycles, -0.999999))) if cycles is not None else 0.0, -most


def compare_stats(
    old: Stats,
    new: Stats,
    *,
    old_texts: Texts = lambda line: line.text,
    new_texts: Texts = lambda line: line.text,
) -> StatsComparison:
    """Compare two kernels.

    Lines are matched by file name and text, since edits above a line change its number. If the
    kernels have one file each that the other does not have, these count as the same file.
    """
    figures = [change for change in _figures(old, new) if not change.is_same]
    first = [f for f in figures if f.name in FIRST]
    rest = [f for f in figures if f.name not in FIRST]
    rest.sort(key=lambda f: (f.change is None, -abs(f.change or 0.0)))
    names = sorted({*old.versions, *new.versions})
    return StatsComparison(
        old=old,
        new=new,
        figures=(*first, *rest),
        lines=tuple(_lines(old, new, old_texts, new_texts)),
        versions=tuple(
            (name, old.versions.get(name, "-"), new.versions.get(name, "-"))
            for name in names
            if old.versions.get(name) != new.versions.get(name)
        ),
    )


def _figures(old: Stats, new: Stats) -> Iterator[FigureChange]:
    yield _change("cycles", old.cycles.total, new.cycles.total)
    yield _change("bundles", old.bundles, new.bundles)
    yield _change("spills", old.spills, new.spills)
    yield _change("copied from HBM", old.traffic.read, new.traffic.read)
    yield _change("copied to HBM", old.traffic.written, new.traffic.written)
    yield _change("cycles waiting for copies", old.cycles.waiting, new.cycles.waiting)
    yield _change("cycles by libtpu", old.cycles.compiler, new.cycles.compiler)
    yield _change("grid steps", old.cycles.steps, new.cycles.steps)
    yield _change("empty bundles", old.empty_bundles, new.empty_bundles)
    yield _change("fills", old.fills, new.fills)
    yield _change("code size", old.code_size, new.code_size)


def _change(name: str, before: Figure, after: Figure) -> FigureChange:
    old, new = before.value, after.value
    change = None
    if old is not None and new is not None and (old or not new):
        change = new / old - 1 if old else 0.0
    return FigureChange(name=name, before=before, after=after, change=change)


_Key = tuple[str, str, int]


def _lines(old: Stats, new: Stats, old_texts: Texts, new_texts: Texts) -> list[LineChange]:
    if old.cycles.compute.value is None or new.cycles.compute.value is None:
        return []
    before, after = dict(_own(old, old_texts)), dict(_own(new, new_texts))
    removed, added = _files(before, after)
    renamed = dict(zip(added, removed, strict=True)) if len(removed) == len(added) == 1 else {}
    after = {(renamed.get(file, file), text, n): line for (file, text, n), line in after.items()}
    total = max(sum(c for _, c, _ in before.values()), sum(c for _, c, _ in after.values()), 1.0)
    found = []
    for key in dict.fromkeys([*after, *before]):
        first, second = before.get(key), after.get(key)
        source, _, text = second or first or (None, 0.0, None)
        assert source is not None
        change = LineChange(
            source=source,
            text=text,
            before=first[1] if first else None,
            after=second[1] if second else None,
        )
        if abs(change.difference) > WORTH * total:
            found.append(change)
    found.sort(key=lambda line: -abs(line.difference))
    return found


def _files(before: Iterable[_Key], after: Iterable[_Key]) -> tuple[set[str], set[str]]:
    """Return the names of files that only one of two kernels has lines of."""
    old, new = {name for name, _, _ in before}, {name for name, _, _ in after}
    return old - new, new - old


def _own(stats: Stats, texts: Texts) -> Iterable[tuple[_Key, tuple[SourceLine, float, str | None]]]:
    """Yield the cycles of each line, by file name and text."""
    cycles = stats.cycles.compute.value
    if cycles is None:
        return
    seen = Counter[tuple[str, str]]()
    lines = (line for line in stats.lines if line.own_share)
    for line in sorted(lines, key=lambda line: line.source.place):
        text = texts(line.source)
        words = " ".join(text.split()) if text else f"line {line.source.line}"
        name = PurePath(line.source.file).name
        seen[name, words] += 1
        number = seen[name, words]
        yield (name, words, number), (line.source, line.own_share * cycles, text and words)

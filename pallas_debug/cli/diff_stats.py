"""`pallas-debug diff --stats`: compare the costs of two kernels, or of the kernels of two dumps."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallas_debug import quantities
from pallas_debug.cli import output, where
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import PallasDebugError, UsageError
from pallas_debug.findings.facts import line_text
from pallas_debug.profile.changes.comparison import FigureChange, StatsComparison, compare_stats
from pallas_debug.profile.figures import Figure, shown
from pallas_debug.profile.schedule import ON_SPARSECORE
from pallas_debug.render import one_line
from pallas_debug.store import StoredCompilation, StoredKernel, open_dumps
from pallas_debug.store.files import is_there
from pallas_debug.store.layout import COMPILATION, KERNEL, SPARSECORE
from pallas_debug.store.profiles import StoredProfile, read_profile

if TYPE_CHECKING:
    from pallas_debug.cli.diff import DiffOptions
    from pallas_debug.model import SourceLine
    from pallas_debug.profile.stats import Stats

MAX_LINES = 10
"""Maximum number of lines listed per kernel on a terminal."""


@dataclass(frozen=True, eq=False)
class CostSide:
    """A kernel on a target, whose cost is compared."""

    kernel: StoredKernel
    stored: StoredCompilation

    @property
    def name(self) -> str:
        return self.kernel.kernel.name if self.kernel.kernel else self.kernel.name

    @property
    def label(self) -> str:
        return str(self.stored.folder)

    @functools.cached_property
    def stats(self) -> Stats | None:
        """Statistics of the kernel; None if its schedule was not saved or is for a SparseCore."""
        return None if self._read is None or self.is_sparse else self._read.profile.stats

    @property
    def problems(self) -> tuple[str, ...]:
        """Files that cannot be read; if there are manifests among them, nothing is compared."""
        return self.unreadable or (self._read.problems if self._read is not None else ())

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Manifests that cannot be read."""
        return tuple(filter(None, (self.kernel.problem, self.stored.problem)))

    @functools.cached_property
    def _read(self) -> StoredProfile | None:
        return read_profile(self.kernel, self.stored)

    @property
    def is_sparse(self) -> bool:
        """True if the kernel runs on a SparseCore, whose schedule is not read."""
        return is_there(self.stored.named(SPARSECORE).path)

    @functools.cached_property
    def _lines(self) -> tuple[str | None, list[str]]:
        kernel = self.kernel.kernel
        file = kernel.source.file if kernel and kernel.source else None
        try:
            return file, self.kernel.stage_text("source").split("\n")
        except PallasDebugError:
            return None, []

    def text(self, line: SourceLine) -> str | None:
        """Text of a line of the kernel's file, as it was dumped."""
        file, lines = self._lines
        if line.file == file and 0 < line.line <= len(lines):
            return lines[line.line - 1]
        return line.text


def run(options: DiffOptions) -> int:
    """Compare the costs of kernels, and print the largest changes first."""
    old_at, kernel, target = options.kernel_at, options.kernel, options.target
    against = options.against
    if len(options.stages) > 1:
        places = len(options.stages) + 1
        raise UsageError(f"diff --stats takes two places at most, not {places}")
    new_at = where.local(options.stages[0]) if options.stages else None
    if new_at is None and against is None:
        raise UsageError(
            "diff --stats takes two places, such as `diff --stats old/ new/`, or one and "
            "--against TARGET"
        )
    old = _sides(old_at, kernel, target)
    if against is not None and new_at is None and not _is_place(against):
        new = _sides(old_at, kernel, against)
        pairs, alone = _paired_by_kernel(old, new)
    else:
        new = _sides(new_at or where.local(str(against)), kernel, target)
        pairs, alone = _paired(old, new)
    compared = []
    unknown = []
    damaged = [side for side in (*old, *new) if side.problems]
    for a, b in pairs:
        if a.unreadable or b.unreadable:
            continue
        if a.stats is None or b.stats is None:
            unknown.append(a if a.stats is None else b)
        else:
            compared.append(
                (a, b, compare_stats(a.stats, b.stats, old_texts=a.text, new_texts=b.text))
            )
    compared.sort(key=lambda item: item[2].rank)
    code = Exit.CANNOT_RUN if damaged or (unknown and not compared) else Exit.OK
    for problem in dict.fromkeys(problem for side in damaged for problem in side.problems):
        output.message(problem)
    if options.as_json:
        output.print_json(
            "diff-stats",
            {
                "comparisons": [_as_json(*item) for item in compared],
                "unpaired": [side.label for side in alone],
                "without_schedule": [side.label for side in unknown],
            },
        )
        return code
    for a, b, comparison in compared:
        _print(a, b, comparison)
    for side in alone:
        output.message(f"{one_line(side.label)} has no counterpart, and is not compared")
    for side in unknown:
        if side.is_sparse:
            output.message(f"{one_line(side.label)} is not compared: {ON_SPARSECORE}")
            continue
        output.message(f"{one_line(side.label)} has no schedule, so its cost is unknown")
    if not pairs:
        raise UsageError(f"no kernel of {one_line(old_at)} has a counterpart to compare with")
    return code


def _is_place(text: str) -> bool:
    return "/" in text or Path(text).exists()


def _sides(at: Path, kernel: str | None, target: str | None) -> list[CostSide]:
    """Return the compilations at a path: of a target, a kernel, or a whole dump directory."""
    is_one = kernel is not None or is_there(at / COMPILATION) or is_there(at / KERNEL)
    if is_one or where.split_prefix(at)[1] is not None:
        found, of_path = where.kernel_at(at, kernel)
        kernels, target = [found], target or of_path
    else:
        kernels = open_dumps(at).kernels()
    sides = [
        CostSide(found, stored)
        for found in kernels
        for stored in found.compilations
        if target in (None, stored.target, stored.folder.name)
    ]
    if not sides:
        wanted = f" for {target}" if target else ""
        raise UsageError(f"no compiled kernel{wanted} in {one_line(at)}")
    return sides


_Pairs = tuple[list[tuple[CostSide, CostSide]], list[CostSide]]


def _paired(old: Sequence[CostSide], new: Sequence[CostSide]) -> _Pairs:
    """Pair sides by kernel and target: by folder first, then by the kernel's name."""
    if len(old) == len(new) == 1:
        return [(old[0], new[0])], []
    pairs, left = [], list(new)
    alone = []
    kernels = {len({id(side.kernel) for side in sides}) for sides in (old, new)}
    for a in old:
        alike = [b for b in left if b.stored.target == a.stored.target]
        exact = [b for b in alike if b.kernel.name == a.kernel.name]
        named = [b for b in alike if b.name == a.name]
        found = (exact or named or (alike if kernels == {1} else []))[:1]
        if found:
            pairs.append((a, found[0]))
            left.remove(found[0])
        else:
            alone.append(a)
    return pairs, [*alone, *left]


def _paired_by_kernel(old: Sequence[CostSide], new: Sequence[CostSide]) -> _Pairs:
    """Pair the targets of the same kernel."""
    other = {side.kernel.name: side for side in new}
    sides = [a for a in old if a.stored.target != next(iter(new)).stored.target]
    pairs = [(a, other[a.kernel.name]) for a in sides if a.kernel.name in other]
    return pairs, [a for a in sides if a.kernel.name not in other]


def _print(a: CostSide, b: CostSide, comparison: StatsComparison) -> None:
    cycles = comparison.cycles
    before, after = cycles.before, cycles.after
    change = f" ({percent(cycles.change)})" if cycles.change is not None else ""
    where_ = f"{one_line(a.label)} -> {one_line(b.label)}"
    output.echo(output.visible(f"{b.name}: {before} -> {after} cycles{change}"))
    output.echo_wrapped(output.visible(f"  {where_}"), 4)
    for name, old, new in comparison.versions:
        output.echo(output.visible(f"  {name} {old} -> {new}"))
    if comparison.is_same:
        output.echo("  nothing changed")
    rows = [
        [f"  {_name(f)}", _cell(f.name, f.before), _cell(f.name, f.after), percent(f.change)]
        for f in comparison.figures
    ]
    if rows:
        output.print_table(["  figure", "before", "after", "change"], rows, right=(1, 2, 3))
    lines = [
        [
            f"  {line_text(line.source)}",
            _cycles(line.before),
            _cycles(line.after),
            f"{line.difference:+,.0f}",
            line.text or "",
        ]
        for line in comparison.lines[:MAX_LINES]
    ]
    if lines:
        output.print_table(
            ["  cycles of line", "before", "after", "change", ""], lines, right=(1, 2, 3)
        )
    if len(comparison.lines) > MAX_LINES:
        output.echo(f"  and {len(comparison.lines) - MAX_LINES} more lines")
    output.echo("")


def _name(change: FigureChange) -> str:
    """Name of a figure, with its unit if the name does not include it."""
    unit = change.after.unit or change.before.unit
    return f"{change.name} in bytes" if unit == "bytes" else change.name


def _cell(name: str, figure: Figure) -> str:
    if name.startswith("share") and figure.value is not None:
        return quantities.percent(figure.value, 1)
    return str(figure)


def _cycles(value: float | None) -> str:
    return "-" if value is None else shown(round(value))


def percent(change: float | None) -> str:
    """Return a relative change, such as `-16.9 %`; `-` if it is unknown."""
    return "-" if change is None else quantities.percent(change, 1, signed=True)


def _as_json(a: CostSide, b: CostSide, comparison: StatsComparison) -> dict[str, Any]:
    return {
        "kernel": b.name,
        "old": a.label,
        "new": b.label,
        "old_target": a.stored.target,
        "new_target": b.stored.target,
        "cycles": comparison.cycles,
        "figures": comparison.figures,
        "lines": comparison.lines,
        "versions": {name: [old, new] for name, old, new in comparison.versions},
    }

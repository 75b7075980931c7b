"""Costs of stored kernels, and `source --cost`: what each line costs in the final schedule."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pallas_debug.cli import output
from pallas_debug.errors import CannotRunError, DumpFormatError, UsageError
from pallas_debug.render import missing_lines, one_line, plural, typed
from pallas_debug.store.files import is_there
from pallas_debug.store.layout import SPARSECORE

if TYPE_CHECKING:
    from pallas_debug.cli.where import Place
    from pallas_debug.profile.lines import LineCost
    from pallas_debug.profile.stats import Profile, Stats
    from pallas_debug.store import StoredCompilation, StoredKernel
    from pallas_debug.store.profiles import StoredProfile

MIN_REST = 0.01
"""Minimum share of the cycles without a line that is reported."""

HEAD = "  share     own bundles spill  fill copy"


@dataclass(frozen=True, eq=False)
class Costed:
    """A stored kernel on a target, and what it costs there."""

    kernel: StoredKernel
    stored: StoredCompilation

    @property
    def target(self) -> str:
        return self.stored.target

    @functools.cached_property
    def read(self) -> StoredProfile | None:
        """The profile, with what cannot be read; None without a schedule."""
        from pallas_debug.store.profiles import read_profile

        return read_profile(self.kernel, self.stored)

    @functools.cached_property
    def stats(self) -> Stats | None:
        """Statistics of the kernel; None without a schedule, or if it is for a SparseCore."""
        return None if self.read is None or self.is_sparse else self.read.profile.stats

    @property
    def problems(self) -> tuple[str, ...]:
        """Files that cannot be read; manifests among them leave nothing to compare."""
        return self.unreadable or (self.read.problems if self.read is not None else ())

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Manifests that cannot be read."""
        return tuple(filter(None, (self.kernel.problem, self.stored.problem)))

    @property
    def is_sparse(self) -> bool:
        """True if the kernel runs on a SparseCore, whose schedule is not read."""
        return is_there(self.stored.named(SPARSECORE).path)

    @functools.cached_property
    def profile(self) -> Profile:
        """The profile; what cannot be read is printed."""
        name, target, made = (
            one_line(self.kernel.name),
            one_line(self.target),
            self.stored.compilation,
        )
        if self.unreadable:
            raise DumpFormatError(self.unreadable[0])
        bundles = self.read.profile.texts.bundles if self.read is not None else None
        if made is not None and not made.ok and not self.problems and bundles is None:
            raise CannotRunError(
                f"{name} did not compile for {target}, so there is no schedule. For the error: "
                f"pallas-debug show {typed(str(self.kernel.folder))} error -t {target}"
            )
        if self.read is None:
            reasons = "; ".join(missing_lines(made)) if made else ""
            reason = reasons or "it was dumped without"
            raise CannotRunError(f"{name} has no schedule for {target}: {reason}")
        for problem in (*self.problems, *self.read.profile.schedule.problems):
            output.message(problem)
        return self.read.profile

    @property
    def with_bundles(self) -> Profile:
        """The profile, with bundles that can be read."""
        profile = self.profile
        if self.problems and profile.texts.bundles is None:
            name, target = one_line(self.kernel.name), one_line(self.target)
            raise CannotRunError(f"the bundles of {name} for {target} cannot be read; see above")
        return profile


def costed(place: Place) -> list[Costed]:
    """Return the compiled kernels at a place, each on each of its targets."""
    chosen = place.chosen()
    found = [Costed(kernel, kernel.target(name)) for kernel, name in chosen if name is not None]
    if not found:
        place.only().target(place.target)
    return found


def lines_of(item: Costed) -> tuple[LineCost, ...]:
    """Return what the Python lines of a kernel cost."""
    profile = item.with_bundles
    of = f"{one_line(item.kernel.name)} for {one_line(item.target)}"
    if profile.schedule.is_sparse:
        raise CannotRunError(f"the lines of {of} have no known cost; see above")
    if not profile.lines:
        raise UsageError(
            f"the schedule of {of} names no Python line: it was dumped without locations"
        )
    return profile.lines


def title(item: Costed) -> str:
    """Name the target and its cycles, above the costs of lines."""
    profile = item.profile
    total, waiting = plural(len(profile.schedule.bundles), "bundle"), profile.cycles.waiting
    waits = f", of which {waiting} wait for copies" if waiting.value else ""
    cycles = f"{total}, {profile.cycles.total} cycles{waits}"
    return f"{item.target}: {cycles}; share of each line in the cycles"


def notes(item: Costed) -> list[str]:
    """Return on what the costs of lines rest."""
    profile = item.profile
    found = []
    derived = sum(t.origin == "derived" for row in profile.tracing.traces for t in row if t.chain)
    if derived:
        found.append(
            f"{plural(derived, 'instruction')} without a location counted for the line that uses "
            "the result or produced the operands"
        )
    rest = 1 - sum(cost.own_share for cost in profile.lines)
    if rest >= MIN_REST:
        found.append(
            f"{rest:.1%} of the cycles belong to no line: those of the pipeline around the kernel, "
            "and those without a location"
        )
    return found + [f"assumed: {assumption}" for assumption in profile.cycles.assumptions]


def cells(cost: LineCost) -> str:
    """Return a line's cells below `HEAD`."""
    own = f"{cost.own_share:.1%}" if cost.own_share else "-"
    counts = (cost.spills, cost.fills)
    spilled = " ".join(f"{count:5,}" if count else f"{'-':>5}" for count in counts)
    copies = f"{cost.copies:4,}" if cost.copies else "   -"
    return f"{cost.share:7.1%} {own:>7} {cost.bundles:7,} {spilled} {copies}"

"""Content of a report: the kernels of a dump directory, with the findings of its runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pallas_debug.findings.collector import Collector
from pallas_debug.model import Finding, Gap, Hint, PrintRecord, SourceLine
from pallas_debug.store import DumpReader, StoredCompilation, StoredKernel
from pallas_debug.store.layout import clean

_DIGITS = re.compile(r"-[0-9a-f]{8}$")


@dataclass(frozen=True, kw_only=True)
class ReportedTarget:
    """A kernel compiled for a target: a tab of its section.

    Attributes:
      label: name of the target, with `old` after it if another dump is compared with this one.
      kernel: the kernel that was compiled; an old one may have other lines.
    """

    label: str
    kernel: StoredKernel
    stored: StoredCompilation
    is_old: bool = False

    @property
    def is_ok(self) -> bool:
        return self.stored.compilation is not None and self.stored.compilation.ok


@dataclass(kw_only=True)
class Records:
    """What runs recorded about a kernel.

    Attributes:
      judged: engines that judged it in some run.
    """

    collector: Collector = field(default_factory=Collector)
    prints: list[PrintRecord] = field(default_factory=list)
    hints: dict[Hint, None] = field(default_factory=dict)
    gaps: dict[Gap, None] = field(default_factory=dict)
    judged: dict[str, None] = field(default_factory=dict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.collector.findings


@dataclass(frozen=True, kw_only=True)
class ReportedKernel:
    """A kernel of the report.

    Attributes:
      id: of its section in the page.
      targets: each after that of the old dump, if there is one.
      records: of runs; those of engines that did not judge the targets are not among its gaps.
      gone: findings of the old dump that are not found any more.
    """

    id: str
    stored: StoredKernel
    targets: tuple[ReportedTarget, ...] = ()
    records: Records = field(default_factory=Records)
    gone: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        """The kernel's own name, or its folder's name."""
        return self.stored.own_name

    def link(self, source: SourceLine) -> str | None:
        """The address in the page of a line of the kernel's own file."""
        return f"#{self.id}/l{source.line}" if source.file == self.stored.own_file else None

    def target(self, label: str) -> ReportedTarget | None:
        return next((t for t in self.targets if t.label == label), None)

    @property
    def pairs(self) -> list[tuple[ReportedTarget, ReportedTarget]]:
        """Targets to compare: the old with the new, or else the first with each of the others."""
        old = [t for t in self.targets if t.is_old]
        new = [t for t in self.targets if not t.is_old]
        if len(old) == len(new) == 1:
            return [(old[0], new[0])]
        if old:
            return [(a, b) for a in old for b in new if a.stored.target == b.stored.target]
        return [(new[0], other) for other in new[1:]]

    def moved(self, target: ReportedTarget) -> Callable[[SourceLine], SourceLine]:
        """Return a function from lines of the old source to those of this kernel's source.

        A line that the new source no longer has keeps its number, in a file that is called old.
        """
        own, before = self.stored.own_file, target.kernel.own_file
        if target.kernel is self.stored or own is None or before is None:
            return lambda line: line
        from pallas_debug.ir.match import moved_lines  # most reports compare nothing

        lines = moved_lines(target.kernel.source_lines, self.stored.source_lines)

        def moved(line: SourceLine) -> SourceLine:
            if line.file != before:
                return line
            number = lines.get(line.line)
            return replace(
                line, file=own if number else f"{before} (old)", line=number or line.line
            )

        return moved


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Everything that a report shows.

    Attributes:
      elsewhere: findings for kernels that the directory does not contain.
      gone: names of old kernels without a counterpart.
    """

    kernels: tuple[ReportedKernel, ...] = ()
    elsewhere: tuple[Finding, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the targets of all kernels, in order of first occurrence."""
        return tuple(dict.fromkeys(t.label for kernel in self.kernels for t in kernel.targets))


def collect(
    reader: DumpReader,
    kernels: Iterable[StoredKernel],
    targets: Sequence[str] = (),
    before: tuple[DumpReader, Sequence[StoredKernel]] | None = None,
) -> Contents:
    """Collect kernels, compiled for some or all targets, with the records of runs about them."""
    chosen = list(kernels)
    records, elsewhere = _recorded(reader, chosen)
    old = list(before[1]) if before is not None else []
    records_before = _recorded(*before)[0] if before is not None else {}
    pairs, gone = _paired(old, chosen)
    reported = []
    for n, (was, kernel) in enumerate(pairs):
        found = records[kernel.name]
        known = {(finding.kind, finding.operand) for finding in found.findings}
        earlier = records_before[was.name].findings if was is not None else ()
        reported.append(
            ReportedKernel(
                id=f"k{n}",
                stored=kernel,
                targets=_targets(kernel, was, targets),
                records=found,
                gone=tuple(f for f in earlier if (f.kind, f.operand) not in known),
            )
        )
    return Contents(
        kernels=tuple(reported),
        elsewhere=elsewhere.findings,
        gone=tuple(k.own_name for k in gone),
    )


def _recorded(
    reader: DumpReader, kernels: Sequence[StoredKernel]
) -> tuple[dict[str, Records], Records]:
    """Return the records of runs about each kernel, by folder, and those about others."""
    found = {kernel.name: Records() for kernel in kernels}
    elsewhere = Records()
    by_name: dict[str, list[str]] = {}
    for folder in found:
        by_name.setdefault(_DIGITS.sub("", folder), []).append(folder)
    for record in reader.runs():

        def of(kernel: str, digest: str = "", folders: Sequence[str] = record.kernels) -> Records:
            return found.get(_folder_of(kernel, folders, by_name, digest), elsewhere)

        for folder, engines in record.judged.items():
            found.get(folder, elsewhere).judged.update(dict.fromkeys(engines))
        for finding in record.findings:
            of(finding.kernel, finding.digest).collector.add(finding)
        for hint in record.hints:
            of(hint.kernel, hint.digest).hints.setdefault(hint)
        for gap in record.gaps:
            of(gap.kernel, gap.digest).gaps.setdefault(gap)
        for printed in record.prints:
            of(printed.kernel).prints.append(printed)
    for kernel in kernels:
        # A run that ended while the compiler worked knows nothing of what it made later.
        compiled = {c.target for c in kernel.compilations if c.compilation and c.compilation.ok}
        of_kernel = found[kernel.name]
        for engine in compiled:
            of_kernel.judged.pop(engine, None)
        for gap in [gap for gap in of_kernel.gaps if gap.engine in compiled]:
            del of_kernel.gaps[gap]
    return found, elsewhere


def _paired(
    old: list[StoredKernel], new: Sequence[StoredKernel]
) -> tuple[list[tuple[StoredKernel | None, StoredKernel]], list[StoredKernel]]:
    """Pair kernels with their old versions, by folder, by name, or as the only ones.

    Returns:
      The pairs, and the old kernels without a counterpart.
    """
    if len(old) == len(new) == 1:
        return [(old[0], new[0])], []
    pairs: list[tuple[StoredKernel | None, StoredKernel]] = []
    for kernel in new:
        alike = [k for k in old if k.name == kernel.name]
        alike = alike or [k for k in old if k.own_name == kernel.own_name]
        pairs.append((alike[0] if alike else None, kernel))
        old = [k for k in old if k not in alike[:1]]
    return pairs, old


def _targets(
    kernel: StoredKernel, old: StoredKernel | None, wanted: Sequence[str]
) -> tuple[ReportedTarget, ...]:
    found = [
        ReportedTarget(
            label=f"{c.target} old" if of is old else c.target,
            kernel=of,
            stored=c,
            is_old=of is old,
        )
        for of in (old, kernel)
        if of is not None
        for c in of.compilations
        if not wanted or {c.target, c.folder.name} & {*wanted}
    ]
    names = [target.stored.target for target in found]
    return tuple(sorted(found, key=lambda target: names.index(target.stored.target)))


def _folder_of(
    kernel: str, used: Sequence[str], by_name: Mapping[str, Sequence[str]], digest: str = ""
) -> str:
    """Find a kernel's folder by its name: one that the run used, or the only one of that name.

    Args:
      digest: digest of the kernel, which decides between several of that name; empty if unknown.
    """
    known = by_name.get(clean(kernel), ())
    known = [folder for folder in known if folder.endswith(f"-{digest[:8]}")] or known
    found = [folder for folder in known if folder in used] or known
    return found[0] if len(found) == 1 or (found and found[0] in used) else ""

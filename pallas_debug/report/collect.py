"""Content of a report: the kernels of a dump directory, with the findings of its runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pallas_debug.findings.collector import Collector
from pallas_debug.model import Finding, Gap, Hint, PrintRecord
from pallas_debug.store import DumpReader, StoredCompilation, StoredKernel
from pallas_debug.store.layout import clean

_DIGITS = re.compile(r"-[0-9a-f]{8}$")


@dataclass(frozen=True, kw_only=True)
class ReportedKernel:
    """A kernel of the report.

    Attributes:
      id: of its section in the page.
      tests: tests and scripts that used it.
      judged: engines that judged it in some run, without the targets that it was compiled for.
    """

    id: str
    stored: StoredKernel
    compilations: tuple[StoredCompilation, ...] = ()
    findings: tuple[Finding, ...] = ()
    prints: tuple[PrintRecord, ...] = ()
    hints: tuple[Hint, ...] = ()
    gaps: tuple[Gap, ...] = ()
    tests: tuple[str, ...] = ()
    judged: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The kernel's own name, or its folder's name."""
        kernel = self.stored.kernel
        return kernel.name if kernel is not None else self.stored.name

    def compilation(self, target: str) -> StoredCompilation | None:
        return next((c for c in self.compilations if c.target == target), None)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """Everything that a report shows.

    Attributes:
      elsewhere: findings for kernels that the directory does not contain.
    """

    kernels: tuple[ReportedKernel, ...] = ()
    elsewhere: tuple[Finding, ...] = ()
    runs: int = 0

    @property
    def targets(self) -> tuple[str, ...]:
        """Targets of all kernels, in order of first occurrence."""
        found = (c.target for kernel in self.kernels for c in kernel.compilations)
        return tuple(dict.fromkeys(found))


@dataclass
class _Used:
    """Records of runs that concern one kernel."""

    collector: Collector = field(default_factory=Collector)
    prints: list[PrintRecord] = field(default_factory=list)
    hints: dict[Hint, None] = field(default_factory=dict)
    gaps: dict[Gap, None] = field(default_factory=dict)
    tests: dict[str, None] = field(default_factory=dict)
    judged: dict[str, None] = field(default_factory=dict)


def collect(
    reader: DumpReader, kernels: Iterable[StoredKernel], targets: Sequence[str] = ()
) -> Contents:
    """Collect kernels, compiled for some or all targets, with the records of runs about them."""
    chosen = list(kernels)
    used: dict[str, _Used] = {kernel.name: _Used() for kernel in chosen}
    compiled = {k.name: {c.target for c in k.compilations if _is_compiled(c)} for k in chosen}
    by_name: dict[str, list[str]] = {}
    for folder in used:
        by_name.setdefault(_DIGITS.sub("", folder), []).append(folder)
    elsewhere = Collector()
    runs = 0
    for record in reader.iter_runs():
        runs += 1
        for folder in record.kernels:
            if folder in used:
                used[folder].tests.setdefault(record.name)
        for folder, engines in record.judged.items():
            if folder in used:
                used[folder].judged.update(dict.fromkeys(engines))
        for finding in record.findings:
            folder = _folder_of(finding.kernel, record.kernels, by_name, finding.digest)
            (used[folder].collector if folder in used else elsewhere).add(finding)
        for hint in record.hints:
            folder = _folder_of(hint.kernel, record.kernels, by_name, hint.digest)
            if folder in used:
                used[folder].hints.setdefault(hint)
        for printed in record.prints:
            folder = _folder_of(printed.kernel, record.kernels, by_name)
            if folder in used:
                used[folder].prints.append(printed)
        for gap in record.gaps:
            folder = _folder_of(gap.kernel, record.kernels, by_name, gap.digest)
            # A run that ended while the compiler worked knows nothing of what it made later.
            if folder in used and gap.engine not in compiled[folder]:
                used[folder].gaps.setdefault(gap)
    found = [
        ReportedKernel(
            id=f"k{number}",
            stored=kernel,
            compilations=_chosen(kernel.compilations, targets),
            findings=used[kernel.name].collector.findings,
            prints=tuple(used[kernel.name].prints),
            hints=tuple(used[kernel.name].hints),
            gaps=tuple(used[kernel.name].gaps),
            tests=tuple(used[kernel.name].tests),
            judged=tuple(e for e in used[kernel.name].judged if e not in compiled[kernel.name]),
        )
        for number, kernel in enumerate(chosen)
    ]
    return Contents(kernels=tuple(found), elsewhere=elsewhere.findings, runs=runs)


def own_file(stored: StoredKernel) -> str | None:
    """The file of the kernel function."""
    of = stored.kernel
    return of.source.file if of is not None and of.source is not None else None


def _is_compiled(stored: StoredCompilation) -> bool:
    return stored.compilation is not None and stored.compilation.ok


def _chosen(
    compilations: Iterable[StoredCompilation], targets: Sequence[str]
) -> tuple[StoredCompilation, ...]:
    return tuple(c for c in compilations if not targets or {c.target, c.folder.name} & {*targets})


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

"""Fields of the JSON documents that the commands print with `--json`.

Read by the generated reference and by the tests, which compare the documents with it. The commands
themselves do not import it. Every document also has `schema`: `pallas-debug/`, the command, and the
version in `output.SCHEMAS`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pallas_debug.cli.profile_schemas import (
    DiffStatsDocument,
    LineBundle,
    StatsDocument,
    TimelineDocument,
)
from pallas_debug.model import Compilation, Dump, Failure, Finding, Kernel, Target
from pallas_debug.profile.lines import LineCost
from pallas_debug.sweeps.result import SettingResult
from pallas_debug.verdict.result import Outcome, Suppressed


@dataclass(frozen=True, kw_only=True)
class DumpDocument:
    """Output of `dump --json`: the kernels in the order of their first lowering."""

    dumps: tuple[Dump, ...]


@dataclass(frozen=True, kw_only=True)
class VerifyDocument:
    """Output of `verify --json`: the verdict.

    Attributes:
      ok: whether everything requested was judged, and nothing was found.
      name: of what was verified.
      kernels: names in order of first lowering.
      outcomes: one for every kernel, engine and target requested.
      findings: worst first, each fault once.
      suppressed: findings that match a suppression.
      problems: requested work that failed outside the outcomes.
      notes: general remarks, such as that arguments were made up.
      versions: of jax, jaxlib and libtpu.
      reference: name of the function that the results were compared with; null if there was none.
    """

    ok: bool
    name: str
    kernels: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    findings: tuple[Finding, ...]
    suppressed: tuple[Suppressed, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    versions: dict[str, str]
    reference: str | None


@dataclass(frozen=True, kw_only=True)
class SweepDocument:
    """Output of `sweep --json`.

    Attributes:
      ok: whether every setting was tried, and one compiled for each target.
      name: of the function.
      results: by target, best first; settings that did not compile come last.
      unfinished: settings without a result, because the sweep was stopped.
      problems: what went wrong outside the settings.
      seconds: from start to end.
      verdict: of the best setting with `--check`, as `verify --json` prints it; else null.
    """

    ok: bool
    name: str
    targets: tuple[str, ...]
    results: tuple[SettingResult, ...]
    unfinished: tuple[dict[str, str], ...]
    problems: tuple[str, ...]
    seconds: float
    verdict: VerifyDocument | None


@dataclass(frozen=True, kw_only=True)
class ListedCompilation:
    """A kernel compiled for a target.

    Attributes:
      folder: where its files are.
      problem: why it cannot be read; then `compilation` is null.
    """

    target: str
    folder: str
    problem: str | None
    compilation: Compilation | None


@dataclass(frozen=True, kw_only=True)
class ListedKernel:
    """A kernel of a dump directory.

    Attributes:
      name: of its folder; `kernel.name` is the kernel's own.
      folder: where its files are.
      kernel: null if it cannot be read, and in raw dumps.
      problem: why it cannot be read.
    """

    name: str
    folder: str
    kernel: Kernel | None
    problem: str | None
    compilations: tuple[ListedCompilation, ...]


@dataclass(frozen=True, kw_only=True)
class LsDocument:
    """Output of `ls --json`; a compilation lists its passes."""

    kernels: tuple[ListedKernel, ...]


@dataclass(frozen=True, kw_only=True)
class ShowDocument:
    """Output of `show --json`.

    Attributes:
      kernel: name of its folder.
      target: null for a text that is the same for every target.
      stage: as it was requested.
    """

    kernel: str
    target: str | None
    stage: str
    text: str


@dataclass(frozen=True, kw_only=True)
class TextName:
    """Name of a text: a stage or pass of a kernel, for a target."""

    kernel: str
    target: str | None
    stage: str


@dataclass(frozen=True, kw_only=True)
class OperationCounts:
    """Number of operations of one name in the two texts."""

    before: int
    after: int


@dataclass(frozen=True, kw_only=True)
class NumberedLine:
    """A line of a text; the first has number 1."""

    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class ChangedLines:
    """Lines of a hunk.

    Attributes:
      tag: `equal`, `replace`, `delete` or `insert`.
    """

    tag: str
    old: tuple[NumberedLine, ...]
    new: tuple[NumberedLine, ...]


@dataclass(frozen=True, kw_only=True)
class DiffDocument:
    """Output of `diff --json`.

    Attributes:
      removed, added: numbers of lines.
      operations: those whose number changed, by name.
      hunks: changes with lines of context; empty with `--summary`.
    """

    old: TextName
    new: TextName
    changed: bool
    removed: int
    added: int
    operations: dict[str, OperationCounts]
    hunks: tuple[tuple[ChangedLines, ...], ...]


@dataclass(frozen=True, kw_only=True)
class GrepMatch:
    """A matching line.

    Attributes:
      line, column: of the match, from 1.
      text: the line, or the part of a long one around the match.
      cut: whether it is such a part.
    """

    kernel: str
    target: str | None
    stage: str
    path: str
    line: int
    column: int
    text: str
    cut: bool


@dataclass(frozen=True, kw_only=True)
class GrepText:
    """A text with matching lines; `count` is null with `--files`."""

    kernel: str
    target: str | None
    stage: str
    path: str
    count: int | None


@dataclass(frozen=True, kw_only=True)
class GrepDocument:
    """Output of `grep --json`; `texts` in place of `matches` with `--count` and `--files`."""

    matches: tuple[GrepMatch, ...]
    texts: tuple[GrepText, ...]


@dataclass(frozen=True, kw_only=True)
class SourceLineCounts:
    """A Python line and the numbers of operations that come from it, by name.

    Attributes:
      text: null for a line of another file than the kernel's.
    """

    file: str
    line: int
    text: str | None
    operations: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class LineOperation:
    """An operation that comes from the requested line, at `line` of its text."""

    line: int
    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class LineOperations:
    """Operations in one stage or pass."""

    kernel: str
    target: str | None
    stage: str
    operations: tuple[LineOperation, ...]


@dataclass(frozen=True, kw_only=True)
class SourceDocument:
    """Output of `source --json`.

    Attributes:
      stage: null with `--line`, unless a pass was named; `bundles` with `--cost`.
      file: the kernel's own, as the compiler names it.
      lines: without `--line` and `--cost`.
      texts: with `--line`, without `--cost`.
      costs: with `--cost`, most expensive line first.
      bundles: with `--cost` and `--line`.
    """

    kernel: str
    target: str | None
    stage: str | None
    file: str | None
    lines: tuple[SourceLineCounts, ...]
    texts: tuple[LineOperations, ...]
    costs: tuple[LineCost, ...]
    bundles: tuple[LineBundle, ...]


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """An entry of the catalogue of explanations."""

    entry: str
    code: str | None
    title: str
    cause: str
    advice: str
    versions: str
    targets: tuple[str, ...]
    kinds: tuple[str, ...]
    links: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ExplainedError:
    """An error, and what the catalogue says of it.

    Attributes:
      entry: id of the entry; null, as the fields up to `versions`, if none recognises the error.
      code: XLA's code, such as `E1001`.
      targets: chips that the entry is about; empty for all.
      kinds: kinds of findings that are explained by it.
      details: facts of this error: allocations, blocks that would fit.
      kernel: its name, if known.
      folder, target, failure: of a failed compilation in a dump.
      count, at, workers: how often a log has it, in which lines, from which hosts.
      text: the error itself; null for an entry that was named.
    """

    entry: str | None
    code: str | None
    title: str | None
    cause: str | None
    advice: str | None
    versions: str | None
    targets: tuple[str, ...]
    kinds: tuple[str, ...]
    links: tuple[str, ...]
    details: tuple[str, ...]
    kernel: str | None
    folder: str | None
    target: str | None
    failure: Failure | None
    count: int
    at: tuple[int, ...]
    workers: tuple[str, ...]
    text: str | None


@dataclass(frozen=True, kw_only=True)
class ExplainAnswer:
    """Answer for one argument.

    Attributes:
      what: the argument.
      known: whether something was recognised.
      lines, others: of a log: its number of lines, and of errors of something else.
      layouts: of a Mosaic vector layout: what it says.
    """

    what: str
    known: bool
    errors: tuple[ExplainedError, ...]
    lines: int | None
    others: int | None
    layouts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ExplainDocument:
    """Output of `explain --json`; `entries` in place of `answers` with `--list`."""

    answers: tuple[ExplainAnswer, ...]
    entries: tuple[CatalogueEntry, ...]


@dataclass(frozen=True, kw_only=True)
class TargetsDocument:
    """Output of `targets --json`."""

    targets: tuple[Target, ...]


@dataclass(frozen=True, kw_only=True)
class ListedSpec:
    """A named set of arguments of a bundled kernel, as `--arg` takes them."""

    name: str
    tags: tuple[str, ...]
    args: tuple[str, ...]
    kwargs: dict[str, bool | int | float | str | None]
    not_on: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ListedOperation:
    """A bundled kernel."""

    name: str
    summary: str
    specs: tuple[ListedSpec, ...]


@dataclass(frozen=True, kw_only=True)
class ListedBroken:
    """A bundled kernel with a fault, at a line of a file."""

    name: str
    summary: str
    fault: str
    file: str
    line: int
    args: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class KernelsDocument:
    """Output of `kernels --json`."""

    kernels: tuple[ListedOperation, ...]
    broken: tuple[ListedBroken, ...]


@dataclass(frozen=True, kw_only=True)
class ListedCheck:
    """A check of this machine.

    Attributes:
      state: `ok`, `warning` or `failed`.
      remedy: what to do about it.
      patches: what pallas-debug replaces in jax, and the check covers.
    """

    name: str
    state: str
    detail: str
    remedy: str | None
    patches: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DoctorDocument:
    """Output of `doctor --json`."""

    checks: tuple[ListedCheck, ...]


DOCUMENTS: dict[str, type] = {
    "diff": DiffDocument,
    "diff-stats": DiffStatsDocument,
    "doctor": DoctorDocument,
    "dump": DumpDocument,
    "explain": ExplainDocument,
    "grep": GrepDocument,
    "kernels": KernelsDocument,
    "ls": LsDocument,
    "show": ShowDocument,
    "source": SourceDocument,
    "stats": StatsDocument,
    "sweep": SweepDocument,
    "targets": TargetsDocument,
    "timeline": TimelineDocument,
    "verify": VerifyDocument,
}
"""The document of each command that takes `--json`."""

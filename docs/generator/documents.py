"""Fields of the JSON documents that the commands print with `--json`.

The tests compare the commands' output with them. Every document also has `schema`: `pallas-debug/`,
the command, and the version in `output.SCHEMA`.
"""

from __future__ import annotations

from dataclasses import dataclass

from generator.profile_documents import (
    DiffStatsDocument,
    StatsDocument,
    TimelineDocument,
)
from pallas_debug.model import Compilation, Dump, Explanation, Finding, Hint, Kernel, Target
from pallas_debug.profile.lines import LineCost
from pallas_debug.sweeps.predict import Prediction
from pallas_debug.sweeps.result import SettingResult
from pallas_debug.verdict.result import Outcome, Suppressed


@dataclass(frozen=True, kw_only=True)
class DumpDocument:
    """Output of `dump --json`.

    Attributes:
      dumps: the kernels, in the order of their first lowering.
      findings: what the interpreters of a script's kernels found; empty for a function, which is
        only traced.
    """

    dumps: tuple[Dump, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class VerifyDocument:
    """Output of `verify --json`: the verdict.

    Attributes:
      ok: whether everything requested was judged, and nothing was found.
      name: name of the function, script or module that was verified.
      kernels: names in order of first lowering.
      outcomes: one for every kernel, engine and target requested.
      findings: worst first, each fault once.
      hints: what looks unintended, but fails nothing.
      suppressed: findings that match a suppression.
      problems: other requested work that failed.
      notes: general remarks, such as that arguments were made up.
      versions: versions of jax, jaxlib and libtpu.
      reference: name of the function that the results were compared with; null if there was none.
    """

    ok: bool
    name: str
    kernels: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    findings: tuple[Finding, ...]
    hints: tuple[Hint, ...]
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
      name: name of the function.
      results: results by target, best first; settings that did not compile come last.
      unfinished: settings without a result, because the sweep was stopped.
      problems: problems that do not belong to a setting.
      seconds: duration of the sweep.
      predictions: with `--predict`, the simulated cycles of all settings, by target, best first.
    """

    ok: bool
    name: str
    targets: tuple[str, ...]
    results: tuple[SettingResult, ...]
    unfinished: tuple[dict[str, str], ...]
    problems: tuple[str, ...]
    seconds: float
    predictions: tuple[Prediction, ...]


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
      name: name of its folder; `kernel.name` is the kernel's own name.
      folder: where its files are.
      kernel: the kernel; null if it cannot be read, and in raw dumps.
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
      kernel: name of the kernel's folder.
      target: the target; null for a text that is the same for every target.
      stage: the stage, as it was requested.
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
class DiffedTexts:
    """The difference between two texts.

    Attributes:
      removed, added: numbers of lines.
      operations: operations whose number changed, by name.
      lines: a unified diff; empty with `--summary`.
    """

    old: TextName
    new: TextName
    changed: bool
    removed: int
    added: int
    operations: dict[str, OperationCounts]
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DiffDocument:
    """Output of `diff --json`; several for kernels of two dumps."""

    diffs: tuple[DiffedTexts, ...]


@dataclass(frozen=True, kw_only=True)
class GrepMatch:
    """A matching line.

    Attributes:
      line, column: position of the match, from 1.
      text: the line, or for a long line the part around the match.
      cut: whether `text` is only a part of the line.
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
class GrepDocument:
    """Output of `grep --json`."""

    matches: tuple[GrepMatch, ...]


@dataclass(frozen=True, kw_only=True)
class SourceLineCounts:
    """A Python line, with the number of operations that come from it, by name.

    Attributes:
      text: text of the line; null if it is not in the kernel's file.
    """

    file: str
    line: int
    text: str | None
    operations: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class AnnotatedSource:
    """What comes from the lines of a kernel for a target.

    Attributes:
      stage: `bundles` with `--cost`.
      file: the kernel's own file, as the compiler names it.
      lines: present without `--cost`.
      costs: present with `--cost`, most expensive line first.
    """

    kernel: str
    target: str | None
    stage: str | None
    file: str | None
    lines: tuple[SourceLineCounts, ...]
    costs: tuple[LineCost, ...]


@dataclass(frozen=True, kw_only=True)
class SourceDocument:
    """Output of `source --json`: for each kernel and target."""

    sources: tuple[AnnotatedSource, ...]


@dataclass(frozen=True, kw_only=True)
class ExplainedError:
    """An error, with its explanation from the catalogue.

    Attributes:
      explanation: null if no entry matches.
      kernel: name of the kernel, if known.
      folder, target: the failed compilation, for an error in a dump.
      text: the error itself; null if the entry was requested by its id.
      count, at: for a log, the number of occurrences and their lines.
    """

    explanation: Explanation | None
    kernel: str | None
    folder: str | None
    target: str | None
    text: str | None
    count: int
    at: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ExplainAnswer:
    """Answer for one argument.

    Attributes:
      what: the argument.
      known: whether something was recognised.
      lines, others: for a log, its number of lines, and the number of unrelated errors.
    """

    what: str
    known: bool
    errors: tuple[ExplainedError, ...]
    lines: int | None
    others: int | None


@dataclass(frozen=True, kw_only=True)
class ExplainDocument:
    """Output of `explain --json`; `entries` in place of `answers` with `--list`."""

    answers: tuple[ExplainAnswer, ...]
    entries: tuple[Explanation, ...]


@dataclass(frozen=True, kw_only=True)
class TargetsDocument:
    """Output of `doctor --targets --json`."""

    targets: tuple[Target, ...]


@dataclass(frozen=True, kw_only=True)
class ListedCheck:
    """A check of this machine.

    Attributes:
      state: `ok`, `warning` or `failed`.
      remedy: what to do about a problem.
      patches: replacements in jax that the check covers.
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
    "doctor-targets": TargetsDocument,
    "dump": DumpDocument,
    "explain": ExplainDocument,
    "grep": GrepDocument,
    "ls": LsDocument,
    "show": ShowDocument,
    "source": SourceDocument,
    "stats": StatsDocument,
    "sweep": SweepDocument,
    "timeline": TimelineDocument,
    "verify": VerifyDocument,
}
"""JSON document of each command that accepts `--json`."""

"""Verifier results: what each engine did with each kernel, and the findings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from pallas_debug.model import Finding, Gap, Hint, Kernel
from pallas_debug.render import one_line

_OfKernel = TypeVar("_OfKernel", Finding, Gap, Hint)

Engine = Literal["trace", "static", "compile", "machine", "values"]
"""`trace`: jax traces the call. `static`: static analysis. `compile`: jax's lowering and libtpu,
for one target. `machine`: the kernel machine's sanitizer. `values`: comparison of the function's
results with those of a reference."""

ENGINES: tuple[Engine, ...] = ("trace", "static", "compile", "machine", "values")
"""All engines, in the order in which they run and are listed."""

Status = Literal["ok", "found", "skipped", "unsupported", "unjudged"]
"""`ok`: nothing was found. `found`: something was found. `skipped`: the function does not call the
kernel for that chip. `unsupported`: the engine does not support such kernels or programs.
`unjudged`: the
engine should have judged the kernel, but did not."""

JUDGED: frozenset[Status] = frozenset({"ok", "found"})
"""Statuses of kernels that the engine judged."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of one engine on one kernel.

    Attributes:
      kernel: its name; empty if the outcome is about the whole function, such as a failed trace.
      digest: distinguishes kernels of the same name; empty for a kernel that was not captured.
      target: chip compiled for; None for engines without a target.
      reason: why the kernel was not judged.
      gaps: parts that were not judged although the engine ran.
      points: number of grid points that were judged, and of all, if the budget left some out.
    """

    kernel: str
    engine: Engine
    status: Status
    digest: str = ""
    target: str | None = None
    reason: str | None = None
    gaps: tuple[Gap, ...] = ()
    points: tuple[int, int] | None = None

    @property
    def column(self) -> str:
        """Heading of its column in the table."""
        return self.target or self.engine

    @property
    def all_gaps(self) -> tuple[Gap, ...]:
        """Gap for the judgement if it was not made, and gaps for the parts left out of it."""
        if self.status not in ("unjudged", "unsupported"):
            return self.gaps
        reason, is_limit = self.reason or self.status, self.status == "unsupported"
        return (self._gap(reason, is_limit=is_limit), *self.gaps)

    def without(self, *left_out: Gap | str) -> Outcome:
        """Add the parts that were left out of the judgement: gaps, or reasons for partial gaps."""
        gaps = [
            replace(one, kernel=self.kernel, digest=self.digest, engine=self.column)
            if isinstance(one, Gap)
            else self._gap(one, is_limit=True, is_partial=True)
            for one in left_out
        ]
        return replace(self, gaps=tuple(dict.fromkeys((*self.gaps, *gaps))))

    def in_part(self, reason: str, points: tuple[int, int] | None = None) -> Outcome:
        """Add that the budget ended before the rest was judged."""
        gap = self._gap(reason, is_partial=True)
        return replace(self, points=points, gaps=(*self.gaps, gap))

    def _gap(self, reason: str, **how: bool) -> Gap:
        return Gap(kernel=self.kernel, digest=self.digest, engine=self.column, reason=reason, **how)


def outcome_of(
    kernel: Kernel,
    engine: Engine,
    status: Status,
    reason: str | None = None,
    target: str | None = None,
) -> Outcome:
    """Outcome of an engine for a kernel."""
    return Outcome(
        kernel=kernel.name,
        digest=kernel.digest,
        engine=engine,
        status=status,
        reason=reason,
        target=target,
    )


@dataclass(frozen=True, kw_only=True)
class Suppressed:
    """A finding that does not count, with the user's reason."""

    finding: Finding
    reason: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict on the kernels of a function: whether they work, and on which chips.

    Attributes:
      name: name of what was verified.
      kernels: names in order of first lowering; kernels that share a name also have the first
        digits of their digest.
      outcomes: one for every kernel, engine and target requested, without exception.
      findings: worst first; each fault is reported once, however many engines found it. Findings
        that rest on made-up values come last.
      hints: what looks unintended, but fails nothing.
      suppressed: findings that match a suppression.
      problems: other requested work that failed, such as saving the files.
      notes: general remarks: made-up arguments, suppressions that match nothing.
      reference: name of the function with which the results were compared; None if there was none,
        so that no engine judged values.
    """

    name: str
    kernels: tuple[str, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    findings: tuple[Finding, ...] = ()
    hints: tuple[Hint, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    reference: str | None = None

    @property
    def ok(self) -> bool:
        """True if everything requested was judged and no finding counts."""
        return not self.counted and self.complete

    @property
    def counted(self) -> tuple[Finding, ...]:
        """Findings that rest neither on made-up values of arguments nor on another condition."""
        return tuple(finding for finding in self.findings if finding.counts)

    @property
    def complete(self) -> bool:
        """True if everything requested was done."""
        return not self.problems and all(gap.is_limit for gap in self.gaps)

    @property
    def unjudged(self) -> tuple[Outcome, ...]:
        """Judgements that were requested but not made."""
        return tuple(o for o in self.outcomes if o.status == "unjudged")

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Judgements that were not made, or only in part, including those beyond an engine's
        limits.

        Kernels are labelled as in the table: by name, plus digest digits if several share the name.
        """
        return tuple(map(self.labelled, (gap for o in self.outcomes for gap in o.all_gaps)))

    def labelled(self, one: _OfKernel) -> _OfKernel:
        """Replace the name of a kernel with its label in the table."""
        from pallas_debug.verdict.table import labels

        names = labels((o.kernel, o.digest) for o in self.outcomes if o.kernel)
        return replace(one, kernel=names.get((one.kernel, one.digest), one_line(one.kernel)))

    def hints_of(self, finding: Finding) -> tuple[Hint, ...]:
        """Hints on the chain of writers behind a wrong value, nearest first."""
        from pallas_debug.comparison.path import on_path

        return on_path(self.hints, finding)

    def throw(self) -> None:
        """Raise an exception if a finding counts or anything was not judged.

        Raises:
          VerificationFailed: the verdict is not `ok`.
        """
        from pallas_debug.errors import VerificationFailed
        from pallas_debug.verdict.formats.text import verdict_text

        if not self.ok:
            raise VerificationFailed(verdict_text(self), self.findings)

    def __str__(self) -> str:
        from pallas_debug.verdict.formats.text import verdict_text

        return verdict_text(self)

    def __repr__(self) -> str:
        from pallas_debug.verdict.formats.text import last_word

        return f"<Verdict {last_word(self)}>"

    def _repr_html_(self) -> str:
        from pallas_debug.report.markup import tag
        from pallas_debug.report.notebook import checks_html, verdict_mark
        from pallas_debug.verdict.formats import text

        return checks_html(
            verdict_mark(self.ok, text.last_word(self)),
            [self.labelled(finding) for finding in self.findings],
            not_checked=[line.strip() for line in text.not_judged(self)],
            table=tag("pre", text.table(self)),
            title="Not judged",
        )

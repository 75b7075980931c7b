"""What a verification comes to: what each engine did with each kernel, and what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from pallas_debug.model import Finding, Gap

Engine = Literal["trace", "static", "compile", "checks", "races"]
"""Who looks: jax as it traces the call, the static analysis, jax's lowering and libtpu (for one
target), the checks while the kernel is interpreted, TPU interpret mode looking for races."""

ENGINES: tuple[Engine, ...] = ("trace", "static", "compile", "checks", "races")
"""In the order in which they are asked, and listed."""

Status = Literal["ok", "found", "skipped", "unsupported", "unjudged"]
"""Nothing was found; something was; the function does not call the kernel for that chip; the engine
does not know kernels or programs of this kind; it should have judged the kernel, and did not."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one engine did with one kernel.

    Attributes:
      kernel: its name; empty for what concerns the whole function, as a trace that fails.
      digest: tells kernels of one name apart; empty for a kernel that could not be captured.
      target: for which chip; None for engines that know of none.
      reason: why the kernel was not judged.
      notes: what was not judged of it, though the engine ran.
      seconds: what it took, where it is known for this kernel alone.
    """

    kernel: str
    engine: Engine
    status: Status
    digest: str = ""
    target: str | None = None
    reason: str | None = None
    notes: tuple[str, ...] = ()
    seconds: float | None = None

    @property
    def column(self) -> str:
        """Heading of its column in the table."""
        return self.target or self.engine

    @property
    def gap(self) -> Gap:
        """The judgement that was not made, of an outcome that says nothing about its kernel."""
        return Gap(
            kernel=self.kernel,
            engine=self.column,
            reason=self.reason or self.status,
            is_limit=self.status == "unsupported",
        )


@dataclass(frozen=True, kw_only=True)
class Suppressed:
    """A finding that somebody gave a reason not to count."""

    finding: Finding
    reason: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether the kernels of a function work, and on which chips.

    Attributes:
      name: of what was verified.
      kernels: their names, in the order in which they were lowered first; of several that share a
        name, each with the first digits of its digest.
      outcomes: one for each kernel, engine and target that was asked for, without exception.
      findings: what is wrong, the worst first; each fault once, whoever saw it.
      suppressed: what is wrong, and was said not to matter.
      problems: what was asked for and not done besides the outcomes, such as keeping the files.
      notes: what concerns the whole: arguments that were made up, suppressions that fit nothing.
    """

    name: str
    kernels: tuple[str, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    findings: tuple[Finding, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether all that was asked for was judged, and nothing was found."""
        return not self.findings and self.complete

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for was done."""
        return not self.unjudged and not self.problems

    @property
    def unjudged(self) -> tuple[Outcome, ...]:
        """Judgements that were asked for and not made."""
        return tuple(o for o in self.outcomes if o.status == "unjudged")

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Judgements that were not made, the limits of engines included.

        Kernels are called as in the table: by name, and by digest where several share it.
        """
        from pallas_debug.verdict.table import labels

        names = labels((o.kernel, o.digest) for o in self.outcomes if o.kernel)
        return tuple(
            replace(o.gap, kernel=names.get((o.kernel, o.digest), o.kernel))
            for o in self.outcomes
            if o.status in ("unjudged", "unsupported")
        )

    def throw(self) -> None:
        """Raise if anything was found, or was not judged.

        Raises:
          VerificationFailed: the verdict is not `ok`.
        """
        from pallas_debug.errors import VerificationFailed
        from pallas_debug.verdict.text import verdict_text

        if not self.ok:
            raise VerificationFailed(verdict_text(self), self.findings)

    def __str__(self) -> str:
        from pallas_debug.verdict.text import verdict_text

        return verdict_text(self)

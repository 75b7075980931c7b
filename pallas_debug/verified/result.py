"""What a verification comes to: what each engine did with each kernel, and what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pallas_debug.model import Finding

Engine = Literal["trace", "static", "compile", "checks", "races"]
"""Who looks: jax as it traces the call, the static analysis, jax's lowering and libtpu (for one
target), the checks while the kernel is interpreted, TPU interpret mode looking for races."""

ENGINES: tuple[Engine, ...] = ("trace", "static", "compile", "checks", "races")
"""In the order in which they are asked, and listed."""

Status = Literal["ok", "found", "skipped", "unsupported"]
"""It found nothing; something; it was not asked, or stopped; it cannot judge such a kernel."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one engine did with one kernel.

    Attributes:
      kernel: its name; empty for what concerns the whole function, as a trace that fails.
      target: for which chip; None for engines that know of none.
      reason: why it was skipped, or cannot judge.
      notes: what it did not judge, though it ran.
      seconds: what it took, where it is known for this kernel alone.
    """

    kernel: str
    engine: Engine
    status: Status
    target: str | None = None
    reason: str | None = None
    notes: tuple[str, ...] = ()
    seconds: float | None = None

    @property
    def column(self) -> str:
        """The column of the table that it stands in."""
        return self.target or self.engine


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
      kernels: their names, in the order in which they were lowered first.
      findings: what is wrong, the worst first; each fault once, whoever saw it.
      suppressed: what is wrong, and was said not to matter.
      notes: what concerns the whole: arguments that were made up, suppressions that fit nothing.
    """

    name: str
    kernels: tuple[str, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    findings: tuple[Finding, ...] = ()
    suppressed: tuple[Suppressed, ...] = ()
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether nothing was found. What was not looked at is in `gaps`."""
        return not self.findings

    @property
    def gaps(self) -> tuple[Outcome, ...]:
        """Engines that did not judge a kernel, and why."""
        return tuple(o for o in self.outcomes if o.status in ("skipped", "unsupported"))

    def throw(self) -> None:
        """Raise what was found.

        Raises:
          VerificationFailed: something was.
        """
        from pallas_debug.errors import VerificationFailed
        from pallas_debug.verified.text import verdict_text

        if not self.ok:
            raise VerificationFailed(verdict_text(self), self.findings)

    def __str__(self) -> str:
        from pallas_debug.verified.text import verdict_text

        return verdict_text(self)

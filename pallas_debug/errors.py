"""Exceptions that pallas-debug raises deliberately.

Floor 0. Messages name the problem, its location, the values, the likely cause if known, and what to
do. The command line maps them to exit codes (`cli/exits.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pallas_debug.model import Finding


class PallasDebugError(Exception):
    """Base class of all problems that pallas-debug reports."""


class UsageError(PallasDebugError):
    """An invalid request: an unknown name, an argument that does not parse."""


class PatternError(UsageError):
    """Text that is not a regular expression, or not one that can be matched in linear time.

    Attributes:
      reason: the reason, without the text itself.
    """

    def __init__(self, text: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{text!r} is not a valid regular expression: {reason}")


class CannotRunError(PallasDebugError):
    """Valid request that cannot be fulfilled on this machine or in this process."""


class DumpDirectoryError(CannotRunError):
    """Unusable dump directory: missing, a file, not writable, full."""


class LockTimeoutError(CannotRunError):
    """Lock held by another process for longer than the limit; the kernel is not attempted."""


class DumpFormatError(PallasDebugError):
    """Invalid file in a dump directory: truncated, foreign, too new."""


class UnknownTargetError(UsageError):
    """An unknown target."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(known)
        super().__init__(
            f"unknown target {name!r}; the known ones are {', '.join(known)}, "
            "or a full topology name such as v5e:2x4"
        )


class LibtpuError(CannotRunError):
    """TPU compiler not available here."""


class WorkerError(PallasDebugError):
    """Compiler process that could not be started, or sent an invalid reply."""


class IncompatibleJaxError(CannotRunError):
    """Installed jax lacks what `bridge/` hooks into."""


class KernelFault(PallasDebugError):
    """Kernel stopped because of a fault; the text is the finding's."""

    def __init__(self, text: str, finding: Finding | None = None) -> None:
        self.finding = finding
        super().__init__(text)


class InternalError(PallasDebugError):
    """Bug in pallas-debug, caught at one of its boundaries; the user's program is not at fault.

    Attributes:
      boundary: where it was caught: `hook`, `capture`, `lower`, `store`, `summary`, `report` or
        `engine`.
      place: file and line of the innermost frame of pallas-debug, or None.
    """

    def __init__(self, text: str, *, boundary: str = "", place: str | None = None) -> None:
        self.boundary = boundary
        self.place = place
        super().__init__(text)


class PluginError(PallasDebugError):
    """A third-party plugin raised; pallas-debug continued without it."""


class PluginWarning(UserWarning):
    """A third-party plugin is broken; its explanations are missing."""


class ChecksFailed(PallasDebugError):
    """Checks failed in kernels; the text lists all findings."""

    def __init__(self, text: str, findings: Sequence[Finding] = ()) -> None:
        self.findings = tuple(findings)
        super().__init__(text)


class VerificationFailed(PallasDebugError):
    """A kernel has a fault or could not be judged; the text is the whole verdict."""

    def __init__(self, text: str, findings: Sequence[Finding] = ()) -> None:
        self.findings = tuple(findings)
        super().__init__(text)

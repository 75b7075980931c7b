"""Every exception that pallas-debug raises on purpose.

Floor 0. Messages name the problem, its place, the values, the likely cause if known, and what to
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
      reason: why, without the text itself.
    """

    def __init__(self, text: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{text!r} is not a valid regular expression: {reason}")


class CannotRunError(PallasDebugError):
    """A valid request that cannot be met on this machine or in this process."""


class DumpDirectoryError(CannotRunError):
    """A dump directory cannot be used: missing, a file, not writable, full."""


class LockTimeoutError(CannotRunError):
    """Another process holds a lock for longer than the limit: a kernel is not attempted."""


class DumpFormatError(PallasDebugError):
    """A file of a dump directory is invalid: truncated, foreign, too new."""


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
    """The TPU compiler is not available here."""


class WorkerError(PallasDebugError):
    """The compiler's process could not be started, or sent an invalid reply."""


class IncompatibleJaxError(CannotRunError):
    """The installed jax does not have what `bridge/` hooks into."""


class KernelFault(PallasDebugError):
    """A kernel was stopped because of a fault; the text is the finding's."""

    def __init__(self, text: str, finding: Finding | None = None) -> None:
        self.finding = finding
        super().__init__(text)


class InternalError(PallasDebugError):
    """A bug in pallas-debug, caught at one of its boundaries; the user's program is not at fault.

    Attributes:
      boundary: where it was caught: `hook`, `capture`, `lower`, `store`, `summary`, `report` or
        `engine`.
      place: file and line of the innermost frame of pallas-debug, None if there is none.
    """

    def __init__(self, text: str, *, boundary: str = "", place: str | None = None) -> None:
        self.boundary = boundary
        self.place = place
        super().__init__(text)


class PluginError(PallasDebugError):
    """A plugin of another distribution raised; pallas-debug continued without it."""


class ChecksFailed(PallasDebugError):
    """Checks failed in kernels; the text is that of all findings."""

    def __init__(self, text: str, findings: Sequence[Finding] = ()) -> None:
        self.findings = tuple(findings)
        super().__init__(text)


class VerificationFailed(PallasDebugError):
    """A kernel has a fault, or could not be judged; the text is that of the whole verdict."""

    def __init__(self, text: str, findings: Sequence[Finding] = ()) -> None:
        self.findings = tuple(findings)
        super().__init__(text)

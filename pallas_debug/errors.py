"""Exceptions that pallas-debug raises on purpose.

Floor 0. Messages name the problem, its place, the values, the likely cause if known, and what to
do. The command line maps them to exit codes (`cli/exits.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pallas_debug.model import Finding, SourceLine


def meant(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'v5e' or 'v5p'?)` with the names closest to `name`, or no text."""
    import difflib  # costs a millisecond, and is needed only to report an error

    listed = list(dict.fromkeys(known))
    close = difflib.get_close_matches(name, listed, n=3)
    score = {one: difflib.SequenceMatcher(None, one, name).ratio() for one in close}
    best = [one for one in listed if one in score and score[one] == max(score.values())]
    return f" (did you mean {' or '.join(map(repr, best))}?)" if best else ""


class PallasDebugError(Exception):
    """Base class of all problems that pallas-debug reports."""


class UsageError(PallasDebugError):
    """Invalid request: an unknown name, an argument that does not parse."""


class InvalidReference(UsageError):
    """A reference that raises, or whose results cannot be compared with those of the function."""


class PatternError(UsageError):
    """Invalid regular expression, or one that cannot be matched in linear time.

    Attributes:
      reason: why it is invalid, without the text itself.
    """

    def __init__(self, text: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"{text!r} is not a valid regular expression: {reason}")


class KernelNotJudged(PallasDebugError):
    """A kernel that was not judged as requested, or only in part."""


class CannotRunError(PallasDebugError):
    """Valid request that cannot be fulfilled on this machine or in this process."""


class CompiledWithOthersError(CannotRunError):
    """A kernel that compiles only together with others, because it shares semaphores with them."""


class OutOfBudget(CannotRunError):
    """A kernel on the kernel machine that the budget of its program has ended."""


class MachineError(CannotRunError):
    """A kernel that the kernel machine cannot run.

    Attributes:
      where: line of the operation that the machine does not support; None for the whole kernel.
    """

    def __init__(self, text: str, where: SourceLine | None = None) -> None:
        self.where = where
        place = "" if where is None else f", at {where.file}:{where.line}   {where.text or ''}"
        super().__init__(text + place.rstrip())


class JaxAssertionError(CannotRunError, AssertionError):
    """An internal assertion of jax that failed without a message while jax traced a kernel.

    Attributes:
      headline: what failed and where, without its explanation.
      where: innermost line outside jax that led there.
    """

    def __init__(self, text: str, headline: str, where: SourceLine | None = None) -> None:
        self.headline = headline
        self.where = where
        super().__init__(text)


class DumpDirectoryError(CannotRunError):
    """Unusable dump directory: missing, a file, not writable, full."""


class NoDumpsError(DumpDirectoryError, UsageError):
    """The path of a dump directory does not exist, or is a file."""


class ProgramFailed(PallasDebugError):
    """The user's program raised an exception, or exited with a status other than 0."""


class LockTimeoutError(CannotRunError):
    """Another process held a lock longer than the limit, so a kernel was not attempted."""


class DumpFormatError(PallasDebugError):
    """Invalid file in a dump directory: truncated, foreign, too new."""


class UnknownTargetError(UsageError):
    """Unknown target."""

    def __init__(self, name: str, known: Sequence[str], synonym_of: str | None = None) -> None:
        hint = meant(name, known) if synonym_of is None else f" (did you mean {synonym_of!r}?)"
        super().__init__(
            f"unknown target {name!r}{hint}; the known ones are {', '.join(known)}, or a full "
            "topology name such as v5e:2x4 (`pallas-debug doctor --targets` describes them)"
        )


class LibtpuError(CannotRunError):
    """The TPU compiler is not available here."""


class WorkerError(PallasDebugError):
    """The compiler's process failed to start, or sent an invalid reply."""


class MissingJaxError(CannotRunError, ImportError):
    """jax is not installed, or is too old; the message says how to install it."""


class IncompatibleJaxError(CannotRunError):
    """The installed jax does not have what `bridge/` hooks into."""


class KernelFault(PallasDebugError):
    """A kernel was stopped because of a fault; the message is the text of what was found.

    Attributes:
      finding: fault at which the kernel was stopped.
      findings: findings until then, causes before consequences.
    """

    def __init__(
        self, text: str, finding: Finding | None = None, findings: Sequence[Finding] = ()
    ) -> None:
        self.finding = finding
        self.findings = tuple(findings) or ((finding,) if finding is not None else ())
        super().__init__(text)


class InternalError(PallasDebugError):
    """Bug in pallas-debug, caught at one of its boundaries; the user's program is not at fault.

    Attributes:
      boundary: where it was caught: `hook`, `capture`, `lower`, `store`, `summary`, `report` or
        `engine`.
      place: file and line of the innermost frame of pallas-debug; None if there is no such frame.
    """

    def __init__(self, text: str, *, boundary: str = "", place: str | None = None) -> None:
        self.boundary = boundary
        self.place = place
        super().__init__(text)


class PallasDebugWarning(UserWarning):
    """Base class of all warnings of pallas-debug; `filterwarnings` can name it."""


class FaultsFound(PallasDebugError):
    """Base class of errors about faults of kernels.

    Attributes:
      findings: the faults.
    """

    def __init__(self, text: str, findings: Sequence[Finding] = ()) -> None:
        self.findings = tuple(findings)
        super().__init__(text)


class ChecksFailed(FaultsFound):
    """Checks failed in kernels; the text lists all findings."""


class VerificationFailed(FaultsFound):
    """A kernel has a fault, or could not be judged; the text is the whole verdict."""


class ValuesDiffer(FaultsFound):
    """Results differ from those of a reference, or could not be compared; the text says how."""

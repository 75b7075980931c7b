"""Guards at the boundaries: exceptions of pallas-debug never reach the user's program.

Floor 0 by its imports. `guarded` turns an exception of ours into a reported problem; the rest of
the guarded block is skipped, and execution continues after it. `KeyboardInterrupt` and `SystemExit`
propagate, because they come from the user.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pallas_debug.errors import CannotRunError, InternalError, PallasDebugError, UsageError, meant

Boundary = Literal["hook", "capture", "lower", "store", "summary", "report", "engine"]
"""Names of the boundaries: jax calls us (`hook`), a kernel is described (`capture`) or compiled
(`lower`), files are written (`store`), a run ends (`summary`), a finding or print is delivered
(`report`), an engine of `verify` judges (`engine`)."""

_OURS = str(Path(__file__).parent)
_PLUGIN = "/pallas_debug_pytest/"

_EXHAUSTED = {
    errno.ENOSPC: ("the disk is full", "Free some space"),
    errno.EDQUOT: ("the disk quota is used up", "Free some space"),
    errno.EMFILE: ("this process has too many open files", "Raise the limit (ulimit -n)"),
    errno.ENFILE: ("the machine has too many open files", "Stop other programs"),
    errno.ENOMEM: ("the machine is out of memory", "Free some memory"),
}
"""Errors of the machine rather than of pallas-debug: the exhausted resource, and the remedy."""


@contextlib.contextmanager
def guarded(
    boundary: Boundary, doing: str, report: Callable[[PallasDebugError], object]
) -> Iterator[None]:
    """Report an exception raised by the block, and continue after it.

    Args:
      boundary: the boundary being crossed.
      doing: the activity, as a gerund: "capturing kernel `rows`".
      report: called with the problem. If it raises an exception too, the problem is printed
        instead.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001 - any exception of ours
        problem = problem_of(error, boundary, doing)
        try:
            report(problem)
        except Exception:  # noqa: BLE001 - the last resort: there is nowhere left to report to
            with contextlib.suppress(Exception):
                sys.stderr.write(f"pallas-debug: {problem}\n")


def _described(value: object) -> str:
    """Format a value for a message: arrays by shape, as their elements would hide the message."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return repr(value)
    sizes = ",".join(map(str, shape))
    return (
        f"an array of {dtype}[{sizes}], such as its result: pass the function and its arguments "
        "separately, as in (f, x) for f(x)"
    )


def check_function(what: str, function: object) -> None:
    """Check that this is a function.

    Args:
      what: name of the caller that takes the function; begins the message.

    Raises:
      UsageError: it is not.
    """
    if not callable(function):
        raise UsageError(f"{what} takes a function, not {_described(function)}")


def check_arguments(
    what: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    own: Iterable[str] = (),
) -> None:
    """Check that a function can be called with these arguments, as far as its signature says.

    Args:
      what: name of the caller of the function; begins the message.
      own: keyword arguments of `what` itself, which the user may have meant.

    Raises:
      UsageError: the arguments do not fit.
    """
    refusal = refused_call(function, args, kwargs)
    if refusal is None:
        return
    signature, reason = refusal
    name = getattr(function, "__qualname__", type(function).__qualname__)
    words = [word for word in kwargs if word not in signature.parameters]
    hints = [f"{word!r}{near}" for word in words if (near := meant(word, own))]
    of_ours = f". {what} has no argument {', '.join(hints)}" if hints else ""
    raise UsageError(
        f"{what} cannot call {name} with these arguments: {reason}. Its signature: "
        f"{name}{signature}{of_ours}"
    )


def refused_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[inspect.Signature, str] | None:
    """Return a function's signature and why it does not accept these arguments; None if it may."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin may have no signature
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return signature, str(error)
    return None


def problem_of(error: Exception, boundary: Boundary, doing: str) -> PallasDebugError:
    """Convert an exception to a problem: known errors unchanged, others internal or the machine's.

    Args:
      error: the exception.
      boundary: where it was caught.
      doing: the activity, as a gerund.
    """
    if isinstance(error, PallasDebugError):
        return error
    problem = _of_the_machine(error, doing) or _internal(error, boundary, doing)
    problem.__cause__ = error
    return problem


def _of_the_machine(error: Exception, doing: str) -> PallasDebugError | None:
    if isinstance(error, MemoryError):
        number: int | None = errno.ENOMEM
    else:
        number = error.errno if isinstance(error, OSError) else None
    if number not in _EXHAUSTED:
        return None
    what, remedy = _EXHAUSTED[number]
    details = f" ({error})" if str(error) else ""
    return CannotRunError(
        f"{doing} failed: {what}{details}. {remedy} and run it again. "
        "Neither your program nor its kernels are at fault."
    )


def _internal(error: Exception, boundary: Boundary, doing: str) -> InternalError:
    place = _place(error)
    at = f" at {place}" if place else ""
    return InternalError(
        f"internal error in pallas-debug while {doing} "
        f"(please report it: {type(error).__name__}{at}: {_message(error)}). "
        "Your program is not at fault.",
        boundary=boundary,
        place=place,
    )


def _message(error: Exception) -> str:
    try:
        return str(error) or "no message"
    except Exception as raised:  # noqa: BLE001 - an exception may have a broken __str__
        return f"its message cannot be read: {type(raised).__name__}"


def _place(error: Exception) -> str | None:
    """Return our innermost frame, such as `pallas_debug/bridge/capture/capture.py:66`."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file == __file__:
            continue
        if file.startswith(_OURS):
            found = f"pallas_debug{Path(file.removeprefix(_OURS)).as_posix()}:{line}"
        elif _PLUGIN in file:
            found = f"{_PLUGIN[1:]}{file.rpartition(_PLUGIN)[2]}:{line}"
    return found

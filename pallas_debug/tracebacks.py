"""Removal of pallas-debug's frames from users' tracebacks.

Our functions are on the stack between a user's call and the kernel: decorators, and replacements of
jax functions. Their lines do not help with an error in the kernel, so they are removed.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable
from pathlib import Path, PurePath
from types import TracebackType

from pallas_debug.errors import PallasDebugError

KEEP = "PALLAS_TRACEBACK"
"""Environment variable; if not empty, no frame is removed, and internal errors show a traceback."""

_OURS = f"{Path(__file__).parent}{os.sep}"
_PLUGIN = f"{os.sep}pallas_debug_pytest{os.sep}"

_PACKAGES = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib"))
"""Directories of this environment's packages."""

_OF_PACKAGES = frozenset({"site-packages", "dist-packages"})
"""Names of directories of packages, which may belong to another environment on `sys.path`."""


class WithoutOurFrames:
    """Context manager that calls `cut` on an exception raised in its block.

    The frame of the function that contains the `with` statement is removed too, if it is ours.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if error is not None:
            cut(error)


def cut(error: BaseException) -> None:
    """Remove the frames of pallas-debug from the traceback of an exception and of its causes.

    If our own code raised the exception by mistake, its traceback is left unchanged, because a bug
    report needs it. Nothing is removed if the user asked to keep the frames of jax
    (`JAX_TRACEBACK_FILTERING=off`) or of pallas-debug.
    """
    if not is_asked_to_keep():
        remove(error, is_ours)


def is_asked_to_keep() -> bool:
    """Return whether the environment asks to keep all frames."""
    return of_ours() or os.environ.get("JAX_TRACEBACK_FILTERING") == "off"


def of_ours() -> bool:
    """Return whether the environment asks to keep the frames of pallas-debug."""
    return bool(os.environ.get(KEEP))


def is_ours(frame: TracebackType) -> bool:
    file = frame.tb_frame.f_code.co_filename
    if file == "<string>":  # methods that dataclasses make
        return str(frame.tb_frame.f_globals.get("__name__")).startswith(f"{__package__}.")
    return file.startswith(_OURS) or _PLUGIN in file


def is_installed(file: str) -> bool:
    """Return whether a source file is part of an installed package, of any environment."""
    return file.startswith(_PACKAGES) or not _OF_PACKAGES.isdisjoint(PurePath(file).parts)


def remove(
    error: BaseException, is_removed: Callable[[TracebackType], bool], *, is_theirs: bool = False
) -> None:
    """Remove frames from the traceback of an exception and of its causes, in place.

    Args:
      is_theirs: whether the exception is known not to be our mistake, even if our frame is the
        last: jax removes its own frames.
    """
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        this = todo.pop()
        if this is None or id(this) in seen:
            continue
        seen.add(id(this))
        todo += [this.__cause__, this.__context__]
        if is_theirs or not is_our_mistake(this):
            this.__traceback__ = _without(this.__traceback__, is_removed)


def is_our_mistake(error: BaseException) -> bool:
    """Return whether our own code raised an exception that it does not raise on purpose."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and is_ours(frame) and not isinstance(error, PallasDebugError)


def _without(
    frame: TracebackType | None, is_removed: Callable[[TracebackType], bool]
) -> TracebackType | None:
    kept = []
    while frame is not None:
        if not is_removed(frame):
            kept.append(frame)
        frame = frame.tb_next
    following = None
    for this in reversed(kept):
        this.tb_next = following
        following = this
    return following

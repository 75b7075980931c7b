"""Deadline of a command that runs a user's program, which may never return."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from pallas_debug.cli.exits import Exit

_ELSEWHERE = (
    str(Path(__file__).parent.parent) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib", "scripts")),
    "<frozen",
)
"""Beginnings of the paths of files that are not the user's: ours, Python's, and installed ones."""


@contextlib.contextmanager
def deadline(seconds: float | None, stop: Callable[[str], int]) -> Iterator[None]:
    """End this process if the block takes longer; None for no deadline.

    A thread that runs a program of XLA cannot be interrupted, only its process can be ended.

    Args:
      stop: called with the line where the user's program was; returns the exit code.
    """
    if seconds is None:
        yield
        return
    watched, lock, ended = threading.get_ident(), threading.Lock(), threading.Event()

    def watch() -> None:
        ended.wait(seconds)
        with lock:
            if ended.is_set():
                return
            code = int(Exit.CANNOT_RUN)
            try:
                code = stop(_place(sys._current_frames().get(watched)))
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)

    threading.Thread(target=watch, name="pallas-debug deadline", daemon=True).start()
    try:
        yield
    finally:
        with lock:
            ended.set()


def _place(frame: FrameType | None) -> str:
    """Return the innermost line of the user's own code on a stack."""
    while frame is not None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if not file.startswith(_ELSEWHERE):
            text = linecache.getline(file, line).strip()
            return f"{os.path.relpath(file)}:{line}" + (f", `{text}`" if text else "")
        frame = frame.f_back
    return "a place that is not in the user's own code"

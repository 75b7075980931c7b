"""Deadline and SIGTERM handler for commands that run a user's program, which may never return."""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Literal

from pallas_debug import defaults, interrupts, tracebacks
from pallas_debug.cli.exits import Exit

_ELSEWHERE = (
    str(Path(__file__).parent.parent) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "scripts")),
    "<frozen",
)
"""Path prefixes of files that are not the user's: ours, and Python's."""

Cause = Literal["time", "SIGTERM"]
"""Reason for which a process was ended."""


@contextlib.contextmanager
def deadline(
    seconds: float | None, stop: Callable[[str, Cause], int], *, busy: float = defaults.MAX_BUSY
) -> Iterator[None]:
    """End this process if the block takes longer, or on SIGTERM.

    A thread that runs an XLA program cannot be interrupted; only its process can be ended.

    Args:
      seconds: the deadline; if None, only `busy` applies.
      stop: called with the line where the user's program was, and the cause; returns the exit code.
      busy: without a deadline, end the process after this much time and as much CPU time of its
        own, so that neither a wait nor a machine with many cores ends it early.
    """
    watched, lock, ended = threading.get_ident(), threading.Lock(), threading.Event()
    begun = time.process_time()

    def watch() -> None:
        ended.wait(busy if seconds is None else seconds)
        while seconds is None and (left := busy - (time.process_time() - begun)) > 0:
            if ended.wait(max(left, 0.1)):
                return
        end("time")

    def end(cause: Cause) -> None:
        with lock:
            if ended.is_set():
                return
            code = int(Exit.CANNOT_RUN)
            try:
                code = stop(_place(sys._current_frames().get(watched)), cause)
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)

    threading.Thread(target=watch, name="pallas-debug deadline", daemon=True).start()
    try:
        with interrupts.terminating(lambda: end("SIGTERM")):
            yield
    finally:
        with lock:
            ended.set()


def _place(frame: FrameType | None) -> str:
    """Return the innermost line of the user's own code on a stack."""
    while frame is not None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if not file.startswith(_ELSEWHERE) and not tracebacks.is_installed(file):
            text = linecache.getline(file, line).strip()
            return f"{os.path.relpath(file)}:{line}" + (f", `{text}`" if text else "")
        frame = frame.f_back
    return "a place that is not in the user's own code"

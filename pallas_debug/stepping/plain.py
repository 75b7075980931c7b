"""The debugger as a plain prompt, for pipes and dumb terminals."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

from pallas_debug.render import visible
from pallas_debug.stepping.prompt import CommandPrompt
from pallas_debug.stepping.session import StepSession

PROMPT = "(step) "


def interact(session: StepSession, given: TextIO | None = None, out: TextIO | None = None) -> None:
    """Read commands until `quit` or the end of the input.

    Commands that do not come from a terminal are echoed, so that a log is complete.
    """
    given, out = given or sys.stdin, out or sys.stdout
    prompt = CommandPrompt(session)
    is_terminal = given.isatty()
    _print_lines(out, prompt.where())
    while not prompt.is_over:
        out.write(PROMPT)
        out.flush()
        try:
            line = input() if is_terminal and given is sys.stdin else given.readline()
        except (EOFError, KeyboardInterrupt):
            line = ""
        else:
            if is_terminal and given is sys.stdin:
                line += "\n"
        if not line:
            out.write("\n")
            return
        if not is_terminal:
            out.write(line.rstrip("\n") + "\n")
        with _interruptible(session):
            _print_lines(out, prompt.execute(line))


def _print_lines(out: TextIO, lines: list[str]) -> None:
    encoding = getattr(out, "encoding", None) or "utf-8"
    for line in lines:
        out.write(visible(line).encode(encoding, "replace").decode(encoding) + "\n")
    out.flush()


@contextlib.contextmanager
def _interruptible(session: StepSession) -> Iterator[None]:
    """Let ctrl+c stop the run at the line that it has reached."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: session.interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

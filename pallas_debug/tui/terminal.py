"""The terminal itself: whether it has colours, and when it has gone.

Imports no textual.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping

GRACE = 5.0
"""Seconds that the app has to end in once its terminal has gone."""

FEW = 8
"""Colours below which a terminal counts as having none."""


def has_colors(environment: Mapping[str, str]) -> bool:
    """Whether colours are wanted, and whether the terminal has some."""
    if environment.get("NO_COLOR"):
        return False
    import curses

    try:
        curses.setupterm(environment.get("TERM") or "dumb", sys.__stdout__.fileno())  # type: ignore[union-attr]
    except (curses.error, OSError, ValueError):  # one that nobody has described
        return environment.get("TERM", "dumb") != "dumb"
    return curses.tigetnum("colors") >= FEW


def watch(gone: Callable[[], object]) -> threading.Thread:
    """Have something done when the terminal on standard input goes away.

    Textual reads on from a terminal that has gone, as fast as it can, and waits for ever on what
    it writes to one. So what is written goes nowhere from then on; and a process that has not
    ended after `GRACE` is ended.

    Args:
      gone: called in another thread.
    """
    thread = threading.Thread(target=_watch, args=(gone,), name="terminal", daemon=True)
    thread.start()
    return thread


def _watch(gone: Callable[[], object]) -> None:
    fileno = sys.__stdin__.fileno()  # type: ignore[union-attr]
    poll = select.poll()
    poll.register(fileno, 0)  # no more than POLLHUP and POLLERR, which are always told of
    while not any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll()):
        pass
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    gone()
    threading.Event().wait(GRACE)
    os._exit(128 + signal.SIGHUP)

"""An end to regular expressions that would never come to one.

Matching `(a+)+$` takes twice as long for each character more, and no thread helps: it holds the
interpreter. But it looks for signals meanwhile.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooSlow(Exception):
    """What was to be done took longer than it may."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` in what is done within, after so long. Outside of the main thread, never.

    Args:
      seconds: of work; those in which a busy machine does something else do not count.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _too_slow)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlow

"""Model of a dump directory: rows and texts for the panes. Imports no Textual.

`browser` reads kernels, passes and texts; `kernels`, `runs` and `search` turn them into
lists for one pane each; `spot` is the place that the command line asks for.
"""

from __future__ import annotations

import time

SLICE = 0.003
"""Seconds that a worker runs before it yields to the UI thread."""

HOLD = 0.12
"""Seconds after a key during which workers leave the interpreter to the UI thread."""

MAX_LISTED = 10_000
"""Maximum number of hits, findings and prints to list; all are counted."""

DEBOUNCE = 0.1
"""Seconds that the cursor rests on a kernel before workers read more about it."""


class Throttle:
    """Cooperative throttling: a background worker yields to the UI thread.

    Threads share one interpreter, and CPython lets a busy thread keep it for whole milliseconds at
    a time, which would make every key wait several times over.
    """

    _held_until = 0.0

    def __init__(self) -> None:
        self._until = time.monotonic() + SLICE

    @classmethod
    def hold(cls) -> None:
        """Give priority to a key that was just pressed."""
        cls._held_until = time.monotonic() + HOLD

    def rest(self) -> None:
        """Sleep if the slice is over, for at most `HOLD` seconds."""
        now = time.monotonic()
        if now > self._until:
            # Sleeping for 0 seconds still hands the interpreter to a waiting thread.
            time.sleep(max(0.0, min(self._held_until - now, HOLD)))
            self._until = time.monotonic() + SLICE

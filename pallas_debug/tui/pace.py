"""How workers share the interpreter with the screen: they rest often, and more while one types."""

from __future__ import annotations

import time

SLICE = 0.003
"""Seconds that a worker works before it lets the screen have its turn."""

HOLD = 0.12
"""Seconds after a key for which the screen has the interpreter nearly for itself."""

SOON = 0.1
"""Seconds for which something is to be on the screen before more is found out about it."""


class _Keys:
    until = 0.0


def hold() -> None:
    """A key was pressed: what it does goes before what workers do."""
    _Keys.until = time.monotonic() + HOLD


class Pace:
    """Lets a worker rest often enough for keys to be answered."""

    def __init__(self) -> None:
        self._until = time.monotonic() + SLICE

    def rest(self) -> None:
        """Pause, if the slice is over; never for longer than `HOLD`."""
        now = time.monotonic()
        if now > self._until:
            # None at all lets another thread have the interpreter, if it waits for it.
            time.sleep(max(0.0, min(_Keys.until - now, HOLD)))
            self._until = time.monotonic() + SLICE

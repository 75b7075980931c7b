"""Time that XLA takes to compile the programs of a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from pallas_debug.bridge.lowering import compile_time

SHORTEST = 0.05
"""Minimum seconds between two looks at a thread."""


@contextlib.contextmanager
def watching_compiler(limit: float, late: Callable[[float], None]) -> Iterator[list[float]]:
    """Collect the seconds of each compilation by XLA.

    Args:
      limit: seconds after which, and after each multiple of which, this thread is looked at.
      late: called once, in another thread, with the seconds since the block was entered, if XLA is
        then compiling a program of this thread.
    """
    is_over, thread = threading.Event(), threading.get_ident()

    def watch() -> None:
        waited, period = 0.0, max(limit, SHORTEST)
        while not is_over.wait(period):
            waited += period
            if compile_time.is_compiling(thread):
                late(waited)
                return

    watcher = threading.Thread(target=watch, name="pallas-debug compile time", daemon=True)
    with compile_time.measured() as durations:
        watcher.start()
        try:
            yield durations
        finally:
            is_over.set()
            watcher.join()

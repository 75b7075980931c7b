"""Time that XLA takes to compile programs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
"""jax's event at the end of each compilation by XLA."""

_COMPILER = "/jax/_src/compiler.py"
"""End of the path of the file from which jax calls XLA."""


@contextlib.contextmanager
def measured() -> Iterator[list[float]]:
    """Collect the seconds of each compilation by XLA, in any thread."""
    durations: list[float] = []

    def ended(event: str, seconds: float, **_: object) -> None:
        if event == _EVENT:
            durations.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(ended)
    try:
        yield durations
    finally:
        jax.monitoring.unregister_event_duration_listener(ended)


def is_compiling(thread: int) -> bool:
    """Return whether a thread's innermost call from Python is one of XLA's compiler."""
    frame = sys._current_frames().get(thread)
    return frame is not None and frame.f_code.co_filename.endswith(_COMPILER)

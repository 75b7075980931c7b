"""Ctrl+c while XLA runs a program, which Python itself notices too late or not at all.

Python handles a signal in the main thread, between two bytecodes. As long as XLA has that thread,
nothing happens; and where a callback of the program runs in it, XLA turns the `KeyboardInterrupt`
into an error of the program: a test fails of it, and the next one begins. So arrivals are counted
by a thread that Python's own handler wakes through `signal.set_wakeup_fd`: callbacks of ours end
their program when the count has changed, and the caller that gets its error asks `is_cause`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator

AGAIN_AFTER = 0.5
"""Seconds between two ctrl+c of which the second one ends a process; one key press may send two."""

HINT_AFTER = 1.0
"""Seconds after a ctrl+c at which a command that still runs says how to end it."""


class Interrupted(Exception):
    """The end of a program that ctrl+c stops; raised in a callback, where XLA makes it its own.

    It is no `KeyboardInterrupt`, as jax's interpreters pass only an `Exception` on to other cores.
    """


class _Listener:
    """A thread that counts each SIGINT which Python's handler is to turn into an exception.

    Attributes:
      ends: called on the second ctrl+c, which has to end the process.
      hint: called when one has had no effect for a while.
    """

    def __init__(self) -> None:
        self.count = 0
        self.lock = threading.Lock()
        self.ends: Callable[[], object] | None = None
        self.hint: Callable[[], object] | None = None
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        os.set_blocking(self.write, False)
        threading.Thread(target=self._watch, name="pallas-debug ctrl+c", daemon=True).start()

    def drain(self) -> int:
        """Count what has arrived; another thread may do so at the same time."""
        with self.lock, contextlib.suppress(BlockingIOError):
            signals = os.read(self.read, 512)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self.count += signals.count(signal.SIGINT)
        return self.count

    def _watch(self) -> None:
        first: float | None = None
        seen = 0
        while True:
            is_waiting = first is not None and self.hint is not None
            if not select.select([self.read], [], [], HINT_AFTER if is_waiting else None)[0]:
                if self.hint is not None:
                    self.hint()
                self.hint = None
                continue
            if self.drain() == seen:
                continue
            now, seen = time.monotonic(), self.count
            if first is None:
                first = now
            elif now - first >= AGAIN_AFTER and self.ends is not None:
                self.ends()


_listener: _Listener | None = None


def _forget() -> None:
    """In a forked process: there is no thread, and the pipe is the parent's."""
    global _listener
    if _listener is not None:
        _listener = None
        with contextlib.suppress(ValueError):  # not the main thread
            signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def listening(
    *, ends: Callable[[], object] | None = None, hint: Callable[[], object] | None = None
) -> Iterator[None]:
    """Count each ctrl+c in this block.

    Nothing is counted outside of the main thread, nor where somebody else handles SIGINT or has a
    wakeup descriptor, as an event loop does.

    Args:
      ends: called, in another thread, when a second one comes. It has to end the process.
      hint: called, in another thread, when one has had no effect for `HINT_AFTER` seconds.
    """
    global _listener
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    before = signal.set_wakeup_fd(-1)
    if before != -1:
        ours = _listener is not None and before == _listener.write
        signal.set_wakeup_fd(before, warn_on_full_buffer=not ours)
        yield
        return
    listener = _listener = _listener or _Listener()
    listener.ends, listener.hint = ends, hint
    signal.set_wakeup_fd(listener.write, warn_on_full_buffer=False)
    try:
        yield
    finally:
        listener.ends = listener.hint = None
        now = signal.set_wakeup_fd(-1)
        if now not in (-1, listener.write):  # somebody else's, who came later
            signal.set_wakeup_fd(now)


def count() -> int:
    """How often ctrl+c has been pressed so far, as far as the thread knows. Cheap."""
    return 0 if _listener is None else _listener.count


def end_if_since(begin: int) -> None:
    """End the program that calls back if ctrl+c was pressed since `begin`, a `count`.

    Raises:
      Interrupted: it was, and this is not the main thread, where Python raises by itself.
    """
    if (
        _listener is not None
        and _listener.count != begin
        and threading.current_thread() is not threading.main_thread()
    ):
        raise Interrupted("stopped by ctrl+c")


def is_cause(error: BaseException, begin: int) -> bool:
    """Whether an error is what XLA made of a ctrl+c since `begin`, a `count`.

    Args:
      error: what the program raised. Exceptions of the user's own code are not XLA's.
    """
    return (
        _listener is not None
        and type(error).__module__.partition(".")[0] in ("jax", "jaxlib")
        and _listener.drain() != begin
    )

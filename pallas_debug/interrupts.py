"""Handling of ctrl+c and SIGTERM while XLA runs a program.

Python handles signals in the main thread, between two bytecodes: not while XLA runs in that thread.
If a callback of the program runs there, XLA turns the `KeyboardInterrupt` into a `JaxRuntimeError`:
the test fails, and pytest continues with the next test. Therefore a separate thread, which Python's
C handler wakes through `signal.set_wakeup_fd`, counts the signals. Our callbacks abort their
program when the count has changed, and `is_cause` tells callers whether a `JaxRuntimeError` was
caused by ctrl+c. The same thread ends a command on SIGTERM, which a Python handler
could do only after XLA has returned.
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
"""Minimum seconds from the first ctrl+c to one that ends a process; a shell may send two."""


class Interrupted(Exception):
    """Raised in a callback to abort its program after ctrl+c; XLA makes it a `JaxRuntimeError`.

    Not a `KeyboardInterrupt`, because jax's interpreters only forward an `Exception` to other
    cores.
    """


class _Listener:
    """Thread that counts SIGINTs for which Python's default handler is installed.

    Attributes:
      ends: called on the second ctrl+c, to end the process.
      terminates: called on SIGTERM.
    """

    def __init__(self) -> None:
        self.count = 0
        self.terminates: Callable[[], object] | None = None
        self.is_terminated = False
        self.lock = threading.Lock()
        self.ends: Callable[[], object] | None = None
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        os.set_blocking(self.write, False)
        threading.Thread(target=self._watch, name="pallas-debug ctrl+c", daemon=True).start()

    def drain(self) -> int:
        """Count the signals received so far. Thread-safe."""
        with self.lock, contextlib.suppress(BlockingIOError):
            signals = os.read(self.read, 512)
            self.is_terminated |= signal.SIGTERM in signals
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self.count += signals.count(signal.SIGINT)
        return self.count

    def _watch(self) -> None:
        first: float | None = None
        seen = 0
        while True:
            select.select([self.read], [], [])
            count = self.drain()
            if self.is_terminated and self.terminates is not None:
                self.is_terminated = False
                self.terminates()
            if count == seen:
                continue
            now, seen = time.monotonic(), self.count
            if first is None:
                first = now
            elif now - first >= AGAIN_AFTER and self.ends is not None:
                self.ends()


_listener: _Listener | None = None


def _forget() -> None:
    """Drop the listener in a forked process: it has no thread, and the pipe is the parent's."""
    global _listener
    if _listener is not None:
        _listener = None
        with contextlib.suppress(ValueError):  # not the main thread
            signal.set_wakeup_fd(-1)
            if signal.getsignal(signal.SIGTERM) is _wake:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def listening(
    *,
    ends: Callable[[], object] | None = None,
    terminates: Callable[[], object] | None = None,
) -> Iterator[None]:
    """Count each ctrl+c in this block.

    A no-op outside the main thread, and if other code handles SIGINT or has set a wakeup file
    descriptor, as event loops do.

    Args:
      ends: called in another thread on the second ctrl+c, to end the process.
      terminates: called in another thread on SIGTERM, unless other code handles it.
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
    listener.ends, listener.terminates = ends, terminates
    signal.set_wakeup_fd(listener.write, warn_on_full_buffer=False)
    if terminates is not None and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _wake)
    try:
        yield
    finally:
        listener.ends = listener.terminates = None
        with contextlib.suppress(ValueError):  # the block ends in another thread
            now = signal.set_wakeup_fd(-1)
            if now not in (-1, listener.write):  # set by other code in the meantime
                signal.set_wakeup_fd(now)


def _wake(*_: object) -> None:
    """Handle SIGTERM: the existence of a handler makes Python write to the listener's pipe."""


def press() -> None:
    """Send the main thread what ctrl+c sends. It also wakes a thread that waits."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def count() -> int:
    """Number of times that ctrl+c has been pressed. Cheap enough to call in every callback."""
    return 0 if _listener is None else _listener.count


def is_pressed() -> bool:
    """Return whether ctrl+c has been pressed, including signals that no thread has counted yet."""
    return _listener is not None and _listener.drain() > 0


def end_if_since(begin: int) -> None:
    """Abort the program of a callback if ctrl+c was pressed since `count` returned `begin`.

    A no-op in the main thread, where Python raises `KeyboardInterrupt`.

    Raises:
      Interrupted: ctrl+c was pressed.
    """
    if (
        _listener is not None
        and _listener.count != begin
        and threading.current_thread() is not threading.main_thread()
    ):
        raise Interrupted("stopped by ctrl+c")


def is_cause(error: BaseException, begin: int) -> bool:
    """Return whether ctrl+c since `count` returned `begin` caused an error of jax.

    Exceptions of other modules, such as the user's, are never attributed to it.
    """
    return (
        _listener is not None
        and type(error).__module__.partition(".")[0] in ("jax", "jaxlib")
        and _listener.drain() != begin
    )

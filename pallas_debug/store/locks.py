"""File locks between processes, with bounded waits.

A `flock` belongs to an open file: the kernel releases it however the process ends, and it works
between PID namespaces on one kernel. On network file systems without such locks, `LocksUnavailable`
is raised and callers continue without a lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pallas_debug.errors import LockTimeoutError, WorkerError

NOTIFY_AFTER = 2.0
"""Seconds of waiting before it is reported."""

WAIT_MARGIN = 5.0
"""Seconds added to the compilation timeout, because the holder also lowers the kernel and starts a
compiler process."""

_INTERVALS = 0.01, 0.1
"""Seconds between attempts: initial and maximum."""

_UNAVAILABLE = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS})
_HELD = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES})


class LocksUnavailable(OSError):
    """The file system does not support locks."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Options for waiting for a lock.

    Attributes:
      timeout: maximum seconds to wait.
      warn: called with a message after `NOTIFY_AFTER` seconds of waiting.
      stop: set to cancel all waits immediately.
    """

    timeout: float = 120.0 + WAIT_MARGIN
    warn: Callable[[str], None] = field(default=lambda _: None)
    stop: threading.Event = field(default_factory=threading.Event)


def try_lock(opened: int) -> bool:
    """Lock an open file unless another process holds its lock; return whether it succeeded.

    Raises:
      LocksUnavailable: the file system has no locks.
    """
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        if error.errno in _UNAVAILABLE:
            raise LocksUnavailable(error.errno, error.strerror) from error
        raise
    return True


def open_lock(path: Path) -> int:
    """Open a lock file, creating it if needed, and return the descriptor.

    A file created by another user may be read-only, which suffices to lock it.
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:
        return os.open(path, flags | os.O_RDONLY)


@contextlib.contextmanager
def hold(path: Path, task: str, waiting: Waiting) -> Iterator[None]:
    """Hold the lock of a file.

    Args:
      path: the lock file; it is not deleted when the lock is released.
      task: what the lock is held for, as in "compiling softmax for v5e".
      waiting: how long to wait, and the callback for warnings.

    Raises:
      LocksUnavailable: the file system has no locks.
      LockTimeoutError: another process held the lock all the time.
      WorkerError: waiting was stopped.
    """
    opened = open_lock(path)
    try:
        _acquire(opened, path, task, waiting)
        try:
            yield
        finally:
            # Not left to `close`: a process forked meanwhile shares the open file.
            fcntl.flock(opened, fcntl.LOCK_UN)
    finally:
        os.close(opened)


def _acquire(opened: int, path: Path, task: str, waiting: Waiting) -> None:
    began = time.monotonic()
    interval, at_most = _INTERVALS
    is_notified = False
    while not try_lock(opened):
        waited = time.monotonic() - began
        if waited >= waiting.timeout:
            raise LockTimeoutError(
                f"{task} was not attempted: another process holds the lock {path}, and did not "
                f"release it within {waiting.timeout:g} s. Let that process finish, or end it if "
                "it hangs, and run again; or wait longer with --timeout (--pallas-timeout in "
                "pytest)."
            )
        if waited >= NOTIFY_AFTER and not is_notified:
            is_notified = True
            waiting.warn(
                f"{task} waits for another process that holds the same lock, {path}; waiting ends "
                f"after {waiting.timeout:g} s"
            )
        if waiting.stop.wait(min(interval, waiting.timeout - waited)):
            raise WorkerError(f"stopped while it waited for another process: {task}")
        interval = min(at_most, interval * 1.5)
